"""What waits for the end of one turn of the event loop: requests, records, and the ends of answers.

Under load one turn serves many requests.  Sent one right after the other, they wake a peer's process once and
not each on its own, which costs more than the sending; and their records go to the disk with one system call.
No end of an answer goes out before the records of the turn are written, or kept where the disk refuses them.
It never waits for more work: a turn with one request ends right after it.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

REQUESTS_MAX = 8  #: that wait; then they go out while the turn goes on
ANSWERS_MAX = 32  #: that wait; then the turn is ended early


class Outgoing(Protocol):
    """Somebody with bytes that wait."""

    def flush(self) -> None:
        """Sends them."""


def _write_nothing() -> None:
    return None


class Turn:
    """See the module.

    Args:
        monotonic_ns: a clock.

    Attributes:
        monotonic_ns: the clock.
        sent_ns: when requests went out last, by that clock.
        write_records: writes what has been recorded.
    """

    __slots__ = ("_answers", "_is_due", "_loop", "_requests", "monotonic_ns", "sent_ns", "write_records")

    def __init__(self, loop: asyncio.AbstractEventLoop, monotonic_ns: Callable[[], int]) -> None:
        self._loop = loop
        self.monotonic_ns = monotonic_ns
        self._is_due = False
        self._requests: list[Outgoing] = []
        self._answers: list[Outgoing] = []
        self.sent_ns = 0
        self.write_records: Callable[[], None] = _write_nothing

    def end_soon(self) -> None:
        """Sees to it that the turn will be ended."""
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._end)

    def add_request(self, outgoing: Outgoing) -> None:
        """Has a request sent with the turn's others."""
        self._requests.append(outgoing)
        if len(self._requests) >= REQUESTS_MAX:
            self._send_requests()
        elif not self._is_due:
            self.end_soon()

    def add_answer(self, outgoing: Outgoing) -> None:
        """Has the end of an answer sent once all records of the turn are written."""
        self._answers.append(outgoing)
        if len(self._answers) >= ANSWERS_MAX:
            self.flush()
        elif not self._is_due:
            self.end_soon()

    def _end(self) -> None:
        self._is_due = False
        self.flush()

    def flush(self) -> None:
        """Sends and writes everything now."""
        if self._requests:
            self._send_requests()
        try:
            self.write_records()
        finally:
            answers, self._answers = self._answers, []
            self._send(answers)

    def _send_requests(self) -> None:
        self.sent_ns = self.monotonic_ns()
        requests, self._requests = self._requests, []
        self._send(requests)

    def _send(self, waiting: list[Outgoing]) -> None:
        sent = 0
        while sent < len(waiting):
            try:
                for outgoing in waiting[sent:]:
                    sent += 1
                    outgoing.flush()
            except Exception as error:  # noqa: BLE001 - the outer edge: the others must not wait for ever
                trouble = {"message": "what waited for a turn's end can't be sent", "exception": error}
                self._loop.call_exception_handler(trouble)
