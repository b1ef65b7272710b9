"""Lets requests wait for limits that have no room: each with a deadline, in fair order, in bounded number.

Who is next is decided by `policy.fairness`; a request waits in the line of one limit at a time, and holds no
units meanwhile.  It ends its wait exactly once: let in, too late, gone, or sent elsewhere because the gateway
ends.  Whoever does not allow it to wait is refused as if there were no lines.
"""

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping

from forebay.core.errors import Draining, RateLimited
from forebay.core.keys import PRIORITIES
from forebay.core.limits import QueueRules
from forebay.gateway.ending import DRAINING
from forebay.gateway.lease import Lease
from forebay.gateway.line import NEVER, PLACE_S, LimitLine, Waiter
from forebay.gateway.model import Exchange
from forebay.gateway.plan import Plan, explain_shortage
from forebay.gateway.policy.fairness import Full

HEADER = b"x-forebay-wait"
WAITED = "x-forebay-waited-ms"
NO_WAITING = QueueRules(wait_max_s=0.0)
YIELD_S = 2 * PLACE_S  #: for another worker to take the place that it was given
SERVED, EXPIRED, TOO_LONG, FULL, ENDED = "served", "expired", "too_long", "full", "ended"
_SECONDS = re.compile(rb"\d{1,9}(\.\d{1,9})?")

CountNeed = Callable[[Exchange, Lease], int]
Reserved = tuple[Lease, int, int]  #: lease, units, epoch


