"""How long requests have waited in an engine's queue of late, from counters that only grow.  Pure."""

from collections import deque
from typing import Final

WINDOW_S: Final = 10.0  #: over which the mean is taken
SAMPLES_MAX: Final = 64
WAIT_MAX_S: Final = 86_400.0  #: a longer mean is no mean


class QueueWait:
    """The mean of the last while, of one engine.

    Engines count a request when it leaves their queue.  Where none did in that time, nothing is known.
     Counters that have become smaller are those of an engine that has begun anew.
    """

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float, int]] = deque(maxlen=SAMPLES_MAX)

    def see(self, now: float, sum_s: float | None, count: int | None) -> float | None:
        """Takes the counters as they are now; returns seconds, None if nothing is known.

        Args:
            sum_s: that all requests together have waited, ever.
            count: of those requests.
        """
        if sum_s is None or count is None:
            self._seen.clear()
            return None
        if self._seen and (sum_s < self._seen[-1][1] or count < self._seen[-1][2]):
            self._seen.clear()
        self._seen.append((now, sum_s, count))
        # One of before the window is kept: from it on the window is counted.
        while len(self._seen) > 2 and self._seen[1][0] <= now - WINDOW_S:
            self._seen.popleft()
        _, first_s, first_count = self._seen[0]
        left = count - first_count
        if left <= 0:
            return None
        mean = (sum_s - first_s) / left
        return mean if 0 <= mean <= WAIT_MAX_S else None
