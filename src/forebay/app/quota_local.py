"""The authority of a machine alone: `policy.lending` decides, `quota_state` keeps what is left on the disk.

What is left is written before a loan is told; so after `kill -9` nothing that was lent is lent again.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from forebay.app.quota_authority import AbsorbFound, Lines
from forebay.app.quota_state import QuotaState
from forebay.core.clock import Clock
from forebay.core.limits import Limit
from forebay.gateway.policy.lending import Lender, Shortage, Standing, Want
from forebay.gateway.policy.meter import Now
from forebay.gateway.quota_wire import Held

GRACE_S = 0.5  #: after a start, for workers to say what they hold
RECALL_MAX_S = 0.05  #: for workers to return what others need
TOLD_MAX = 10_000  #: workers whose last told debts are remembered


class LocalAuthority:
    """See the module.  It answers at once."""

    is_there = True
    trouble = ""
    members = None

    def __init__(self, state: QuotaState, clock: Clock) -> None:
        self.grace_s = GRACE_S
        self.recall_max_s = RECALL_MAX_S
        self._state = state
        self._clock = clock
        self._lender = Lender()
        self._told: dict[str, int] = {}  # by worker, the number of the last debts that it has told of

    @property
    def limits(self) -> Mapping[str, Limit]:
        return {limit_id: meter.limit for limit_id, meter in self._lender.meters.items()}

    def start(self, lines: Lines) -> None:
        pass

    def close(self) -> None:
        self._state.close()

    def set_limits(self, limits: tuple[Limit, ...]) -> None:
        now = self._now()
        before = self._lender.meters
        self._lender.set_limits(limits, now)
        meters = self._lender.meters
        self._state.restore(meters, now)
        self._state.save(meters.values(), now)
        self._state.save((meter for limit_id, meter in before.items() if limit_id not in meters), now)
        self._state.heal()
        self._state.tidy(meters, now)

    def set_amounts(self, amounts: Mapping[str, int]) -> None:
        now, meters = self._now(), self._lender.meters
        for limit_id, amount in amounts.items():
            meter = meters[limit_id]
            meter.change(msgspec.structs.replace(meter.limit, amount=amount), now)
        self._save(amounts)

    def list_standings(self, limit_ids: Iterable[str] | None = None) -> list[Standing]:
        return self._lender.list_standings(self._now(), limit_ids)

    async def fetch_standings(self) -> list[Standing]:
        return self.list_standings()

    async def fetch_holders(self, limit_ids: Iterable[str]) -> Mapping[str, Sequence[str]]:
        return {limit_id: self._lender.list_holders(limit_id, "") for limit_id in limit_ids}

    def join(self, worker: str, held: Sequence[Held], *, is_first: bool, then: Callable[[], None]) -> None:
        if is_first:
            self._lender.leave(worker)  # what it holds it says itself
        self._lender.join(worker, [(each.limit_id, each.units) for each in held])
        then()

    def leave(self, worker: str) -> None:
        self._lender.leave(worker)

    def ask(self, worker: str, wants: Sequence[Want], *, final: bool, then: AbsorbFound) -> None:
        undo = self._lender.remember(want.limit_id for want in wants)
        found = self._lender.ask(worker, wants, self._now(), final=final)
        holders: Sequence[str] = ()
        if not isinstance(found, Shortage):
            self._save([loan.limit_id for loan in found], undo)  # before anybody hears of it
        elif final:
            self._save([found.limit_id], undo)  # since when it is exceeded
        else:
            holders = self._lender.list_holders(found.limit_id, worker)
        then(found, holders)

    def give_back(
        self, worker: str, returned: Sequence[Held], recalled: str, number: int, then: Callable[[], None]
    ) -> None:
        if not number or number > self._told.get(worker, 0):
            now = self._now()
            undo = self._lender.remember(held.limit_id for held in returned)
            for held in returned:
                self._lender.give_back(worker, held.limit_id, held.epoch, held.units, now)
            self._save([held.limit_id for held in returned], undo)
            if number:
                self._note_told(worker, number)
        then()

    def _note_told(self, worker: str, number: int) -> None:
        self._told.pop(worker, None)
        self._told[worker] = number
        if len(self._told) > TOLD_MAX:
            del self._told[next(iter(self._told))]

    def recall_elsewhere(self, limit_id: str, workers: Sequence[str]) -> bool:
        return False

    def _save(self, limit_ids: Iterable[str], undo: Callable[[], None] | None = None) -> None:
        """Raises OSError, once what could not be written is undone: it will be told of again."""
        meters = self._lender.meters
        try:
            self._state.save((meters[limit_id] for limit_id in limit_ids if limit_id in meters), self._now())
        except OSError:
            if undo is not None:
                undo()
            raise

    def _now(self) -> Now:
        return Now(self._clock.monotonic_ns(), self._clock.wall_ns())
