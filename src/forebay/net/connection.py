"""One HTTP/1.1 connection to an upstream, one exchange at a time.

The connection is its own answer: no object is made for a request or a chunk.  It parses with httptools,
wakes its one waiter when what it waits for is there (`HEAD`, `SOME`, `ALL`), and stops reading from the
socket while the waiter is behind.  It never decides whether to try again: it raises what happened and says,
by the error's class, whether the target can have seen the request.
"""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from typing import Any, Protocol

import httptools

from forebay.core.errors import (
    AnswerTooLarge,
    FirstTokenTimeout,
    IdleTimeout,
    StaleConnection,
    TargetError,
    TotalTimeout,
    UpstreamProtocol,
    UpstreamReset,
)

READ_HIGH_WATER = 256 * 1024  #: bytes held for a slow reader before reading from the socket stops
HEADERS_MAX_BYTES = 64 * 1024  #: an answer's head
TCP_INFO_UNACKED_OFFSET = 24  #: `tcpi_unacked` in `struct tcp_info`

# What the waiter waits for.
NOTHING, SOME, ALL = 0, 1, 2


class Home(Protocol):
    """Where a connection comes from and returns to."""

    name: str
    loop: asyncio.AbstractEventLoop  # asking asyncio for the running loop costs a system call

    def now(self) -> float: ...
    def take_back(self, connection: "Connection") -> None: ...
    def forget(self, connection: "Connection") -> None: ...


