"""Spillover: a share and not all, up at once and down slowly, and no flapping under a constant load."""

import heapq
import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from routing_fleets import build_fleet, find_group, list_members, make_pool

from forebay.core.keys import PRIORITIES
from forebay.gateway.policy.fleet import Fleet
from forebay.gateway.policy.load import EJECT_AFTER, EJECT_S, PRESSURE_DECAY_S
from forebay.gateway.policy.route import Want, choose
from forebay.gateway.policy.spill import compute_spill

SPILL_AT = 0.8


def make_tiers(size: int = 4, requests_max: int = 10, **facts: object) -> Fleet:
    return build_fleet(
        make_pool("own", size, tier="provisioned", requests_max=requests_max, **facts),
        make_pool("rented", 3, tier="provider"),
    )


def spill(fleet: Fleet, now: float, priority: str = "standard") -> float:
    return compute_spill([find_group(fleet, "own")], priority, SPILL_AT, now)


def fill(fleet: Fleet, requests: int, now: float) -> None:
    members = find_group(fleet, "own").members
    for number in range(requests):
        members[number % len(members)].load.begin(100, now)


@given(
    st.integers(0, 100), st.sampled_from(PRIORITIES), st.lists(st.floats(0.001, 3), min_size=2, max_size=30)
)
def test_under_a_constant_load_the_share_goes_one_way_and_stays(
    requests: int, priority: str, steps: list[float]
) -> None:
    fleet = make_tiers()
    fill(fleet, requests, 100.0)
    now, shares = 100.0, []
    for step in steps:
        now += step
        shares.append(spill(fleet, now, priority))
    assert all(0 <= share <= 1 for share in shares)
    assert all(later >= share - 1e-12 for share, later in pairwise(shares))
    settled = spill(fleet, now + 60, priority)
    assert settled == pytest.approx(spill(fleet, now + 6000, priority), abs=1e-6)


@given(st.integers(0, 80))
def test_more_load_never_spills_less_and_those_who_cannot_wait_go_first(requests: int) -> None:
    shares = {}
    for count in (requests, requests + 1):
        fleet = make_tiers()
        fill(fleet, count, 100.0)
        shares[count] = [spill(fleet, 160.0, priority) for priority in PRIORITIES]
        assert shares[count] == sorted(shares[count], reverse=True)  # interactive, standard, batch
    assert all(more >= less for less, more in zip(*shares.values(), strict=True))
    if requests <= 40 * (SPILL_AT - 0.1):
        assert max(shares[requests]) < 1e-9


def test_the_share_goes_by_the_use_of_the_moment() -> None:
    """A memory of it would come late, and let a tier fill and empty in turns."""
    fleet = make_tiers()
    fill(fleet, 40, 100.0)
    assert spill(fleet, 100.0) == spill(fleet, 160.0) > 0.5
    for member in find_group(fleet, "own").members:
        for _ in range(10):
            member.load.end(100, 110.0)
    assert spill(fleet, 110.0) == 0


def test_refusals_spill_and_are_forgotten() -> None:
    fleet = make_tiers(requests_max=1000)
    for member in find_group(fleet, "own").members[:2]:
        member.load.refuse(100.0)
    shares = [spill(fleet, 100.0 + after) for after in range(0, 40, 2)]
    assert shares[0] == pytest.approx(0.5)
    assert shares == sorted(shares, reverse=True)
    assert shares[int(PRESSURE_DECAY_S)] < 0.1


def test_a_tier_of_unknown_size_is_full_only_where_it_says_so() -> None:
    fleet = build_fleet(make_pool("own", 2, tier="provisioned"), make_pool("rented", 1, tier="provider"))
    fill(fleet, 1000, 100.0)
    assert spill(fleet, 200.0) == 0
    find_group(fleet, "own").members[0].load.refuse(200.0, 0)
    assert spill(fleet, 200.0) == pytest.approx(0.5)


@pytest.mark.parametrize("requests_max", [32, 1])
def test_replicas_out_of_service_are_no_capacity(requests_max: int) -> None:
    fleet = make_tiers(10, requests_max)
    well, *ill = find_group(fleet, "own").members
    for member in ill:
        for _ in range(EJECT_AFTER):
            member.load.fail(100.0)
    for _ in range(requests_max * 2):
        well.load.begin(100, 100.0)
    assert find_group(fleet, "own").load.used == pytest.approx(2.0)
    assert spill(fleet, 105.0) == 1.0
    order = choose(fleet, Want(tokens=100), 105.0, 0.99, 1).order
    assert {member.target.pool for member in list_members(fleet) if member.index in order} == {"rented"}
    back = [spill(fleet, 100.0 + EJECT_S + after) for after in (0, 3, 6, 10)]
    assert back == sorted(back, reverse=True), "they come back slowly"
    assert back[0] > 0.5
    assert back[-1] == 0


