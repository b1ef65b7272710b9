"""How full and how fast a place is, as one worker's own requests tell: counts, and means with peaks.  Pure.

It absorbs what happened and decides nothing.  Times are seconds of one clock, handed in.  What nobody has
seen for `STALE_S` is unknown, which is neither fast nor idle.
"""

from collections.abc import Callable
from math import exp

STALE_S = 30.0  #: after which a measured time says nothing any more
PEAK_DECAY_S = 10.0  #: in which a peak falls to 37 % of what it was above the later measurements
LEVEL_UP_S, LEVEL_DOWN_S = 0.2, 2.0  #: how fast a pool's level follows its use: up quickly, down slowly
PRESSURE_DECAY_S = 10.0  #: likewise of refusals
EJECT_AFTER = 5  #: failures in a row
EJECT_S, EJECT_MAX_S = 10.0, 300.0  #: twice as long each time
BUSY_S = 1.0  #: that a replica is left alone after a refusal which names no time
BYTES_PER_TOKEN = 4  #: of a request's body
OUTPUT_MIN = 16  #: tokens of an answer that say how long each takes; of fewer, the ends take most of it
TINY = 1e-9  #: what sums of shares may be off
OUTPUT_GUESS = 256  #: tokens of an answer, where nobody has estimated it


def estimate_tokens(body_bytes: int, output: int = OUTPUT_GUESS) -> int:
    """Of a request, prompt and answer."""
    return body_bytes // BYTES_PER_TOKEN + output


class Pace:
    """Peak-EWMA of the time to the first token, and of the time for each further one."""

    __slots__ = ("first_at", "first_s", "token_at", "token_s")

    def __init__(self) -> None:
        self.first_s = self.token_s = 0.0
        self.first_at = self.token_at = -STALE_S * 1e6

    def see_first(self, seconds: float, now: float) -> None:
        self.first_s = _blend(self.first_s, self.first_at, seconds, now)
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


class PoolLoad(Pace):
    """Of all replicas of a pool together.

    Args:
        size: how many replicas there are.
        requests_max, tokens_max: what they serve well at once, all together; 0 if nobody knows.
    """

    __slots__ = (
        "_per_request",
        "_per_token",
        "has_capacity",
        "level",
        "level_at",
        "pressure",
        "pressure_at",
        "requests",
        "size",
        "tokens",
        "unfit",
        "unfit_until",
        "used",
        "used_of_all",
    )

    def __init__(self, size: int, requests_max: float = 0, tokens_max: float = 0) -> None:
        super().__init__()
        self.size = size
        self.requests = self.tokens = 0
        self._per_request = 1 / requests_max if requests_max else 0.0
        self._per_token = 1 / tokens_max if tokens_max else 0.0
        self.has_capacity = bool(requests_max or tokens_max)
        self.used = 0.0  #: share of the capacity in service, more than 1 when there is a queue
        self.used_of_all = 0.0  #: the same of all capacity
        self.level = 0.0  #: of all capacity, as it was over the last while
        self.level_at = 0.0
        self.pressure = 0.0  #: share of the replicas that refused of late
        self.pressure_at = 0.0
        self.unfit: tuple[ReplicaLoad, ...] = ()  #: replicas that may be out of service
        self.unfit_until = 0.0  #: the last moment at which one of them may be

    def change(self, requests: int, tokens: int, now: float) -> None:
        """Requests have begun or ended."""
        if self.has_capacity:
            self.level = self.compute_level(now)
            self.level_at = now
        self.set_counts(self.requests + requests, self.tokens + tokens)
        if self.unfit:
            self._look_who_is_fit(now)

    def set_counts(self, requests: int, tokens: int) -> None:
        """So many are in flight."""
        self.requests, self.tokens = requests, tokens
        by_requests, by_tokens = requests * self._per_request, tokens * self._per_token
        self.used = self.used_of_all = by_requests if by_requests > by_tokens else by_tokens

    def compute_fit(self, now: float) -> tuple[int, float]:
        """How many replicas are in service, all of them if none is, for then all are tried; and what share
        of all capacity is in use at the others."""
        if now >= self.unfit_until:
            return self.size, 0.0
        unfit = [each for each in self.unfit if now < each.unfit_until]
        if len(unfit) >= self.size:
            return self.size, 0.0
        requests = self.requests - sum(each.requests for each in unfit)
        tokens = self.tokens - sum(each.tokens for each in unfit)
        by_requests, by_tokens = requests * self._per_request, tokens * self._per_token
        return self.size - len(unfit), max(0.0, self.used_of_all - max(by_requests, by_tokens))

    def has_room(self, now: float) -> bool:
        """Whether one more request would not exceed what its replicas in service serve at once.

        Of tokens, the one that fills it may.
        """
        requests, tokens, part = self.requests, self.tokens, 1.0
        if now < self.unfit_until:
            unfit = [each for each in self.unfit if now < each.unfit_until]
            if 0 < len(unfit) < self.size:
                requests -= sum(each.requests for each in unfit)
                tokens -= sum(each.tokens for each in unfit)
                part -= len(unfit) / self.size
        return (requests + 1) * self._per_request <= part + TINY and tokens * self._per_token < part

    @property
    def requests_share(self) -> float:
        """The requests that it serves well at once, as far as they are this worker's; 0 if nobody knows."""
        return 1 / self._per_request if self._per_request else 0.0

    def _look_who_is_fit(self, now: float) -> None:
        fit, lost = self.compute_fit(now)
        self.used = (self.used_of_all - lost) * self.size / fit
        if now >= self.unfit_until:
            self.unfit = ()

    def compute_level(self, now: float) -> float:
        passed = now - self.level_at
        if passed <= 0:
            return self.level
        used = self.used_of_all
        return used + (self.level - used) * exp(-passed / (LEVEL_UP_S if used > self.level else LEVEL_DOWN_S))

    def note_unfit(self, replica: "ReplicaLoad", now: float) -> None:
        """A replica is out of service."""
        still = (each for each in self.unfit if each is not replica and each.unfit_until > now)
        self.unfit = (*still, replica)
        self.unfit_until = max(each.unfit_until for each in self.unfit)
        self._look_who_is_fit(now)

    def compute_pressure(self, now: float) -> float:
        if self.pressure == 0.0:
            return 0.0
        return self.pressure * exp(min(0.0, self.pressure_at - now) / PRESSURE_DECAY_S)


