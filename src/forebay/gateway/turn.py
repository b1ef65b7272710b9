"""What waits for the end of one turn of the event loop: records, and then the answers that they belong to.

Under load one turn serves many requests.  Their records go to the disk with one system call, and the last
bytes of their answers out one right after the other, which wakes a caller's process once and not for each.
No such bytes ever go out before the records of the turn are written.  It never waits for more work: a turn
with one request ends right after it.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

ANSWERS_MAX = 32  #: that wait; the first of them would wait for too long behind more


class Outgoing(Protocol):
    """Somebody with bytes that wait."""

    def flush(self) -> None: ...


def _write_nothing() -> None:
    return None


class Turn:
    """See the module.

    Attributes:
        write_records: writes what has been recorded; must not raise.
    """

    __slots__ = ("_is_due", "_loop", "_waiting", "write_records")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._is_due = False
        self._waiting: list[Outgoing] = []
        self.write_records: Callable[[], None] = _write_nothing

    def end_soon(self) -> None:
        """Sees to it that the turn will be ended."""
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._end)

    def add(self, outgoing: Outgoing) -> None:
        """Calls `flush` once all records of the turn are written."""
        self._waiting.append(outgoing)
        if len(self._waiting) >= ANSWERS_MAX:
            self.flush()
        elif not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._end)

    def _end(self) -> None:
        self._is_due = False
        self.flush()

    def flush(self) -> None:
        """Writes the records and sends the answers now."""
        self.write_records()
        waiting, self._waiting = self._waiting, []
        waiting.reverse()
        try:
            while waiting:
                waiting.pop().flush()
        finally:
            if waiting:  # one of them failed, which is no reason for the others to wait for ever
                self._waiting[:0] = reversed(waiting)
                self.end_soon()
