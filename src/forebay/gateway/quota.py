"""What a worker's requests may use: reserves before sending, settles after, borrows from the authority.

A reservation costs a few additions while the leases last; only then a request waits for the authority.  Each
reservation is settled exactly once, when its request ends, whatever ended it.  Nothing is sent before all
limits that apply have been reserved, and none is kept reserved when one is short.
"""

import asyncio
from collections.abc import Iterable
from pathlib import Path
from weakref import WeakValueDictionary

from forebay.core.clock import Clock
from forebay.core.errors import QuotaUnavailable
from forebay.core.events import Tokens
from forebay.core.keys import KeyEntry
from forebay.core.limits import Exceeded, Limit, WhenAway
from forebay.core.prices import PriceBook
from forebay.gateway.amounts import Amounts
from forebay.gateway.lease import Lease
from forebay.gateway.line import Waiter
from forebay.gateway.model import Dialect, Exchange
from forebay.gateway.needs import Needs
from forebay.gateway.plan import Plan, count_need, follow_exceeded
from forebay.gateway.policy.lending import Want
from forebay.gateway.policy.meter import Now
from forebay.gateway.quota_client import QuotaClient
from forebay.gateway.quota_wire import Held, Lent, Refused, cut
from forebay.gateway.turns import Turns
from forebay.gateway.waiting import Reserved, Waits

AHEAD_SWEEPS = 4  #: a loan lasts for so many sweeps at the present rate
PLANS_MAX = 100_000  #: pairs of key and model whose limits need not be looked up again
ACQUIRE_MAX_S = 5.0  #: for a reservation, whatever happens meanwhile
FIRST_WORD_S = 1.0  #: for the first line to the authority to stand, after a start
NO_TOKENS = Tokens()
_UNCHECKED = "the limits can't be checked at the moment, so no requests are accepted"


