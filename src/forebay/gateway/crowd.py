"""Lets requests wait for a place of their model where all are full; refuses at once who would wait in vain.

What is decided is `policy.crowd`'s and `policy.fairness`'s; this keeps the lines.  A line is of those that
can be answered at the same places; whoever is first gets the next that is free there, in the moment in which
it gets free, and holds it from then on, so nobody who comes later takes it.  A request waits once at most,
and ends its wait exactly once: with a place, refused, gone, or told that the gateway ends.  Nothing is sent
from here, and nothing is polled: a sweep only sees to what ends without a word, as a time out of service.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from random import random

from forebay.core.errors import CallerLeft, Draining, ModelOverloaded
from forebay.core.keys import PRIORITIES, KeyEntry
from forebay.gateway.ending import DRAINING
from forebay.gateway.line import Waiter
from forebay.gateway.loads import compute_capacity
from forebay.gateway.memory import Memory
from forebay.gateway.model import Exchange, RouteState, State
from forebay.gateway.place_line import LineKey, PlaceLine, Queue, Turn, explain_full, say_how_full
from forebay.gateway.policy.crowd import (
    Share,
    compute_allowed_s,
    count_free,
    find_seat,
    guess_drain,
    has_place,
    limit_tiers,
    list_eligible,
    round_retry_s,
)
from forebay.gateway.policy.fairness import Full
from forebay.gateway.policy.fleet import Fleet, Tier
from forebay.gateway.policy.load import PoolLoad, ReplicaLoad
from forebay.gateway.policy.route import Want
from forebay.gateway.retargeting import Retargeting
from forebay.gateway.seating import feed, take_seat
from forebay.gateway.waiting import ENDED, EXPIRED, FULL, SERVED, TOO_LONG, read_wait_s, tell_waited

BYTES_PART = 2  #: of `gateway.memory_max_bytes`, the bodies of those that wait may have a half
DEAL_S = 0.1  #: that also a request waits which may not, for a place that is free and another worker's yet


class Crowd:
    """See the module.

    Attributes:
        count: of those that wait, at whatever line.
        waiting: the same by model and class.
        on_want: told that a request waits where none did, or that a place is another worker's now.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, memory: Memory, draw: Callable[[], float] = random
    ) -> None:
        self.count = 0
        self.waiting: Counter[tuple[str, str]] = Counter()
        self.on_want: Callable[[], None] = lambda: None
        self._by_model: Counter[str] = Counter()
        self._lines: dict[LineKey, PlaceLine] = {}
        self._by_pool: dict[PoolLoad, list[PlaceLine]] = {}
        self._held_bytes = 0
        self._clock = 0  # of all lines, see `Share`
        self._number = 0
        self._closing = False
        self._loop = loop
        self._memory = memory
        self._draw = draw

    # --- a request comes ------------------------------------------------------------------------------------

    def is_open(self, fleet: Fleet, index: int, now: float) -> bool:
        """Whether the place that was chosen for a request can have it."""
        group, member = fleet.seats[index]
        pool = group.load
        if pool not in member.load.pools:
            feed(group)
        is_waited_for = self.count and pool in self._by_pool
        return pool.has_room(now) and has_place(group, member) and not is_waited_for

    def find_turn(self, exchange: Exchange, fleet: Fleet, want: Want, now: float) -> bool:
        """Gives a request whose place is full another one, or has it wait; whether it has one now.

        Raises:
            ModelOverloaded: it may not wait, would wait for longer than it may, or too many wait.
        """
        route, key = exchange.route, exchange.key
        assert route is not None
        assert key is not None
        for group in fleet.groups:
            feed(group)
        tiers = self._limit(list_eligible(fleet, want), fleet, want)
        seat = find_seat(fleet, tiers, want, now, self._draw())
        if seat is not None and fleet.seats[seat][0].load not in self._by_pool:
            take_seat(exchange, route, fleet, seat, want, now)
            return True
        turn = Turn(exchange, fleet, tiers, want)
        line = self._join(turn, route, now)
        if seat is not None:
            self._serve(set(self._by_pool.get(fleet.seats[seat][0].load, ())), now)
        if turn.line is None:
            self._end(turn, SERVED)
            return True
        exchange.turn = turn
        turn.future = self._loop.create_future()
        turn.timer = self._loop.call_at(turn.deadline, turn.wake)
        self._watch(line)
        return False

    def _limit(self, tiers: tuple[Tier, ...], fleet: Fleet, want: Want) -> tuple[Tier, ...]:
        return limit_tiers(tiers, want.priority, fleet.choosing.spill_at, self._draw(), self._count_waiting)

    def _join(self, turn: Turn, route: RouteState, now: float) -> PlaceLine:
        """It stands in line from now on.  Raises ModelOverloaded."""
        exchange, rules = turn.exchange, route.queue
        assert rules is not None
        key = _make_key(exchange.model, turn.tiers)
        line = self._lines.get(key)
        if line is None:
            drain = guess_drain(turn.tiers, turn.want, now)
            line = PlaceLine(key, rules, drain, Share(self._clock), now)
        line.queue.entries_max, line.queue.tenant_max = rules.requests_max, rules.tenant_requests_max
        before = line.queue.count_before(turn.rank, turn.project, 1)
        wait_s = line.drain.estimate_wait_s(before, now)
        is_dealt_soon = before < count_free(turn.tiers, now)  # it is free, and another worker's yet
        if is_dealt_soon:
            wait_s = min(wait_s, DEAL_S)
        try:
            named_s = read_wait_s(exchange.call.headers)
        except ValueError as why:
            raise self._refuse(turn, TOO_LONG, before, wait_s, f"it may not wait, for {why}") from None
        allowed_s = compute_allowed_s(rules, turn.rank, named_s, now - line.opened_s)
        allowed_s -= exchange.queued_ns * 1e-9
        if is_dealt_soon:
            allowed_s = max(allowed_s, DEAL_S)
        if allowed_s <= 0 or self._closing:
            raise self._refuse(turn, TOO_LONG, before, wait_s, "it may not wait")
        if wait_s > allowed_s:
            raise self._refuse(turn, TOO_LONG, before, wait_s, f"it may wait {allowed_s:.3g} s")
        if self._by_model[exchange.model] >= rules.requests_max:
            raise self._refuse(turn, FULL, before, wait_s, explain_full(rules, Full.ALL))
        if self._held_bytes + exchange.body_bytes > self._memory.max_bytes // BYTES_PART:
            words = "the bodies of those that wait have half of gateway.memory_max_bytes"
            raise self._refuse(turn, FULL, before, wait_s, words)
        self._number += 1
        turn.number = self._number
        turn.allowed_s, turn.begun_s, turn.deadline = allowed_s, now, now + allowed_s
        full = line.join(turn, turn.project, 1)
        if full is not None:
            raise self._refuse(turn, FULL, before, wait_s, explain_full(rules, full))
        self._open_line(line)
        self._count(turn, 1)
        return line

    def _open_line(self, line: PlaceLine) -> None:
        """To be called when somebody has joined a line."""
        if len(line) != 1:
            return
        self._lines[line.key] = line
        for pool in line.key[1]:
            self._by_pool.setdefault(pool, []).append(line)
        self.on_want()

    def _close_line(self, line: PlaceLine) -> None:
        del self._lines[line.key]
        for pool in line.key[1]:
            lines = self._by_pool[pool]
            lines.remove(line)
            if not lines:
                del self._by_pool[pool]

    def _count(self, turn: Turn, more: int) -> None:
        exchange = turn.exchange
        self.count += more
        self.waiting[turn.model, PRIORITIES[turn.rank]] += more
        self._by_model[turn.model] += more
        if not self._by_model[turn.model]:
            del self._by_model[turn.model]
        self._held_bytes += more * exchange.body_bytes

    def _count_waiting(self, load: PoolLoad) -> int:
        return sum(map(len, self._by_pool.get(load, ())))

    def count_waiting(self, pool: PoolLoad) -> tuple[int, int]:
        """Those that wait for places of a pool: requests, and their tokens, as if all were like the first."""
        count = tokens = 0
        for line in self._by_pool.get(pool, ()):
            turn = line.first
            assert isinstance(turn, Turn)
            count, tokens = count + len(line), tokens + len(line) * turn.want.tokens
        return count, tokens

    # --- a place gets free ----------------------------------------------------------------------------------

    def look(self, load: ReplicaLoad, now: float) -> None:
        """A request has ended at a replica."""
        if any(pool.is_overfilled for pool in load.pools):
            self.on_want()
        if self.count:
            self._serve({line for pool in load.pools for line in self._by_pool.get(pool, ())}, now)

    def look_at(self, pools: Iterable[PoolLoad], now: float) -> None:
        """This worker may fill more of these."""
        for line in {line for pool in pools for line in self._by_pool.get(pool, ())}:
            turn = line.first
            assert isinstance(turn, Turn)
            line.drain.guess_anew(guess_drain(turn.tiers, turn.want, now))
        self._serve({line for pool in pools for line in self._by_pool.get(pool, ())}, now)

    def sweep(self, now: float) -> None:
        """Looks for what has room without a word of it.  To be called every tenth of a second."""
        for line in tuple(self._lines.values()):
            self._watch(line)
        if self.count:
            self._serve(set(self._lines.values()), now)

    def _serve(self, lines: set[PlaceLine], now: float) -> None:
        """Hands over what is free, one place after the other, to whoever is next at these lines."""
        while lines:
            line = min(lines, key=_find_end)
            turn = line.first
            assert isinstance(turn, Turn)
            seat = find_seat(turn.fleet, turn.tiers, turn.want, now, self._draw())
            if seat is None:
                lines.discard(line)
                continue
            self._leave(turn, is_served=True)
            line.drain.note(now)
            self._clock = max(self._clock, line.share.take(turn.rank))
            assert turn.exchange.route is not None
            take_seat(turn.exchange, turn.exchange.route, turn.fleet, seat, turn.want, now)
            turn.wake()
            if not len(line):
                lines.discard(line)

    def follow(self, state: State, now: float) -> None:
        """Another table is in force: who waits does so for its places from now on, in the old order.

        Whose key or model it has no more still waits for the same places, and fills them as it says.
        """
        turns = [turn for line in self._lines.values() for turn in line.list_turns()]
        moving = Retargeting(state)
        for turn in sorted(turns, key=lambda turn: turn.number):
            line = turn.line
            if moving.move(turn) and isinstance(line, PlaceLine):
                self._leave(turn, is_served=False)
                self._stand(turn, line, now)
        groups = [group for route in state.routes.values() for group in route.groups] if self.count else []
        kept = {group.load for group in groups}
        targets = {member.load: member.target for group in groups for member in group.members}
        for pool, lines in self._by_pool.items():
            first = lines[0].first
            if pool in kept or not isinstance(first, Turn):
                continue
            members = next(group.members for group in first.fleet.groups if group.load is pool)
            pool.resize(*compute_capacity(targets.get(each.load, each.target) for each in members))
        self.sweep(now)

    def _stand(self, turn: Turn, before: PlaceLine, now: float) -> None:
        """Puts a request that stood in a line into that of its new places, however many stand there."""
        exchange = turn.exchange
        assert exchange.route is not None
        rules = exchange.route.queue
        assert rules is not None
        for group in turn.fleet.groups:
            feed(group)
        turn.tiers = self._limit(turn.tiers, turn.fleet, turn.want)
        key = _make_key(turn.model, turn.tiers)
        line = self._lines.get(key)
        if line is None:
            drain = guess_drain(turn.tiers, turn.want, now)
            line = PlaceLine(key, rules, drain, Share(self._clock), before.opened_s)
        line.queue.entries_max = line.queue.tenant_max = len(line) + 1
        line.join(turn, turn.project, 1)
        line.queue.entries_max, line.queue.tenant_max = rules.requests_max, rules.tenant_requests_max
        self._open_line(line)
        self._count(turn, 1)

    def _leave(self, turn: Turn, *, is_served: bool) -> None:
        line = turn.line
        if not isinstance(line, PlaceLine):
            return
        line.leave(turn, is_served=is_served)
        self._count(turn, -1)
        if not len(line):
            self._close_line(line)

    def _watch(self, line: PlaceLine) -> None:
        """Hears of the ends of requests at its places."""
        turn = line.first
        assert isinstance(turn, Turn)
        for group in (group for tier in turn.tiers for group in tier.groups):
            feed(group)
            for member in group.members:
                member.load.on_end = self.look

    # --- a request waits ------------------------------------------------------------------------------------

    async def wait(self, exchange: Exchange) -> None:
        """Returns when a request that stands in line has its place.

        Raises:
            ModelOverloaded: its time is over.
            Draining: the gateway ends.
        """
        turn: Turn = exchange.turn
        result = ENDED
        try:
            if exchange.left:
                raise CallerLeft("the caller left")
            if turn.line is not None:
                assert turn.future is not None
                await turn.future
            if turn.line is None:
                result = SERVED
                return
            if self._closing:
                raise Draining(DRAINING, retry_after_s=1)
            result = EXPIRED
            raise self._explain_late(turn)
        finally:
            exchange.turn = None
            self._end(turn, result)

    def end(self, exchange: Exchange) -> None:
        """A request ends that stood in line, or has a place of which it does not know yet.

        To be called before that place is given back.
        """
        turn, exchange.turn = exchange.turn, None
        if turn is not None:
            self._end(turn, ENDED)

    def _end(self, turn: Turn, result: str) -> None:
        self._leave(turn, is_served=False)
        waited_s = None
        if turn.timer is not None:
            turn.timer.cancel()
            waited_s = self._loop.time() - turn.begun_s
            tell_waited(turn.exchange, waited_s)
        turn.exchange.state.cells.count_queued(turn.model, PRIORITIES[turn.rank], result, waited_s)

    def close(self) -> None:
        """The gateway ends: those that wait are told at once, and nobody begins to."""
        self._closing = True
        for line in tuple(self._lines.values()):
            line.wake_all()

    # --- what is told ---------------------------------------------------------------------------------------

    def describe(self, model: str, key: KeyEntry, fleet: Fleet, want: Want, now: float) -> Queue:
        """What a request would find, for people."""
        tiers = list_eligible(fleet, want)
        waiting = {priority: self.waiting[model, priority] for priority in PRIORITIES}
        if find_seat(fleet, tiers, want, now, self._draw()) is not None:
            return Queue(full=False, waiting=waiting, wait_s=0.0)
        line = self._lines.get(_make_key(model, tiers))
        waiter = Waiter(key)
        before = 0 if line is None else line.queue.count_before(waiter.rank, waiter.project, 1)
        drain = guess_drain(tiers, want, now) if line is None else line.drain
        return Queue(full=True, waiting=waiting, wait_s=round(drain.estimate_wait_s(before, now), 3))

    def _refuse(self, turn: Turn, result: str, before: int, wait_s: float, why: str) -> ModelOverloaded:
        exchange = turn.exchange
        exchange.state.cells.count_queued(turn.model, PRIORITIES[turn.rank], result, None)
        return ModelOverloaded(
            f"{say_how_full(turn)}, {before} requests wait before this one, for about {wait_s:.3g} s, and "
            f"{why}; try again in {round_retry_s(wait_s)} s",
            retry_after_s=round_retry_s(wait_s),
        )

    def _explain_late(self, turn: Turn) -> ModelOverloaded:
        line = turn.line
        assert isinstance(line, PlaceLine)
        now = self._loop.time()
        wait_s = line.drain.estimate_wait_s(line.queue.count_before(turn.rank, turn.project, 1), now)
        return ModelOverloaded(
            f"{say_how_full(turn)}, and none was free in the {turn.allowed_s:.3g} s that this request might "
            f"wait; try again in {round_retry_s(wait_s)} s",
            retry_after_s=round_retry_s(wait_s),
        )


def _make_key(model: str, tiers: tuple[Tier, ...]) -> LineKey:
    return model, frozenset(load for tier in tiers for load in tier.loads)


def _find_end(line: PlaceLine) -> tuple[int, float]:
    first = line.first
    assert first is not None
    return line.share.find_end(first.rank), line.opened_s
