"""A clock that moves only when a test says so."""

from forebay.core.clock import Clock


class VirtualClock(Clock):
    """`core.clock.Clock` under a test's control.

    clock = VirtualClock()
    clock.advance(1.5)
    assert clock.monotonic_ns() == 1_500_000_000

    The wall moves with the monotonic clock; `set_wall` makes it jump, as when somebody sets the date.
    """

    def __init__(self, *, monotonic_ns: int = 0, wall_ns: int = 1_750_000_000_000_000_000) -> None:
        self._monotonic_ns = monotonic_ns
        self._wall_ns = wall_ns

    def monotonic_ns(self) -> int:
        return self._monotonic_ns

    def wall_ns(self) -> int:
        return self._wall_ns

    def advance(self, seconds: float) -> None:
        """Move both clocks.  Raises ValueError for a negative time: a monotonic clock never goes back."""
        self.advance_ns(round(seconds * 1_000_000_000))

    def advance_ns(self, nanoseconds: int) -> None:
        """Like `advance`, exactly."""
        if nanoseconds < 0:
            raise ValueError("a monotonic clock never goes back; use set_wall to move the wall clock")
        self._monotonic_ns += nanoseconds
        self._wall_ns += nanoseconds

    def set_wall(self, wall_ns: int) -> None:
        """Let the wall clock jump, forwards or back."""
        self._wall_ns = wall_ns