def test_what_hangs_at_a_replica_out_of_service_fills_no_other() -> None:
    fleet = make_tiers(4, 10)
    fill(fleet, 24, 100.0)  # 6 of 10 at each
    ill = find_group(fleet, "own").members[0].load
    for _ in range(20):
        ill.begin(100, 100.0)
    for _ in range(EJECT_AFTER):
        ill.fail(101.0)
    assert find_group(fleet, "own").load.used == pytest.approx(0.6)
    assert spill(fleet, 105.0) == 0


def test_a_tier_that_is_wholly_out_of_service_is_as_full_as_before() -> None:
    fleet = make_tiers()
    fill(fleet, 38, 100.0)
    before = spill(fleet, 150.0)
    for member in find_group(fleet, "own").members:
        for _ in range(EJECT_AFTER):
            member.load.fail(150.0)
    assert 0 < spill(fleet, 150.0) == pytest.approx(before)


@pytest.mark.parametrize("facts", [{"requests_max": 4}, {"tokens_max": 16_000}])
def test_one_request_of_a_worker_never_fills_what_others_may_have_left(facts: dict[str, int]) -> None:
    def build(workers: int) -> Fleet:
        own = make_pool("own", 1, tier="provisioned", **facts)
        return build_fleet(own, make_pool("rented", 1, tier="provider"), workers=workers)

    def hold(fleet: Fleet, requests: int) -> None:
        for _ in range(requests):
            find_group(fleet, "own").members[0].load.begin(4000, 100.0)

    fleet = build(8)
    hold(fleet, 1)
    assert [spill(fleet, 160.0, priority) for priority in PRIORITIES] == [0, 0, 0]
    hold(fleet, 2)
    assert spill(fleet, 160.0) == 1.0
    sole = build(1)
    hold(sole, 3)
    assert 0 == spill(sole, 160.0) < spill(sole, 160.0, "interactive")
    hold(sole, 2)
    assert spill(sole, 160.0) == 1.0


def test_a_place_that_takes_one_request_is_full_with_it_whoever_sends() -> None:
    for workers in (1, 8):
        own = make_pool("own", 1, tier="provisioned", requests_max=1)
        fleet = build_fleet(own, make_pool("rented", 1, tier="provider"), workers=workers)
        fill(fleet, 1, 100.0)
        assert spill(fleet, 160.0) == pytest.approx(2 / 3)


class Simulation:
    """Requests of one length at a rate, sent as choosing says."""

    def __init__(self, fleet: Fleet, seed: int, service_s: float) -> None:
        self.fleet = fleet
        self.members = {member.index: member for member in list_members(fleet)}
        self.rng = random.Random(seed)
        self.service_s = service_s
        self.ends: list[tuple[float, int]] = []
        self.now = 100.0
        self.used_max = 0.0

    def run(self, rate: float, seconds: float) -> float:
        """The share that was spilled."""
        end, sent, spilled = self.now + seconds, 0, 0
        own = find_group(self.fleet, "own").load
        while self.now < end:
            self.now += self.rng.expovariate(rate)
            while self.ends and self.ends[0][0] <= self.now:
                at, index = heapq.heappop(self.ends)
                self.members[index].load.end(100, at)
            index = choose(self.fleet, Want(tokens=100), self.now, self.rng.random(), 1).order[0]
            self.members[index].load.begin(100, self.now)
            heapq.heappush(self.ends, (self.now + self.service_s * self.rng.uniform(0.8, 1.2), index))
            sent += 1
            spilled += self.members[index].target.pool != "own"
            self.used_max = max(self.used_max, own.used)
        return spilled / sent


@settings(max_examples=8)
@given(st.sampled_from([0.5, 1.0, 1.3, 2.0, 4.0]), st.sampled_from([0.1, 1.0, 4.0]), st.integers(0, 1 << 20))
def test_no_flapping_under_a_constant_flow(times: float, service_s: float, seed: int) -> None:
    capacity = 40
    simulation = Simulation(make_tiers(), seed, service_s)
    rate = times * capacity / service_s
    simulation.run(rate, 8 * service_s + 5)
    windows = [simulation.run(rate, max(service_s, 600 / rate)) for _ in range(12)]
    kept = [times * (1 - share) for share in windows]  # of the capacity
    assert max(windows) - min(windows) < 0.25, windows
    assert max(kept) < 1.2
    if times >= 1.3:
        assert min(kept) > 0.6, kept
    if times <= 0.5:
        assert max(windows) < 0.05, windows


def test_a_herd_is_spread_at_once() -> None:
    simulation = Simulation(make_tiers(), 3, 1.0)
    simulation.run(20.0, 3)
    simulation.run(20 * 40.0, 2)
    assert simulation.used_max < 1.4
