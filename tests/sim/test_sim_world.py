"""A simulated fleet: the gateway's own policies over engines that are arithmetic."""

from collections.abc import Sequence

import pytest
from sim_fleets import PLAIN, SLOW, make_pool, make_table

from forebay.core.limits import QueueRules
from forebay.core.routes import Choosing, Endpoint, Route, RouteTable
from forebay.sim.direct import run_open
from forebay.sim.engine import EngineProfile
from forebay.sim.load import Ask, Lengths, plan_load
from forebay.sim.sizing import find_least, resize
from forebay.sim.world import Trip, World

QUEUE = QueueRules(requests_max=500, tenant_requests_max=500, wait_max_s=30, default_wait_s=(2.0, 2.0, 2.0))
PROFILES = {"own": PLAIN, "rented": SLOW}


def run(
    table: RouteTable,
    rate: float,
    seconds: float = 60,
    *,
    profiles: dict[str, EngineProfile] = PROFILES,
    tells: Sequence[str] = (),
    seed: int = 0,
) -> tuple[list[Trip], World]:
    world = World(table, profiles, tells, seed)
    return world.run(plan_load(rate, seconds, Lengths(), seed=seed), "m"), world


def share(trips: Sequence[Trip], pool: str) -> float:
    return sum(trip.pool == pool for trip in trips) / len(trips)


def test_before_one_engine_the_gateway_changes_nothing() -> None:
    asks = list(plan_load(3, 30, Lengths(spread=0.5), seed=4))
    trips = World(make_table(make_pool("own", 1)), PROFILES).run(asks, "m")
    plain = run_open(
        PLAIN, [(ask.input_tokens, ask.output_tokens) for ask in asks], [ask.at_s for ask in asks]
    )
    assert sorted(trip.e2el_s for trip in trips) == pytest.approx(
        sorted(each.e2el_s for each in plain.outcomes)
    )


def test_the_same_seed_gives_the_same() -> None:
    table = make_table(make_pool("own", 2, requests_max=4), make_pool("rented", 1, tier="provider"))
    assert run(table, 8, seed=1)[0] == run(table, 8, seed=1)[0] != run(table, 8, seed=2)[0]


def test_a_growing_load_spills_a_growing_share() -> None:
    table = make_table(make_pool("own", 2, requests_max=8), make_pool("rented", 1, tier="provider"))
    shares = [share(run(table, rate)[0], "rented") for rate in (1, 8, 16, 40)]
    assert shares[0] == 0
    assert shares == sorted(shares)
    assert shares[-1] > 0.6
    more = make_table(make_pool("own", 8, requests_max=8), make_pool("rented", 1, tier="provider"))
    assert share(run(more, 16)[0], "rented") < shares[2] / 4


def test_an_engine_that_tells_its_line_spills_without_a_known_capacity() -> None:
    engine = EngineProfile(first_s=0.02, step_s=0.01, step_per_stream_s=0.002, slots=4)
    table = make_table(make_pool("own", 1), make_pool("rented", 1, tier="provider"))
    profiles = {"own": engine, "rented": SLOW}
    silent, _ = run(table, 20, 30, profiles=profiles)
    told, _ = run(table, 20, 30, profiles=profiles, tells=["own"])
    assert share(silent, "rented") == 0
    assert share(told, "rented") > 0.2


def test_where_all_is_full_requests_wait_and_are_refused_and_no_place_has_more_than_it_serves() -> None:
    table = make_table(make_pool("own", 2, requests_max=4), queue=QUEUE)
    trips, world = run(table, 40, 30)
    refused = [trip for trip in trips if trip.is_refused]
    waited = [trip for trip in trips if trip.waited_s > 0 and not trip.is_refused]
    assert refused
    assert waited
    assert max(trip.waited_s for trip in trips) <= 2.0 + 1e-6
    assert world.uses["own"].streams_max == 4
    calm, _ = run(table, 2, 30)
    assert not any(trip.is_refused for trip in calm)


def test_tenants_have_equal_parts_of_what_they_wait_for() -> None:
    table = make_table(make_pool("own", 1, requests_max=2), queue=QUEUE)
    asks = [
        Ask(
            at_s=number * 0.02, input_tokens=64, output_tokens=64, tenant="few" if number % 8 == 0 else "many"
        )
        for number in range(1000)
    ]
    trips = World(table, PROFILES).run(asks, "m")
    answered = [trip.ask.tenant for trip in trips if not trip.is_refused]
    assert answered.count("few") / 125 > 1.5 * answered.count("many") / 875


def test_a_route_in_the_order_of_the_file_goes_to_its_first_target() -> None:
    route = Route(
        model="m",
        endpoints=(Endpoint.CHAT,),
        targets=(*make_pool("rented", 1), *make_pool("own", 1)),
        choosing=Choosing(),
    )
    trips, _ = run(RouteTable(routes=(route,)), 5, 10)
    assert {trip.pool for trip in trips} == {"rented"}


def test_sessions_stay_where_they_are() -> None:
    table = make_table(make_pool("own", 4))
    asks = [
        Ask(at_s=number * 0.05, input_tokens=64, output_tokens=32, session=f"s{number % 5}")
        for number in range(200)
    ]
    trips = World(table, PROFILES).run(asks, "m")
    assert len({(trip.ask.session, trip.target) for trip in trips}) == 5


def test_a_pool_without_a_profile_is_refused() -> None:
    with pytest.raises(ValueError, match="pool other has no profile"):
        World(make_table(make_pool("other", 1)), PROFILES)


# --- loads and sizes ----------------------------------------------------------------------------------------


def test_a_load_comes_at_its_rate_and_grows_as_told() -> None:
    moments = [ask.at_s for ask in plan_load(50, 100, Lengths(), seed=1)]
    assert len(moments) == pytest.approx(5000, rel=0.06)
    assert moments == sorted(moments)
    ramp = [ask.at_s for ask in plan_load(50, 100, Lengths(), ramp_s=40, seed=1)]
    assert len(ramp) == pytest.approx(4000, rel=0.06)
    assert sum(at < 20 for at in ramp) == pytest.approx(250, rel=0.2)
    assert sum(20 <= at < 40 for at in ramp) == pytest.approx(750, rel=0.2)


def test_another_rate_is_the_same_load_quicker() -> None:
    slow, quick = (list(plan_load(rate, 100 / rate, Lengths(spread=0.5), seed=3)) for rate in (1, 10))
    assert [ask.input_tokens for ask in slow] == [ask.input_tokens for ask in quick]


def test_a_pool_gets_more_or_fewer_replicas_with_its_weight_as_a_whole() -> None:
    table = make_table(make_pool("own", 2, weight=1.5), make_pool("rented", 1, weight=1.0))
    for count in (1, 2, 5):
        (route,) = resize(table, "own", count).routes
        own = [target for target in route.targets if target.pool == "own"]
        assert len(own) == len({target.url for target in own}) == len({target.id for target in own}) == count
        assert sum(target.weight or 0 for target in own) == pytest.approx(3.0)
        assert len(route.targets) == count + 1
    assert [target.url for target in own[:2]] == ["http://own-0/v1", "http://own-1/v1"]


@pytest.mark.parametrize("least", [1, 2, 3, 7, 8, 9, 100, 1000])
def test_the_least_is_found_in_few_tries(least: int) -> None:
    tried: list[int] = []

    def is_enough(count: int) -> bool:
        tried.append(count)
        return count >= least

    assert find_least(is_enough, 1000) == least
    assert len(tried) <= 22
    assert find_least(lambda count: False, 1000) is None
