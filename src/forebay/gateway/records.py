"""Hands each record to the ledger's segment exactly once, and keeps it while the disk refuses.

It never drops a record in silence: when the backlog is full, `is_full` makes the gateway refuse new work.
"""

from collections import deque

from forebay.core.events import Finished, encode_event
from forebay.ledger.segment import SegmentWriter


class Recorder:
    """The writing end of the ledger in one worker.

    Args:
        writer: this worker's segment.
        backlog_max: records kept in memory while the segment cannot be written.
    """

    def __init__(self, writer: SegmentWriter, backlog_max: int) -> None:
        self._writer = writer
        self._backlog: deque[bytes] = deque()
        self.backlog_max = backlog_max

    @property
    def waiting(self) -> int:
        return len(self._backlog)

    @property
    def is_full(self) -> bool:
        """Whether requests must be refused, since what they did could not be written down."""
        return len(self._backlog) >= self.backlog_max

    def record(self, event: Finished) -> None:
        payload = encode_event(event)
        if self._backlog:
            self._backlog.append(payload)
            return
        try:
            self._writer.append(payload)
        except OSError:
            self._backlog.append(payload)

    def retry(self) -> None:
        """Writes what is waiting, oldest first, until the disk refuses again.  To be called all the time."""
        self._writer.leave_if_removed()
        backlog = self._backlog
        while backlog:
            try:
                self._writer.append(backlog[0])
            except OSError:
                return
            backlog.popleft()

    def close(self) -> int:
        """Writes what it can and closes the segment; returns how many records are lost for good."""
        self.retry()
        self._writer.close()
        return len(self._backlog)
