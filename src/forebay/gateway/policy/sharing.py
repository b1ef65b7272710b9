"""How much of a pool one machine fills, where others fill it too and what is known of them is late.  Pure.

Nobody deals places out between machines: each counts what the others tell, leaves some of what is free to
them, and while somebody waits who has less than its part, fills no more than its own.

Of what is free each machine has its part by all workers at hand.  Once it has filled that, and waited until
all can have heard of each other, it takes of the rest, by the workers of those who fill some too: so a herd
that comes to all of them at once finds a part for each, and one alone has all within a second.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from typing import NamedTuple

from forebay.gateway.policy.news import PoolUse

GROW_S = 0.6  #: between two times that a machine takes of what is free; until then all have heard of it
KEEP_S = 3.0  #: for which it keeps what it has filled
LEAVE_S = 1.0  #: for which it leaves the next place to another, where there are fewer than machines
TINY = 1e-9  #: what a share of a whole number may be off


class Part(NamedTuple):
    """What the workers of this machine may fill of a pool: requests, and a share of its tokens."""

    requests: int
    tokens: float


class _Room:
    """What this machine has of a pool, and since when."""

    __slots__ = ("full_at", "full_since", "grown_at", "requests", "used_at")

    def __init__(self, requests: int, now: float) -> None:
        self.requests = requests
        self.grown_at = now
        self.full_at = self.used_at = -KEEP_S
        self.full_since: float | None = None

    def see(self, used: int, now: float) -> bool:
        """Whether it has been full for so long that all can have heard of it."""
        if used:
            self.used_at = now
        if used < self.requests:
            self.full_since = None
            return False
        self.full_at = now
        self.full_since = now if self.full_since is None else self.full_since
        return now >= self.full_since + GROW_S

    def follow(self, target: int, now: float, *, keeps: bool) -> None:
        """Grows to what is free for it, not too often, and gives back what it has not filled for a while.

        Args:
            keeps: nobody else waits, so it need not hurry.
        """
        if target > self.requests and now >= self.grown_at + GROW_S:
            self.requests, self.grown_at = target, now
        elif target < self.requests and not (keeps and now <= self.full_at + KEEP_S):
            self.requests = target


class Sharing:
    """See the module."""

    def __init__(self) -> None:
        self._rooms: dict[int, _Room] = {}

    def share(
        self,
        pools: Mapping[int, tuple[int, int]],
        machines: Iterable[tuple[int, Iterable[PoolUse]]],
        workers: int,
        now: float,
    ) -> dict[int, Part]:
        """What this machine may fill; nothing of pools that it has to itself.

        Args:
            pools: of each that is dealt out here, what it serves at once, and what workers here have.
            machines: of each other one its workers, and what these have.
            workers: of this machine.
        """
        uses: dict[int, list[tuple[int, PoolUse]]] = {}
        whole = workers
        for theirs, told in machines:
            whole += theirs
            for use in told:
                uses.setdefault(use.pool, []).append((theirs, use))
        if whole == workers or not workers:
            self._rooms.clear()
            return {}
        self._rooms = {pool: room for pool, room in self._rooms.items() if pool in pools}
        return {
            pool: self._share_pool(pool, capacity, used, uses.get(pool, ()), workers, whole, now)
            for pool, (capacity, used) in pools.items()
            if capacity
        }

    def _share_pool(
        self,
        pool: int,
        capacity: int,
        used: int,
        others: Sequence[tuple[int, PoolUse]],
        workers: int,
        whole: int,
        now: float,
    ) -> Part:
        free = max(0, capacity - used - sum(use.used for _, use in others))
        room = self._rooms.get(pool)
        if room is not None and room.see(used, now):
            whole = workers + sum(theirs for theirs, _ in others)
        target = min(capacity, used + ceil(free * workers / whole - TINY))
        if room is None:
            room = self._rooms[pool] = _Room(target, now)
        waiting = [(theirs, use.used) for theirs, use in others if use.waits]
        room.follow(target, now, keeps=not waiting)
        if not waiting:
            return Part(room.requests, 1.0)
        most = max(room.requests, capacity * workers // (workers + sum(theirs for theirs, _ in waiting)))
        part = find_part(capacity, workers, waiting, has_had=now < room.used_at + LEAVE_S)
        if part is None:
            return Part(most, 1.0)
        own = int(capacity * part + TINY)
        return Part(min(most, own) if most else own, part)


def find_part(
    capacity: int, workers: int, others: Sequence[tuple[int, int]], *, has_had: bool
) -> float | None:
    """What a machine may fill of a pool, as a share of its capacity; None for all of it.

    While somebody who waits has less than its part, each that waits goes by how many workers it has.  Where
    that is less than one place, who has one leaves the next to whoever has none.

    Args:
        workers: of this machine.
        others: of each other machine that waits, its workers, and what these have.
        has_had: this machine has something, or had it a moment ago.
    """
    whole = workers + sum(theirs for theirs, _ in others)
    if not capacity or not whole:
        return None
    if all(has >= max(1, capacity * theirs // whole) for theirs, has in others):
        return None
    if capacity * workers >= whole:
        return workers / whole
    return 0.0 if has_had and any(not has for _, has in others) else 1 / capacity
