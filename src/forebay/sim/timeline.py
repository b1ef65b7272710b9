"""Time of a simulation: what is to happen at which moment, one after the other.  Pure."""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count


class Timeline:
    """Calls what is due, in the order of the moments; of two at the same one in the order of asking."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def call_at(self, at: float, what: Callable[[], None]) -> None:
        """What is asked for the past happens now."""
        heappush(self._due, (max(at, self.now), next(self._numbers), what))

    def step(self) -> bool:
        """One of them; False where nothing is left."""
        if not self._due:
            return False
        self.now, _, what = heappop(self._due)
        what()
        return True

    def run(self) -> None:
        """Until nothing is left."""
        while self.step():
            pass
