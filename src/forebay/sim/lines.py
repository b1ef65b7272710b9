"""Those that wait at the gateway for places: what `gateway.crowd` does, without an event loop.  Pure.

Whether there is room, whose turn it is, who waits in vain: all of it is `policy.crowd`'s and
`policy.fairness`'s.  This keeps the lines, and hands a place over in the moment in which it gets free.
"""

from collections.abc import Callable, Iterable

from forebay.core.keys import PRIORITIES
from forebay.core.limits import QueueRules
from forebay.gateway.policy.crowd import (
    Drain,
    Share,
    compute_allowed_s,
    find_seat,
    guess_drain,
    has_place,
    limit_tiers,
    list_eligible,
)
from forebay.gateway.policy.fairness import Entry, FairQueue
from forebay.gateway.policy.fleet import Fleet, Tier
from forebay.gateway.policy.load import PoolLoad
from forebay.gateway.policy.want import Want

LineKey = tuple[str, frozenset[PoolLoad]]
Seat = Callable[[int], None]  #: gives a request the place of an index, of the targets of its route


class Turn(Entry):
    """A request that waits."""

    __slots__ = ("fleet", "line", "seat", "tiers", "want")

    def __init__(
        self, number: int, tenant: str, fleet: Fleet, tiers: tuple[Tier, ...], want: Want, seat: Seat
    ) -> None:
        super().__init__(PRIORITIES.index(want.priority), tenant, 1, number)
        self.fleet, self.tiers, self.want, self.seat = fleet, tiers, want, seat
        self.line: Line | None = None


class Line:
    """Those that wait for the same places."""

    def __init__(self, key: LineKey, rules: QueueRules, drain: Drain, share: Share, now: float) -> None:
        self.key, self.drain, self.share, self.opened_s = key, drain, share, now
        self.queue = FairQueue(entries_max=rules.requests_max, tenant_max=rules.tenant_requests_max)

    @property
    def first(self) -> Turn:
        turn = self.queue.first()
        assert isinstance(turn, Turn)
        return turn


class Lines:
    """See the module.

    Args:
        draw: gives random numbers from 0 up to but not including 1.
    """

    def __init__(self, draw: Callable[[], float]) -> None:
        self._draw = draw
        self._lines: dict[LineKey, Line] = {}
        self._by_pool: dict[PoolLoad, list[Line]] = {}
        self._by_model: dict[str, int] = {}
        self._clock = self._number = 0

    def is_open(self, fleet: Fleet, index: int, now: float) -> bool:
        """Whether the place that was chosen for a request can have it."""
        group, member = fleet.seats[index]
        return group.load.has_room(now) and has_place(group, member) and group.load not in self._by_pool

    def find_turn(
        self, model: str, tenant: str, fleet: Fleet, want: Want, now: float, seat: Seat, rules: QueueRules
    ) -> tuple[Turn | None, float]:
        """Gives a request whose place is full another one at once, or has it wait.

        Returns:
            its turn, and how long that may last; (None, 0) if it has a place by now, and (None, -1) if it is
            refused.
        """
        tiers = limit_tiers(
            list_eligible(fleet, want), want.priority, fleet.choosing.spill_at, self._draw(), self._count
        )
        free = find_seat(fleet, tiers, want, now, self._draw())
        if free is not None and fleet.seats[free][0].load not in self._by_pool:
            seat(free)
            return None, 0.0
        self._number += 1
        turn = Turn(self._number, tenant, fleet, tiers, want, seat)
        allowed_s = self._join(turn, model, rules, now)
        if allowed_s is None:
            return None, -1.0
        if free is not None:
            self._serve(set(self._by_pool.get(fleet.seats[free][0].load, ())), now)
        return (None, 0.0) if turn.line is None else (turn, allowed_s)

    def _join(self, turn: Turn, model: str, rules: QueueRules, now: float) -> float | None:
        """It stands in line from now on, and for so long; None where it is refused."""
        key = model, frozenset(load for tier in turn.tiers for load in tier.loads)
        line = self._lines.get(key)
        if line is None:
            drain = guess_drain(turn.tiers, turn.want, now)
            line = Line(key, rules, drain, Share(self._clock), now)
        wait_s = line.drain.estimate_wait_s(line.queue.count_before(turn.rank, turn.tenant, 1), now)
        allowed_s = compute_allowed_s(rules, turn.rank, None, now - line.opened_s)
        if allowed_s <= 0 or wait_s > allowed_s or self._by_model.get(model, 0) >= rules.requests_max:
            return None
        if line.queue.add(turn) is not None:
            return None
        turn.line = line
        self._by_model[model] = self._by_model.get(model, 0) + 1
        if len(line.queue) == 1:
            self._lines[key] = line
            for pool in key[1]:
                self._by_pool.setdefault(pool, []).append(line)
        return allowed_s

    def look(self, pools: Iterable[PoolLoad], now: float) -> None:
        """A request has ended at one of these."""
        if self._lines:
            self._serve({line for pool in pools for line in self._by_pool.get(pool, ())}, now)

    def look_at_all(self, now: float) -> None:
        """Looks for what has room without a word of it."""
        self._serve(set(self._lines.values()), now)

    def expire(self, turn: Turn) -> bool:
        """Its time is over; False if it has a place by now."""
        if turn.line is None:
            return False
        self._leave(turn, is_served=False)
        return True

    def _serve(self, lines: set[Line], now: float) -> None:
        while lines:
            line = min(lines, key=lambda each: (each.share.find_end(each.first.rank), each.opened_s))
            turn = line.first
            found = find_seat(turn.fleet, turn.tiers, turn.want, now, self._draw())
            if found is None:
                lines.discard(line)
                continue
            self._leave(turn, is_served=True)
            line.drain.note(now)
            self._clock = max(self._clock, line.share.take(turn.rank))
            turn.seat(found)
            if not len(line.queue):
                lines.discard(line)

    def _leave(self, turn: Turn, *, is_served: bool) -> None:
        line, turn.line = turn.line, None
        assert line is not None
        if is_served:
            line.queue.take(turn)
        else:
            line.queue.remove(turn)
        self._by_model[line.key[0]] -= 1
        if not len(line.queue):
            del self._lines[line.key]
            for pool in line.key[1]:
                self._by_pool[pool].remove(line)
                if not self._by_pool[pool]:
                    del self._by_pool[pool]

    def _count(self, load: PoolLoad) -> int:
        return sum(len(line.queue) for line in self._by_pool.get(load, ()))