class ReplicaLoad(Pace):
    """Of one replica.

    Attributes:
        on_end: told that a request has ended there, once all counts say so.
    """

    __slots__ = (
        "ejected_until",
        "ejections",
        "failures",
        "on_end",
        "pools",
        "requests",
        "retry_at",
        "tokens",
    )

    def __init__(self) -> None:
        super().__init__()
        self.requests = self.tokens = 0
        self.failures = 0  #: in a row
        self.ejections = 0
        self.ejected_until = self.retry_at = 0.0
        self.pools: list[PoolLoad] = []  #: that count it
        self.on_end: Callable[[ReplicaLoad, float], None] | None = None

    def begin(self, tokens: int, now: float) -> None:
        """A request has been sent to it.  Each is ended once."""
        self.requests += 1
        self.tokens += tokens
        for pool in self.pools:
            pool.change(1, tokens, now)

    def end(self, tokens: int, now: float) -> None:
        self.requests -= 1
        self.tokens -= tokens
        for pool in self.pools:
            pool.change(-1, -tokens, now)
        if self.on_end is not None:
            self.on_end(self, now)

    def tell_first(self, seconds: float, now: float) -> None:
        """The first token of an answer has come."""
        self.see_first(seconds, now)
        for pool in self.pools:
            pool.see_first(seconds, now)

    def tell_token(self, seconds: float, now: float) -> None:
        """An answer is whole: so long each of its tokens took after the first."""
        self.see_token(seconds, now)
        for pool in self.pools:
            pool.see_token(seconds, now)

    @property
    def unfit_until(self) -> float:
        return max(self.ejected_until, self.retry_at)

    def succeed(self) -> None:
        self.failures = self.ejections = 0

    def refuse(self, now: float, retry_after_s: float | None = None) -> None:
        """It said that it has no room (429, 503): it is left alone for a while, and its pool is fuller.

        A part of a second is what no target can say: that long we keep to our own limit of connections.  It
        leaves the replica alone, and says nothing of how full its pool is.
        """
        seconds = BUSY_S if retry_after_s is None else retry_after_s
        self.retry_at = max(self.retry_at, now + seconds)
        is_ours = 0 < seconds < 1
        for pool in self.pools:
            if not is_ours:
                pool.pressure = min(1.0, pool.compute_pressure(now) + 1 / pool.size)
                pool.pressure_at = now
            pool.note_unfit(self, now)

    def fail(self, now: float) -> None:
        """An attempt failed by its fault; so many in a row put it out of service."""
        self.failures += 1
        if self.failures < EJECT_AFTER or now < self.ejected_until:
            return
        self.ejected_until = now + min(EJECT_MAX_S, EJECT_S * 2.0**self.ejections)
        self.ejections = min(self.ejections + 1, 10)
        for pool in self.pools:
            pool.note_unfit(self, now)

    def forgive(self) -> None:
        """The last failure was not its fault, but the request's, which failed elsewhere too."""
        self.failures = max(0, self.failures - 1)
        if self.failures == EJECT_AFTER - 1 and self.ejected_until:
            self.ejected_until = 0.0  # that failure put it out of service
            self.ejections = max(0, self.ejections - 1)
