"""What one worker may spend of one limit: units that were lent to it, and what it does when nobody lends."""

import asyncio

from forebay.core.limits import Kind, Limit, Measure
from forebay.gateway.policy.lending import Loan
from forebay.gateway.policy.meter import PERIOD_NS, Meter, Now, make_meter

NEVER = -1.0e18
FOREVER = 1.0e18


class Lease:
    """See the module.

    Attributes:
        limit: as the snapshot has it.
        left: units that may be spent; negative when a request took more than was reserved for it.
        epoch: of the loans; units of an earlier one are void.
        ends_at: when the period of the loans ends, and what is left with it.
        in_use: places that requests hold, for `concurrent_requests`.
        spent: units since the last sweep, which says how much to ask for next.
        used_at: the loop's time of the last use.
        known_left: what the authority had left when it last lent.
        full_at: when all of it is there again, by the loop's time, as far as is known.
        refused_until: nothing more is asked for until then.
        asking: an answer of the authority that is on its way.
        stand_in: this worker's share while there is no authority.
        owed: units taken from the share, or beyond a loan, which the authority has not been told of.
    """

    __slots__ = (
        "asking", "ends_at", "epoch", "full_at", "in_use", "known_left", "left", "limit", "owed",
        "refused_need", "refused_until", "refused_wait_s", "spent", "stand_in", "used_at",
    )  # fmt: skip

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self.left = 0
        self.epoch = 0
        self.ends_at = FOREVER
        self.in_use = 0
        self.spent = 0
        self.used_at = NEVER
        self.known_left = limit.amount
        self.full_at = NEVER
        self.refused_need = 0
        self.refused_until = NEVER
        self.refused_wait_s = 0.0
        self.asking: asyncio.Future[None] | None = None
        self.stand_in: Meter | None = None
        self.owed = 0

    @property
    def is_concurrent(self) -> bool:
        return self.limit.measure is Measure.CONCURRENT

    def take(self, units: int, now_s: float) -> None:
        self.left -= units
        self.spent += units
        self.used_at = now_s
        if self.limit.measure is Measure.CONCURRENT:
            self.in_use += units

    def give(self, units: int, epoch: int) -> None:
        """Takes back what a request did not need; negative what it took beyond its reservation."""
        if self.limit.measure is Measure.CONCURRENT:
            self.in_use -= units
            self.left += units
        elif epoch == self.epoch:
            self.left += units

    def absorb(self, loan: Loan, now_s: float) -> None:
        """The authority has lent."""
        if loan.epoch != self.epoch:
            if not self.is_concurrent:
                self.left = 0  # another period: what was left of the one before is void
            self.epoch = loan.epoch
        self.left += loan.units
        self.known_left = loan.left
        self.full_at = now_s + loan.full_in_ns * 1e-9
        self.ends_at = now_s + loan.ends_in_ns * 1e-9 if loan.ends_in_ns else FOREVER
        self.refused_until = NEVER
        self.used_at = now_s

    def end_period(self) -> None:
        """The calendar's period is over: what was lent in it is void."""
        self.left = min(0, self.left)
        self.known_left = self.limit.amount
        self.ends_at = FOREVER

    def return_all(self) -> int:
        """What goes back to the authority; negative what is owed to it."""
        units = self.left - self.owed
        self.left = self.owed = 0
        return units

    def stand_alone(self, workers: int, now: Now) -> None:
        """There is no authority: from now on this worker goes by its own share.

        It begins with nothing but what it was lent, or its part of what was left, so that nothing is spent
        twice: a bucket fills at the share's rate.
        """
        share = self.limit.amount // max(1, workers)
        meter = make_meter(_with_amount(self.limit, share), now)
        if meter.is_bucket:
            meter.level = 0
        elif self.is_concurrent:
            meter.level = max(0, share - self.in_use - self.left)
        else:
            meter.level = min(share, max(0, self.known_left) // max(1, workers))
        self.stand_in = meter

    def draw(self, units: int, now: Now) -> bool:
        """Takes what is lacking for a request from the share, if it is there."""
        meter = self.stand_in
        if meter is None:
            return False
        meter.advance(now)
        if self.limit.kind is Kind.CALENDAR and meter.epoch != self.epoch and not self.is_concurrent:
            self.left, self.epoch = min(0, self.left), meter.epoch
        lacking = units - self.left
        if lacking > meter.left:
            return False
        meter.take(lacking)
        self.left += lacking
        if not self.is_concurrent:
            self.owed += lacking
        return True

    def compute_wait_s(self, units: int, now: Now) -> float:
        """Without an authority: how long until the share has so many units, at a guess."""
        meter = self.stand_in
        wait = None if meter is None else meter.compute_wait_ns(units - self.left, now)
        if wait is None:
            period = self.limit.period
            wait = 1_000_000_000 if period is None else PERIOD_NS[period]
        return wait * 1e-9


def _with_amount(limit: Limit, amount: int) -> Limit:
    return Limit(
        id=limit.id,
        owner=limit.owner,
        measure=limit.measure,
        amount=amount,
        period=limit.period,
        kind=limit.kind,
        time_zone=limit.time_zone,
        weights=limit.weights,
        models=limit.models,
    )
