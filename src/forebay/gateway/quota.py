"""What a worker's requests may use: reserves before sending, settles after, borrows from the authority.

A reservation costs a few additions while the leases last; only then a request waits for the authority.  Each
reservation is settled exactly once, when its request ends, whatever ended it.  Nothing is sent before all
limits that apply have been reserved, and none is kept reserved when one is short.
"""

import asyncio
from collections.abc import Iterable
from pathlib import Path

from forebay.core.clock import Clock
from forebay.core.errors import QuotaUnavailable, RateLimited
from forebay.core.events import Tokens, UsageSource
from forebay.core.keys import KeyEntry
from forebay.core.limits import Limit, WhenAway, count_units
from forebay.core.routes import Endpoint
from forebay.gateway.lease import INPUT, OUTPUT, Lease, format_seconds
from forebay.gateway.model import Dialect, Exchange
from forebay.gateway.policy.lending import Want
from forebay.gateway.policy.meter import Now
from forebay.gateway.quota_client import AuthorityAway, QuotaClient
from forebay.gateway.quota_wire import Held, Lent, Return

BYTES_PER_TOKEN = 4  #: of a request's body, as for estimates in the ledger
OUTPUT_GUESS = 256  #: tokens of an answer whose request names no limit, before any was seen
IDLE_S = 1.0  #: a lease that nobody used for so long goes back
REFUSED_S = 0.02  #: after a refusal, before the authority is asked again for as much
AHEAD_SWEEPS = 4  #: a loan lasts for so many sweeps at the present rate
PLANS_MAX = 100_000  #: pairs of key and model whose limits need not be looked up again
SECONDS_READABLE = 120  #: in messages to people; more are minutes and hours
FIRST_WORD_S = 1.0  #: for the first line to the authority to stand, after a start
#: Answers after which nobody knows how much of the work was done.
UNCERTAIN = frozenset({500, 502, 504})

NO_TOKENS = Tokens()

Reservation = list[tuple[Lease, int, int]]  #: lease, units, epoch


class Plan:
    """The limits that one key meets with one model."""

    __slots__ = ("_requests", "_tokens", "counts_tokens", "leases")

    def __init__(self, leases: tuple[Lease, ...]) -> None:
        self.leases = leases
        self._tokens = tuple(lease for lease in leases if lease.counts)
        self._requests = tuple(lease for lease in leases if not lease.counts and not lease.is_concurrent)
        self.counts_tokens = bool(self._tokens)

    def describe(self) -> str:
        """The header lines that tell a caller of the tightest of its limits."""
        lines = _find_tightest(self._requests).describe() if self._requests else ""
        return lines + _find_tightest(self._tokens).describe() if self._tokens else lines


def _find_tightest(leases: tuple[Lease, ...]) -> Lease:
    found = leases[0]
    least = (found.known_left + found.left) / (found.limit.amount or 1)
    for lease in leases[1:]:
        part = (lease.known_left + lease.left) / (lease.limit.amount or 1)
        if part < least:
            found, least = lease, part
    return found


