"""What one worker may spend of one limit: units that were lent to it, and what it does when nobody lends."""

import asyncio

import msgspec

from forebay.core.limits import EVEN, Kind, Limit, Measure
from forebay.gateway.policy.lending import Loan
from forebay.gateway.policy.meter import PERIOD_NS, Meter, Now, make_meter

NEVER = -1.0e18
FOREVER = 1.0e18


NO_EPOCH = -1
IDLE_S = 1.0  #: a lease that nobody used for so long goes back
REFUSED_S = 0.02  #: after a refusal, before the authority is asked again for as much
GUESS_PARTS = 4  #: of a limit's amount, one such part at most is reserved for an answer of unknown length
NOTHING, INPUT, OUTPUT = 0, 1, 2  #: which tokens a limit counts; both are 3
_COUNTED = {Measure.INPUT_TOKENS: INPUT, Measure.OUTPUT_TOKENS: OUTPUT, Measure.TOTAL_TOKENS: INPUT | OUTPUT}


class Lease:
    """See the module.

    Attributes:
        limit: as the snapshot has it.
        counts: which tokens it counts, as above; NOTHING where it counts requests.
        counts_requests: whether it counts requests in a time.
        is_concurrent: whether it counts requests in flight.
        is_cost: whether it counts money.
        is_exceeded: the authority had no room, and the limit says what follows, which is not a refusal.
        is_even: whether all its tokens count whole.
        is_lent: the authority does not know yet what was spent of its loans.
        left: units that may be spent; negative when a request took more than was reserved for it.
        epoch: of the loans; units of an earlier one are void.
        ends_at: when the period of the loans ends, and what is left with it.
        in_use: places that requests hold, for `concurrent_requests`.
        spent: units taken lately, halved by each sweep; says how much to ask for next.
        used_at: the loop's time of the last use.
        guess_max: the most that is reserved where the length of the answer is a guess.
        known_left: what the authority had left when it last lent.
        full_at: when all of it is there again, by the loop's time, as far as is known.
        refused_until: nothing more is asked for until then.
        asking: an answer of the authority that is on its way.
        stand_in: this worker's share while there is no authority.
        drawn: units of a calendar taken from the share since the authority last lent.
        owed: units taken from the share, or beyond a loan, which the authority has not been told of; negative
            what goes back to it and is not to be spent.
    """

    __slots__ = (
        "__weakref__", "_head", "_kind", "_tail", "asking", "counts", "counts_requests", "drawn", "ends_at",
        "epoch", "full_at", "guess_max", "in_use", "is_concurrent", "is_cost", "is_even", "is_exceeded",
        "is_lent", "known_left", "left", "limit", "owed", "refused_need", "refused_until", "refused_wait_s",
        "spent", "stand_in", "used_at",
    )  # fmt: skip

    def __init__(self, limit: Limit) -> None:
        self.set_limit(limit)
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
        self.drawn = 0
        self.is_exceeded = self.is_lent = False
        self.tell_reset(NEVER)

    def set_limit(self, limit: Limit) -> None:
        """As the snapshot has it now."""
        self.limit = limit
        self.guess_max = limit.amount // GUESS_PARTS
        self.counts = _COUNTED.get(limit.measure, NOTHING)
        self.is_concurrent = limit.measure is Measure.CONCURRENT
        self.is_cost = limit.measure is Measure.COST
        self.counts_requests = limit.measure is Measure.REQUESTS
        self.is_even = limit.weights == EVEN
        self._kind = "tokens" if self.counts else "requests"
        self._head = f"x-ratelimit-limit-{self._kind}: {limit.amount}\r\nx-ratelimit-remaining-{self._kind}: "

    def change_amount(self, amount: int) -> None:
        """The authority says that the limit has another amount now."""
        known = self.known_left
        if self.limit.period is None or self.limit.kind is Kind.CALENDAR:
            known += amount - self.limit.amount
        self.known_left = min(known, amount)
        self.set_aside()
        self.set_limit(msgspec.structs.replace(self.limit, amount=amount))
        self.refused_until = NEVER

    def set_aside(self) -> None:
        """What was lent beyond the limit is nobody's room: it goes back, and the authority is asked anew."""
        if self.is_exceeded:
            self.is_exceeded = False
            self.owed -= max(0, self.left)
            self.left = min(0, self.left)

    def bound_guess(self, units: int, least: int) -> int:
        """What is reserved for an answer whose length is a guess: no guess may take much of a limit.

        Args:
            units: of the request with the guess.
            least: of the request without an answer.
        """
        return max(least, min(units, self.guess_max), 1)

    def refuse(self, left: int, need: int, wait_ns: int, now_s: float) -> None:
        """The authority has refused; for a moment it need not be asked for as much again."""
        self.known_left = left
        self.refused_need = need
        self.refused_wait_s = 1.0 if wait_ns < 0 else wait_ns * 1e-9
        self.refused_until = now_s + min(REFUSED_S, max(0.001, self.refused_wait_s))

    def hold(self, until_s: float) -> None:
        """The authority is asked for nothing until then: others have their turn."""
        self.refused_need = 1
        self.refused_wait_s = 1.0
        self.refused_until = until_s

    def tell_reset(self, now_s: float) -> None:
        """Makes the words for when all of it is there again; exact to the tenth of a second is enough."""
        reset = 0.0 if now_s == NEVER else max(0.0, self.full_at - now_s)
        self._tail = f"\r\nx-ratelimit-reset-{self._kind}: {format_seconds(reset)}\r\n"

    def describe(self) -> str:
        """The header lines that tell a caller of it, as OpenAI names them."""
        left = self.known_left + self.left
        return f"{self._head}{left if left > 0 else 0}{self._tail}"

    def take(self, units: int, now_s: float) -> None:
        self.left -= units
        self.spent += units
        self.used_at = now_s
        if self.is_concurrent:
            self.in_use += units

    def give(self, units: int, epoch: int) -> None:
        """Takes back what a request did not need; negative what it took beyond its reservation."""
        if self.is_concurrent:
            self.in_use -= units
            self.left += units
        elif epoch == self.epoch:
            self.left += units

    def absorb(self, loan: Loan, now_s: float) -> None:
        """The authority has lent."""
        if not loan.is_exceeded:
            self.set_aside()
        if loan.epoch != self.epoch:
            if not self.is_concurrent:
                self.left = 0  # another period: what was left of the one before is void
            self.epoch = loan.epoch
        self.left += loan.units
        self.is_lent = not self.is_concurrent
        self.known_left = loan.left
        self.is_exceeded = loan.is_exceeded
        self.drawn = 0
        self.full_at = now_s + loan.full_in_ns * 1e-9
        self.ends_at = now_s + loan.ends_in_ns * 1e-9 if loan.ends_in_ns else FOREVER
        self.refused_until = NEVER
        self.used_at = now_s
        self.tell_reset(now_s)

    def end_period(self) -> None:
        """The calendar's period is over: what was lent in it is void."""
        self.left = min(0, self.left)
        self.known_left = self.limit.amount
        self.is_exceeded = False
        self.drawn = 0
        self.epoch = NO_EPOCH  # what requests of that period give back is void as well
        self.ends_at = FOREVER

    def has_news(self, now_s: float) -> bool:
        """Whether the authority is to be told what is left of the loans, or owed to it."""
        if self.left < 0 or self.owed:
            return True
        if self.is_exceeded and self.left:
            return True  # nobody is to live on what was lent beyond the limit
        # Also of one that has spent all: what it was lent is used for certain.
        return now_s > self.used_at + IDLE_S and bool(self.left or self.is_lent)

    def return_all(self) -> int:
        """What goes back to the authority; negative what is owed to it."""
        units = self.left - self.owed
        self.left = self.owed = 0
        self.is_lent = False
        return units

    def stand_alone(self, workers: int, now: Now) -> None:
        """There is no authority: from now on this worker goes by its own share.

        It begins with nothing but what it was lent, or its part of what was left, so that nothing is spent
        twice, however often the authority comes and goes: a bucket fills at the share's rate.
        """
        share = self.limit.amount // max(1, workers)
        meter = make_meter(msgspec.structs.replace(self.limit, amount=share), now)
        if meter.is_bucket:
            meter.level = 0
        elif self.is_concurrent:
            meter.level = max(0, share - self.in_use - self.left)
        else:
            self._follow(meter)
            part = min(share, max(0, self.known_left) // max(1, workers))
            meter.level = max(0, part - self.drawn)
        self.stand_in = meter

    def _follow(self, meter: Meter) -> None:
        """Where the share has begun another of the calendar's periods, so does this."""
        if self.limit.kind is Kind.CALENDAR and meter.epoch != self.epoch and not self.is_concurrent:
            self.end_period()
            self.epoch = meter.epoch

    def draw(self, units: int, now: Now) -> bool:
        """Takes what is lacking for a request from the share, if it is there."""
        meter = self.stand_in
        if meter is None:
            return False
        meter.advance(now)
        self._follow(meter)
        lacking = units - self.left
        if lacking > meter.left:
            return False
        meter.take(lacking)
        self.left += lacking
        if not self.is_concurrent:
            self.owed += lacking
            self.drawn += lacking
        return True

    def overdraw(self, units: int) -> None:
        """Without an authority: lets a request have what is lacking, though the share has no room."""
        lacking = units - self.left
        self.left += lacking
        self.owed += lacking
        self.is_exceeded = True

    def compute_wait_s(self, units: int, now: Now) -> float:
        """Without an authority: how long until the share has so many units, at a guess."""
        meter = self.stand_in
        wait = None if meter is None else meter.compute_wait_ns(units - self.left, now)
        if wait is None:
            period = self.limit.period
            wait = 1_000_000_000 if period is None else PERIOD_NS[period]
        return wait * 1e-9


def format_seconds(seconds: float) -> str:
    """As OpenAI writes durations: `120ms`, `1.5s`, `6m0s`, `2h0m0s`."""
    if seconds < 1:
        return f"{int(seconds * 1000)}ms"
    if seconds < 60:
        return f"{seconds:.3g}s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{rest}s" if hours else f"{minutes}m{rest}s"