class Connection(asyncio.Protocol):
    """An open connection; see the module.  Use: `send`, then `some`/`all`, then `release` or `abort`.

    Attributes (of the current answer):
        status: the HTTP status, 0 before the head has come.
        headers: pairs of bytes, names as sent.
        complete: whether the answer's last byte has been parsed.
        received: body bytes so far.
    """

    __slots__ = (
        "_awaiting", "_bodyless_end", "_chunks", "_desync", "_drained", "_error", "_head_bytes", "_held",
        "_home", "_keep_alive", "_limit", "_parser", "_paused", "_transport", "_waiter", "busy", "complete",
        "content_seen", "first_at", "headers", "idle_from", "idle_s", "last_at", "received",
        "reused", "status", "total_at",
    )  # fmt: skip

    def __init__(self, home: Home) -> None:
        self._home = home
        self._parser: Any = httptools.HttpResponseParser(self)
        self._transport: Any = None
        self._waiter: asyncio.Future[None] | None = None
        self._awaiting = NOTHING
        self._chunks: list[bytes] = []
        self._held = 0
        self._head_bytes = 0
        self._limit = 0
        self._error: TargetError | Exception | None = None
        self._paused = False
        self._drained: asyncio.Future[None] | None = None
        self._keep_alive = True
        self._bodyless_end = True  # no length and not chunked: the body ends with the connection
        self._desync = False
        self.busy = False
        self.reused = False
        self.complete = False
        self.content_seen = False
        self.status = 0
        self.received = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.idle_from = 0.0
        self.first_at: float | None = None
        self.total_at = 0.0
        self.idle_s = 0.0
        self.last_at: float | None = None

    # --- one exchange ---------------------------------------------------------------------------------------

    def send(self, head: bytes, body: bytes, limit: int) -> None:
        """Starts an exchange: writes the request, at most `limit` bytes of answer will be held at once."""
        self._begin(limit)
        if len(body) < 16384:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))

    async def send_stream(self, head: bytes, body: AsyncIterator[bytes], limit: int) -> None:
        """Starts an exchange with a chunked body, written no faster than the target takes it.

        `head` must say `transfer-encoding: chunked`.
        """
        self._begin(limit)
        self._transport.write(head)
        async for piece in body:
            if piece:
                self._transport.writelines((b"%x\r\n" % len(piece), piece, b"\r\n"))
                if self._drained is not None:
                    await self._drained
            if self._error is not None or self.complete:
                return  # answered early, or gone: the reader will see which
        self._transport.write(b"0\r\n\r\n")

    def _begin(self, limit: int) -> None:
        self.busy = True
        self.complete = False
        self.content_seen = False
        self.status = 0
        self.received = 0
        self.headers = []
        self.last_at = None
        self._held = 0
        self._head_bytes = 0
        self._limit = limit
        self._keep_alive = True
        self._bodyless_end = True

    async def some(self) -> bytes:
        """The body bytes that are there, waiting for the first if need be; `b""` only at the end.

        Raises:
            TargetError: a timeout, a reset, a broken answer; what had come before it was given out first.
        """
        while not self._chunks and not self.complete:
            if self._error is not None:
                raise self._error
            await self._wait(SOME)
        return self._take()

    async def all(self) -> bytes:
        """The whole body.

        Raises:
            AnswerTooLarge: more than `limit` bytes came.
            TargetError: a timeout, a reset, a broken answer.
        """
        while not self.complete:
            if self._error is not None:
                raise self._error
            await self._wait(ALL)
        return self._take()

    def _take(self) -> bytes:
        chunks = self._chunks
        if len(chunks) == 1:
            data = chunks[0]
            chunks.clear()
        else:
            data = b"".join(chunks)
            chunks.clear()
        self._held = 0
        if self._paused:
            self._paused = False
            self.last_at = self._home.now()  # the silence was ours
            if self._transport is not None:
                self._transport.resume_reading()
        return data

    async def _wait(self, what: int) -> None:
        self._awaiting = what
        if what == ALL and self._paused:
            self._paused = False
            self._transport.resume_reading()
        self._waiter = waiter = self._home.loop.create_future()
        try:
            await waiter
        finally:
            self._waiter = None
            self._awaiting = NOTHING

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def header(self, name: bytes) -> bytes:
        """The value of an answer's header by its lower-case name, `b""` where it is missing."""
        for key, value in self.headers:
            if len(key) == len(name) and key.lower() == name:
                return value
        return b""

    def release(self) -> None:
        """Ends the exchange: back to the pool if the connection can serve again, closed otherwise."""
        if not self.busy:
            return
        self.busy = False
        if (
            self.complete
            and self._keep_alive
            and self._error is None
            and not self._desync
            and self._transport is not None
            and not self._transport.is_closing()
        ):
            self._chunks.clear()
            self._home.take_back(self)
        else:
            self.abort()

    def abort(self) -> None:
        """Closes at once, which is how an upstream learns that nobody wants the rest."""
        self.busy = False
        if self._transport is not None:
            self._transport.abort()
        self._home.forget(self)

    def fail(self, error: Exception) -> None:
        """Makes the waiter raise `error`; the first error stays."""
        if self._error is None:
            self._error = error
        self._wake()

    def check_deadlines(self, now: float) -> None:
        """Called by the pool's sweep, with the loop's time in seconds."""
        if self.complete:
            return
        if now > self.total_at:
            self.fail(TotalTimeout("the target did not finish in time; raise `timeouts.total_s` if it may"))
        elif self.first_at is not None and not self.content_seen and now > self.first_at:
            self.fail(FirstTokenTimeout("the target sent no content in time"))
        elif self.last_at is not None and not self._paused and now > self.last_at + self.idle_s:
            self.fail(IdleTimeout("the target fell silent in the middle of its answer"))

    def is_stale(self) -> bool:
        """Whether the peer has closed, or sent what nobody asked for, while the connection lay idle."""
        return self._transport is None or self._transport.is_closing() or self._error is not None

    def fileno(self) -> int:
        """The socket's descriptor, -1 when closed."""
        if self._transport is None:
            return -1
        sock = self._transport.get_extra_info("socket")
        return -1 if sock is None else int(sock.fileno())

    # --- asyncio's side -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if not self.busy:
            # An answer that nobody asked for: whoever sent it must not be believed again.
            self._desync = True
            self.abort()
            return
        self.last_at = self._home.now()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._broken("the target tried to switch protocols")
            return
        except httptools.HttpParserError as error:
            self._broken(f"the target's answer is not HTTP/1.1: {error}")
            return
        awaiting = self._awaiting
        if self.complete or (awaiting == SOME and self._chunks):
            self._wake()
        elif awaiting != ALL and self._held > READ_HIGH_WATER and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def _broken(self, message: str) -> None:
        self._desync = True
        if not self.complete:
            self.fail(UpstreamProtocol(message))
        if self._transport is not None:
            self._transport.abort()

    def eof_received(self) -> None:
        if self.busy and not self.complete and self.status == 0 and self.reused and self._has_unacked_bytes():
            # The peer closed before our request reached it, so nobody has worked on it.
            self.fail(StaleConnection("the pooled connection was closed by the target"))

    def connection_lost(self, exc: Exception | None) -> None:
        if self.busy and not self.complete and self._error is None:
            if exc is None and self.status and self._bodyless_end:
                self.complete = True
            elif self.status:
                self.fail(UpstreamReset("the target closed the connection in the middle of its answer"))
            else:
                self.fail(UpstreamReset("the target closed the connection without an answer"))
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        self._transport = None
        self._parser = None  # it holds our methods: a cycle, left to the collector otherwise
        self._wake()
        self._home.forget(self)

    def pause_writing(self) -> None:
        self._drained = self._home.loop.create_future()

    def resume_writing(self) -> None:
        drained, self._drained = self._drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)

    def _has_unacked_bytes(self) -> bool:
        sock = self._transport.get_extra_info("socket")
        if sock is None:
            return False
        try:
            info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 64)
        except OSError:
            return False
        if len(info) < TCP_INFO_UNACKED_OFFSET + 4:
            return False
        return bool(struct.unpack_from("=I", info, TCP_INFO_UNACKED_OFFSET)[0])

    # --- httptools' side ------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self.complete:
            self._desync = True  # a second answer to one request

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.complete:
            return
        size = len(name)
        self._head_bytes += size + len(value)
        if self._head_bytes > HEADERS_MAX_BYTES:
            raise ValueError("header too large")
        if self.status:  # a trailer
            return
        if size == 14:
            if name.lower() == b"content-length":
                self._bodyless_end = False
        elif size == 17 and name.lower() == b"transfer-encoding":
            self._bodyless_end = False
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        if self.complete:
            return
        status = self._parser.get_status_code()
        if status < 200:
            self.headers = []  # informational: the answer is still to come
            self._bodyless_end = True
            return
        self.status = status
        self._keep_alive = self._parser.should_keep_alive()

    def on_body(self, body: bytes) -> None:
        if self.complete:
            return
        self._chunks.append(body)
        size = len(body)
        self.received += size
        self._held += size
        if self._held > self._limit and self._error is None:
            self.fail(AnswerTooLarge(f"the target's answer is larger than {self._limit} bytes"))
            self._transport.abort()

    def on_message_complete(self) -> None:
        if self.status and not self.complete:
            self.complete = True
            self._keep_alive = self._parser.should_keep_alive()
