"""Those of one worker that wait for one thing; of a limit, what is known of when it has room.

Whoever is first is woken when the limit may have room for it, and asks for all; the others sleep.  So however
many wait, one timer runs and one request asks.  It holds no units and sends nothing.
"""

import asyncio

from forebay.core.keys import PRIORITIES, KeyEntry
from forebay.core.limits import Kind, Limit, QueueRules
from forebay.gateway.lease import Lease
from forebay.gateway.policy.fairness import Entry, FairQueue, Full
from forebay.gateway.policy.meter import PERIOD_NS

NEVER = -1.0
SOON_S = 0.001  #: the least time before the first one asks again
PLACE_S = 0.05  #: between two looks for a place, which another worker may have freed
LOOK_S = 0.5  #: between two looks for units that others gave back before their time


class Waiter:
    """A request that may have to wait.

    Attributes:
        allowed_s: so long it may wait in all, once it is known.
        begun_s: the loop's time when it began to wait; NEVER before.
        may_wait: else it is refused where it would have to.
        passed: limits for which it has had its turn: their lines do not hold it up again.
        result: why it gave up.
        turns: limits for which it alone asks the authority, as `turns` keeps them.
        timer: wakes it at its deadline; None until it stands in a line.
    """

    __slots__ = (
        "allowed_s", "begun_s", "deadline", "entry", "future", "line", "may_wait", "number", "passed", "rank",
        "result", "tenants", "timer", "turns",
    )  # fmt: skip

    def __init__(self, key: KeyEntry, *, may_wait: bool = True) -> None:
        self.may_wait = may_wait
        self.rank = PRIORITIES.index(key.priority)
        self.tenants = key.id, f"{key.team}/{key.project}"
        self.allowed_s = 0.0
        self.begun_s = self.deadline = NEVER
        self.number = 0
        self.result = ""
        self.entry: Entry | None = None
        self.line: Line | None = None
        self.passed: tuple[Lease, ...] = ()
        self.turns: tuple[Lease, ...] = ()
        self.future: asyncio.Future[None] | None = None
        self.timer: asyncio.TimerHandle | None = None

    @property
    def project(self) -> str:
        return self.tenants[1]

    def name_tenant(self, limit: Limit) -> str:
        """With whom it shares: of a team's limit its project, of others its key."""
        return self.tenants[limit.owner.startswith("team ")]

    def wake(self) -> None:
        """It looks whether it can go on."""
        if self.future is not None and not self.future.done():
            self.future.set_result(None)


class Line:
    """Those that wait for one thing, whatever it is."""

    def __init__(self, rules: QueueRules) -> None:
        self.queue = FairQueue(entries_max=rules.requests_max, tenant_max=rules.tenant_requests_max)
        self._waiters: dict[Entry, Waiter] = {}

    def __len__(self) -> int:
        return len(self._waiters)

    @property
    def first(self) -> Waiter | None:
        entry = self.queue.first()
        return None if entry is None else self._waiters[entry]

    def join(self, waiter: Waiter, tenant: str, units: int) -> Full | None:
        entry = Entry(waiter.rank, tenant, units, waiter.number)
        full = self.queue.add(entry)
        if full is None:
            self._waiters[entry] = waiter
            waiter.entry, waiter.line = entry, self
        return full

    def leave(self, waiter: Waiter, *, is_served: bool) -> None:
        """Its turn is another's."""
        entry = waiter.entry
        assert entry is not None
        if is_served:
            self.queue.take(entry)
        else:
            self.queue.remove(entry)
        del self._waiters[entry]
        waiter.entry = waiter.line = None

    def wake_all(self) -> None:
        for waiter in self._waiters.values():
            waiter.wake()

    def list_waiters(self) -> list[Waiter]:
        return list(self._waiters.values())


class LimitLine(Line):
    """See the module.

    Attributes:
        yields_next: the next place that is freed is for those that wait at another worker.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, lease: Lease, rules: QueueRules) -> None:
        super().__init__(rules)
        self.lease = lease
        self.yields_next = False
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._known_at = NEVER  # when the units below are there, as far as is known
        self._known_units = 0

    # --- who waits ------------------------------------------------------------------------------------------

    def leave(self, waiter: Waiter, *, is_served: bool) -> None:
        was_first = self.first is waiter
        super().leave(waiter, is_served=is_served)
        if not self._waiters:
            self.close()
        elif was_first:
            self.wake_first()

    def wake_first(self) -> None:
        first = self.first
        if first is not None:
            first.wake()

    def wake_first_in(self, seconds: float) -> None:
        """One timer for all of them."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(max(SOON_S, seconds), self.wake_first)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- how long -------------------------------------------------------------------------------------------

    def learn(self, lacking: int, wait_s: float, now_s: float) -> float:
        """There is room for so many units more only after so long; returns when to look again."""
        if self.lease.is_concurrent:
            return PLACE_S
        self._known_at, self._known_units = now_s + wait_s, lacking
        return min(wait_s, LOOK_S)

    def compute_wait_s(self, waiter: Waiter, units: int, now_s: float) -> float:
        """How long a request that has not joined would wait at the least, as far as is known."""
        limit = self.lease.limit
        if self._known_at == NEVER or limit.period is None or not limit.amount:
            return 0.0
        before = self.queue.count_before(waiter.rank, waiter.name_tenant(limit), units)
        wanted = before + units - self.lease.left
        period_s = PERIOD_NS[limit.period] * 1e-9
        if limit.kind is Kind.CALENDAR:
            more_s = max(0, wanted - 1) // limit.amount * period_s
        else:
            more_s = (wanted - self._known_units) * period_s / limit.amount
        return max(0.0, self._known_at + more_s - now_s)
