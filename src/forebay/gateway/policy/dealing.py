"""Deals the places of pools out to the workers that fill them together.  Pure: `now` is an argument.

Each worker may fill only what it was dealt, and a place is dealt to nobody before whoever had it has said
that it fills it no more.  So whatever comes at once, and however late news are, all of them together never
fill more than there is.  Nobody asks for a single request: what one lacks and another leaves is dealt anew
when they tell, and who lacks nothing keeps what it has.

Where more is wanted than there is, each that wants any gets a place, and the rest goes by how many requests
each has, so that these wait equally long wherever they came to.  Where there are fewer places than workers
that want one, they take turns.  It counts and sends nothing.

Where other machines fill a pool too, what is dealt is what `sharing` leaves to this one.
"""

from collections.abc import Iterable, Sequence
from math import ceil, log2

from forebay.gateway.policy.news import Allotment, Claim, Need, PoolUse
from forebay.gateway.policy.sharing import TINY, Part, Sharing

TURN_S = 0.5  #: after which workers take turns at what can't be divided
AGAIN_S = 1.0  #: after which a worker that does not say that it goes by what it was dealt is told again
POOLS_MAX = 20_000  #: of one worker


class _Hand:
    """What one worker said of a pool, and what it was dealt since."""

    __slots__ = ("claim", "dealt", "dealt_at")

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self.dealt: tuple[int, int] | None = None  #: by which it does not say that it goes yet
        self.dealt_at = 0.0


class Dealing:
    """See the module."""

    def __init__(self) -> None:
        self._pools: dict[int, dict[str, _Hand]] = {}
        self._by_worker: dict[str, set[int]] = {}  # pools of which it has a hand
        self._untold: dict[str, set[int]] = {}  # pools of which it was dealt something
        self._changed: set[int] = set()
        self._open: set[int] = set()  # pools of which more is wanted than there is, or somebody has to answer
        self._turn = 0
        self._sharing = Sharing()
        self._parts: dict[int, Part] = {}  # what workers here may fill of pools that other machines fill too

    def leave(self, name: str) -> None:
        """Nothing of a worker counts any more."""
        for pool in tuple(self._by_worker.get(name, ())):
            self._drop(name, pool)
        self._by_worker.pop(name, None)
        self._untold.pop(name, None)

    def note(self, name: str, claims: Iterable[Claim]) -> None:
        """What a worker says.

        Raises:
            ValueError: it says too much.
        """
        own = self._by_worker.setdefault(name, set())
        for claim in claims:
            hands = self._pools.setdefault(claim.pool, {})
            self._changed.add(claim.pool)
            if not claim.requests.capacity and not claim.tokens.capacity:
                self._drop(name, claim.pool)
                continue
            own.add(claim.pool)
            hand = hands.get(name)
            if hand is None:
                hands[name] = _Hand(claim)
                continue
            hand.claim = claim
            if hand.dealt == (claim.requests.limit, claim.tokens.limit):
                hand.dealt = None
        if len(own) > POOLS_MAX:
            raise ValueError(f"a worker names more than {POOLS_MAX} pools")

    def _drop(self, name: str, pool: int) -> None:
        self._by_worker.get(name, set()).discard(pool)
        hands = self._pools.get(pool, {})
        hands.pop(name, None)
        self._changed.add(pool)
        if not hands:
            self._pools.pop(pool, None)
            self._changed.discard(pool)
            self._open.discard(pool)

    def list_uses(self) -> tuple[PoolUse, ...]:
        """Pools of which workers here have something, or for which they wait."""
        uses = []
        for pool, hands in self._pools.items():
            needs = [hand.claim.requests for hand in hands.values()]
            used, waits = sum(need.used for need in needs), any(need.waiting for need in needs)
            if used or waits:
                uses.append(PoolUse(pool, used, waits))
        return tuple(uses)

    def share_with(self, machines: Iterable[tuple[int, Iterable[PoolUse]]], workers: int, now: float) -> None:
        """From now on workers here leave those of other machines what is theirs (`sharing`).

        Args:
            machines: of each its workers, and what these have.
            workers: of this machine.
        """
        pools = {}
        for pool, hands in self._pools.items():
            needs = [hand.claim.requests for hand in hands.values()]
            pools[pool] = int(min(need.capacity for need in needs)), sum(need.used for need in needs)
        parts = self._sharing.share(pools, machines, workers, now)
        self._changed |= {
            pool for pool in parts.keys() | self._parts.keys() if parts.get(pool) != self._parts.get(pool)
        }
        self._changed &= self._pools.keys()
        self._parts = parts

    def deal(self, now: float) -> tuple[str, ...]:
        """Deals what has changed; returns who is to be told of it."""
        turn = int(now / TURN_S)
        if turn != self._turn:
            self._turn = turn
            self._changed |= self._open
        for pool in self._changed:
            self._deal_pool(pool, now)
        self._changed.clear()
        return tuple(self._untold)

    def _deal_pool(self, pool: int, now: float) -> None:
        hands = self._pools.get(pool, {})
        names = sorted(hands)
        if not names:
            return
        claims = [hands[name].claim for name in names]
        dealt = [hands[name].dealt for name in names]
        part = self._parts.get(pool)
        requests, is_scarce = _deal_part(
            [claim.requests for claim in claims],
            [each and each[0] for each in dealt],
            1,
            self._turn,
            None if part is None else part.requests,
        )
        size = _guess_size(claims)
        tokens_max = int(min(claim.tokens.capacity for claim in claims))
        tokens, are_scarce = _deal_part(
            [claim.tokens for claim in claims],
            [each and each[1] for each in dealt],
            size,
            self._turn,
            None if part is None else int(tokens_max * part.tokens + TINY),
        )
        for name, claim, *new in zip(names, claims, requests, tokens, strict=True):
            hand = hands[name]
            if hand.dealt is not None:
                if now > hand.dealt_at + AGAIN_S:
                    hand.dealt_at = now
                    self._untold.setdefault(name, set()).add(pool)
            elif new != [claim.requests.limit, claim.tokens.limit]:
                hand.dealt, hand.dealt_at = (new[0], new[1]), now
                self._untold.setdefault(name, set()).add(pool)
        is_open = is_scarce or are_scarce or any(hand.dealt is not None for hand in hands.values())
        (self._open.add if is_open else self._open.discard)(pool)

    def take(self, name: str) -> tuple[Allotment, ...]:
        """What a worker is to be told now, and counts as told."""
        told = []
        for pool in self._untold.pop(name, ()):
            hand = self._pools.get(pool, {}).get(name)
            if hand is not None and hand.dealt is not None:
                told.append(Allotment(pool, *hand.dealt))
        return tuple(told)


