"""How fast a place is: means of measured times, with peaks.  Pure.

What nobody has seen for `STALE_S` is unknown, which is neither fast nor slow.  Times are seconds of one
clock.
"""

from math import exp

STALE_S = 30.0  #: after which a measured time says nothing any more
PEAK_DECAY_S = 10.0  #: in which a peak falls to 37 % of what it was above the later measurements


class Pace:
    """Peak-EWMA of the time to the first token, and of the time for each further one."""

    __slots__ = ("first_at", "first_s", "token_at", "token_s")

    def __init__(self) -> None:
        self.first_s = self.token_s = 0.0
        self.first_at = self.token_at = -STALE_S * 1e6

    def see_first(self, seconds: float, now: float) -> None:
        # `_blend` is written out here: this is twice in each request's way.
        known, known_at = self.first_s, self.first_at
        if seconds < known and now - known_at <= STALE_S:
            seconds += (known - seconds) * exp((known_at - now) / PEAK_DECAY_S)
        self.first_s = seconds
        self.first_at = now

    def see_token(self, seconds: float, now: float) -> None:
        self.token_s = _blend(self.token_s, self.token_at, seconds, now)
        self.token_at = now

    def estimate(self, output_tokens: int, now: float) -> float | None:
        """Seconds for an answer so long, without any queue; None if nothing is known of it."""
        if now - self.first_at > STALE_S:
            return None if now - self.token_at > STALE_S else self.token_s * output_tokens
        if now - self.token_at > STALE_S:
            return self.first_s
        return self.first_s + self.token_s * output_tokens


def _blend(known: float, known_at: float, sample: float, now: float) -> float:
    """A peak at once; from there down by the time that has passed (as in Finagle's peak-EWMA)."""
    if sample >= known or now - known_at > STALE_S:
        return sample
    return sample + (known - sample) * exp((known_at - now) / PEAK_DECAY_S)
