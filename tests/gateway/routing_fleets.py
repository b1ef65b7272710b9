"""Fleets for tests of choosing: pools of replicas, without a wire."""

import random
from collections.abc import Sequence
from typing import Any

from forebay.core.keys import TIERS
from forebay.core.routes import Choosing, Endpoint, Order, Route, RouteTable, Target
from forebay.gateway.loads import FleetParts, Loads
from forebay.gateway.policy.fleet import Fleet, Group, Member


def make_target(pool: str, number: int = 0, **facts: Any) -> Target:
    return Target(
        id=f"m@{pool}#{number}",
        pool=pool,
        url=f"http://{pool}-{number}/v1",
        model=facts.pop("model", "m"),
        **facts,
    )


def make_pool(pool: str, size: int, **facts: Any) -> list[Target]:
    return [make_target(pool, number, **facts) for number in range(size)]


def make_route(*pools: Sequence[Target], choosing: Choosing | None = None) -> Route:
    targets = tuple(target for pool in pools for target in pool)
    return Route(
        model="m",
        endpoints=(Endpoint.CHAT,),
        targets=targets,
        choosing=choosing or Choosing(order=Order.LOAD),
    )


def follow(loads: Loads, *routes: Route, workers: int = 1) -> FleetParts:
    """As a snapshot that is taken."""
    parts = loads.follow(RouteTable(routes=routes), workers)
    loads.commit(parts)
    return parts


def build_fleet(
    *pools: Sequence[Target], choosing: Choosing | None = None, loads: Loads | None = None, workers: int = 1
) -> Fleet:
    route = make_route(*pools, choosing=choosing)
    parts = follow(loads or Loads(), route, workers=workers)
    return Fleet(parts.groups["m"], route.choosing)


def build_large_fleet() -> Fleet:
    """4 tiers, 12 pools, 200 replicas."""
    sizes = [200 // 12 + (1 if number < 200 % 12 else 0) for number in range(12)]
    pools = [
        make_pool(f"p{number}", size, tier=TIERS[number // 3], region=f"r{number % 3}", requests_max=8)
        for number, size in enumerate(sizes)
    ]
    return build_fleet(*pools)


def list_members(fleet: Fleet) -> list[Member]:
    return [member for group in fleet.groups for member in group.members]


def find_group(fleet: Fleet, pool: str) -> Group:
    return next(group for group in fleet.groups if group.pool == pool)


def load_at_random(fleet: Fleet, rng: random.Random, now: float, most: int = 10) -> None:
    """Some of everything: requests, measured times, failures."""
    for member in list_members(fleet):
        for _ in range(rng.randrange(most + 1)):
            member.load.begin(rng.randrange(1, 5000), now)
        if rng.random() < 0.7:
            member.load.tell_first(rng.random(), now - rng.random() * 60)
            member.load.tell_token(rng.random() / 50, now - rng.random() * 60)
        if rng.random() < 0.2:
            for _ in range(5):
                member.load.fail(now)
        if rng.random() < 0.1:
            member.load.refuse(now, rng.randrange(5))
