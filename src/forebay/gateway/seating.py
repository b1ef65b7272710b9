"""Gives requests places that they hold from then on, before an attempt begins there.

It keeps to what was decided: whether there is room, and whose turn it is, is `crowd`'s.
"""

from forebay.gateway.model import Exchange, RouteState, TargetState
from forebay.gateway.policy.fleet import Fleet, Group
from forebay.gateway.policy.route import count_fit
from forebay.gateway.policy.want import Want


def take_seat(
    exchange: Exchange, route: RouteState, fleet: Fleet, index: int, want: Want, now: float
) -> None:
    """Gives a request a place, which it holds from now on."""
    target = exchange.target_state = route.places[index]
    if exchange.fallbacks and exchange.plan is not None:  # which have their places in the plan
        own = exchange.fallbacks[0][0]
        kept = [place for place in exchange.plan[:own] if place is not target][: own - 1]
        kept += exchange.plan[1 + len(kept) : own]
        exchange.plan = (target, *kept, *exchange.plan[own:])
    else:
        exchange.plan, exchange.is_plan_whole = (target,), False
        exchange.tries.targets_left = count_fit(fleet, now)
    hold(exchange, target, want.tokens, now)


def hold(exchange: Exchange, target: TargetState, tokens: int, now: float) -> None:
    """Counts a request at the place at which its next attempt begins."""
    load = target.load
    assert load is not None
    exchange.load, exchange.load_tokens, exchange.attempt_at, exchange.holds_place = load, tokens, now, True
    load.begin(tokens, now)


def feed(group: Group) -> None:
    """Keeps the counts of a pool true that another one has replaced, for requests that began before that."""
    pool = group.load
    if pool in group.members[0].load.pools:
        return
    loads = {member.load for member in group.members}
    for load in loads:
        if pool not in load.pools:
            load.pools.append(pool)
    pool.count_anew(loads)
