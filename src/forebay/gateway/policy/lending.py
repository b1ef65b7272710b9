"""Decides what each worker may spend of each limit: lends units, takes them back.  Pure.

Units that are lent are used up for everybody else, so all workers together never spend more than there is.
How much is lent beyond what is needed shrinks with what is left: a small limit is lent unit by unit.
"""

from collections.abc import Callable, Iterable
from copy import copy

import msgspec

from forebay.core.limits import Exceeded, Limit, Measure
from forebay.gateway.policy.meter import Meter, Now, make_meter

SPARE_PARTS = 4  #: of what is left, one part in `SPARE_PARTS` for each worker is lent beyond the need


class Want(msgspec.Struct, frozen=True):
    """Units of one limit that a worker asks for.

    Attributes:
        need: without these it can't go on.
        like: so many would save it from asking again soon; at least the need.
    """

    limit_id: str
    need: int
    like: int


class Loan(msgspec.Struct, frozen=True):
    """Units that a worker may spend, and what others may know of the limit.

    Attributes:
        epoch: goes back with what is not spent.
        left: what the limit has left beside the loan.
        full_in_ns: until all of it is there again if nobody takes any; for the callers' headers.
        ends_in_ns: until the calendar's period ends, and the units with it; 0 where they do not.
        is_exceeded: there was no room, grace and all: what `Limit.exceeded` says follows.
    """

    limit_id: str
    epoch: int
    units: int
    left: int
    full_in_ns: int
    ends_in_ns: int = 0
    is_exceeded: bool = False


class Shortage(msgspec.Struct, frozen=True):
    """What there is too little of.

    Attributes:
        wait_ns: until there would be enough, None where time does not tell.
    """

    limit_id: str
    left: int
    wait_ns: int | None


class Standing(msgspec.Struct, frozen=True):
    """How a limit stands.

    Attributes:
        left: units that were neither used nor lent; negative while more was used than there was.
        lent: units that workers were lent; they may have used them.
        full_in_ns: until all of it is there again if nobody takes any, or a calendar's period ends; None
            where time does not tell.
        epoch: names the calendar's period; 0 for others.
        exceeded_ns: when it was first exceeded in the period (wall), 0 while it was not.
    """

    limit: Limit
    left: int
    lent: int
    full_in_ns: int | None
    epoch: int = 0
    exceeded_ns: int = 0

    @property
    def used(self) -> int:
        """Units that were used for certain."""
        return self.limit.amount - self.left - self.lent


