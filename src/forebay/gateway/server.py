"""The callers' side of the wire: HTTP/1.1 over asyncio protocols, parsed by httptools.

It lives in the workers' own event loop, so a request crosses no thread, a caller that leaves is seen at once,
a slow one stops us from reading more, and a body is refused before it is held.  It knows nothing of models,
keys or dialects; what it must say by itself (a request that is not HTTP) it says in plain JSON.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from functools import partial
from http import HTTPStatus
from typing import Any

import httptools
import msgspec

HEAD_MAX_BYTES = 64 * 1024  #: request line and headers
HEAD_MAX_S = 30.0  #: for a head to arrive, from its first byte
IDLE_MAX_S = 75.0  #: a kept-alive connection without a request
PIPELINE_MAX = 16  #: requests that wait behind the one being served; more are not read
WHOLE_BODY_BYTES = 64 * 1024  #: a body up to this is awaited before its request is served
READ_HIGH_WATER = 256 * 1024  #: body bytes held for a handler that has not asked for them
LINGER_MAX_S = 5.0  #: for a caller to notice that its body is not wanted
SWEEP_S = 1.0

#: The only headers that anything here reads.
WANTED = {
    name: name.decode()
    for name in (
        b"authorization", b"content-length", b"content-type", b"expect", b"traceparent", b"tracestate",
        b"transfer-encoding",
    )
}  # fmt: skip

_STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class CallerGone(Exception):
    """The caller has closed the connection, so nothing can be sent any more."""


Headers = tuple[tuple[str, str], ...] | list[tuple[str, str]]


class Call:
    """One request and its answer.

    Attributes:
        headers: the wanted headers by lower-case name.
        length: the announced size of the body, None where it comes in chunks of unknown number.
        on_left: called once if the caller leaves before the answer is complete.
        grow: asked before each piece of a body of unknown length is held; False refuses it.
    """

    __slots__ = (
        "_body_done", "_chunks", "_connection", "_waiter", "answered", "body_max", "done", "grow",
        "head_bytes", "headers", "keep_alive", "left", "length", "method", "on_left", "path", "received",
        "streaming",
    )  # fmt: skip

    def __init__(self, connection: "CallerConnection") -> None:
        self._connection = connection
        self._chunks: list[bytes] = []
        self._waiter: asyncio.Future[None] | None = None
        self._body_done = False
        self.method = ""
        self.path = ""
        self.headers: dict[str, str] = {}
        self.head_bytes = 0
        self.length: int | None = None
        self.received = 0
        self.keep_alive = True
        self.answered = False
        self.streaming = False
        self.done = False
        self.left = False
        self.on_left: Callable[[], None] | None = None
        self.body_max = 1 << 62  # the handler sets it; until it asks for the body, little is read
        self.grow: Callable[[int], bool] | None = None

    # --- what a handler does --------------------------------------------------------------------------------

    async def body(self) -> bytes:
        """The whole body.  The handler has set `body_max` to what it is ready to hold.

        Raises:
            CallerGone: the caller left before the body was complete.
            BodyOverflow: more than `body_max` bytes came.
        """
        while not self._body_done:
            if self.left:
                raise CallerGone
            if self.received > self.body_max:
                raise BodyOverflow
            self._connection.resume_body(self)
            self._waiter = self._connection.loop.create_future()
            await self._waiter
        if self.received > self.body_max:
            raise BodyOverflow
        chunks, self._chunks = self._chunks, []
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """Sends a whole answer; to a caller that has left it does nothing."""
        if self.answered:
            raise RuntimeError("the answer has been sent already")
        self.answered = True
        if self.left:
            return
        head = self._build_head(status, headers, f"content-length: {len(body)}\r\n")
        if self.method == "HEAD":
            body = b""
        self._connection.write(head, body)
        self._connection.finish(self)

    def begin_stream(self, status: int, headers: Headers) -> None:
        """Sends the head of an answer of unknown length, with the first bytes that `send` is given."""
        self.answered = self.streaming = True
        if not self.left:
            self._connection.held = self._build_head(status, headers, "transfer-encoding: chunked\r\n")

    async def send(self, data: bytes) -> None:
        """Sends a piece of a stream, and waits while the caller is behind.

        Raises:
            CallerGone: the caller has left.
        """
        if self.left:
            raise CallerGone
        connection = self._connection
        connection.write_chunk(data)
        if connection.drained is not None:
            await connection.drained
            if self.left:
                raise CallerGone

    def end_stream(self, data: bytes = b"") -> None:
        """Sends a stream's last piece and its end."""
        if self.left or self.done:
            return
        self._connection.write_end(data)
        self._connection.finish(self)

    def _build_head(self, status: int, headers: Headers, framing: str) -> bytes:
        text = "".join([f"{name}: {value}\r\n" for name, value in headers])
        if not self.keep_alive or self._connection.server.closing:
            text += "connection: close\r\n"
        line = _STATUS_LINES.get(status) or b"HTTP/1.1 %d Unknown\r\n" % status
        return line + f"{framing}{text}{self._connection.server.date}\r\n".encode("latin-1")

    # --- what the connection does ---------------------------------------------------------------------------

    def add_body(self, data: bytes) -> None:
        self.received += len(data)
        if self.grow is not None and not self.grow(len(data)):
            self.body_max = -1
        if self.received <= self.body_max:
            self._chunks.append(data)
        else:
            self._chunks.clear()
        self._wake()

    def end_body(self) -> None:
        self._body_done = True
        self._wake()

    def leave(self) -> None:
        if self.done or self.left:
            return
        self.left = True
        self._wake()
        if self.on_left is not None:
            self.on_left()

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done() and (self._body_done or self.left or self.is_over):
            waiter.set_result(None)

    @property
    def is_over(self) -> bool:
        return self.received > self.body_max