class Waits:
    """See the module.

    Args:
        count_need: units of a limit that a request needs.

    Attributes:
        lines: by what they wait for; only those in which somebody does.
        counts: of requests that wait, by rank.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, count_need: CountNeed) -> None:
        self.lines: dict[Lease, LimitLine] = {}
        self.counts = [0] * len(PRIORITIES)
        self._by_project: Counter[str] = Counter()
        self._loop = loop
        self._count_need = count_need
        self._rules = NO_WAITING
        self._number = 0
        self._closing = False

    def set_rules(self, rules: QueueRules) -> None:
        """From now on these hold; requests that wait go on as they were told."""
        self._rules = rules
        for line in self.lines.values():
            line.queue.entries_max = rules.requests_max
            line.queue.tenant_max = rules.tenant_requests_max

    # --- one request ----------------------------------------------------------------------------------------

    def find_blocking(self, exchange: Exchange, plan: Plan, waiter: Waiter | None) -> Lease | None:
        """A limit for which others wait whom this request may not pass."""
        for lease in plan.leases:
            line = self.lines.get(lease)
            if line is None or (waiter is not None and (line.first is waiter or lease in waiter.passed)):
                continue
            if not line.queue.lets_pass(_rank(exchange), self._count_need(exchange, lease)):
                return lease
        return None

    def let_in(self, exchange: Exchange, taken: Collection[Reserved], waiter: Waiter | None) -> None:
        """A request has reserved what it needs while others wait."""
        for lease, units, _ in taken:
            line = self.lines.get(lease)
            if line is None:
                continue
            if waiter is not None and waiter.line is line:
                self._leave(waiter, is_served=True)
            else:
                line.queue.charge(_rank(exchange), units)

    async def wait(
        self, exchange: Exchange, plan: Plan, waiter: Waiter, lease: Lease, wait_s: float | None
    ) -> None:
        """Returns when the request has reason to look again whether there is room.

        Args:
            lease: of the limit that has none.
            wait_s: how long that lasts, where the limit itself is short; None where others wait.

        Raises:
            RateLimited: it may not wait, not any more, or for nothing.
            Draining: the gateway ends.
        """
        now_s = self._loop.time()
        units = self._count_need(exchange, lease)
        known_s = self._estimate(waiter, lease, units, wait_s, now_s)
        exchange.limit_headers = plan.describe()
        error = explain_shortage(lease, units, known_s)
        if error.retry_after_s is None or not waiter.may_wait:
            raise error  # it is larger than the limit, or has another way
        if waiter.begun_s == NEVER:
            self._begin(exchange, waiter, error, now_s)
        elif self._closing:
            raise Draining(DRAINING, retry_after_s=1)
        if now_s >= waiter.deadline:
            raise self._give_up(waiter, error, EXPIRED)
        if not lease.is_concurrent and now_s + known_s > waiter.deadline:
            raise self._give_up(waiter, error, TOO_LONG)
        line = self._join(waiter, lease, units, error)
        if line.first is waiter:
            if wait_s is None:
                return  # nobody is before it
            line.wake_first_in(line.learn(units - lease.left, wait_s, now_s))
        waiter.future = self._loop.create_future()
        try:
            await waiter.future
        finally:
            waiter.future = None
        if self._closing:
            raise Draining(DRAINING, retry_after_s=1)
        now_s = self._loop.time()
        if now_s >= waiter.deadline and line.first is not waiter:
            self._leave(waiter)
            known_s = line.compute_wait_s(waiter, units, now_s)
            raise self._give_up(waiter, explain_shortage(lease, units, known_s), EXPIRED)

    def _estimate(
        self, waiter: Waiter, lease: Lease, units: int, wait_s: float | None, now_s: float
    ) -> float:
        line = self.lines.get(lease)
        least = wait_s or 0.0
        if line is None or waiter.line is line:
            return least
        return max(least, line.compute_wait_s(waiter, units, now_s))

    def _begin(self, exchange: Exchange, waiter: Waiter, error: RateLimited, now_s: float) -> None:
        """From now on it waits, if it may.  Raises RateLimited."""
        rules = self._rules
        allowed_s = rules.default_wait_s[waiter.rank]
        if rules.wait_max_s:
            try:
                named_s = read_wait_s(exchange.call.headers)
            except ValueError as why:
                raise _add(error, f"it did not wait, for {why}") from None
            allowed_s = allowed_s if named_s is None else named_s
        allowed_s = min(allowed_s, rules.wait_max_s)
        if allowed_s <= 0 or self._closing:
            raise error
        waiter.allowed_s = allowed_s
        waiter.begun_s, waiter.deadline = now_s, now_s + allowed_s
        self._number += 1
        waiter.number = self._number

    def _join(self, waiter: Waiter, lease: Lease, units: int, error: RateLimited) -> LimitLine:
        """It waits in the line of this limit, and in no other."""
        line = self.lines.get(lease)
        if line is not None and waiter.line is line:
            return line
        if isinstance(waiter.line, LimitLine):
            if waiter.line.first is waiter:
                waiter.passed += (waiter.line.lease,)
            self._leave(waiter)
        if sum(self.counts) >= self._rules.requests_max:
            raise self._give_up(waiter, error, FULL, self._explain_full(Full.ALL))
        project_max = max(self._rules.requests_max // 2, self._rules.tenant_requests_max)
        if self._by_project[waiter.project] >= project_max:  # or its many keys would leave others no room
            words = (
                f"{project_max} requests of the same project wait already (half of limits.queue.requests_max)"
            )
            raise self._give_up(waiter, error, FULL, words)
        line = self.lines.get(lease)
        if line is None:
            line = LimitLine(self._loop, lease, self._rules)
        full = line.join(waiter, waiter.name_tenant(lease.limit), units)
        if full is not None:
            raise self._give_up(waiter, error, FULL, self._explain_full(full))
        self.lines[lease] = line
        self.counts[waiter.rank] += 1
        self._by_project[waiter.project] += 1
        if waiter.timer is None:
            waiter.timer = self._loop.call_at(waiter.deadline, waiter.wake)
        return line

    def _leave(self, waiter: Waiter, *, is_served: bool = False) -> None:
        line = waiter.line
        if not isinstance(line, LimitLine):
            return
        self.counts[waiter.rank] -= 1
        self._by_project[waiter.project] -= 1
        if not self._by_project[waiter.project]:
            del self._by_project[waiter.project]
        line.leave(waiter, is_served=is_served)
        if not len(line):
            del self.lines[line.lease]

    def end(self, exchange: Exchange, waiter: Waiter, *, is_served: bool) -> None:
        """The request waits no more, whatever became of it.  To be called once for each."""
        self._leave(waiter)
        waited_s = None
        if waiter.timer is not None:
            waiter.timer.cancel()
            waited_s = self._loop.time() - waiter.begun_s
            tell_waited(exchange, waited_s)
        if waiter.begun_s != NEVER:
            result = SERVED if is_served else waiter.result or ENDED
            exchange.state.cells.count_wait(PRIORITIES[waiter.rank], result, waited_s)

    # --- refusals -------------------------------------------------------------------------------------------

    def _explain_full(self, full: Full) -> str:
        rules = self._rules
        if full is Full.ALL:
            return f"{rules.requests_max} requests wait already (limits.queue.requests_max)"
        return (
            f"{rules.tenant_requests_max} requests of the same owner wait for it already "
            "(limits.queue.tenant_requests_max)"
        )

    def _give_up(self, waiter: Waiter, error: RateLimited, result: str, why: str = "") -> RateLimited:
        waiter.result = result
        if result == TOO_LONG:
            why = f"it may wait no longer than {waiter.allowed_s:g} s"
        if waiter.timer is not None:
            waited = f"it has waited {self._loop.time() - waiter.begun_s:.1f} s"
            why = f"{why}, and {waited}" if why else waited
        return _add(error, why)

    # --- what happens meanwhile -----------------------------------------------------------------------------

    def look_again(self, lease: Lease) -> None:
        """Units came back."""
        line = self.lines.get(lease)
        if line is not None:
            line.wake_first()

    def look_again_at(self, taken: Collection[Reserved]) -> list[Lease]:
        """A request has ended, and may have given units back; those of the limits returned are for others."""
        yielded = []
        for lease, _, _ in taken:
            line = self.lines.get(lease)
            if line is not None and line.yields_next:
                line.yields_next = False
                lease.hold(self._loop.time() + YIELD_S)
                yielded.append(lease)
            elif line is not None:
                line.wake_first()
        return yielded

    def give_way(self, lease: Lease) -> None:
        """Another worker needs a place: it has the next, of which those that wait here would take each."""
        line = self.lines.get(lease)
        if line is not None and lease.is_concurrent:
            line.yields_next = True

    def look_all_again(self) -> None:
        """The authority has come or gone."""
        for line in self.lines.values():
            line.wake_first()

    def follow(self, leases: Collection[Lease]) -> None:
        """These limits hold from now on."""
        for line in tuple(self.lines.values()):
            if line.lease in leases:
                line.wake_first()
                continue
            for waiter in line.list_waiters():  # they look at what else they need
                self._leave(waiter)
                waiter.wake()

    def close(self) -> None:
        """The gateway ends: those that wait are told at once, and nobody begins to."""
        self._closing = True
        for line in self.lines.values():
            line.wake_all()


def read_wait_s(headers: Mapping[bytes, bytes]) -> float | None:
    """How long a caller says that its request may wait; None where it says nothing.  Raises ValueError."""
    asked = headers.get(HEADER)
    if asked is None:
        return None
    if _SECONDS.fullmatch(asked) is None:
        raise ValueError(f"`{HEADER.decode()}` is not a number of seconds")
    return float(asked)


def tell_waited(exchange: Exchange, waited_s: float) -> None:
    """Puts a wait on the record, and tells the caller of all of them together."""
    waited_ns = int(waited_s * 1e9)
    exchange.waited_ns += waited_ns
    exchange.queued_ns += waited_ns
    lines = [line for line in exchange.limit_headers.splitlines(keepends=True) if not line.startswith(WAITED)]
    exchange.limit_headers = f"{''.join(lines)}{WAITED}: {exchange.queued_ns // 1_000_000}\r\n"


def _rank(exchange: Exchange) -> int:
    assert exchange.key is not None
    return PRIORITIES.index(exchange.key.priority)


def _add(error: RateLimited, words: str) -> RateLimited:
    return RateLimited(f"{error.message}; {words}", retry_after_s=error.retry_after_s)
