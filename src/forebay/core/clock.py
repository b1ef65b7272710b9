"""What time is, as an argument.  Only `app` reads the machine's clock; others are handed one of these."""

from typing import Protocol


class Clock(Protocol):
    """A source of time: `forebay.app.clock.SystemClock`, or `forebay.testing.clock.VirtualClock` in tests."""

    def monotonic_ns(self) -> int:
        """Nanoseconds that never go back, for durations and deadlines."""
        ...

    def wall_ns(self) -> int:
        """Nanoseconds since the Unix epoch, for records; may jump when somebody sets the clock."""
        ...
