"""What this worker's requests say of each place, over snapshots: who serves how much, and how fast.

It owns the counts that choosing reads.  A place is an address, a model's name there and whose account pays:
models that share one share its counts.  It never chooses, and it never asks a place anything.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from forebay.core.routes import Order, Route, RouteTable, Target
from forebay.gateway.policy.fleet import Group, GroupKey, Member, make_group_key
from forebay.gateway.policy.load import PoolLoad, ReplicaLoad

Place = tuple[str, str, str | None]  #: address, the model's name there, and where its key is found
PoolKey = tuple[object, ...]
PART_REQUESTS = (
    1.5  #: that are a worker's share at least; one of them fills no more than any class leaves free
)
PART_TOKENS = 8192.0  #: likewise


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Everything that is counted under one table, and what feeds it."""

    replicas: dict[Place, ReplicaLoad]
    pools: dict[PoolKey, PoolLoad]
    members: dict[PoolKey, tuple[ReplicaLoad, ...]]  #: of each pool, each once


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetParts:
    """What is counted under one table."""

    replicas: Mapping[str, ReplicaLoad]  #: by a target's id; the others are not counted
    groups: Mapping[str, tuple[Group, ...]]  #: by public name, of routes that are chosen by load
    counts: Counts  #: for `Loads.commit`


class Loads:
    """See the module."""

    def __init__(self) -> None:
        self._counts = Counts(replicas={}, pools={}, members={})

    def follow(self, table: RouteTable, workers: int) -> FleetParts:
        """What will be counted under a table, with what is known of places that stay.

        It changes nothing: until `commit`, the counts of the table before are fed.

        Args:
            workers: between whom a place's capacity is shared, for each sees its own requests alone.
        """
        chosen = [route for route in table.routes if is_chosen(route)]
        known = self._counts
        places = {_find_place(target) for route in chosen for target in route.targets}
        replicas = {place: known.replicas.get(place) or ReplicaLoad() for place in places}
        counts = Counts(replicas=replicas, pools={}, members={})
        groups = {}
        for route in chosen:
            found: dict[GroupKey, list[Member]] = {}
            for index, target in enumerate(route.targets):
                easy = int((target.requests_max or 0) / workers / 2)
                member = Member(index, target, replicas[_find_place(target)], easy)
                found.setdefault(make_group_key(target), []).append(member)
            made = []
            for key, group in found.items():
                where = tuple(_find_place(member.target) for member in group)
                capacity = _compute_capacity(group, workers)
                pool_key: PoolKey = (key, where, capacity)
                if pool_key not in counts.pools:
                    members = tuple(dict.fromkeys(member.load for member in group))
                    counts.members[pool_key] = members
                    counts.pools[pool_key] = known.pools.get(pool_key) or PoolLoad(len(members), *capacity)
                made.append(Group(group, counts.pools[pool_key]))
            groups[route.model] = tuple(made)
        counted = {
            target.id: replicas[_find_place(target)]
            for route in table.routes
            for target in route.targets
            if _find_place(target) in replicas
        }
        return FleetParts(replicas=counted, groups=groups, counts=counts)

    def commit(self, parts: FleetParts) -> None:
        """From now on these are counted.  To be called once nothing can fail any more: what is in flight ends
        under the counts that are fed."""
        counts = parts.counts
        for replica in counts.replicas.values():
            replica.pools = []
        for pool_key, pool in counts.pools.items():
            members = counts.members[pool_key]
            if pool_key not in self._counts.pools:
                _fill(pool, members)
            for replica in members:
                replica.pools.append(pool)
        self._counts = counts


def is_chosen(route: Route) -> bool:
    """Whether there is anything to choose by load."""
    return route.choosing.order is Order.LOAD and len(route.targets) > 1


def _find_place(target: Target) -> Place:
    return target.url, target.model, target.api_key


def _compute_capacity(group: list[Member], workers: int) -> tuple[float, float]:
    """A worker's share of what a group serves well at once; 0 for what is not known of all of it."""
    places = {_find_place(member.target): member.target for member in group}  # each counts once
    requests = [target.requests_max for target in places.values()]
    tokens = [target.tokens_max for target in places.values()]
    return (
        _share(sum(filter(None, requests)), workers, PART_REQUESTS) if all(requests) else 0.0,
        _share(sum(filter(None, tokens)), workers, PART_TOKENS) if all(tokens) else 0.0,
    )


def _share(capacity: int, workers: int, least: float) -> float:
    """Never so little that one request fills it, unless it fills the whole: other workers may have none."""
    return max(capacity / workers, min(capacity, least))


def _fill(pool: PoolLoad, loads: Sequence[ReplicaLoad]) -> None:
    """Tells a new pool what is known of its replicas already."""
    pool.set_counts(sum(load.requests for load in loads), sum(load.tokens for load in loads))
    for load in loads:
        if load.unfit_until:
            pool.note_unfit(load, 0.0)
    for load in loads:
        if load.first_at > pool.first_at:
            pool.first_s, pool.first_at = load.first_s, load.first_at
        if load.token_at > pool.token_at:
            pool.token_s, pool.token_at = load.token_s, load.token_at
