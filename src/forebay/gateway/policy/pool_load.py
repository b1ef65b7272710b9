"""How full and how fast a pool is, all of its replicas together.  Pure.

What engines and providers say of themselves (`told`) can make it fuller than counts do, never emptier.  It
absorbs what happened and decides nothing.  Times are seconds of one clock, handed in.
"""

from collections.abc import Iterable
from math import exp, inf
from typing import Protocol

from forebay.gateway.policy.faults import Faults
from forebay.gateway.policy.faults import Trouble as Trouble
from forebay.gateway.policy.pace import PEAK_DECAY_S, STALE_S
from forebay.gateway.policy.relaxing import Flow

PRESSURE_DECAY_S = 10.0  #: in which what refusals say falls to 37 %
PRESSURE_MIN = 0.001  #: less says nothing
TOLD_DOWN_S = 4.0  #: how fast what engines and providers say may become less
#: A worker's share of a capacity is at least that: a request fills no more than any class leaves free.
PART_REQUESTS, PART_TOKENS = 1.5, 8192.0
FLOW_MIN = 0.1  #: requests of other workers; of fewer nothing is left
TINY = 1e-9  #: what sums of shares may be off


class Replica(Protocol):
    """One of its replicas, as `load` counts it."""

    requests: int
    tokens: int
    others_requests: int
    others_tokens: int
    unfit_until: float
    slow_until: float

    def compute_share(self, now: float) -> float: ...


