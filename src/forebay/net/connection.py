"""One HTTP/1.1 connection to an upstream, one exchange at a time.

The connection is its own answer: no object is made for a request or a chunk.  It feeds the parser, wakes its
one waiter when what it waits for is there (`SOME`, `ALL`), and stops reading from the socket while the waiter
is behind.  It never decides whether to try again: it raises what happened and says, by the error's class,
whether the target can have seen the request.  It can't carry HEAD or CONNECT, whose answers are framed
otherwise.
"""

import asyncio
import select
import ssl
from collections.abc import AsyncIterator, Callable
from math import inf
from typing import Any

import httptools

from forebay.core.errors import (
    AnswerTooLarge,
    ForebayError,
    Overloaded,
    StaleConnection,
    UpstreamProtocol,
    UpstreamReset,
)
from forebay.net.answer import FRAMING_TOO_LONG, Account, Answer
from forebay.net.home import Home
from forebay.net.tcp_info import count_unacked_bytes

#: Bytes held for a slow reader before reading from the socket stops.  What is read by then comes on top:
#: 256 KiB, over TLS twice that.
READ_HIGH_WATER = 256 * 1024
WAITING_MAX_BYTES = 16 * 1024  #: of a body that waits for the end of the turn; a larger one is sent at once
NOTHING, SOME, ALL = 0, 1, 2  #: what the waiter waits for
FRESH, POOLED, REUSED = 0, 1, 2  #: where a connection is: never pooled, in the pool, taken out of it