class BodyOverflow(Exception):
    """The body is larger than what the handler is ready to hold."""


Handler = Callable[[Call], Awaitable[None]]


class CallerConnection(asyncio.Protocol):
    """One caller's connection: requests in order, one served at a time."""

    __slots__ = (
        "_call", "_lingering", "_parser", "_paused", "_queue", "_reading", "_since", "_task", "_transport",
        "drained", "held", "loop", "server",
    )  # fmt: skip

    def __init__(self, server: "Server") -> None:
        self.server = server
        self.loop = server.loop
        self.drained: asyncio.Future[None] | None = None
        self.held = b""  #: the head of a stream, which goes out with its first piece
        self._parser: Any = httptools.HttpRequestParser(self)
        self._transport: Any = None
        self._reading: Call | None = None  # the request that is being parsed
        self._call: Call | None = None  # the request that is being served
        self._queue: deque[Call] = deque()
        self._task: asyncio.Task[None] | None = None
        self._paused = False
        self._lingering = False
        self._since = server.time  # since when we wait for the caller

    # --- asyncio's side -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self.server.admit(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.server.forget(self)
        self._transport = None
        self._parser = None
        drained, self.drained = self.drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)
        for call in (self._call, self._reading, *self._queue):
            if call is not None:
                call.leave()
        self._queue.clear()

    def data_received(self, data: bytes) -> None:
        if self._lingering:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # We switch to nothing: the request is served as it stands, and the connection ends with it.
            reading = self._call or self._reading
            if reading is not None:
                reading.keep_alive = False
        except httptools.HttpParserError as error:
            self._refuse(400, "bad_request", f"the request is not valid HTTP/1.1: {error}")

    def eof_received(self) -> None:
        return None  # a caller that closes its side has left

    def pause_writing(self) -> None:
        if self.drained is None:
            self.drained = self.loop.create_future()

    def resume_writing(self) -> None:
        drained, self.drained = self.drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)

    # --- httptools' side ------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._reading = Call(self)
        self._since = self.server.time

    def on_url(self, url: bytes) -> None:
        call = self._reading
        if call is not None:
            call.head_bytes += len(url)
            call.path += url.decode("latin-1")
            if call.head_bytes > HEAD_MAX_BYTES:
                raise ValueError("the URL is too long")

    def on_header(self, name: bytes, value: bytes) -> None:
        call = self._reading
        if call is None:
            return
        call.head_bytes += len(name) + len(value)
        if call.head_bytes > HEAD_MAX_BYTES:
            raise ValueError(f"the head is larger than {HEAD_MAX_BYTES} bytes")
        wanted = WANTED.get(name) or WANTED.get(name.lower())
        if wanted is not None:
            call.headers[wanted] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        call = self._reading
        if call is None:
            return
        parser = self._parser
        call.method = parser.get_method().decode("latin-1")
        call.keep_alive = parser.should_keep_alive()
        path = call.path
        if "?" in path or path[:1] != "/":
            call.path = _strip_url(path)
        headers = call.headers
        length = headers.get("content-length")
        if length is not None:
            call.length = int(length)
        elif "transfer-encoding" not in headers:
            call.length = 0
        if call.length is None or call.length > WHOLE_BODY_BYTES or "expect" in headers:
            self._start(call)

    def on_body(self, body: bytes) -> None:
        call = self._reading
        if call is None:
            return
        call.add_body(body)
        if call.received > READ_HIGH_WATER and call._waiter is None and not self._paused:
            self._pause()

    def on_message_complete(self) -> None:
        call, self._reading = self._reading, None
        if call is None:
            return
        call.end_body()
        if call.length is not None and call.length <= WHOLE_BODY_BYTES and "expect" not in call.headers:
            self._start(call)

    # --- one request after the other ------------------------------------------------------------------------

    def _start(self, call: Call) -> None:
        if self._call is None:
            self._serve(call)
            return
        self._queue.append(call)
        if len(self._queue) >= PIPELINE_MAX:
            self._pause()

    def _serve(self, call: Call) -> None:
        self._call = call
        # The connection holds its task, and the server its connections: nothing runs unseen.
        self._task = self.loop.create_task(self.server.handler(call))  # type: ignore[arg-type]

    def finish(self, call: Call) -> None:
        """The answer is written: serve the next request, or end."""
        call.done = True
        self._call = None
        self._since = self.server.time
        if not call._body_done:
            self._linger()
            return
        if not call.keep_alive or self.server.closing:
            self.close()
            return
        if self._queue:
            following = self._queue.popleft()
            self._resume()
            self._serve(following)

    def _linger(self) -> None:
        """Ends a connection whose caller is still sending a body that nobody wants.

        Closing at once would make the kernel reset the connection, and the answer would be lost with it.
        """
        self._lingering = True
        self._resume()
        if self._transport is not None and self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self.close()

    def resume_body(self, call: Call) -> None:
        """The handler is ready for the body."""
        if call.headers.get("expect", "").lower() == "100-continue" and not call.received:
            call.headers.pop("expect", None)
            self._transport.write(_CONTINUE)
        self._resume()

    def _pause(self) -> None:
        if not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def _resume(self) -> None:
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()

    # --- bytes ----------------------------------------------------------------------------------------------

    def write(self, head: bytes, body: bytes) -> None:
        if len(body) < 16384:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))

    def write_chunk(self, data: bytes) -> None:
        head, self.held = self.held, b""
        self._transport.write(b"%b%x\r\n%b\r\n" % (head, len(data), data))

    def write_end(self, data: bytes) -> None:
        head, self.held = self.held, b""
        last = b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data) if data else b"0\r\n\r\n"
        self._transport.write(head + last)

    def _refuse(self, status: int, code: str, message: str) -> None:
        """An answer to what could not be parsed; nothing after it can be understood either."""
        if self._transport is None:
            return
        if self._call is None:
            call = self._reading or Call(self)
            call.keep_alive = False
            call._body_done = True
            error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
            body = msgspec.json.encode({"error": error})
            call.respond(status, (("content-type", "application/json"),), body)
        self.close()

    def close(self) -> None:
        """Closes once everything written has gone out."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    @property
    def is_idle(self) -> bool:
        return self._call is None and self._reading is None

    def check_deadline(self, now: float) -> None:
        """Called by the server's sweep: ends connections whose caller keeps us waiting."""
        if self._call is not None:
            return
        if self._lingering:
            if now > self._since + LINGER_MAX_S:
                self.abort()
        elif self._reading is not None:
            if now > self._since + HEAD_MAX_S:
                self._refuse(408, "request_timeout", "the request took too long to arrive")
        elif now > self._since + IDLE_MAX_S:
            self.close()


