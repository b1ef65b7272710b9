"""The machine's clock.  Nothing outside `app` reads time; everybody else is handed a `core.clock.Clock`."""

import time


class SystemClock:
    """`core.clock.Clock` over the operating system."""

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()

    def wall_ns(self) -> int:
        return time.time_ns()
