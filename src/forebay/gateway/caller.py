"""The callers' side of the wire: HTTP/1.1 over asyncio protocols, parsed by httptools.

It lives in the workers' own event loop, so a request crosses no thread, a caller that leaves is seen at once,
a slow one stops us from reading more, and a body is refused before it is held.  It knows nothing of models,
keys or dialects; what it must say by itself (a request that is not HTTP) it says in plain JSON.
"""

import asyncio
from collections import deque
from typing import Any

import httptools

from forebay.gateway.call import Call, Refusal, strip_url
from forebay.gateway.sender import Host, Sender

HEAD_MAX_BYTES = 64 * 1024  #: request line and headers
HEAD_MAX_S = 30.0  #: for a head to arrive, from its first byte
IDLE_MAX_S = 75.0  #: a kept-alive connection without a request
PIPELINE_MAX = 16  #: requests that wait behind the one being served; more are not read
AHEAD_MAX_BYTES = 64 * 1024  #: bodies of those; then no more is read, and one read may come on top
READ_HIGH_WATER = 256 * 1024  #: body bytes held for a handler that has not asked for them
LINGER_MAX_S = 5.0  #: for a caller to notice that its body is not wanted

#: The only headers that anything here reads, by lower-case name.
FRAMING = (b"content-length", b"transfer-encoding")
WANTED = frozenset(
    b"anthropic-beta anthropic-version authorization content-length content-type expect "
    b"inference-header-content-length traceparent tracestate transfer-encoding x-api-key "
    b"x-forebay-batch x-forebay-debug x-forebay-filler x-forebay-session x-forebay-wait".split()
)
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class CallerConnection(Sender, asyncio.Protocol):
    """One caller's connection: requests in order, one served at a time."""

    __slots__ = (
        "_ahead", "_call", "_deaf", "_framed_after", "_framing_bytes", "_headers", "_message_ended",
        "_offered", "_parser", "_paused", "_queue", "_reading", "_serving_queued", "lingering", "on_header",
        "server", "since",
    )  # fmt: skip

    def __init__(self, server: Host) -> None:
        super().__init__(server)
        self.server = server
        self._headers: dict[bytes, bytes] = {}
        # The parser calls this for each header: straight into the dictionary, without a frame of ours.
        self.on_header = self._headers.__setitem__
        self._framing_bytes = 0  # of the request that is being parsed, since body came
        self._framed_after = 0  # so much body
        self._message_ended = False  # since `_framing_bytes` was counted
        self._parser: Any = httptools.HttpRequestParser(self)
        self._reading: Call | None = None  # the request that is being parsed
        self._call: Call | None = None  # the request that is being served
        self._offered: Call | None = None  # a request that offers to switch protocols
        self._queue: deque[Call] = deque()
        self._ahead = 0  # bytes of bodies held for requests in the queue
        self._paused = False
        self._serving_queued = False
        self._deaf = False  # what comes is dropped: it is no HTTP, or the connection is closing
        self.lingering = False  # has its last answer, and may notice
        self.since = server.time  # since when we wait for the caller

    # --- asyncio's side -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self.server.admit(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.server.forget(self)
        self._transport = None
        self._parser = None
        self.wake_sender()
        for call in (self._call, self._reading, *self._queue):
            if call is not None:
                call.leave()
        self._queue.clear()
        self._count_ahead()
        # They hold us: a cycle, left to the collector otherwise.
        self._call = self._reading = self._offered = None

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            self._decline_upgrade(data[offer.args[0] :])
            return
        except httptools.HttpParserError as error:
            self._refuse(400, "bad_request", f"the request is not valid HTTP/1.1: {error}")
            return
        reading = self._reading
        if reading is not None:
            if reading.method and not reading.started:
                self._start_early(reading)
            if not self._deaf:
                self._bound(reading, len(data))

    def _decline_upgrade(self, rest: bytes) -> None:
        """Serves a request that offers to switch protocols as it stands; the connection ends with it.

        The parser takes all behind such a head for the other protocol, so another one reads the body.
        """
        call, self._offered = self._offered, None
        if call is None:
            return
        call.keep_alive = False
        self._note_version(call)
        framing = next((name for name in FRAMING if name in call.headers), None)
        if framing is None:
            self._start(call)
            return
        call.body_done, self._reading = False, call
        self._parser = httptools.HttpRequestParser(_BodyEvents(self))
        head = b"POST / HTTP/1.1\r\n%b: %b\r\n\r\n" % (framing, call.headers[framing])
        self.data_received(head + rest)  # it may refuse a framing that the first parser let pass

    def eof_received(self) -> None:
        """A caller that closes its side has left: it wants no more than what is answered already.

        Else the transport would keep an answer that is not taken, and with it the target, for long.
        """
        if self._call is None and not self._queue:
            self.close()
            return
        if self._waiting:
            self._turn.flush()
        self.abort()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._call is None and not self.lingering:
            self._pause()  # whoever does not take answers can't ask for more of them

    def resume_writing(self) -> None:
        self.wake_sender()
        if self._call is None and not self.lingering:
            self._serve_queued()

    # --- httptools' side ------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._call is not None:
            self._note_version(self._call)
        if self._deaf:
            return  # nor is what came behind in the same read a request
        self._reading = Call(self)
        self.since = self.server.time

    def on_url(self, url: bytes) -> None:
        if self._reading is not None:
            self._reading.path += url.decode("latin-1")

    def on_headers_complete(self) -> None:
        call = self._reading
        if call is None:
            return
        parser = self._parser
        call.method = parser.get_method().decode("latin-1")
        call.keep_alive = parser.should_keep_alive()
        path = call.path
        if "?" in path or path[:1] != "/":
            call.path = strip_url(path)
            call.query = path.partition("?")[2]
        names, headers = self.server.names, call.headers
        for name, value in self._headers.items():
            wanted = names.get(name, b"?")
            if wanted == b"?":
                wanted = self.server.learn_name(name)
            if wanted:
                headers[wanted] = value

    def _start_early(self, call: Call) -> None:
        """Serves a request whose body is still coming: it may be refused before more of it is held."""
        length = call.headers.get(b"content-length")
        call.length = None if length is None else int(length)
        call.started = True
        self._start(call)

    def _bound(self, reading: Call, size: int) -> None:
        """Keeps a request that came in part within its limits; `size` is that of the last read."""
        reading.merge_pieces()
        if self._queue:
            self._count_ahead()
        elif reading.received > READ_HIGH_WATER and reading._waiter is None:
            self._pause()
        # Reads in a row that bring no body are a head, chunk sizes or trailers, which the parser piles up.
        # Of one that brought some, or ended another request, nobody knows what was what: it is not counted.
        if self._message_ended or self._framed_after != reading.received:
            self._message_ended = False
            self._framed_after = reading.received
            self._framing_bytes = 0
            return
        self._framing_bytes += size
        if self._framing_bytes > HEAD_MAX_BYTES:
            self._refuse(
                431, "head_too_large", f"the request has more than {HEAD_MAX_BYTES} bytes of headers"
            )

    def on_body(self, body: bytes) -> None:
        if self._reading is not None:
            self._reading.add_body(body)

    def on_message_complete(self) -> None:
        call, self._reading = self._reading, None
        self._message_ended = True
        self._headers.clear()  # trailers as well, so that they are none of the next request's headers
        if call is None:
            return
        call.end_body()
        if call.started:
            return
        if self._parser.should_upgrade():
            self._offered = call  # its body, if it has one, is still to come
        else:
            self._start(call)

    # --- one request after the other ------------------------------------------------------------------------

    def _start(self, call: Call) -> None:
        if self._call is None and not self._queue and self.drained is None:
            self._serve(call)
            return
        self._note_version(call)
        self._queue.append(call)
        self._count_ahead()

    def _note_version(self, call: Call) -> None:
        """Asks the parser while it still knows: later it speaks of the next request."""
        if not call.version:
            call.version = self._parser.get_http_version()

    def _count_ahead(self) -> None:
        """Counts what is held for requests that wait for their turn, and stops reading where it is much."""
        ahead = sum(call.received for call in self._queue)
        self.memory.held += ahead - self._ahead
        self._ahead = ahead
        if self._is_ahead and not self.lingering:
            self._pause()

    @property
    def _is_ahead(self) -> bool:
        return self._ahead > AHEAD_MAX_BYTES or len(self._queue) >= PIPELINE_MAX

    def _serve(self, call: Call) -> None:
        self._call = call
        rest = self.server.handler(call)
        if rest is not None:
            # The call holds its task, its connection the call, and the server its connections.
            call.task = self.loop.create_task(rest)

    def close(self) -> None:
        self._deaf = True
        super().close()

    def abort(self) -> None:
        self._deaf = True
        super().abort()

    def finish(self, call: Call) -> None:
        """The answer is written: serve the next request, or end."""
        call.done = True
        self._call = None
        self.since = self.server.time
        if not call.body_done:
            self._linger()
            return
        if not call.keep_alive:
            self._queue.clear()
            self._count_ahead()
            self.close()
            return
        if self.drained is not None:
            self._pause()  # as in `pause_writing`
        elif self._queue:
            self._serve_queued()

    def _serve_queued(self) -> None:
        """Serves what waits in a loop, for an answer given at once leads back to `finish` from within it."""
        if self._serving_queued:
            return
        self._serving_queued = True
        while self._queue and self._call is None and self.drained is None:
            following = self._queue.popleft()
            self._count_ahead()
            if isinstance(following, Refusal):
                following.tell()
            else:
                self._serve(following)
        self._serving_queued = False
        if not self._is_ahead and self.drained is None:
            self._resume()

    def _linger(self) -> None:
        """Ends a connection whose caller is still sending a body that nobody wants.

        Closing at once would make the kernel reset the connection, and the answer would be lost with it.
        """
        self._deaf = self.lingering = True
        self._resume()
        self.end_writing()

    def resume_body(self, call: Call) -> None:
        """The handler is ready for the body."""
        if call.headers.pop(b"expect", b"").lower() == b"100-continue" and not call.received:
            self.write_now(_CONTINUE)
        self._resume()

    def _pause(self) -> None:
        if not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def _resume(self) -> None:
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()

    def turn_away(self, *, may_linger: bool) -> None:
        """Refuses a connection that is one too many."""
        self._refuse(503, "too_many_connections", "this gateway serves no more connections now")
        if not may_linger:
            self.close()

    def _refuse(self, status: int, code: str, message: str) -> None:
        """An answer to what could not be parsed; nothing after it can be understood either.

        Requests that came whole before it are answered before it; then the connection ends.
        """
        if self._transport is None or self._deaf:
            return
        self._deaf = True
        broken, self._reading = self._reading, None
        self.since = self.server.time
        if broken is not None:
            broken.leave()
            if self._queue and self._queue[-1] is broken:
                self._queue.pop()
                self._count_ahead()
            if self._call is broken:
                self._call = None
        refusal = Refusal(self, status, code, message)
        if self._call is None and not self._queue:
            refusal.tell()
        else:
            self._queue.append(refusal)

    def speaks_http_1_0(self, call: Call) -> bool:
        return (call.version or self._parser.get_http_version()) == "1.0"

    @property
    def has_next(self) -> bool:
        """Whether a request waits for its turn behind the one that is being served."""
        return bool(self._queue)

    @property
    def is_idle(self) -> bool:
        return self._call is None and not self._queue and (self._reading is None or self.lingering)

    def check_deadline(self, now: float) -> None:
        """Called by the server's sweep: ends connections whose caller keeps us waiting, or has left."""
        if self._paused and self.has_hung_up():
            self.eof_received()
        if self._call is not None:
            return
        if self.lingering:
            self._end_lingering(now)
        elif self._reading is not None and self.drained is None:  # else we do not read, and answers wait
            if now > self.since + HEAD_MAX_S:
                self._refuse(408, "request_timeout", "the request took too long to arrive")
        elif now > self.since + IDLE_MAX_S:
            self._end_idle(now)

    def _end_idle(self, now: float) -> None:
        """Closes, but lets a caller that still takes its answer, however slowly, have all of it."""
        if self.has_taken_some():
            self.since = now
        elif self.unsent_bytes:
            self.abort()
        else:
            self.close()

    def _end_lingering(self, now: float) -> None:
        """Gives the caller time to notice, from when it has taken what it was sent."""
        if self.has_taken_some():
            self.since = now
        elif now > self.since + (IDLE_MAX_S if self.unsent_bytes else LINGER_MAX_S):
            self.abort()


class _BodyEvents:
    """What a parser may tell a connection that wants no more than the rest of a body from it."""

    def __init__(self, connection: CallerConnection) -> None:
        self.on_body = connection.on_body
        self.on_message_complete = connection.on_message_complete
