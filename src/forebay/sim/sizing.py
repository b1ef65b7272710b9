"""How many replicas a pool needs.  Pure: it asks a simulation, and looks for the least that is enough."""

from collections.abc import Callable

import msgspec

from forebay.core.routes import Route, RouteTable, Target


def resize(table: RouteTable, pool: str, replicas: int) -> RouteTable:
    """The same fleet, with so many replicas of a pool.

    Those that the table names come first; further ones have addresses that are made up.
    """
    known = dict.fromkeys(
        target.url for route in table.routes for target in route.targets if target.pool == pool
    )
    urls = [*known, *(f"http://{pool}.simulated/{number}/v1" for number in range(len(known), replicas))]
    routes = [_resize_route(route, pool, urls[:replicas]) for route in table.routes]
    return msgspec.structs.replace(table, routes=tuple(routes))


def _resize_route(route: Route, pool: str, urls: list[str]) -> Route:
    alike: dict[str, list[Target]] = {}
    for target in route.targets:
        if target.pool == pool:
            alike.setdefault(target.model, []).append(target)
    targets: list[Target] = []
    for target in route.targets:
        if target.pool != pool:
            targets.append(target)
            continue
        for same in (each for each in (alike.pop(target.model, None),) if each is not None):
            first, weights = same[0], [each.weight for each in same if each.weight is not None]
            weight = sum(weights) / len(urls) if weights else None
            targets += [
                msgspec.structs.replace(
                    first, id=f"{first.id}#{number}" if number else first.id, url=url, weight=weight
                )
                for number, url in enumerate(urls)
            ]
    return msgspec.structs.replace(route, targets=tuple(targets))


def find_least(is_enough: Callable[[int], bool], most: int) -> int | None:
    """The least number from 1 to `most` that is enough, where more never is worse; None if none is.

    Doubles until one is enough, and halves the way between.
    """
    low, high = 0, 1
    while not is_enough(high):
        if high >= most:
            return None
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        if is_enough(middle):
            high = middle
        else:
            low = middle
    return high