def _strip_url(path: str) -> str:
    """The path alone, also of an absolute URL."""
    if path[:1] != "/":
        _, _, rest = path.partition("://")
        slash = rest.find("/")
        path = rest[slash:] if slash >= 0 else "/"
    return path.partition("?")[0]


class Server:
    """All callers' connections of one worker.

    Args:
        handler: serves one call; must answer it and must not raise.
        connections_max: open connections at a time; more are told so and closed.
    """

    def __init__(self, handler: Handler, connections_max: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.handler = handler
        self.closing = False
        self.time = self.loop.time()
        self.date = _build_date()
        self._connections: set[CallerConnection] = set()
        self._connections_max = connections_max
        self._server: asyncio.Server | None = None
        self._handle: asyncio.TimerHandle | None = None

    async def start(self, listener: socket.socket) -> None:
        """Accepts on a socket that listens already and may be shared with other processes."""
        self._server = await self.loop.create_server(
            partial(CallerConnection, self), sock=listener, backlog=4096
        )
        self._sweep()

    def admit(self, connection: CallerConnection) -> None:
        self._connections.add(connection)
        if len(self._connections) > self._connections_max:
            connection._refuse(503, "too_many_connections", "this gateway serves no more connections now")

    def forget(self, connection: CallerConnection) -> None:
        self._connections.discard(connection)

    @property
    def connections(self) -> int:
        return len(self._connections)

    def _sweep(self) -> None:
        self.time = now = self.loop.time()
        self.date = _build_date()
        for connection in tuple(self._connections):
            connection.check_deadline(now)
        self._handle = self.loop.call_later(SWEEP_S, self._sweep)

    def stop_accepting(self) -> None:
        """Takes no new connection, closes the idle ones, and every other with its current answer."""
        self.closing = True
        if self._server is not None:
            self._server.close()
        for connection in tuple(self._connections):
            if connection.is_idle:
                connection.close()

    def close(self) -> None:
        self.stop_accepting()
        if self._handle is not None:
            self._handle.cancel()
        for connection in tuple(self._connections):
            connection.abort()


def _build_date() -> str:
    return f"date: {formatdate(usegmt=True)}\r\n"
