"""Requests for a LoRA adapter stay with few replicas: those that hold it, else those that the ring names."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from routing_fleets import build_fleet, list_members, make_pool, make_target

from forebay.core.engine_load import ENGINE_STALE_S, EngineLoad, EngineState
from forebay.core.routes import Affinity, Choosing, Order
from forebay.gateway.loads import Loads
from forebay.gateway.policy.fleet import Fleet
from forebay.gateway.policy.pick import ADAPTER_REQUESTS, LOAD_CAP, pick_member
from forebay.gateway.policy.route import Want, choose_first

NOW = 1000.0
DRAWS = st.floats(0, 1, exclude_max=True)
CHOOSING = Choosing(order=Order.LOAD, affinity=Affinity.ADAPTER)


def make_fleet(adapter: str, size: int, loads: Loads | None = None, **facts: int) -> Fleet:
    return build_fleet(make_pool("p", size, model=adapter, **facts), choosing=CHOOSING, loads=loads)


def make_want(fleet: Fleet) -> Want:
    return Want(500, 100, affinity=fleet.adapter_key, is_adapter=True)


def tell(loads: Loads, number: int, *adapters: str, at: float = NOW, waiting: int | None = 0) -> None:
    target = make_target("p", number)
    loads.hear_engine(EngineLoad(target.id, EngineState.READY, 0, waiting, 0.1, None, adapters), at, at)
    loads.sweep(at)


def pick(fleet: Fleet, draw: float = 0.5, want: Want | None = None) -> int:
    return pick_member(fleet.groups[0], want or make_want(fleet), NOW, draw).index


@given(st.text(min_size=1, max_size=20), st.integers(2, 12), st.lists(DRAWS, min_size=2, max_size=8))
def test_one_replica_serves_an_adapter_while_it_has_room(name: str, size: int, draws: list[float]) -> None:
    fleet = make_fleet(name, size)
    assert len({pick(fleet, draw) for draw in draws}) == 1


def test_adapters_are_spread_over_the_replicas() -> None:
    owners = Counter(pick(make_fleet(f"adapter-{number}", 4)) for number in range(200))
    assert len(owners) == 4
    assert max(owners.values()) < 120, owners


@given(st.integers(2, 8), st.integers(1, 200), st.sampled_from([None, 4, 32]))
def test_an_adapter_that_fills_its_replica_takes_another_and_no_more_than_needed(
    size: int, requests: int, requests_max: int | None
) -> None:
    facts = {} if requests_max is None else {"requests_max": requests_max}
    fleet = make_fleet("a", size, **facts)
    for _ in range(requests):
        list_members(fleet)[pick(fleet)].load.begin(500, NOW)
    counts = sorted((member.load.requests for member in list_members(fleet)), reverse=True)
    easy = ADAPTER_REQUESTS if requests_max is None else requests_max // 2
    if requests <= easy:
        assert counts[0] == requests
    # Nobody has more than the cap allows and one more, and nobody is used before the others are half full.
    assert counts[0] <= max(easy, LOAD_CAP * requests / size + 1)
    assert all(count >= min(easy, 1) for count in counts[: sum(map(bool, counts)) - 1])


@given(st.integers(2, 8), st.data())
def test_those_that_hold_it_come_first(size: int, data: st.DataObject) -> None:
    holders = data.draw(st.sets(st.integers(0, size - 1), min_size=1, max_size=size))
    loads = Loads()
    fleet = make_fleet("a", size, loads)
    for number in range(size):
        tell(loads, number, *(("a", "b") if number in holders else ("b",)))
    assert {pick(fleet, data.draw(DRAWS)) for _ in range(5)} <= holders
    first = choose_first(fleet, make_want(fleet), NOW, data.draw(DRAWS))
    assert first is None or first in holders


@given(DRAWS)
def test_it_holds_for_prompts_that_begin_alike_too(draw: float) -> None:
    loads = Loads()
    fleet = make_fleet("a", 4, loads)
    tell(loads, 2, "a")
    for affinity in (None, 0, 7 << 28):
        assert pick(fleet, draw, Want(500, 100, affinity=affinity)) == 2


def test_another_loads_it_where_the_holder_is_too_full_or_ill() -> None:
    loads = Loads()
    fleet = make_fleet("a", 4, loads)
    tell(loads, 2, "a")
    holder = list_members(fleet)[2].load
    for _ in range(ADAPTER_REQUESTS):
        assert pick(fleet) == 2
        holder.begin(500, NOW)
    assert pick(fleet) != 2
    for _ in range(ADAPTER_REQUESTS):
        holder.end(500, NOW)
    assert pick(fleet) == 2
    for _ in range(5):
        holder.fail(NOW)
    assert pick(fleet) != 2


def test_a_holder_whose_engine_is_full_gets_only_what_no_other_can_take() -> None:
    loads = Loads()
    fleet = make_fleet("a", 4, loads)
    tell(loads, 2, "a", waiting=50)
    assert pick(fleet) != 2


def test_what_was_said_long_ago_is_not_known_any_more() -> None:
    loads = Loads()
    fleet = make_fleet("a", 4, loads)
    owner = pick(fleet)
    other = (owner + 1) % 4
    tell(loads, other, "a")
    assert pick(fleet) == other
    loads.sweep(NOW + ENGINE_STALE_S + 0.1)
    assert pick(fleet) == owner


def test_a_replica_that_lost_the_adapter_is_no_holder() -> None:
    loads = Loads()
    fleet = make_fleet("a", 4, loads)
    other = (pick(fleet) + 1) % 4
    tell(loads, other, "a")
    tell(loads, other, "b", at=NOW + 1)
    assert pick(fleet) != other
