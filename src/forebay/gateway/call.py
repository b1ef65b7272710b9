"""One request of a caller and its answer, as a handler sees them.

A handler asks for the body when it is ready to hold it, and answers once: whole, or as a stream that waits
while the caller is behind.  How the bytes travel is `caller`'s.
"""

import asyncio
from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Any, Protocol

import msgspec

_STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}
PIECES_OF_A_READ_MAX = 16  #: of a body; more are put together at once
PIECES_MAX = 1024  #: of a body


class Ending(Protocol):
    """What a call asks the server: the date, and whether connections are to end."""

    date: str  #: a header line
    closing: bool


class Wire(Protocol):
    """The connection that a call came over."""

    loop: asyncio.AbstractEventLoop
    held: bytes
    drained: asyncio.Future[None] | None

    @property
    def server(self) -> "Ending": ...
    def speaks_http_1_0(self, call: "Call") -> bool: ...
    @property
    def has_next(self) -> bool: ...
    @property
    def unsent_bytes(self) -> int: ...
    def resume_body(self, call: "Call") -> None: ...
    def write(self, head: bytes, body: bytes) -> None: ...
    def write_chunk(self, data: bytes, chunked: bool) -> None: ...
    def write_end(self, data: bytes, chunked: bool) -> None: ...
    def finish(self, call: "Call") -> None: ...
    def abort(self) -> None: ...
    def reset(self) -> None: ...


class CallerGone(Exception):
    """The caller has closed the connection, so nothing can be sent any more."""


class BodyOverflow(Exception):
    """The body is larger than what the handler is ready to hold."""


