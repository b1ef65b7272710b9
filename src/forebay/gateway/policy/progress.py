"""Whether a body still comes fast enough to be waited for.  Pure."""

from dataclasses import dataclass

WINDOW_NS = 10_000_000_000
WINDOW_MIN_BYTES = 10 * 1024  #: of a body in each window: 1 KiB a second
BODY_MAX_NS = 60_000_000_000  #: for all of it, however fast


@dataclass(slots=True)
class Progress:
    """How far a body was when the current window began."""

    begun_ns: int
    window_ns: int
    window_bytes: int = 0

    def is_too_slow(self, now_ns: int, received: int) -> bool:
        """To be asked again and again while the body comes."""
        if now_ns - self.begun_ns > BODY_MAX_NS:
            return True
        if now_ns - self.window_ns < WINDOW_NS:
            return False
        if received - self.window_bytes < WINDOW_MIN_BYTES:
            return True
        self.window_ns, self.window_bytes = now_ns, received
        return False