class Connection(Answer, asyncio.Protocol):
    """An open connection.  Use: `send`, then `some` or `all`, then `release` or `abort`, once."""

    __slots__ = (
        "_argument", "_awaiting", "_callback", "_clock", "_drained", "_error", "_home", "_loop", "_poll",
        "_request_bytes", "_sending", "_take_on", "_transport", "_turn", "_unsent", "_waiter", "busy",
        "content_seen", "first_at", "idle_s", "idle_until", "keep_s", "last_at", "paused", "place",
        "reuse_until", "sent_ns", "total_at", "trusted",
    )  # fmt: skip

    def __init__(self, home: Home) -> None:
        super().__init__()
        self._home = home
        self._loop = home.loop
        self._clock = home.clock
        self._turn = home.turn
        self._unsent = b""  # a request that goes out at the end of the turn
        self.sent_ns = 0  #: when the request went out, by the turn's clock; 0 before it has
        self._transport: Any = None
        self._poll = select.poll()
        self._waiter: asyncio.Future[None] | None = None
        self._awaiting = NOTHING
        self._callback: Callable[[Any], None] | None = None
        self._argument: object = None
        self._take_on: Callable[[bytes], bool] | None = None
        self._request_bytes = 0
        self._sending = False
        self._error: Exception | None = None
        self.paused = False
        self._drained: asyncio.Future[None] | None = None
        self.busy = False
        self.place = FRESH
        self.trusted: ssl.SSLContext | None = None  #: the authorities that it was made with
        self.content_seen = False
        self.reuse_until = inf  #: the loop's time from which on it serves nobody else
        self.keep_s = 0.0
        self.idle_until = 0.0
        self.first_at: float | None = None
        self.total_at = 0.0
        self.idle_s = 0.0
        self.last_at: float | None = None

    # --- one exchange ---------------------------------------------------------------------------------------

    def send(
        self,
        head: bytes,
        body: bytes | list[bytes | memoryview],
        limit: int,
        account: Account | None = None,
    ) -> None:
        """Starts an exchange: writes the request.  Of an answer that is wanted whole, `limit` bytes may come.

        A small request goes out at the end of the turn.  A body in pieces is written as it lies, without a
        copy.  A large answer is taken into `account` until the exchange ends; `all` raises `Overloaded` where
        that does not take it.

        Raises:
            StaleConnection: the connection was closed after it had been acquired.
        """
        if isinstance(body, list):
            self._begin(len(head) + sum(map(len, body)), limit, account)
            self.sent_ns = self._turn.monotonic_ns()
            self._transport.writelines((head, *body))
            return
        self._begin(len(head) + len(body), limit, account)
        if len(body) < WAITING_MAX_BYTES:
            self._unsent = head + body
            self._turn.add_request(self)
        else:
            self.sent_ns = self._turn.monotonic_ns()
            self._transport.writelines((head, body))

    def flush(self) -> None:
        """The turn has ended: sends the request that waited for that."""
        unsent, self._unsent = self._unsent, b""
        if unsent and self._error is None and self._transport is not None:
            self.sent_ns = self._turn.sent_ns
            self._transport.write(unsent)

    async def send_stream(self, head: bytes, body: AsyncIterator[bytes], limit: int) -> None:
        """Starts an exchange with a chunked body, written no faster than the target takes it.

        `head` must say `transfer-encoding: chunked`.  Returns when all is written, or the answer is complete
        or has failed, which is noticed at the next piece of `body`: `some` and `all` tell.
        """
        self._begin(len(head), limit, None)
        self._sending = True  # and stays so after an early end: half a request spoils the connection
        self._transport.write(head)
        async for piece in body:
            if self._error is not None or self.complete or self._transport is None:
                return
            if piece:
                size = b"%x\r\n" % len(piece)
                self._request_bytes += len(size) + len(piece) + 2
                self._transport.writelines((size, piece, b"\r\n"))
                if self._drained is not None:
                    await self._drained
        if self._error is None and not self.complete and self._transport is not None:
            self._transport.write(b"0\r\n\r\n")
            self._sending = False

    def _begin(self, request_bytes: int, limit: int, account: Account | None) -> None:
        if self._transport is None:
            raise StaleConnection("the target closed the connection before the request was sent")
        self._expect(limit, account)
        self.busy = True
        self.content_seen = False
        self.last_at = None
        self.sent_ns = 0
        self._request_bytes = request_bytes

    async def some(self) -> bytes:
        """The body bytes that are there, waiting for the first if need be; `b""` only at the end.

        Raises:
            TargetError: a timeout, a reset, a broken answer; what had come before it was given out first.
        """
        while not self._chunks and not self.complete:
            if self._error is not None:
                raise self._error
            await self._wait(SOME)
        return self.take()

    async def hand_on(self, take: Callable[[bytes], bool]) -> None:
        """Calls `take` with body bytes from where they arrive, for as long as it returns True.

        For a stream of many small pieces, none of which is worth waking a task.  Returns where there is
        something for `some` to return or raise, always before the end, or `take` has returned False.
        """
        if not (self._chunks or self.complete or self._error):
            self._take_on = take
            try:
                await self._wait(SOME)
            finally:
                self._take_on = None

    async def all(self) -> bytes:
        """The whole body, or what `some` has left of it.

        Raises:
            AnswerTooLarge: more than `limit` bytes came.
            TargetError: a timeout, a reset, a broken answer.
        """
        while not self.complete:
            if self._error is not None:
                raise self._error
            await self._wait(ALL)
        self._check_size()  # what came while nobody wanted it whole was not held against the limit
        return self.take()

    def take(self) -> bytes:
        """The body bytes that have come and that nobody has taken yet."""
        chunks = self._chunks
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        chunks.clear()
        self._held = 0
        if self.paused:
            self._resume()
        return data

    def _resume(self) -> None:
        self.paused = False
        self.last_at = self._clock.time  # the silence was ours
        if self._transport is not None:
            self._transport.resume_reading()

    async def _wait(self, what: int) -> None:
        if not self.busy:  # else whoever waits for what is over would wait for ever
            raise UpstreamReset("the exchange is over")
        self._awaiting = what
        if self.paused:
            self._resume()
        self._waiter = waiter = self._loop.create_future()
        try:
            await waiter
        finally:
            self._waiter = None
            self._awaiting = NOTHING

    def call_when(self, what: int, callback: Callable[[Any], None], argument: object) -> None:
        """Calls back once there is what `some` (`SOME`) or `all` (`ALL`) would return or raise.

        For an exchange that needs no task of its own while it waits.  Called from where the bytes arrive.
        """
        self._awaiting = what
        self._callback = callback
        self._argument = argument

    def _wake(self) -> None:
        callback = self._callback
        if callback is not None:
            if self.complete or self._error is not None or (self._awaiting == SOME and self._chunks):
                argument = self._argument
                self._callback = self._argument = None
                self._awaiting = NOTHING
                callback(argument)
            return
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _wake_writer(self) -> None:
        drained = self._drained
        if drained is not None and not drained.done():
            drained.set_result(None)

    def release(self) -> None:
        """Ends the exchange: back to the pool if the connection can serve again, closed otherwise."""
        if self._counted:
            self._give_back()
        if self.busy and self.complete and self._keep_alive and self._error is None and not self._sending:
            transport = self._transport
            # An early answer leaves the rest of its request to be written: before the next one.
            if transport and not (self.paused or transport.is_closing() or transport.get_write_buffer_size()):
                self.busy = False
                self._chunks.clear()
                self._home.take_back(self)
                return
        if self.place != POOLED:
            self.abort()
        self._error = None  # its traceback holds us: a cycle, left to the collector otherwise

    def abort(self) -> None:
        """Closes at once, which is how an upstream learns that nobody wants the rest."""
        self._unsent = b""
        if self._counted:
            self._give_back()
        if self.busy:
            self.busy = False
            if not self.complete:
                self.fail(UpstreamReset("the gateway gave the connection up"))
        if self._transport is not None:
            self._transport.abort()
        self._home.forget(self)

    def fail(self, error: ForebayError) -> None:
        """Makes whoever waits raise `error`; the first error stays."""
        if self._error is None:
            self._error = error
        self._wake()
        self._wake_writer()

    @property
    def _is_wanted_whole(self) -> bool:
        return self._awaiting == ALL

    @property
    def has_failed(self) -> bool:
        return self._error is not None

    def is_closed(self) -> bool:
        """Whether nothing can be sent any more."""
        return self._transport is None or self._transport.is_closing()

    def is_stale(self) -> bool:
        """Whether the peer has closed, or sent what nobody asked for; also what the loop has not read yet."""
        return self.is_closed() or bool(self._poll.poll(0))

    # --- asyncio's side -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)

    def data_received(self, data: bytes) -> None:
        if not self.busy or self._unsent:  # nobody asked: whoever sends that must not be believed again
            if self.busy:
                self.fail(StaleConnection("the target answered on a pooled connection before it was asked"))
            self.abort()
            return
        received = self.received
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._break(UpstreamProtocol("the target tried to switch protocols"))
            return
        except httptools.HttpParserError as error:
            cause = error.__context__ or error
            if not isinstance(cause, AnswerTooLarge | Overloaded):
                cause = UpstreamProtocol(f"the target's answer is not HTTP/1.1: {cause}")
            self._break(cause)
            return
        if self.received:  # a head may come at once, and the first body byte after a long prefill
            self.last_at = self._clock.time
        awaiting = self._awaiting
        if self.complete or (awaiting == SOME and self._chunks):
            take_on = self._take_on
            if take_on is not None and not self.complete and not self._error and take_on(self.take()):
                return
            self._wake()
            if self._drained is not None and self.complete:
                self._wake_writer()
        elif self.received != received:
            self._merge_pieces()  # they stay for a while
        elif self._is_framing_too_long(len(data)):
            self._break(UpstreamProtocol(FRAMING_TOO_LONG))
            return
        # The loop may read many times before the woken reader has its turn: waking it is no reason to go on.
        if self._held > READ_HIGH_WATER and awaiting != ALL and not self.paused and not self.complete:
            self.paused = True
            self._transport.pause_reading()

    def _break(self, error: ForebayError) -> None:
        """Gives up on a peer that does not speak HTTP as it should; an answer that came before stays good."""
        self._keep_alive = False
        self._transport.abort()
        if not self.complete:
            self.fail(error)
        self._wake()
        self._wake_writer()

    def eof_received(self) -> None:
        self._keep_alive = False
        if self.busy:
            self._fail_if_unseen()
        else:
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.busy and not self.complete and self._error is None:
            if exc is None and self.status and self._ends_with_connection():
                self.complete = True
            else:
                self.fail(self._explain_loss())
        self._transport = None
        self._unsent = b""
        self._parser = None  # it holds our methods: a cycle, left to the collector otherwise
        self._wake()
        self._wake_writer()
        self._home.forget(self)

    def _explain_loss(self) -> ForebayError:
        if self._unsent:
            return StaleConnection("the target closed the connection before the request was sent")
        where = "in the middle of its answer" if self.status else "without an answer"
        return UpstreamReset(f"the target closed the connection {where}")

    def pause_writing(self) -> None:
        self._drained = self._loop.create_future()

    def resume_writing(self) -> None:
        self._wake_writer()
        self._drained = None

    def _fail_if_unseen(self) -> None:
        """Fails with `StaleConnection` if the peer ended before one byte of our request had reached it.

        Its end carries what its kernel had taken by then, so if nothing of the request is acknowledged, the
        peer can't have read any of it, and to send it again is safe.  (A reset says nothing of the sort.)
        """
        if self.status or self.complete or self.place != REUSED:
            return
        if self._unsent:
            self._unsent = b""
            self.fail(StaleConnection("the target closed the pooled connection before it saw the request"))
            return
        transport = self._transport
        unacked = count_unacked_bytes(transport.get_extra_info("socket"))
        if unacked is not None and unacked + transport.get_write_buffer_size() >= self._request_bytes:
            self.fail(StaleConnection("the target closed the pooled connection before it saw the request"))