class PoolLoad(Faults):
    """Of all replicas of a pool together.

    Args:
        size: how many replicas there are.
        requests_max, tokens_max: what they serve well at once, all together; 0 if nobody knows.
        workers: between whom that is shared, because each sees its own requests alone.
        trouble: of all pools that are chosen among together.
    """

    __slots__ = (
        "_per_request",
        "_per_token",
        "allowed_requests",
        "allowed_tokens",
        "asked_at",
        "begun",
        "drift",
        "flow",
        "growth",
        "has_capacity",
        "holders",
        "is_pressed",
        "others_requests",
        "others_tokens",
        "part",
        "pressure",
        "pressure_at",
        "requests",
        "requests_max",
        "saturated",
        "size",
        "slow",
        "slow_until",
        "tokens",
        "tokens_max",
        "told",
        "told_at",
        "told_wait_s",
        "unfit",
        "unfit_until",
        "used",
        "used_of_all",
    )

    def __init__(
        self,
        size: int,
        requests_max: float = 0,
        tokens_max: float = 0,
        workers: float = 1.0,
        trouble: Trouble | None = None,
    ) -> None:
        super().__init__(trouble)
        self.size = size
        self.requests = self.tokens = 0
        self.asked_at = self.first_at  #: when this worker began a request there last
        self.others_requests = self.others_tokens = 0  #: of these, of other workers
        self.begun = 0  #: requests that this worker has begun there
        self.flow: Flow | None = None  #: while other workers have something there
        self.drift = 0.0  #: of its use, since the others told what they have
        self.allowed_requests = self.allowed_tokens = inf  #: that this worker's own may fill of it
        self.requests_max, self.tokens_max = requests_max, tokens_max
        self.has_capacity = bool(requests_max or tokens_max)
        self.growth = 1.0  #: of `requests_max`, since it was made
        self.used = 0.0  #: share of the capacity in service, more than 1 when there is a queue
        self.used_of_all = 0.0  #: the same of all capacity, by counts alone
        self.pressure = 0.0  #: share of the replicas that refused of late
        self.pressure_at = 0.0
        self.unfit: tuple[Replica, ...] = ()  #: replicas that may be out of service
        self.unfit_until = 0.0  #: the last moment at which one of them may be
        self.slow: tuple[Replica, ...] = ()  #: replicas that may be in their slow start
        self.slow_until = 0.0
        self.saturated: tuple[
            Replica, ...
        ] = ()  #: replicas whose engines or providers say that they are full
        self.holders: tuple[Replica, ...] = ()  #: that hold a LoRA adapter, where it is one and others do not
        self.told: float | None = None  #: use of the capacity in service, as engines and providers say
        self.told_wait_s = 0.0  #: that requests wait in engines, likewise
        self.told_at = 0.0
        self.is_pressed = False  #: by refusals or waits, so that something may spill from an idle pool
        self.set_workers(workers)

    def set_workers(self, workers: float) -> None:
        """Its capacity is this worker's and that of so many others whose requests it does not see.

        Args:
            workers: 1 where it sees the requests of all.
        """
        self.part = 1 / workers
        requests_max = _share(self.requests_max, workers, PART_REQUESTS)
        tokens_max = _share(self.tokens_max, workers, PART_TOKENS)
        self._per_request = 1 / requests_max if requests_max else 0.0
        self._per_token = 1 / tokens_max if tokens_max else 0.0

    def resize(self, requests_max: float, tokens_max: float) -> None:
        """Its replicas serve something else well at once than was known when it was made."""
        if self.requests_max:
            self.growth *= requests_max / self.requests_max
        self.requests_max, self.tokens_max = requests_max, tokens_max
        self.set_workers(1 / self.part)
        self.set_counts(self.requests, self.tokens)

    def change(self, requests: int, tokens: int, now: float) -> None:
        """Requests have begun or ended."""
        # `set_counts` is written out here: this is twice in each request's way.
        self.requests = requests = self.requests + requests
        self.tokens = tokens = self.tokens + tokens
        used, by_tokens = requests * self._per_request, tokens * self._per_token
        if by_tokens > used:
            used = by_tokens
        self.used_of_all = used = used + self.drift
        told = self.told
        self.used = used if told is None or used > told else told
        if self.unfit or self.slow:
            self._look_who_is_fit(now)

    def end_well(self, tokens: int, first_s: float, now: float) -> None:
        """A request has ended, whose first token came after so long."""
        # `change` and `see_first` are written out here: this is in each request's way.
        self.requests = requests = self.requests - 1
        self.tokens = left = self.tokens - tokens
        used, by_tokens = requests * self._per_request, left * self._per_token
        if by_tokens > used:
            used = by_tokens
        self.used_of_all = used = used + self.drift
        told = self.told
        self.used = used if told is None or used > told else told
        known, known_at = self.first_s, self.first_at
        if first_s < known and now - known_at <= STALE_S:
            first_s += (known - first_s) * exp((known_at - now) / PEAK_DECAY_S)
        self.first_s = first_s
        self.first_at = now
        if self.unfit or self.slow:
            self._look_who_is_fit(now)

    def change_others(self, requests: int, tokens: int, now: float) -> None:
        """Other workers have so many more."""
        self.others_requests += requests
        self.others_tokens += tokens
        self.change(requests, tokens, now)

    def relax(self, now: float) -> None:
        """Looks what the others have by now (`relaxing`).  To be called some times a second."""
        others = self.others_requests, self.others_tokens
        flow = self.flow
        if flow is None:
            if not self.has_capacity or others == (0, 0):
                return
            flow = self.flow = Flow(self.begun, now, others)
        own, own_tokens = self.requests - others[0], self.tokens - others[1]
        flow.update(own, self.begun, others, now)
        requests, tokens = flow.estimate_others(others)
        if others == (0, 0) and requests < FLOW_MIN:
            self.flow, self.drift = None, 0.0
        else:
            by_now = max((own + requests) * self._per_request, (own_tokens + tokens) * self._per_token)
            self.drift = by_now - max(self.requests * self._per_request, self.tokens * self._per_token)
        self.change(0, 0, now)

    def count_anew(self, loads: Iterable[Replica]) -> None:
        """What is in flight at its replicas, each given once."""
        every = tuple(loads)
        self.others_requests = sum(each.others_requests for each in every)
        self.others_tokens = sum(each.others_tokens for each in every)
        self.set_counts(sum(each.requests for each in every), sum(each.tokens for each in every))

    def set_counts(self, requests: int, tokens: int) -> None:
        """So many are in flight."""
        self.requests, self.tokens = requests, tokens
        by_requests, by_tokens = requests * self._per_request, tokens * self._per_token
        used = self.used_of_all = max(by_requests, by_tokens) + self.drift
        told = self.told
        self.used = used if told is None or used > told else told

    def compute_fit(self, now: float) -> tuple[float, float]:
        """How many replicas are in service, all of them if none is, for then all are tried; and what share
        of all capacity is in use at the others.  One in its slow start counts for its share."""
        slow = 0.0
        if now < self.slow_until:
            slow = sum(1 - each.compute_share(now) for each in self.slow if now >= each.unfit_until)
        if now >= self.unfit_until:
            return self.size - slow, 0.0
        unfit = [each for each in self.unfit if now < each.unfit_until]
        if len(unfit) >= self.size:
            return self.size, 0.0
        requests = self.requests - sum(each.requests for each in unfit)
        tokens = self.tokens - sum(each.tokens for each in unfit)
        by_requests, by_tokens = requests * self._per_request, tokens * self._per_token
        return self.size - len(unfit) - slow, max(0.0, self.used_of_all - max(by_requests, by_tokens))

    def compute_share(self, now: float) -> float:
        """Of what would be its own: less than 1 while replicas that are in service start slowly."""
        if now >= self.slow_until:
            return 1.0
        unfit = sum(now < each.unfit_until for each in self.unfit) if now < self.unfit_until else 0
        fit = self.size - unfit if unfit < self.size else self.size
        return self.compute_fit(now)[0] / fit

    def has_room(self, now: float) -> bool:
        """Whether one more request would exceed neither what its replicas in service serve at once nor what
        this worker may fill of it, and they do not say themselves that they are full.  Of tokens, the one
        that fills it may."""
        requests, tokens, others, others_tokens, part = (
            self.requests, self.tokens, self.others_requests, self.others_tokens, 1.0,
        )  # fmt: skip
        if self.saturated or now < self.unfit_until:  # else `measure` says the same
            if self._says_full(now):
                return False
            requests, tokens, others, others_tokens, part = self.measure(now)
        if requests - others >= self.allowed_requests or tokens - others_tokens >= self.allowed_tokens:
            return False
        return (requests + 1) * self._per_request <= part + TINY and tokens * self._per_token < part

    def measure(self, now: float) -> tuple[int, int, int, int, float]:
        """What is in flight at replicas in service: requests and tokens, and of these other workers'; and
        what part of the pool those replicas are.  Where none is, all of it.  Those that say themselves that
        they are full count as out of service while there are others."""
        if now < self.unfit_until or self.saturated:
            unfit = self._list_closed(now)
            if 0 < len(unfit) < self.size:
                return (
                    self.requests - sum(each.requests for each in unfit),
                    self.tokens - sum(each.tokens for each in unfit),
                    self.others_requests - sum(each.others_requests for each in unfit),
                    self.others_tokens - sum(each.others_tokens for each in unfit),
                    1.0 - len(unfit) / self.size,
                )
        return self.requests, self.tokens, self.others_requests, self.others_tokens, 1.0

    def _list_closed(self, now: float) -> list[Replica]:
        """Replicas that get nothing: those out of service, and with them the full ones if any is left."""
        unfit = [each for each in self.unfit if now < each.unfit_until]
        if len(unfit) >= self.size:
            unfit = []
        full = [each for each in self.saturated if each not in unfit]
        return unfit + full if len(unfit) + len(full) < self.size else unfit

    def _says_full(self, now: float) -> bool:
        """Whether all in service say so, and are at work for the gateway: one that has nothing of it to do
        gets a request all the same, which shows whether it is so."""
        if not self.saturated or not self.requests:
            return False
        unfit = [each for each in self.unfit if now < each.unfit_until]
        return len({*unfit, *self.saturated}) >= self.size

    def count_free(self, now: float) -> int:
        """Requests for which there is room, whoever may fill it; where only tokens bound it, one at least."""
        requests, tokens, _, _, part = self.measure(now)
        if self._says_full(now):
            return 0
        if tokens * self._per_token >= part:
            return 0
        return max(0, int(part / self._per_request + TINY) - requests) if self._per_request else 1

    def allow(self, requests: float, tokens: float) -> bool:
        """This worker's own requests may fill so much of it; whether that is more than before."""
        is_more = requests > self.allowed_requests or tokens > self.allowed_tokens
        self.allowed_requests, self.allowed_tokens = requests, tokens
        return is_more

    @property
    def is_overfilled(self) -> bool:
        """Whether this worker has all that it may fill, or more."""
        return self.requests - self.others_requests >= self.allowed_requests

    @property
    def requests_share(self) -> float:
        """The requests that it serves well at once, as far as they are this worker's; 0 if nobody knows."""
        return 1 / self._per_request if self._per_request else 0.0

    @property
    def tokens_share(self) -> float:
        """Likewise of tokens."""
        return 1 / self._per_token if self._per_token else 0.0

    def _look_who_is_fit(self, now: float) -> None:
        fit, lost = self.compute_fit(now)
        self.used = max((self.used_of_all - lost) * self.size / fit, self.told or 0.0)
        if now >= self.unfit_until:
            self.unfit = ()
        if now >= self.slow_until:
            self.slow = ()

    def note_unfit(self, replica: Replica, now: float) -> None:
        """A replica is out of service, or for another time than before."""
        fit = replica.unfit_until <= now
        still = tuple(each for each in self.unfit if each is not replica and each.unfit_until > now)
        self.unfit = still if fit else (*still, replica)
        self.unfit_until = max((each.unfit_until for each in self.unfit), default=0.0)
        self.trouble.until = max(self.trouble.until, self.unfit_until)
        self._look_who_is_fit(now)

    def note_slow(self, replica: Replica, now: float) -> None:
        """A replica is new, or will be back."""
        still = (each for each in self.slow if each is not replica and each.slow_until > now)
        self.slow = (*still, replica)
        self.slow_until = max(each.slow_until for each in self.slow)
        self._look_who_is_fit(now)

    def note_refusal(self, now: float) -> None:
        """One of its replicas has said that it has no room."""
        self.pressure = min(1.0, self.compute_pressure(now) + 1 / self.size)
        self.pressure_at = now
        self.is_pressed = True

    def compute_pressure(self, now: float) -> float:
        if self.pressure == 0.0:
            return 0.0
        return self.pressure * exp(min(0.0, self.pressure_at - now) / PRESSURE_DECAY_S)

    @property
    def has_told(self) -> bool:
        """Whether anything is known that engines and providers said."""
        return self.told is not None or self.told_wait_s > 0.0 or bool(self.saturated)

    def set_told(self, told: float | None, wait_s: float, saturated: tuple[Replica, ...], now: float) -> None:
        """What engines and providers say of it together.

        More counts at once and less only slowly, for they speak late of what has been sent to them.
        """
        fade = exp((self.told_at - now) / TOLD_DOWN_S)
        if told is not None and self.told is not None:
            told = max(told, told + (self.told - told) * fade)
        if 0.0 < wait_s < self.told_wait_s:
            wait_s += (self.told_wait_s - wait_s) * fade
        self.told, self.told_wait_s, self.told_at, self.saturated = told, wait_s, now, saturated
        self.is_pressed = self.compute_pressure(now) > PRESSURE_MIN or wait_s > 0.0
        self._look_who_is_fit(now)


def _share(capacity: float, workers: float, least: float) -> float:
    """Never so little that one request fills it, unless it fills the whole: other workers may have none."""
    return max(capacity / workers, min(capacity, least))
