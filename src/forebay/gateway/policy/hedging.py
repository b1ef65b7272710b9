"""When a request is late, and whether it may be sent to a second place as well.  Pure.

It keeps the latest times of one model in one worker, in bounded room, and an allowance that each request
fills a little, so that hedges are never more than a share of the requests.  Whether the fleet's budget has
room is `budget`'s to say.
"""

from bisect import bisect_left, insort
from collections import deque
from math import ceil

TIMES_MAX = 256  #: that are kept
TIMES_MIN = 20  #: before which nothing is late
ALLOWANCE_MAX = 10.0  #: hedges that a quiet time saves up


class Times:
    """The latest times of one kind, in seconds."""

    __slots__ = ("_latest", "_sorted")

    def __init__(self) -> None:
        self._latest: deque[float] = deque()
        self._sorted: list[float] = []

    def see(self, seconds: float) -> None:
        if len(self._latest) == TIMES_MAX:
            del self._sorted[bisect_left(self._sorted, self._latest.popleft())]
        self._latest.append(seconds)
        insort(self._sorted, seconds)

    def find_quantile(self, share: float) -> float | None:
        """The time within which this share of them were; None while too few are known."""
        known = self._sorted
        if len(known) < TIMES_MIN:
            return None
        return known[min(len(known), max(1, ceil(share * len(known)))) - 1]


class Hedging:
    """Of one model.

    Attributes:
        first: times to the first token of streams.
        whole: times of answers that are not streamed.
        allowance: hedges that may be made.
    """

    __slots__ = ("allowance", "first", "whole")

    def __init__(self) -> None:
        self.first, self.whole = Times(), Times()
        self.allowance = 0.0

    def begin(self, max_share: float) -> None:
        """A request that might be hedged has been sent."""
        self.allowance = min(ALLOWANCE_MAX, self.allowance + max_share)

    def find_delay(self, quantile: float, min_s: float, *, stream: bool) -> float | None:
        """Seconds after which a request without content is late; None while nobody knows."""
        found = (self.first if stream else self.whole).find_quantile(quantile)
        return None if found is None else max(min_s, found)

    @property
    def has_allowance(self) -> bool:
        return self.allowance >= 1.0

    def spend(self) -> None:
        """A hedge is made."""
        self.allowance -= 1.0
