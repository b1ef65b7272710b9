"""One answer as it is parsed: its head, the body bytes that nobody has taken, and whether it is complete.

Httptools calls it back, and it bounds what an answer can make us hold.  It knows no socket and waits for
nothing: that is `connection`'s part.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import httptools

from forebay.core.errors import AnswerTooLarge, Overloaded

#: Bytes that reads may bring in a row without any body: heads (1xx too), chunk framing, trailers.  A head
#: that ends in the same read as its body begins is not counted, so one may be longer by a read.
FRAMING_MAX_BYTES = 64 * 1024
FRAMING_TOO_LONG = f"the target's answer has more than {FRAMING_MAX_BYTES} bytes of headers"
_NO_HEADERS: dict[bytes, bytes] = {}
UNCOUNTED_BYTES = 64 * 1024  #: of an answer; more is taken into account, in steps of this size
PIECES_OF_A_READ_MAX = 16  #: that are held; more are put together at once
PIECES_MAX = 1024  #: that are held


class Account(Protocol):
    """Counts what a process holds."""

    held: int

    def take(self, size: int) -> bool:
        """Counts bytes before they are held; False, with nothing counted, if that would be too many."""
        ...


class Answer:
    """See the module.

    Attributes:
        status: the HTTP status, 0 before the head has come.
        headers: names as sent, each with its first value; without trailers and those of 1xx answers.
        complete: whether the last byte has been parsed.
        received: body bytes so far.
        spare: whether its reader has had all that matters and waits for the end alone, so that whoever needs
            the connection's place may have it.
    """

    __slots__ = (
        "_account", "_chunks", "_counted", "_framed_after", "_framing_bytes", "_held", "_incoming",
        "_keep_alive", "_limit", "_limit_max", "_merged", "_parser", "complete", "headers", "on_header",
        "received", "spare", "status",
    )  # fmt: skip

    def __init__(self) -> None:
        self._incoming: dict[bytes, bytes] = {}
        # The parser calls this for each header and trailer: into the dictionary, without a frame of ours.
        self.on_header = self._incoming.setdefault
        self._parser: Any = httptools.HttpResponseParser(self)
        self._chunks: list[bytes] = []
        self._merged = 0  # so many of them, at most, are from earlier reads
        self._held = 0
        self._framing_bytes = 0
        self._framed_after = 0
        self._limit = 0  # of `_held`, before anybody has to be asked
        self._limit_max = 0
        self._account: Account | None = None
        self._counted = 0  # bytes in the account
        self._keep_alive = False
        self.complete = False
        self.status = 0
        self.received = 0
        self.spare = False
        self.headers: Mapping[bytes, bytes] = _NO_HEADERS

    def _expect(self, limit: int, account: Account | None) -> None:
        """Makes ready for the next answer, of which at most `limit` bytes are taken as a whole."""
        self.complete = False
        self.status = 0
        self.received = 0
        self.spare = False
        self.headers = _NO_HEADERS
        self._incoming.clear()
        self._held = 0
        self._framing_bytes = 0
        self._account = account
        self._limit_max = limit
        self._limit = limit if account is None or limit < UNCOUNTED_BYTES else UNCOUNTED_BYTES

    def header(self, name: bytes) -> bytes:
        """The value of a header by its lower-case name, `b""` where it is missing."""
        headers = self.headers
        known = headers.get(name) or headers.get(name.title())
        if known is not None:
            return known
        for key, value in headers.items():
            if len(key) == len(name) and key.lower() == name:
                return value
        return b""

    def put_back(self, data: bytes) -> None:
        """Gives back what was taken: it will be the next to be taken again."""
        if data:
            self._chunks.insert(0, data)
            self._held += len(data)

    def _merge_pieces(self) -> None:
        """Makes one of many small pieces: as objects they would take far more than they hold."""
        pieces, first = self._chunks, self._merged
        if len(pieces) > PIECES_MAX:
            first = 0
        if len(pieces) - first > PIECES_OF_A_READ_MAX:
            pieces[first:] = (b"".join(pieces[first:]),)
        self._merged = len(pieces)

    def _raise_limit(self) -> None:
        """Asks the account for what is held beyond the limit, and for a little more.

        A stream holds little, for a reader that is behind stops us from reading more: it is not cut.
        """
        is_whole = self._is_wanted_whole
        if is_whole:
            self._check_size()
        account = self._account
        more = self._held - self._limit + UNCOUNTED_BYTES
        if account is not None:
            if not account.take(more):
                if is_whole:
                    raise Overloaded(
                        "too many bytes are in flight (gateway.memory_max_bytes); try again shortly",
                        retry_after_s=1,
                    )
                account.held += more
            self._counted += more
        self._limit += more
        if is_whole and self._limit > self._limit_max:
            self._limit = self._limit_max

    def _check_size(self) -> None:
        """Raises AnswerTooLarge where more is held than a whole answer may have."""
        if self._held > self._limit_max:
            raise AnswerTooLarge(f"the target's answer is larger than {self._limit_max} bytes")

    @property
    def _is_wanted_whole(self) -> bool:
        """Whether the reader waits for all of it."""
        return True

    def _give_back(self) -> None:
        """Takes the answer out of the account."""
        if self._account is not None:
            self._account.held -= self._counted
        self._counted = 0

    def _is_framing_too_long(self, size: int) -> bool:
        """Counts bytes that brought no body: the parser piles up a header that never ends."""
        if self._framed_after != self.received:
            self._framed_after = self.received
            self._framing_bytes = 0
        self._framing_bytes += size
        return self._framing_bytes > FRAMING_MAX_BYTES

    def _ends_with_connection(self) -> bool:
        """Neither length nor chunks: the body ends where the connection does."""
        return not any(name.lower() in (b"content-length", b"transfer-encoding") for name in self.headers)

    # --- httptools' side: an exception ends the parse -------------------------------------------------------

    def on_message_begin(self) -> None:
        if self.complete:
            self._keep_alive = False  # a second answer to one request

    def on_headers_complete(self) -> None:
        if self.complete:
            return
        status = self._parser.get_status_code()
        if status >= 200:
            self.status = status
            self.headers = self._incoming.copy()
        elif status >= 100:
            self._incoming.clear()  # informational: the answer is still to come
        else:
            raise ValueError(f"status {status}")

    def on_body(self, body: bytes) -> None:
        if self.complete:
            return
        size = len(body)
        self.received += size
        self._held += size
        if self._held > self._limit:
            self._raise_limit()
        self._chunks.append(body)

    def on_message_complete(self) -> None:
        if self.status and not self.complete:
            self.complete = True
            self._keep_alive = self._parser.should_keep_alive()