def _guess_size(claims: Sequence[Claim]) -> int:
    """Tokens of a request, roughly, so that it changes rarely."""
    count = sum(claim.requests.used + claim.requests.waiting for claim in claims)
    tokens = sum(claim.tokens.used + claim.tokens.waiting for claim in claims)
    return 1 << round(log2(max(1.0, tokens / count))) if count else 1 << 10


def _deal_part(
    needs: Sequence[Need],
    dealt: Sequence[int | None],
    size: int,
    turn: int,
    most: int | None = None,
) -> tuple[list[int], bool]:
    """What each may fill from now on, as far as it is there; and whether more is wanted than there is.

    Args:
        dealt: by which some do not say that they go yet; these keep it.
        size: what one request takes.
        most: of the capacity that is to be dealt; None for all of it.
    """
    limits = [need.limit for need in needs]
    capacity = int(min(need.capacity for need in needs))
    if not capacity:
        return limits, False
    capacity = capacity if most is None else min(capacity, most)
    units = ceil(capacity / size)
    wanted = [ceil((need.used + need.waiting) / size) for need in needs]
    is_scarce = sum(wanted) > units
    held = [max(need.used, need.limit, more or 0) for need, more in zip(needs, dealt, strict=True)]
    crumbs = 0 if size == 1 else size + len(needs)  # what division leaves of tokens
    is_all_dealt = capacity - crumbs <= sum(limits) <= capacity
    if is_all_dealt and not any(need.waiting or need.used >= need.limit for need in needs):
        return limits, is_scarce
    goals = [each * capacity // max(1, units) for each in share_out(units, wanted, turn if is_scarce else 0)]
    free = capacity - sum(held)
    news = list(limits)
    for at in sorted(range(len(needs)), key=lambda at: limits[at] - goals[at]):
        if dealt[at] is not None:
            continue
        if goals[at] > held[at]:
            more = min(goals[at] - held[at], max(0, free))
            if held[at] + more < goals[at]:
                more -= more % size  # less than a request is none
            free -= more
            news[at] = held[at] + more
        else:
            news[at] = goals[at]
    return news, is_scarce


def share_out(units: int, wanted: Sequence[int], turn: int) -> list[int]:
    """Divides all units between workers that want so many."""
    count = len(wanted)
    turned = [(turn + at) % count for at in range(count)]
    total = sum(wanted)
    if total > units:
        parts = [0] * count
        hungry = [at for at in turned if wanted[at]]
        for at in hungry[:units]:
            parts[at] = 1
        _divide(units - sum(parts), [want - part for want, part in zip(wanted, parts, strict=True)], parts)
        return parts
    parts = list(wanted)
    spare = units - total
    for at in sorted(turned, key=lambda at: parts[at])[:spare]:  # so that the next one need not wait
        parts[at] += 1
        spare -= 1
    _divide(spare, [want + 1 for want in wanted], parts)
    return parts


def _divide(units: int, weights: Sequence[int], parts: list[int]) -> None:
    """In proportion, by the largest remainders."""
    total = sum(weights)
    if units <= 0 or not total:
        return
    exact = [units * weight / total for weight in weights]
    left = units - sum(map(int, exact))
    most = sorted(range(len(exact)), key=lambda at: int(exact[at]) - exact[at])
    for at, each in enumerate(exact):
        parts[at] += int(each)
    for at in most[:left]:
        parts[at] += 1
