"""How many retries a worker may make of its requests, so that a fleet in trouble is not asked twice as much.

Pure: it is told the time and the number of requests.  Every worker keeps to its share of its own requests, so
all of them together keep to it without a word between them.
"""

from collections import deque

WINDOW_S = 10.0  #: over which requests and retries are compared
MARK_S = 1.0  #: between two marks: the window is so much longer at times


class RetryBudget:
    """Attempts beyond each request's first, within a share of the requests of the last ten seconds."""

    __slots__ = ("_marks", "is_spent", "spent", "strain")

    def __init__(self) -> None:
        self._marks: deque[tuple[float, int, int]] = deque()  # time, requests and retries; eleven at most
        self.spent = 0  #: retries ever made
        self.is_spent = False  #: at the last look
        self.strain = 0.0  #: the share of it that was spent, likewise

    def look(self, now: float, requests: int, share: float, min_per_s: float) -> bool:
        """Whether one more retry may be made.  To be called every tenth of a second or so as well.

        Args:
            requests: that there ever were.
            share: of the requests.
            min_per_s: that may be made besides, so that a fleet with few requests can retry at all.
        """
        marks = self._marks
        if not marks or now >= marks[-1][0] + MARK_S:
            marks.append((now, requests, self.spent))
        while marks[0][0] < now - WINDOW_S - MARK_S:
            marks.popleft()
        _, requests_then, spent_then = marks[0]
        allowed = share * (requests - requests_then) + min_per_s * WINDOW_S
        made = self.spent - spent_then
        self.strain = made / allowed if allowed > 0.0 else 1.0
        self.is_spent = made + 1 > allowed
        return not self.is_spent

    def spend(self) -> None:
        """A retry is made."""
        self.spent += 1
