"""The machine's clock.  Nothing outside `app` reads time; everybody else is handed a `core.clock.Clock`."""

import time


class SystemClock:
    """`core.clock.Clock` over the operating system."""

    # The built-ins themselves: the hot path reads the clock several times a request.
    monotonic_ns = staticmethod(time.monotonic_ns)
    wall_ns = staticmethod(time.time_ns)