class Lender:
    """All limits of one authority, and who holds what of them."""

    def __init__(self) -> None:
        self.meters: dict[str, Meter] = {}
        self._lent: dict[str, dict[str, int]] = {}  # by limit and worker; what was spent of it is not known
        self._epochs: dict[str, int] = {}  # of what is lent
        self._retired: dict[str, tuple[Meter, dict[str, int]]] = {}  # places that are held of limits gone
        self.workers: set[str] = set()

    def set_limits(self, limits: Iterable[Limit], now: Now) -> None:
        """From now on these limits hold; what was used of those that stay stays used."""
        known, self.meters = self.meters, {}
        for limit in limits:
            meter = known.pop(limit.id, None)
            if meter is None and limit.id in self._retired:
                meter, self._lent[limit.id] = self._retired.pop(limit.id)
            if meter is None:
                meter = make_meter(limit, now)
            if meter.limit != limit:
                meter.change(limit, now)
            self.meters[limit.id] = meter
        for limit_id, meter in known.items():
            if meter.limit.measure is Measure.CONCURRENT and any(self._lent[limit_id].values()):
                self._retired[limit_id] = meter, self._lent[limit_id]
        self._lent = {limit_id: self._lent.get(limit_id, {}) for limit_id in self.meters}
        self._epochs = {key: epoch for key, epoch in self._epochs.items() if key in self.meters}

    def join(self, worker: str, held: Iterable[tuple[str, int]]) -> None:
        """A worker is there, and holds units that were lent to it before this authority knew it."""
        self.workers.add(worker)
        for limit_id, units in held:
            meter, lent = self._find(limit_id)
            if meter is not None:
                self._epochs.setdefault(limit_id, meter.epoch)
                lent[worker] = units
                if meter.limit.measure is Measure.CONCURRENT:
                    meter.take(units)

    def _advance(self, meter: Meter, now: Now) -> None:
        """Lets time pass; what was lent in an earlier period is worth nothing now."""
        meter.advance(now)
        limit_id = meter.limit.id
        if self._epochs.setdefault(limit_id, meter.epoch) != meter.epoch:
            self._epochs[limit_id] = meter.epoch
            self._lent[limit_id].clear()

    def _find(self, limit_id: str) -> tuple[Meter | None, dict[str, int]]:
        """A limit's meter and who holds what of it, also of places of a limit gone."""
        if limit_id in self.meters:
            return self.meters[limit_id], self._lent[limit_id]
        return self._retired.get(limit_id, (None, {}))

    def leave(self, worker: str) -> None:
        """A worker is gone.

        What it had of tokens and requests may have been spent, so it counts as spent; what it had of places
        for concurrent requests is free, for its requests are gone with it.
        """
        self.workers.discard(worker)
        held = [(self.meters[limit_id], lent) for limit_id, lent in self._lent.items()]
        for meter, lent in (*held, *self._retired.values()):
            units = lent.pop(worker, 0)
            if units and meter.limit.measure is Measure.CONCURRENT:
                meter.give(units, meter.epoch)
        self._forget_retired()

    def _forget_retired(self) -> None:
        self._retired = {
            key: (meter, lent) for key, (meter, lent) in self._retired.items() if any(lent.values())
        }

    def ask(
        self, worker: str, wants: Iterable[Want], now: Now, *, final: bool = False
    ) -> tuple[Loan, ...] | Shortage:
        """Lends what is needed of all limits, or nothing; the first shortage says why.

        A limit that is not known, not yet or no longer, holds nobody up, and nothing of it is lent.

        Args:
            final: nobody else has anything to give back: what a limit allows beyond its amount is lent too.
        """
        wants = tuple(want for want in wants if want.limit_id in self.meters)
        exceeded = set()
        for want in wants:
            meter = self.meters[want.limit_id]
            self._advance(meter, now)
            if want.need <= meter.left or (final and meter.may_overdraw(want.need, now)):
                continue
            may_exceed = meter.limit.exceeded is not Exceeded.REFUSE and not meter.is_too_much(want.need)
            if not final or not may_exceed:
                return Shortage(want.limit_id, meter.left, meter.compute_wait_ns(want.need, now))
            exceeded.add(want.limit_id)
        return tuple(self._lend(worker, want, now, is_exceeded=want.limit_id in exceeded) for want in wants)

    def _lend(self, worker: str, want: Want, now: Now, *, is_exceeded: bool) -> Loan:
        meter = self.meters[want.limit_id]
        spare = meter.left // (SPARE_PARTS * max(1, len(self.workers)))
        if is_exceeded:  # beyond the limit nothing runs short, and nobody need hold much
            spare = want.need + meter.limit.amount // (SPARE_PARTS * max(1, len(self.workers)))
        units = max(want.need, min(want.like, spare))
        meter.take(units)
        lent = self._lent[want.limit_id]
        lent[worker] = lent.get(worker, 0) + units
        full = meter.compute_wait_ns(meter.limit.amount, now)
        ends = meter.ends_ns - now.wall_ns if meter.ends_ns else 0
        return Loan(want.limit_id, meter.epoch, units, max(0, meter.left), full or 0, ends, is_exceeded)

    def give_back(self, worker: str, limit_id: str, epoch: int, units: int, now: Now) -> None:
        """Takes back what a worker does not need; negative what it spent beyond its loans."""
        meter, lent = self._find(limit_id)
        if meter is None:
            return
        self._advance(meter, now)
        if meter.limit.measure is Measure.CONCURRENT:
            units = min(units, lent.get(worker, 0))
            lent[worker] = lent.get(worker, 0) - units
        else:
            lent[worker] = 0  # whoever returns some returns all that is left
        if units < 0:
            meter.take(-units)  # it was used, whenever that was
        else:
            meter.give(units, epoch)
        if limit_id in self._retired:
            self._forget_retired()

    def remember(self, limit_ids: Iterable[str]) -> Callable[[], None]:
        """How these limits stand; what is returned puts them back, where a change can't be written down."""
        known = [limit_id for limit_id in limit_ids if limit_id in self.meters]
        meters = {limit_id: copy(self.meters[limit_id]) for limit_id in known}
        lent = {limit_id: dict(self._lent[limit_id]) for limit_id in known}
        epochs = {limit_id: self._epochs[limit_id] for limit_id in known if limit_id in self._epochs}

        def restore() -> None:
            self.meters.update(meters)
            self._lent.update(lent)
            self._epochs.update(epochs)

        return restore

    def list_standings(self, now: Now, limit_ids: Iterable[str] | None = None) -> list[Standing]:
        """All limits, or those of some ids, in the order of their ids."""
        known = self.meters.keys()
        found = []
        for limit_id in sorted(known if limit_ids is None else known & set(limit_ids)):
            meter = self.meters[limit_id]
            self._advance(meter, now)
            full = meter.compute_wait_ns(meter.limit.amount, now)
            if meter.ends_ns:
                full = max(0, meter.ends_ns - now.wall_ns)
            lent = sum(self._lent[limit_id].values())
            found.append(Standing(meter.limit, meter.left, lent, full, meter.epoch, meter.exceeded_ns))
        return found

    def list_holders(self, limit_id: str, worker: str) -> list[str]:
        """Workers other than one that may have units to give back."""
        return [name for name, units in self._lent.get(limit_id, {}).items() if units > 0 and name != worker]
