"""What is told of a replica before the table with it has come holds from the first request on."""

from routing_fleets import make_pool, make_route

from forebay.core.engine_load import ENGINE_STALE_S, EngineLoad, EngineState
from forebay.core.routes import RouteTable
from forebay.gateway.loads import EARLY_MAX, Loads
from forebay.gateway.policy.fleet import Fleet
from forebay.gateway.policy.pick import list_unfit
from forebay.gateway.policy.want import Reason

NOW = 1000.0


def take(loads: Loads, size: int, now: float) -> Fleet:
    route = make_route(make_pool("p", size))
    parts = loads.follow(RouteTable(routes=(route,)), 1)
    loads.commit(parts, now)
    return Fleet(parts.groups["m"], route.choosing)


def list_reasons(fleet: Fleet, now: float) -> list[tuple[int, Reason]]:
    return [(member.index, reason) for member, reason in list_unfit(fleet.groups[0], now)]


def test_a_new_replica_is_cold_at_once() -> None:
    loads = Loads()
    take(loads, 2, NOW)
    loads.hear_engine(EngineLoad("m@p#2", EngineState.COLD), NOW + 1, NOW + 1)
    fleet = take(loads, 3, NOW + 1.2)
    assert list_reasons(fleet, NOW + 1.2) == [(2, Reason.COLD)]
    loads.hear_engine(EngineLoad("m@p#2", EngineState.READY), NOW + 2, NOW + 2)
    assert list_reasons(fleet, NOW + 2) == []


def test_what_is_too_old_by_then_says_nothing() -> None:
    loads = Loads()
    take(loads, 2, NOW)
    loads.hear_engine(EngineLoad("m@p#2", EngineState.COLD), NOW, NOW)
    later = NOW + ENGINE_STALE_S + 0.1
    assert list_reasons(take(loads, 3, later), later) == []


def test_no_more_is_kept_than_allowed() -> None:
    loads = Loads()
    take(loads, 2, NOW)
    for number in range(2 * EARLY_MAX):
        loads.hear_engine(EngineLoad(f"other@p#{number}", EngineState.COLD), NOW, NOW)
    assert len(loads._early) <= EARLY_MAX
