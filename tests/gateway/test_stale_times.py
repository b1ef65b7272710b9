"""A place whose times are old is asked again by one request, and not by a crowd."""

import heapq
import random
from collections.abc import Mapping
from itertools import pairwise

from routing_fleets import build_fleet, find_group, list_members, make_pool

from forebay.gateway.policy.fleet import Fleet
from forebay.gateway.policy.load import STALE_S
from forebay.gateway.policy.route import Want, choose_first

NOW = 1000.0
WANT = Want(tokens=300)


def drive(fleet: Fleet, first_s: Mapping[str, float], seconds: float, rate: float = 100.0) -> list[float]:
    """A load of so many requests a second; returns when the pool `far` was asked."""
    members = {member.index: member for member in list_members(fleet)}
    rng = random.Random(2)
    asked = []
    events: list[tuple[float, int, str, float]] = []
    for number in range(int(seconds * rate)):
        now = NOW + number / rate
        while events and events[0][0] <= now:
            at, place, what, began = heapq.heappop(events)
            if what == "first":
                members[place].load.tell_first(at - began, at)
                heapq.heappush(events, (at + 0.2, place, "end", began))
            else:
                members[place].load.end(WANT.tokens, at)
        place = choose_first(fleet, WANT, now, rng.random())
        assert place is not None
        member = members[place]
        member.load.begin(WANT.tokens, now)
        came_s = first_s[member.target.pool] * rng.uniform(0.9, 1.1)
        heapq.heappush(events, (now + came_s, place, "first", now))
        if member.target.pool == "far":
            asked.append(now)
    return asked


def build_pair() -> Fleet:
    """One that was found to be near, and one that was found to be far, a while ago."""
    fleet = build_fleet(make_pool("near", 2), make_pool("far", 2))
    find_group(fleet, "near").members[0].load.tell_first(0.2, NOW - 1)
    find_group(fleet, "far").members[0].load.tell_first(5.0, NOW - STALE_S - 1)
    return fleet


def test_one_request_asks_whether_a_slow_place_is_slow_still() -> None:
    asked = drive(build_pair(), {"near": 0.2, "far": 5.0}, 75)
    assert 2 <= len(asked) <= 4, asked
    assert all(later - sooner > STALE_S for sooner, later in pairwise(asked)), asked


def test_a_place_that_is_fast_again_is_found_to_be() -> None:
    asked = drive(build_pair(), {"near": 0.2, "far": 0.2}, 10)
    assert asked[0] < NOW + 1
    assert len(asked) > 300


def test_a_request_that_brings_nothing_is_not_waited_for_without_end() -> None:
    asked = drive(build_pair(), {"near": 0.2, "far": 1e6}, 3 * STALE_S)
    assert 3 <= len(asked) <= 4, asked


def test_what_others_have_there_keeps_no_worker_from_asking_itself() -> None:
    fleet = build_pair()
    find_group(fleet, "far").members[0].load.set_others(1, 300, NOW - 1)
    assert drive(fleet, {"near": 0.2, "far": 0.2}, 5)


def test_a_crowd_after_a_night_goes_where_it_was_fast() -> None:
    fleet = build_pair()
    find_group(fleet, "near").members[0].load.tell_first(0.2, NOW - STALE_S - 60)
    find_group(fleet, "near").load.first_at = NOW - STALE_S - 60
    assert len(drive(fleet, {"near": 0.2, "far": 5.0}, 20)) == 1


def test_a_place_that_hangs_is_not_taken_for_as_fast_as_it_was() -> None:
    fleet = build_pair()
    for name, first_s in (("near", 3.0), ("far", 0.1)):
        load = find_group(fleet, name).load
        load.first_s, load.first_at = first_s, NOW - (1 if name == "near" else STALE_S + 1)
    asked = drive(fleet, {"near": 3.0, "far": 1e6}, 20)
    assert len(asked) < 20 * 100 * 0.55
