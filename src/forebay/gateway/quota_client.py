"""What a worker asks and returns over its line to the authority (`control_line`), and what it hears there."""

import asyncio
import itertools
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from forebay.gateway.control_line import ControlLine, LineFacts
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


class QuotaClient:
    """See the module.

    Args:
        path: the authority's socket.
        worker: this worker's name, unique over all processes there ever were.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, path: Path, worker: str, borrower: Wanted) -> None:
        self._loop = loop
        self._worker = worker
        self._borrower = borrower
        self._numbers = itertools.count(1)
        self._timers: dict[int, asyncio.TimerHandle] = {}  # of asks without an answer
        facts = LineFacts(
            path=path, name="the authority over the limits", decode=decode_from_authority, retry_s=RETRY_S
        )
        self._line = ControlLine(loop, facts, self)
        self.keep_connected = self._line.keep_open
        self.close = self._line.close
        self.is_connected = False  #: the authority is there, and has said so

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
        self._line.back_off(ASK_MAX_S)  # with what it may have lent meanwhile, which counts as spent

    def send(self, message: FromWorker) -> None:
        self._line.send(encode_frame(message))

    # --- the line's side ------------------------------------------------------------------------------------

    def begin(self) -> None:
        for part in tuple(cut(self._borrower.list_held(), lambda held: held.limit_id)) or ((),):
            self.send(Hello(self._worker, part))
        self._timers[0] = self._loop.call_later(ASK_MAX_S, self._give_up)

    def hear(self, message: FromAuthority) -> None:
        match message:
            case Welcome():
                self._end_timer(0)
                if not self.is_connected:
                    self.is_connected = True
                    self._line.settle()
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

    def end(self) -> None:
        was_connected, self.is_connected = self.is_connected, False
        unanswered = tuple(self._timers)
        for number in unanswered:
            self._end_timer(number)
        if was_connected:
            self._borrower.lose_line()
        for number in unanswered:
            self._borrower.absorb(None, number)