class Call:
    """One request and its answer.

    Attributes:
        headers: the wanted headers by lower-case name.
        body_done: whether the whole body has come.
        length: the announced size of a body that is still coming, None where nobody announced it.
        on_left: called once if the caller leaves before the answer is complete.
        grow: asked before each piece of a body of unknown length is held; False refuses it.
    """

    # The defaults live on the class, as `Exchange`'s do and for the same reason.
    answered = False
    body_done = False
    body_max = 1 << 62  # the handler sets it; until it asks for the body, little is read
    chunked = True
    done = False
    grow: Callable[[int], bool] | None = None
    keep_alive = True
    left = False
    length: int | None = None
    method = ""
    on_left: Callable[[], None] | None = None
    task: asyncio.Task[None] | None = None
    path = ""
    query = ""  # without its question mark
    received = 0
    started = False
    streaming = False
    takes_pieces = False  # of the body, as they come
    version = ""  # of HTTP, where the parser may have gone on since
    _merged = 0  # pieces of the body that earlier reads brought
    _waiter: asyncio.Future[None] | None = None

    def __init__(self, connection: Wire) -> None:
        self._connection = connection
        self._chunks: list[bytes] = []
        self.headers: dict[bytes, bytes] = {}

    # --- what a handler does --------------------------------------------------------------------------------

    async def body(self) -> bytes:
        """The whole body.  The handler has set `body_max` to what it is ready to hold.

        Raises:
            CallerGone: the caller left before the body was complete.
            BodyOverflow: more than `body_max` bytes came.
        """
        while not self.body_done:
            if self.left:
                raise CallerGone
            if self.received > self.body_max:
                raise BodyOverflow
            self._connection.resume_body(self)
            self._waiter = self._connection.loop.create_future()
            await self._waiter
        if self.received > self.body_max:
            raise BodyOverflow
        return self.take_body()

    async def next_piece(self) -> bytes:
        """What has come of the body since the piece before; empty at its end.

        For bodies that are handed on as they come: while nobody asks, no more than a little is read.

        Raises:
            CallerGone: the caller left before the body was complete.
        """
        self.takes_pieces = True
        while not self._chunks:
            if self.left:
                raise CallerGone
            if self.body_done:
                return b""
            self._connection.resume_body(self)
            self._waiter = self._connection.loop.create_future()
            await self._waiter
            self._waiter = None
        self._merged = 0
        return self.take_body()

    def take_body(self) -> bytes:
        """The body, once it is complete."""
        chunks, self._chunks = self._chunks, []
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def respond(self, status: int, headers: str, body: bytes) -> None:
        """Sends a whole answer; to a caller that has left it does nothing.

        Args:
            headers: header lines, each with its CRLF.
        """
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

    def begin_stream(self, status: int, headers: str) -> None:
        """Sends the head of an answer of unknown length, with the first bytes that `send` is given."""
        self.answered = self.streaming = True
        if self.left:
            return
        framing = "transfer-encoding: chunked\r\n"
        if self._connection.speaks_http_1_0(self):
            # Such a caller may not be sent chunks: the connection's end is the stream's.
            self.chunked, self.keep_alive, framing = False, False, ""
        self._connection.held = self._build_head(status, headers, framing)

    async def send(self, data: bytes) -> None:
        """Sends a piece of a stream, and waits while the caller is behind.

        Raises:
            CallerGone: the caller has left.
        """
        if self.left:
            raise CallerGone
        connection = self._connection
        connection.write_chunk(data, self.chunked)
        if connection.drained is not None:
            await connection.drained
            if self.left:
                raise CallerGone

    def send_now(self, data: bytes) -> None:
        """Sends a piece of a stream to a caller that is there and not behind."""
        self._connection.write_chunk(data, self.chunked)

    def send_aside(self, data: bytes) -> bool:
        """Sends a piece of a stream without waiting; False, with nothing sent, if it would have to."""
        if not self.takes_aside:
            return False
        self._connection.write_chunk(data, self.chunked)
        return True

    @property
    def takes_aside(self) -> bool:
        """Whether the caller is there and has taken all that was sent."""
        return not (self.left or self.done or self._connection.unsent_bytes)

    def end_stream(self, data: bytes = b"") -> None:
        """Sends a stream's last piece and its end."""
        if self.left or self.done:
            return
        self._connection.write_end(data, self.chunked)
        self._connection.finish(self)

    def cut(self) -> None:
        """Ends a stream in the middle, behind what was sent of it: without its end, and visibly so."""
        if self.left or self.done:
            return
        if not self.chunked:
            self._connection.reset()  # for such a caller, any other end of the connection is the stream's
            return
        if self.is_behind:
            self.abort()  # it might never take the rest
            return
        self.keep_alive = False
        self._connection.finish(self)

    def abort(self) -> None:
        """Ends the connection as it is, for an answer that can't be given; a caller that has left is gone."""
        if not self.left:
            self._connection.abort()

    @property
    def is_behind(self) -> bool:
        """Whether the caller is slow to take what was sent, so that `send` waits."""
        return self._connection.drained is not None

    def _build_head(self, status: int, headers: str, framing: str) -> bytes:
        connection = self._connection
        ends = not self.keep_alive or not self.body_done
        # While the server ends, requests that came whole are still served, and only the last answer says so.
        if ends or (connection.server.closing and not connection.has_next):
            self.keep_alive = False  # said, and so done: in no other case may the connection be closed
            headers += "connection: close\r\n"
        line = _STATUS_LINES.get(status) or b"HTTP/1.1 %d Unknown\r\n" % status
        return line + f"{framing}{headers}{connection.server.date}\r\n".encode("latin-1")

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
        self.body_done = True
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
        if waiter is None or waiter.done():
            return
        if self.body_done or self.left or self.is_over or self.takes_pieces:
            waiter.set_result(None)

    def merge_pieces(self) -> None:
        """Makes one of many small pieces of the body: as objects they would take far more than they hold."""
        pieces, first = self._chunks, self._merged
        if len(pieces) > PIECES_MAX:
            first = 0
        if len(pieces) - first > PIECES_OF_A_READ_MAX:
            pieces[first:] = (b"".join(pieces[first:]),)
        self._merged = len(pieces)

    @property
    def is_over(self) -> bool:
        return self.received > self.body_max


#: Answers a call at once, or returns what is left to do.
Handler = Callable[[Call], Coroutine[Any, Any, None] | None]


class Refusal(Call):
    """The last answer of a connection, to what was no request: it has its turn behind those that were."""

    def __init__(self, connection: Wire, status: int, code: str, message: str) -> None:
        super().__init__(connection)
        error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
        self._status = status
        self._body = msgspec.json.encode({"error": error})

    def tell(self) -> None:
        self.respond(self._status, "content-type: application/json\r\n", self._body)


def strip_url(path: str) -> str:
    """The path alone, also of an absolute URL."""
    if path[:1] != "/":
        _, _, rest = path.partition("://")
        slash = rest.find("/")
        path = rest[slash:] if slash >= 0 else "/"
    return path.partition("?")[0]