class Quota:
    """See the module.

    Args:
        path: the authority's socket.
        worker: this worker's name, unique over all processes there ever were.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, path: Path, worker: str, dialect: Dialect, clock: Clock
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._leases: dict[str, Lease] = {}
        self._removed: WeakValueDictionary[str, Lease] = WeakValueDictionary()  # that requests still hold
        self._live: set[Lease] = set()  # that have something to be looked after
        self._plans: dict[tuple[tuple[str, ...], str], Plan] = {}  # by a key's limits and model
        self._amounts = Amounts()
        self._when_away = WhenAway.SHARE
        self._workers = 1
        self._asked: dict[int, tuple[dict[Lease, int], asyncio.Future[None]]] = {}  # without an answer yet
        self._untold: dict[int, tuple[Held, ...]] = {}  # debts that are not written down yet
        self._started_s = loop.time()
        self._was_connected = False
        self._client = QuotaClient(loop, path, worker, self)
        self._needs = Needs(dialect)
        self.count_need = self._needs.count
        self._turns = Turns(loop)
        self.waits = Waits(loop, self.count_need)
        self._lines = self.waits.lines  # empty unless a request waits

    # --- configuration --------------------------------------------------------------------------------------

    def set_limits(self, limits: Iterable[Limit], when_away: WhenAway, workers: int) -> None:
        """From now on these limits hold; what is reserved of those that are gone is settled in vain."""
        self._when_away = when_away
        before, self._leases = self._leases, {}
        changed = []
        for limit in map(self._amounts.apply, limits):
            lease = before.pop(limit.id, None) or self._removed.pop(limit.id, None) or Lease(limit)
            has_changed = lease.limit != limit or workers != self._workers
            if lease.limit != limit:
                lease.set_aside()
                lease.set_limit(limit)
                changed.append(lease)
            if has_changed and lease.stand_in is not None:
                lease.stand_alone(workers, self._now())
            self._leases[limit.id] = lease
        self._workers = workers
        self._plans.clear()
        self._removed.update(before)
        self._return((*before.values(), *changed))
        self.waits.follow(set(self._leases.values()))
        if self._leases and not self._was_connected:
            self._started_s = self._loop.time()
            self._client.keep_connected(self._started_s)

    def change_amounts(self, amounts: Iterable[tuple[str, int]]) -> None:
        """Limits have other amounts now than the snapshot says, which may be one that comes only later."""
        now = self._now()
        for limit_id, amount in amounts:
            self._amounts.learn(limit_id, amount, self._leases)
            lease = self._leases.get(limit_id)
            if lease is None or lease.limit.amount == amount:
                continue
            is_less = amount < lease.limit.amount
            lease.change_amount(amount)
            if lease.stand_in is not None:
                lease.stand_alone(self._workers, now)
            if is_less or lease.owed:
                self._return([lease])  # what was lent of the larger amount, or beyond it
            self.waits.look_again(lease)

    def set_prices(self, book: PriceBook, name: str = "", *, allow_unpriced: bool = False) -> None:
        """By which limits of money count; what has no price is refused where one applies, unless allowed."""
        self._needs.costing.set_prices(book, name, allow_unpriced=allow_unpriced)

    def find_plan(self, key: KeyEntry, model: str) -> Plan:
        """The limits that a key meets with a model."""
        plan = self._plans.get((key.limits, model))
        if plan is None:
            found = [self._leases[limit_id] for limit_id in key.limits if limit_id in self._leases]
            plan = Plan(tuple(lease for lease in found if lease.limit.applies_to(model)))
            if len(self._plans) < PLANS_MAX:
                self._plans[key.limits, model] = plan
        return plan

    # --- one request ----------------------------------------------------------------------------------------

    def reserve(self, exchange: Exchange, plan: Plan, waiter: Waiter | None = None) -> bool:
        """Reserves what a request will use, if the leases have it and nobody waits for it; else nothing.

        Args:
            waiter: of a request for which `acquire` looks at what follows from limits that are exceeded.

        Raises:
            QuotaUnavailable: a limit counts money, and nobody knows what the request would cost.
        """
        lines = self._lines
        if lines and self.waits.find_blocking(exchange, plan, waiter) is not None:
            return False
        taken: list[Reserved] = []
        now_s = self._loop.time()
        tokens = self._needs.estimate(exchange) if plan.counts_tokens else NO_TOKENS
        for lease in plan.leases:
            if now_s >= lease.ends_at:
                lease.end_period()
            if lease.is_cost:
                units = self._needs.costing.estimate(exchange, lease, tokens)
            else:
                units = count_need(lease, tokens, named=exchange.names_output)
            if lease.left < units or (lease.is_exceeded and waiter is None):
                return False
            taken.append((lease, units, lease.epoch))
        for lease, units, _ in taken:
            lease.take(units, now_s)
        exchange.reservation = taken
        exchange.limit_headers = plan.describe()
        if lines:
            self.waits.let_in(exchange, taken, waiter)
        return True

    async def acquire(self, exchange: Exchange, plan: Plan, *, may_wait: bool = True) -> None:
        """Reserves what a request will use, borrowing or waiting for it; does what exceeded limits ask for.

        Args:
            may_wait: else it only borrows, whatever is exceeded.

        Raises:
            RateLimited: there is not so much, of a limit that the error names, or not in time.
            QuotaUnavailable: nobody can tell, and the configuration says to refuse then.
            Draining: the gateway ends, and the request would have had to wait.
        """
        assert exchange.key is not None
        waiter = Waiter(exchange.key, may_wait=may_wait)
        try:
            await (self._acquire if may_wait else self._borrow)(exchange, plan, waiter)
        finally:
            self._turns.end(waiter)
            self.waits.end(exchange, waiter, is_served=exchange.reservation is not None)

    async def _acquire(self, exchange: Exchange, plan: Plan, waiter: Waiter) -> None:
        handled: set[Lease] = set()
        while True:
            plan = await self._borrow(exchange, plan, waiter)
            exceeded = [lease for lease in plan.list_exceeded() if lease not in handled]
            if not exceeded:
                return
            self.release(exchange)
            for lease in exceeded:
                handled.add(lease)
                follow_exceeded(exchange, lease, self._loop.time())
            plan = self.make_plan(exchange)

    async def _borrow(self, exchange: Exchange, plan: Plan, waiter: Waiter) -> Plan:
        """Reserves; returns the plan by which it did."""
        give_up_at = self._loop.time() + ACQUIRE_MAX_S
        while not self.reserve(exchange, plan, waiter):
            if self._loop.time() > give_up_at:
                raise QuotaUnavailable(_UNCHECKED, retry_after_s=1)
            plan = self.make_plan(exchange)  # limits may have gone while it waited
            needs = {lease: self.count_need(exchange, lease) for lease in plan.leases}
            short = {lease: units for lease, units in needs.items() if lease.left < units}
            wait = self._find_wait(exchange, plan, short, waiter)
            if wait is None and short and not self._client.is_connected:
                wait = await self._go_alone(short)
            elif wait is None and short and await self._turns.begin(waiter, short):
                running = next((lease.asking for lease in short if lease.asking is not None), None)
                await asyncio.shield(running or self._start_asking(short))
            if wait is not None:
                self._turns.end(waiter)
                await self.waits.wait(exchange, plan, waiter, *wait)
                give_up_at = self._loop.time() + ACQUIRE_MAX_S
        return plan

    def _find_wait(
        self, exchange: Exchange, plan: Plan, short: dict[Lease, int], waiter: Waiter
    ) -> tuple[Lease, float | None] | None:
        """A limit that is known to have no room, and the seconds until it has; None where others wait."""
        if self._lines and (blocking := self.waits.find_blocking(exchange, plan, waiter)) is not None:
            return blocking, None
        now_s = self._loop.time()
        for lease, units in short.items():
            if self._client.is_connected and units > lease.limit.amount + lease.limit.grace_units:
                return lease, 0.0  # which is never there, whoever asks
            if now_s < lease.refused_until and units - lease.left >= lease.refused_need:
                return lease, lease.refused_wait_s
        return None

    def make_plan(self, exchange: Exchange) -> Plan:
        """The limits that a request meets, with those that hold because others are exceeded."""
        assert exchange.key is not None
        plan = self.find_plan(exchange.key, exchange.model)
        more = [self._leases[limit_id] for limit_id in exchange.throttles if limit_id in self._leases]
        if more or exchange.kept:
            return Plan(tuple(each for each in (*plan.leases, *more) if each not in exchange.kept))
        return plan

    def release(self, exchange: Exchange) -> None:
        """Gives back what was reserved for a request that was not sent."""
        taken, exchange.reservation = exchange.reservation, None
        for lease, units, epoch in taken or ():
            lease.give(units, epoch)
            self._live.add(lease)

    async def _go_alone(self, short: dict[Lease, int]) -> tuple[Lease, float] | None:
        """Gives a request what it lacks without the authority, or says which limit has no room, how long."""
        if not self._was_connected and self._loop.time() < self._started_s + FIRST_WORD_S:
            await asyncio.sleep(0.02)
            return None
        if self._when_away is WhenAway.CLOSED:
            raise QuotaUnavailable(_UNCHECKED, retry_after_s=1)
        now = self._now()
        for lease, units in short.items():
            self._live.add(lease)
            if self._when_away is WhenAway.OPEN:
                lacking = units - lease.left
                lease.left += lacking
                lease.owed += 0 if lease.is_concurrent else lacking
                continue
            if lease.stand_in is None:
                lease.stand_alone(self._workers, now)
            if not lease.draw(units, now):
                if lease.limit.exceeded is not Exceeded.REFUSE:
                    lease.overdraw(units)
                    continue
                return lease, lease.compute_wait_s(units, now)
        return None

    def settle(self, exchange: Exchange) -> None:
        """Ends a reservation: what was really used stays taken, the rest comes back."""
        taken, exchange.reservation = exchange.reservation, None
        if taken is None:
            return
        self._needs.learn(exchange)
        for lease, units, epoch in taken:
            if lease.is_concurrent:
                lease.give(units, epoch)
            elif lease.counts or lease.is_cost or not exchange.sent:
                back = units - self._needs.count_used(exchange, lease, units)
                if back:
                    lease.give(back, epoch)
                    self._live.add(lease)  # it may have run out of what there is to look after meanwhile
        if self._lines:
            self._return(self.waits.look_again_at(taken))

    # --- the authority --------------------------------------------------------------------------------------

    def _start_asking(self, short: dict[Lease, int]) -> asyncio.Future[None]:
        """Asks on its own account: a request that is given up must not lose what was lent."""
        done: asyncio.Future[None] = self._loop.create_future()
        needs = {lease: units - lease.left for lease, units in short.items()}
        wants = tuple(
            Want(lease.limit.id, need, need + AHEAD_SWEEPS * lease.spent) for lease, need in needs.items()
        )
        for lease in needs:
            lease.asking = done
        self._asked[self._client.ask(wants)] = needs, done
        return done

    def absorb(self, answer: Lent | Refused | None, number: int) -> None:
        """The authority's answer to an ask, or none any more."""
        asked = self._asked.pop(number, None)
        if asked is None:
            return
        needs, done = asked
        now_s = self._loop.time()
        if isinstance(answer, Lent):
            loans = {loan.limit_id: loan for loan in answer.loans}
            for lease, need in needs.items():
                loan = loans.get(lease.limit.id)
                if loan is not None:
                    lease.absorb(loan, now_s)
                else:  # not known there, not yet or no more: it holds nobody up, and is told later
                    lease.left += need
                    lease.owed += 0 if lease.is_concurrent else need
                self._live.add(lease)
        elif answer is not None:
            for lease, need in needs.items():
                if lease.limit.id == answer.limit_id:
                    lease.refuse(answer.left, need, answer.wait_ns, now_s)
        for lease in needs:
            lease.asking = None
        done.set_result(None)

    def list_held(self) -> list[Held]:
        """What this worker holds; of concurrent requests also what they use."""
        held = []
        for lease in self._leases.values():
            units = lease.left + lease.in_use if lease.is_concurrent else max(0, lease.left)
            if units:
                held.append(Held(lease.limit.id, lease.epoch, units))
        return held

    def begin_line(self) -> None:
        self._was_connected = True
        for lease in self._leases.values():
            lease.stand_in = None
        for number, debts in self._untold.items():
            self._client.tell_again(debts, number)
        self._return([lease for lease in self._leases.values() if lease.owed or lease.left < 0])
        self.waits.look_all_again()

    def lose_line(self) -> None:
        now = self._now()
        for lease in self._leases.values():
            lease.stand_alone(self._workers, now)
        self.waits.look_all_again()

    def give_back(self, limit_id: str) -> None:
        """Others need what is not spent of a limit."""
        lease = self._leases.get(limit_id)
        if lease is None:
            self._client.send_back((), limit_id)
        else:
            self.waits.give_way(lease)
            self._return([lease], limit_id)

    def note(self, number: int) -> None:
        self._untold.pop(number, None)

    def _return(self, leases: Iterable[Lease], recalled: str = "") -> None:
        if not self._client.is_connected:
            return
        returned: list[Held] = []
        for lease in leases:
            was_lent, units = lease.is_lent, lease.return_all()
            if units or recalled or was_lent:
                returned.append(Held(lease.limit.id, lease.epoch, units))
        for part in cut(returned, lambda held: held.limit_id):
            debts = tuple(held for held in part if held.units < 0)
            number = self._client.send_back(part, recalled, confirm=bool(debts))
            if debts:
                self._untold[number] = debts

    def sweep(self) -> None:
        """To be called every tenth of a second: keeps the line, returns what lies idle, tells of debts."""
        now_s = self._loop.time()
        if self._leases:
            self._client.keep_connected(now_s)
        due = []
        for lease in tuple(self._live):
            if lease.spent:
                lease.spent //= 2
                lease.tell_reset(now_s)
            if lease.asking is not None:
                continue
            if lease.has_news(now_s):
                due.append(lease)
            elif not (lease.left or lease.is_lent or lease.spent or lease.in_use):
                self._live.discard(lease)
        self._return(due)

    def close(self) -> None:
        """Returns everything."""
        self._return(self._leases.values())
        self._client.close()

    def _now(self) -> Now:
        return Now(self._clock.monotonic_ns(), self._clock.wall_ns())
