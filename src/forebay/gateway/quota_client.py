"""A worker's line to the authority: asks, returns, and comes back by itself when the line breaks."""

import asyncio
import itertools
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import msgspec

from forebay.gateway.frames import FrameSplitter, short_path
from forebay.gateway.policy.lending import Want
from forebay.gateway.quota_wire import (
    Ask,
    Changed,
    FromAuthority,
    FromWorker,
    Held,
    Hello,
    Lent,
    Noted,
    Recall,
    Refused,
    Return,
    Welcome,
    cut,
    decode_from_authority,
    encode_frame,
)

logger = logging.getLogger("forebay.gateway")

ASK_MAX_S = 1.0  #: for an answer; an authority that takes longer counts as away
RETRY_S = 0.1  #: between two tries to connect; longer after an authority that did not answer
RETRY_MAX_S = 10.0


class Wanted(Protocol):
    """Whoever borrows over the line."""

    def list_held(self) -> list[Held]:
        """What is held, for the first words on each line."""

    def absorb(self, answer: Lent | Refused | None, number: int) -> None:
        """The answer to an ask; None where there will be none."""

    def give_back(self, limit_id: str) -> None:
        """Others need what is not spent."""

    def change_amounts(self, amounts: Iterable[tuple[str, int]]) -> None:
        """Limits have other amounts than the snapshot says."""

    def note(self, number: int) -> None:
        """A return is written down."""

    def begin_line(self) -> None:
        """The authority lends from now on."""

    def lose_line(self) -> None:
        """It does not any more."""


class QuotaClient(asyncio.Protocol):
    """See the module.

    Args:
        path: the authority's socket.
        worker: this worker's name, unique over all processes there ever were.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, path: Path, worker: str, borrower: Wanted) -> None:
        self._loop = loop
        self._path = path
        self._worker = worker
        self._borrower = borrower
        self._numbers = itertools.count(1)
        self._timers: dict[int, asyncio.TimerHandle] = {}  # of asks without an answer
        self._splitter = FrameSplitter()
        self._transport: Any = None
        self._connecting: asyncio.Task[None] | None = None
        self._try_at = 0.0
        self._wait_s = RETRY_S
        self._closing = False
        self.is_connected = False  #: the authority is there, and has said so

    def keep_connected(self, now_s: float) -> None:
        """To be called all the time: connects where there is no line."""
        is_idle = self._transport is None and self._connecting is None and not self._closing
        if is_idle and now_s >= self._try_at:
            self._try_at = now_s + self._wait_s
            self._connecting = self._loop.create_task(self._connect())

    async def _connect(self) -> None:
        try:
            async with asyncio.timeout(ASK_MAX_S):
                with short_path(self._path) as path:
                    await self._loop.create_unix_connection(lambda: self, path)
        except (OSError, TimeoutError):
            pass  # tried again soon
        finally:
            self._connecting = None

    def ask(self, wants: tuple[Want, ...]) -> int:
        """Asks; the borrower's `absorb` is called with the number that is returned."""
        number = next(self._numbers)
        self._timers[number] = self._loop.call_later(ASK_MAX_S, self._give_up)
        self.send(Ask(number, wants))
        return number

    def send_back(self, returned: tuple[Held, ...], recalled: str = "", *, confirm: bool = False) -> int:
        """Gives units back; with `confirm` the borrower's `note` is called with the number returned."""
        number = next(self._numbers) if confirm else 0
        self.send(Return(returned, recalled, number))
        return number

    def tell_again(self, debts: tuple[Held, ...], number: int) -> None:
        """Debts of a line that broke, of which nobody has said that they are written down."""
        self.send(Return(debts, "", number))

    def _give_up(self) -> None:
        logger.error("the authority over the limits does not answer")
        self._wait_s = min(RETRY_MAX_S, max(ASK_MAX_S, 2 * self._wait_s))
        self._try_at = self._loop.time() + self._wait_s
        if self._transport is not None:
            self._transport.abort()  # with what it may have lent meanwhile, which counts as spent

    def send(self, message: FromWorker) -> None:
        if self._transport is not None:
            self._transport.write(encode_frame(message))

    def close(self) -> None:
        self._closing = True
        if self._connecting is not None:
            self._connecting.cancel()
        if self._transport is not None:
            self._transport.close()

    # --- asyncio's side -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._splitter = FrameSplitter()
        for part in tuple(cut(self._borrower.list_held(), lambda held: held.limit_id)) or ((),):
            self.send(Hello(self._worker, part))
        self._timers[0] = self._loop.call_later(ASK_MAX_S, self._give_up)

    def data_received(self, data: bytes) -> None:
        try:
            for payload in self._splitter.feed(data):
                self._handle(decode_from_authority(payload))
        except (ValueError, msgspec.MsgspecError) as error:
            logger.error("the authority over the limits speaks another language: %s", error)
            self._transport.abort()

    def _handle(self, message: FromAuthority) -> None:
        match message:
            case Welcome():
                self._end_timer(0)
                if not self.is_connected:
                    self.is_connected = True
                    self._wait_s = RETRY_S
                    self._borrower.begin_line()
            case Changed():
                self._borrower.change_amounts(message.amounts)
            case Recall():
                self._borrower.give_back(message.limit_id)
            case Noted():
                self._borrower.note(message.number)
            case _:
                self._end_timer(message.number)
                self._borrower.absorb(message, message.number)

    def _end_timer(self, number: int) -> None:
        timer = self._timers.pop(number, None)
        if timer is not None:
            timer.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        was_connected, self.is_connected = self.is_connected, False
        unanswered = tuple(self._timers)
        for number in unanswered:
            self._end_timer(number)
        if was_connected:
            self._borrower.lose_line()
        for number in unanswered:
            self._borrower.absorb(None, number)