def count_tokens(lease: Lease, tokens: Tokens) -> int:
    """Units of a limit, 1 where it counts no tokens; of an even one `tokens` are input and output alone."""
    counts = lease.counts
    if not counts:
        return 1
    if not lease.is_even:
        return count_units(lease.limit, tokens)
    units = tokens.input or 0 if counts & INPUT else 0
    return units + (tokens.output or 0) if counts & OUTPUT else units


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
        self._dialect = dialect
        self._clock = clock
        self._leases: dict[str, Lease] = {}
        self._guesses: dict[str, float] = {}  # tokens of an answer, by model
        self._plans: dict[tuple[str, str], Plan] = {}  # by key and model
        self._when_away = WhenAway.SHARE
        self._workers = 1
        self._asks: set[asyncio.Task[None]] = set()
        self._started_s = loop.time()
        self._was_connected = False
        self._client = QuotaClient(
            loop, path, worker, hold=self._hold, recall=self._return_recalled, lose=self._lose
        )

    # --- configuration --------------------------------------------------------------------------------------

    def set_limits(self, limits: Iterable[Limit], when_away: WhenAway, workers: int) -> None:
        """From now on these limits hold; what is reserved of those that are gone is settled in vain."""
        self._when_away = when_away
        self._workers = workers
        before, self._leases = self._leases, {}
        for limit in limits:
            lease = before.pop(limit.id, None)
            if lease is None:
                lease = Lease(limit)
            elif lease.limit != limit:
                lease.set_limit(limit)
            self._leases[limit.id] = lease
        self._plans.clear()
        self._return(before.values())

    def find_plan(self, key: KeyEntry, model: str) -> Plan:
        """The limits that a key meets with a model."""
        plan = self._plans.get((key.id, model))
        if plan is None:
            found = [self._leases[limit_id] for limit_id in key.limits if limit_id in self._leases]
            plan = Plan(tuple(lease for lease in found if lease.limit.applies_to(model)))
            if len(self._plans) < PLANS_MAX:
                self._plans[key.id, model] = plan
        return plan

    # --- one request ----------------------------------------------------------------------------------------

    def reserve(self, exchange: Exchange, plan: Plan) -> bool:
        """Reserves what a request will use, if the leases have all of it; else nothing."""
        taken: Reservation = []
        now_s = self._loop.time()
        tokens = self._estimate(exchange) if plan.counts_tokens else NO_TOKENS
        for lease in plan.leases:
            if now_s >= lease.ends_at:
                lease.end_period()
            units = count_tokens(lease, tokens)
            if lease.left < units:
                return False
            taken.append((lease, units, lease.epoch))
        for lease, units, _ in taken:
            lease.take(units, now_s)
        exchange.reservation = taken
        exchange.limit_headers = plan.describe()
        return True

    async def acquire(self, exchange: Exchange, plan: Plan) -> None:
        """Reserves what a request will use, borrowing it if need be.

        Raises:
            RateLimited: there is not so much, of a limit that the error names.
            QuotaUnavailable: nobody can tell, and the configuration says to refuse then.
        """
        while not self.reserve(exchange, plan):
            short = {}
            tokens = self._estimate(exchange)
            for lease in plan.leases:
                units = count_tokens(lease, tokens)
                if lease.left < units:
                    short[lease] = units
            now_s = self._loop.time()
            for lease, units in short.items():
                if now_s < lease.refused_until and units - lease.left >= lease.refused_need:
                    raise self._refuse(exchange, plan, lease, lease.refused_wait_s)
            if not self._client.is_connected:
                await self._go_alone(exchange, plan, short)
                continue
            running = next((lease.asking for lease in short if lease.asking is not None), None)
            if running is None:
                running = self._start_asking(short)
            await asyncio.shield(running)

    def _estimate(self, exchange: Exchange) -> Tokens:
        """Tokens that a request will use, before anybody knows."""
        tokens = exchange.estimate
        if tokens is None:
            output = None
            if exchange.endpoint is not Endpoint.EMBEDDINGS:
                output = self._dialect.read_output_max(exchange.body)
                if output is None:
                    output = int(self._guesses.get(exchange.model, OUTPUT_GUESS))
            tokens = Tokens(input=max(1, exchange.body_bytes // BYTES_PER_TOKEN), output=output)
            exchange.estimate = tokens
        return tokens

    def _refuse(self, exchange: Exchange, plan: Plan, lease: Lease, wait_s: float) -> RateLimited:
        exchange.limit_headers = plan.describe()
        limit = lease.limit
        units = count_tokens(lease, self._estimate(exchange))
        if units > limit.amount:
            return RateLimited(
                f"the limit of {limit.describe()} is too small for this request, which may take {units}"
            )
        seconds = max(1, -(-int(wait_s * 1000) // 1000))
        if lease.is_concurrent:
            when = "try again when one of them has ended"
        else:
            words = f"{seconds} s" if seconds < SECONDS_READABLE else format_seconds(seconds)
            when = f"it has room for this request in {words}"
        return RateLimited(f"the limit of {limit.describe()} is reached; {when}", retry_after_s=seconds)

    async def _go_alone(self, exchange: Exchange, plan: Plan, short: dict[Lease, int]) -> None:
        """Gives a request what it lacks without the authority, or raises."""
        if not self._was_connected and self._loop.time() < self._started_s + FIRST_WORD_S:
            await asyncio.sleep(0.02)
            return
        if self._when_away is WhenAway.CLOSED:
            raise QuotaUnavailable(
                "the limits can't be checked at the moment, so no requests are accepted", retry_after_s=1
            )
        now = self._now()
        for lease, units in short.items():
            if self._when_away is WhenAway.OPEN:
                lacking = units - lease.left
                lease.left += lacking
                lease.owed += 0 if lease.is_concurrent else lacking
                continue
            if lease.stand_in is None:
                lease.stand_alone(self._workers, now)
            if not lease.draw(units, now):
                raise self._refuse(exchange, plan, lease, lease.compute_wait_s(units, now))

    def settle(self, exchange: Exchange) -> None:
        """Ends a reservation: what was really used stays taken, the rest comes back."""
        taken, exchange.reservation = exchange.reservation, None
        if taken is None:
            return
        tokens, source = exchange.tokens, exchange.usage_source
        if tokens is not None and source is UsageSource.REPORTED and tokens.output:
            known = self._guesses.get(exchange.model, float(tokens.output))
            self._guesses[exchange.model] = known + 0.05 * (tokens.output_total - known)
        # A sum for all limits that count tokens whole; most do.
        even = None if tokens is None else Tokens(input=tokens.input_total, output=tokens.output_total)
        for lease, units, epoch in taken:
            if lease.is_concurrent:
                lease.give(units, epoch)
            elif lease.counts or not exchange.sent:
                back = units - self._count_used(lease, exchange, even if lease.is_even else tokens, units)
                if back:
                    lease.give(back, epoch)

    def _count_used(self, lease: Lease, exchange: Exchange, tokens: Tokens | None, reserved: int) -> int:
        if not exchange.sent:
            return 0  # nobody has worked for it
        if tokens is None:
            return reserved if exchange.status in UNCERTAIN else 0
        used = count_tokens(lease, tokens)
        # What nobody counted is never refunded: it may have been as much as was reserved.
        return used if exchange.usage_source is UsageSource.REPORTED else max(used, reserved)

    # --- the authority --------------------------------------------------------------------------------------

    def _start_asking(self, short: dict[Lease, int]) -> asyncio.Future[None]:
        done: asyncio.Future[None] = self._loop.create_future()
        wants = []
        for lease, units in short.items():
            lease.asking = done
            need = units - lease.left
            wants.append(Want(lease.limit.id, need, need + AHEAD_SWEEPS * lease.spent))
        task = self._loop.create_task(self._ask(tuple(short), tuple(wants), done))
        self._asks.add(task)
        task.add_done_callback(self._asks.discard)
        return done

    async def _ask(
        self, leases: tuple[Lease, ...], wants: tuple[Want, ...], done: asyncio.Future[None]
    ) -> None:
        """Asks in a task of its own: a request that is given up must not lose what was lent."""
        try:
            answer = await self._client.ask(wants)
            now_s = self._loop.time()
            if isinstance(answer, Lent):
                self._absorb(answer, wants, now_s)
                return
            lease = self._leases.get(answer.limit_id)
            if lease is not None:
                lease.known_left = answer.left
                lease.refused_need = max(want.need for want in wants if want.limit_id == answer.limit_id)
                lease.refused_wait_s = 1.0 if answer.wait_ns < 0 else answer.wait_ns * 1e-9
                lease.refused_until = now_s + min(REFUSED_S, max(0.001, lease.refused_wait_s))
        except AuthorityAway:
            pass  # whoever waits sees that there is no line
        finally:
            for lease in leases:
                lease.asking = None
            done.set_result(None)

    def _absorb(self, answer: Lent, wants: tuple[Want, ...], now_s: float) -> None:
        loans = {loan.limit_id: loan for loan in answer.loans}
        for want in wants:
            lease, loan = self._leases.get(want.limit_id), loans.get(want.limit_id)
            if lease is not None and loan is not None:
                lease.absorb(loan, now_s)
            elif (
                lease is not None
            ):  # the authority does not know it yet: it holds nobody up, and is told later
                lease.left += want.need
                lease.owed += 0 if lease.is_concurrent else want.need

    def _hold(self) -> list[Held]:
        held = []
        for lease in self._leases.values():
            lease.stand_in = None
            units = lease.left + lease.in_use if lease.is_concurrent else max(0, lease.left)
            if units:
                held.append(Held(lease.limit.id, lease.epoch, units))
        self._was_connected = True
        self._loop.call_soon(self._tell_debts)
        return held

    def _tell_debts(self) -> None:
        self._return([lease for lease in self._leases.values() if lease.owed or lease.left < 0])

    def _lose(self) -> None:
        now = self._now()
        for lease in self._leases.values():
            lease.stand_alone(self._workers, now)

    def _return_recalled(self, limit_id: str) -> None:
        lease = self._leases.get(limit_id)
        returned = () if lease is None else (Held(limit_id, lease.epoch, lease.return_all()),)
        self._client.send(Return(returned, limit_id))

    def _return(self, leases: Iterable[Lease]) -> None:
        if self._client.is_connected:
            returned = tuple(Held(lease.limit.id, lease.epoch, lease.return_all()) for lease in leases)
            if returned:
                self._client.send(Return(returned))

    def sweep(self) -> None:
        """To be called every tenth of a second: keeps the line, returns what lies idle, tells of debts."""
        now_s = self._loop.time()
        if self._leases:
            self._client.keep_connected(now_s)
        due = []
        for lease in self._leases.values():
            if lease.spent:
                lease.spent //= 2
                lease.tell_reset(now_s)
            idle = lease.left > 0 and now_s > lease.used_at + IDLE_S
            if (idle or lease.left < 0 or lease.owed) and lease.asking is None:
                due.append(lease)
        self._return(due)

    def close(self) -> None:
        """Returns everything."""
        self._return(self._leases.values())
        self._client.close()

    def _now(self) -> Now:
        return Now(self._clock.monotonic_ns(), self._clock.wall_ns())
