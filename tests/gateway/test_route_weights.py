"""What weights mean: for sessions, for tiers of which nothing is to be used, and for spilling."""

from collections import Counter
from zlib import crc32

import pytest
from routing_fleets import build_fleet, find_group, list_members, make_pool

from forebay.gateway.policy.fleet import Fleet
from forebay.gateway.policy.route import Want, choose, choose_first
from forebay.gateway.policy.spill import compute_spill

NOW = 1000.0
PLAIN = Want(tokens=500)
SESSIONS = [crc32(b"session-%d" % number) for number in range(8000)]


def place_sessions(fleet: Fleet) -> list[str]:
    """The pool of each session."""
    pools = {member.index: member.target.pool for member in list_members(fleet)}
    wants = [Want(tokens=500, affinity=session, is_sticky=True) for session in SESSIONS]
    places = [choose(fleet, want, NOW, 0.5, 2).order[0] for want in wants]
    assert places == [choose_first(fleet, want, NOW, 0.1) for want in wants]
    return [pools[place] for place in places]


@pytest.mark.parametrize("weight", [1.0, 10.0, 50.0, 90.0])
def test_weights_hold_for_sessions_too(weight: float) -> None:
    fleet = build_fleet(make_pool("stable", 4, weight=(100 - weight) / 4), make_pool("new", 1, weight=weight))
    found = Counter(place_sessions(fleet))
    spread = (len(SESSIONS) * weight * (100 - weight)) ** 0.5 / 100
    assert found["new"] == pytest.approx(len(SESSIONS) * weight / 100, abs=4 * spread)


def test_a_larger_pool_gets_more_sessions() -> None:
    found = Counter(
        place_sessions(
            build_fleet(make_pool("large", 9, requests_max=32), make_pool("small", 1, requests_max=32))
        )
    )
    assert found["small"] == pytest.approx(len(SESSIONS) / 10, rel=0.15)
    found = Counter(place_sessions(build_fleet(make_pool("large", 3), make_pool("small", 1))))
    assert found["small"] == pytest.approx(len(SESSIONS) / 4, rel=0.15)


def test_another_weight_moves_no_more_sessions_than_it_must() -> None:
    before = place_sessions(build_fleet(make_pool("stable", 1, weight=95.0), make_pool("new", 1, weight=5.0)))
    after = place_sessions(build_fleet(make_pool("stable", 1, weight=75.0), make_pool("new", 1, weight=25.0)))
    moved = Counter((was, now) for was, now in zip(before, after, strict=True) if was != now)
    assert set(moved) == {("stable", "new")}
    assert moved["stable", "new"] == pytest.approx(0.2 * len(SESSIONS), rel=0.15)


@pytest.mark.parametrize(
    "want", [PLAIN, Want(tokens=500, affinity=7, is_sticky=True)], ids=["any", "session"]
)
@pytest.mark.parametrize("draw", [0.0, 0.3, 0.99])
def test_a_tier_of_nothing_but_weights_of_nothing_comes_last(want: Want, draw: float) -> None:
    fleet = build_fleet(
        make_pool("none", 2, weight=0.0, tier="provisioned"), make_pool("far", 2, tier="provider")
    )
    pools = {member.index: member.target.pool for member in list_members(fleet)}
    assert [pools[index] for index in choose(fleet, want, NOW, draw, 4).order] == [
        "far",
        "far",
        "none",
        "none",
    ]
    first = choose_first(fleet, want, NOW, draw)
    assert first is not None
    assert pools[first] == "far"


@pytest.mark.parametrize("draw", [0.0, 0.3, 0.99])
def test_a_weight_of_nothing_does_not_stand_in_for_its_tier_while_another_tier_can(draw: float) -> None:
    fleet = build_fleet(
        make_pool("some", 1, weight=1.0, requests_max=4),
        make_pool("none", 1, weight=0.0, requests_max=4),
        make_pool("far", 1, tier="provider", requests_max=4),
    )
    pools = {member.index: member.target.pool for member in list_members(fleet)}
    find_group(fleet, "some").members[0].load.refuse(NOW, 10)
    assert [pools[index] for index in choose(fleet, PLAIN, NOW, draw, 3).order] == ["far", "none"]
    for _ in range(40):
        find_group(fleet, "far").members[0].load.begin(500, NOW)
    later = NOW + 9  # all of what is full is still more than nothing
    assert [pools[index] for index in choose(fleet, PLAIN, later, draw, 3).order] == ["far", "none"]


def test_what_is_free_where_a_weight_sends_nothing_keeps_nobody_from_spilling() -> None:
    fleet = build_fleet(
        make_pool("some", 1, weight=1.0, requests_max=10), make_pool("none", 4, weight=0.0, requests_max=10)
    )
    for _ in range(12):
        find_group(fleet, "some").members[0].load.begin(500, NOW - 5)
    assert compute_spill(fleet.groups, "standard", 0.8, NOW) == 1.0


def test_a_tier_is_as_full_as_what_its_weights_meet() -> None:
    fleet = build_fleet(
        make_pool("stable", 1, weight=99.0, requests_max=10), make_pool("new", 1, weight=1.0, requests_max=10)
    )
    for _ in range(12):
        find_group(fleet, "stable").members[0].load.begin(500, NOW - 5)
    assert compute_spill(fleet.groups, "standard", 0.8, NOW) == 1.0
