"""Hands each record to the ledger's segment exactly once, and keeps it while the disk refuses.

The records of one turn of the event loop are written together at its end, before the answers that they belong
to go out.  It never drops a record in silence: when the backlog is full, `is_full` makes the gateway refuse
new work.
"""

from forebay.core.events import Finished, encode_event
from forebay.ledger.segment import SegmentWriter
from forebay.net.turn import Turn


class Recorder:
    """The writing end of the ledger in one worker.

    Args:
        writer: this worker's segment.
        backlog_max: records kept in memory while the segment cannot be written.
        turn: at whose end the records are written.

    Attributes:
        is_full: whether requests must be refused, since what they did could not be written down.
    """

    def __init__(self, writer: SegmentWriter, backlog_max: int, turn: Turn) -> None:
        self._writer = writer
        self._turn = turn
        self._fresh: list[bytes] = []  # of this turn
        self._backlog: list[bytes] = []  # refused by the disk
        self._backlog_max = backlog_max
        self.is_full = False
        turn.write_records = self.write

    @property
    def waiting(self) -> int:
        """Records that are not written, although their turn is over."""
        return len(self._backlog)

    def set_backlog_max(self, backlog_max: int) -> None:
        """The configuration has changed."""
        self._backlog_max = backlog_max
        self._look_whether_full()

    def _look_whether_full(self) -> None:
        self.is_full = len(self._backlog) >= self._backlog_max

    def record(self, event: Finished) -> None:
        """Has a record written before the turn ends."""
        fresh = self._fresh
        fresh.append(encode_event(event))
        if len(fresh) == 1:
            self._turn.end_soon()

    def write(self) -> None:
        """Writes the records of this turn; those that the disk refuses wait for `retry`."""
        fresh = self._fresh
        if not fresh:
            return
        self._fresh = []
        if self._backlog:
            self._backlog += fresh
            self._look_whether_full()
            return
        written = 0
        try:
            while written < len(fresh):
                written += self._writer.append_many(fresh, written)
        except OSError:
            self._backlog += fresh[written:]
            self._look_whether_full()

    def retry(self) -> None:
        """Writes what is waiting, oldest first, until the disk refuses again.  To be called all the time."""
        self._writer.leave_if_removed()
        backlog = self._backlog
        written = 0
        try:
            while written < len(backlog):
                written += self._writer.append_many(backlog, written)
        except OSError:
            pass
        del backlog[:written]
        self._look_whether_full()

    def close(self) -> int:
        """Writes what it can and closes the segment; returns how many records are lost for good."""
        self.write()
        self.retry()
        self._writer.close()
        return len(self._backlog)
