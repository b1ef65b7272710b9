"""What this worker's requests say of each place, over snapshots: who serves how much, and how fast.

It owns the counts that choosing reads.  A place is an address and a model's name there: models that share
one share its counts.  It never chooses, and it never asks a place anything.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from forebay.core.routes import Order, Route, RouteTable, Target
from forebay.gateway.policy.fleet import Group, GroupKey, Member, make_group_key
from forebay.gateway.policy.load import PoolLoad, ReplicaLoad

Place = tuple[str, str]  #: address, and the model's name there


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetParts:
    """What is counted under one table."""

    replicas: Mapping[str, ReplicaLoad]  #: by a target's id; the others are not counted
    groups: Mapping[str, tuple[Group, ...]]  #: by public name, of routes that are chosen by load


class Loads:
    """See the module."""

    def __init__(self) -> None:
        self._replicas: dict[Place, ReplicaLoad] = {}
        self._pools: dict[tuple[object, ...], PoolLoad] = {}

    def follow(self, table: RouteTable, workers: int) -> FleetParts:
        """From now on these places are counted; what is known of those that stay is kept.

        Args:
            workers: between whom a place's capacity is shared, for each sees its own requests alone.
        """
        chosen = [route for route in table.routes if is_chosen(route)]
        places = {_find_place(target) for route in chosen for target in route.targets}
        replicas = {place: self._replicas.get(place) or ReplicaLoad() for place in places}
        pools: dict[tuple[object, ...], PoolLoad] = {}
        members: dict[tuple[object, ...], list[ReplicaLoad]] = {}
        groups = {}
        for route in chosen:
            found: dict[GroupKey, list[Member]] = {}
            for index, target in enumerate(route.targets):
                key = make_group_key(target)
                easy = int((target.requests_max or 0) / workers / 2)
                member = Member(index, target, replicas[_find_place(target)], easy)
                found.setdefault(key, []).append(member)
            made = []
            for key, group in found.items():
                where = tuple(_find_place(member.target) for member in group)
                capacity = _compute_capacity(group, workers)
                pool_key: tuple[object, ...] = (key, where, capacity)
                if pool_key not in pools:
                    pools[pool_key] = self._pools.get(pool_key) or _make_pool(group, capacity)
                    members[pool_key] = [member.load for member in group]
                made.append(Group(group, pools[pool_key]))
            groups[route.model] = tuple(made)
        for replica in replicas.values():
            replica.pools = []
        for pool_key, pool in pools.items():
            for replica in dict.fromkeys(members[pool_key]):
                replica.pools.append(pool)
        self._replicas, self._pools = replicas, pools
        counted = {
            target.id: replicas[_find_place(target)]
            for route in table.routes
            for target in route.targets
            if _find_place(target) in replicas
        }
        return FleetParts(replicas=counted, groups=groups)


def is_chosen(route: Route) -> bool:
    """Whether there is anything to choose by load."""
    return route.choosing.order is Order.LOAD and len(route.targets) > 1


def _find_place(target: Target) -> Place:
    return target.url, target.model


def _compute_capacity(group: list[Member], workers: int) -> tuple[float, float]:
    """A worker's share of what a group serves well at once; 0 for what is not known of all of it."""
    requests = [member.target.requests_max for member in group]
    tokens = [member.target.tokens_max for member in group]
    return (
        sum(filter(None, requests)) / workers if all(requests) else 0.0,
        sum(filter(None, tokens)) / workers if all(tokens) else 0.0,
    )


def _make_pool(group: list[Member], capacity: tuple[float, float]) -> PoolLoad:
    """With what is known of its replicas already."""
    pool = PoolLoad(len(group), *capacity)
    loads = [member.load for member in group]
    pool.requests = sum(load.requests for load in loads)
    pool.tokens = sum(load.tokens for load in loads)
    for load in loads:
        if load.unfit_until:
            pool.note_unfit(load, 0.0)
    for load in loads:
        if load.first_at > pool.first_at:
            pool.first_s, pool.first_at = load.first_s, load.first_at
        if load.token_at > pool.token_at:
            pool.token_s, pool.token_at = load.token_s, load.token_at
    return pool
