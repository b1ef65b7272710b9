"""What a full fleet makes of a request, without a wire: where there is room, who goes on, how long."""

import math
import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from routing_fleets import build_fleet, find_group, list_members, load_at_random, make_pool

from forebay.core.engine_load import EngineLoad, EngineState
from forebay.core.keys import PRIORITIES
from forebay.core.limits import QueueRules
from forebay.core.routes import CAPABILITIES, Choosing, Order
from forebay.gateway.policy.crowd import (
    Drain,
    Share,
    compute_allowed_s,
    count_places,
    find_seat,
    guess_drain,
    limit_tiers,
    list_eligible,
    round_retry_s,
)
from forebay.gateway.policy.fleet import Fleet
from forebay.gateway.policy.load import PoolLoad
from forebay.gateway.policy.route import Want
from forebay.gateway.policy.told import tell_pool

NOW = 1000.0
WANT = Want(100)


def two_tiers(**facts: int) -> Fleet:
    return build_fleet(
        make_pool("own", 2, tier="provisioned", requests_max=4, **facts),
        make_pool("cloud", 1, tier="provider", requests_max=4, **facts),
    )


def fill(fleet: Fleet, want: Want = WANT, tokens: int = 100) -> int:
    """Seats requests until all is full; how many."""
    count = 0
    while (index := find_seat(fleet, fleet.tiers, want, NOW, random.Random(count).random())) is not None:
        next(each for each in list_members(fleet) if each.index == index).load.begin(tokens, NOW)
        count += 1
        assert count < 1000, "it is never full"
    return count


# --- room ---------------------------------------------------------------------------------------------------


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=6),
    st.lists(st.integers(1, 9), min_size=1, max_size=3),
    st.integers(0, 1 << 30),
    st.sampled_from([None, 7]),
)
def test_seats_fill_every_replica_to_the_last_place_and_none_beyond(
    own: list[int], cloud: list[int], seed: int, affinity: int | None
) -> None:
    pools = [
        [
            make_pool(pool, number + 1, tier=tier, requests_max=most)[number]
            for number, most in enumerate(sizes)
        ]
        for pool, tier, sizes in (("own", "provisioned", own), ("cloud", "provider", cloud))
    ]
    fleet = build_fleet(*pools)
    assert fill(fleet, Want(100, affinity=affinity)) == sum(own) + sum(cloud)
    for member in list_members(fleet):
        assert member.load.requests == member.target.requests_max
    leaving = random.Random(seed).choice(list_members(fleet))
    leaving.load.end(100, NOW)
    assert find_seat(fleet, fleet.tiers, WANT, NOW, 0.5) == leaving.index


def test_tokens_fill_a_place_as_well() -> None:
    fleet = build_fleet(make_pool("own", 2, tokens_max=1000))
    assert fill(fleet, tokens=300) == 7  # the one that fills it may exceed it


def test_replicas_out_of_service_are_no_room_while_others_are_in() -> None:
    fleet = two_tiers()
    group = find_group(fleet, "own")
    group.members[0].load.refuse(NOW, 60)
    assert fill(fleet) == 4 + 4
    assert group.members[0].load.requests == 0


def test_where_all_are_out_of_service_all_are_tried_up_to_what_they_serve() -> None:
    fleet = two_tiers()
    for member in list_members(fleet):
        member.load.refuse(NOW, 60)
    assert fill(fleet) == 12


def test_a_workers_share_is_what_it_may_fill() -> None:
    fleet = build_fleet(make_pool("own", 2, requests_max=6), workers=3)
    assert fill(fleet) == 4
    assert [member.load.requests for member in list_members(fleet)] == [2, 2]


def test_a_session_stays_with_its_replica_while_its_pool_has_room() -> None:
    fleet = build_fleet(make_pool("own", 2, requests_max=2))
    session = Want(100, affinity=12345, is_sticky=True)
    first = find_seat(fleet, fleet.tiers, session, NOW, 0.1)
    for _ in range(4):
        assert find_seat(fleet, fleet.tiers, session, NOW, 0.9) == first
        assert first is not None
        list_members(fleet)[first].load.begin(100, NOW)
    assert find_seat(fleet, fleet.tiers, session, NOW, 0.9) is None


@given(st.integers(0, 1 << 30), st.floats(0, 1, exclude_max=True))
def test_a_seat_always_has_room_and_no_tier_before_it_has(seed: int, draw: float) -> None:
    fleet = build_fleet(
        *(
            make_pool(f"p{n}", 3, tier=tier, requests_max=6)
            for n, tier in enumerate(["provisioned", "provider"])
        )
    )
    load_at_random(fleet, random.Random(seed), NOW, most=9)
    seat = find_seat(fleet, fleet.tiers, WANT, NOW, draw)
    roomy = [group for group in fleet.groups if group.load.has_room(NOW)]
    if seat is None:
        assert all(len(group.load.unfit) == group.size for group in roomy)
        return
    group = next(g for g in fleet.groups if any(m.index == seat for m in g.members))
    assert group in roomy
    assert list_members(fleet)[seat].load.requests < 6


# --- who may go where ---------------------------------------------------------------------------------------


def test_only_places_that_can_answer_are_waited_for() -> None:
    fleet = build_fleet(
        make_pool("plain", 1, requests_max=1, capabilities=()),
        make_pool("eyes", 1, requests_max=1, capabilities=("images",), tier="provider"),
        make_pool("short", 1, requests_max=1, context_window=50, tier="autoscaled"),
        make_pool("never", 1, requests_max=1, weight=0.0, tier="quantized"),
    )
    images = 1 << CAPABILITIES.index("images")
    names = [
        [g.pool for t in list_eligible(fleet, want) for g in t.groups]
        for want in (WANT, Want(10, needs=images))
    ]
    assert names == [["plain", "eyes"], ["eyes"] if not fleet.groups else ["short", "eyes"]]


def test_what_is_too_long_for_all_waits_for_the_widest() -> None:
    fleet = build_fleet(
        make_pool("narrow", 1, requests_max=1, context_window=50),
        make_pool("wide", 1, requests_max=1, context_window=80),
    )
    assert [g.pool for t in list_eligible(fleet, WANT) for g in t.groups] == ["wide"]


@pytest.mark.parametrize(("waiting", "share"), [(0, 0.0), (2, 0.5), (4, 1.0), (40, 1.0)])
def test_batch_waits_in_the_first_tier_and_goes_on_as_the_queue_grows(waiting: int, share: float) -> None:
    fleet = two_tiers()
    for member in find_group(fleet, "own").members:
        for _ in range(4):
            member.load.begin(1, NOW)

    def count(load: PoolLoad) -> int:
        return waiting

    draws = [n / 1000 for n in range(1000)]
    limited = [limit_tiers(fleet.tiers, "batch", 0.8, draw, count) for draw in draws]
    assert sum(len(tiers) == 2 for tiers in limited) / 1000 == pytest.approx(share, abs=0.002)
    for priority in ("interactive", "standard"):
        assert limit_tiers(fleet.tiers, priority, 0.8, 0.999, count) == fleet.tiers


# --- how long -----------------------------------------------------------------------------------------------


@given(st.floats(0.5, 200), st.floats(0.01, 300), st.floats(0.1, 20), st.integers(1, 100))
def test_the_rate_that_is_seen_replaces_the_guess(
    rate: float, places: float, wrong: float, bunch: int
) -> None:
    drain = Drain(places, places / rate * wrong, NOW)
    assert drain.compute_rate(NOW) == pytest.approx(rate / wrong)
    bunch = min(bunch, math.ceil(places))  # those that were taken together get free together
    for number in range(1, 3000):
        drain.note(NOW + number // bunch * bunch / rate)
    assert drain.compute_rate(NOW + 2999 / rate) == pytest.approx(rate, rel=0.6 if bunch > 1 else 0.02)


@given(st.lists(st.floats(0, 5), max_size=100))
def test_a_line_of_which_nothing_gets_free_is_told_to_be_slower_and_slower(gaps: list[float]) -> None:
    drain, now = Drain(8, 1.0, NOW), NOW
    for gap in gaps:
        now += gap
        drain.note(now)
    rates = [drain.compute_rate(now + later) for later in range(50)]
    assert all(one > other > 0 for one, other in pairwise(rates))


@given(st.integers(0, 5000), st.integers(0, 5000))
def test_more_before_it_is_never_a_shorter_wait(one: int, more: int) -> None:
    drain = Drain(8, 0.5, NOW)
    assert 0 < drain.estimate_wait_s(one, NOW) <= drain.estimate_wait_s(one + more, NOW)


def test_the_guess_goes_by_how_long_answers_took() -> None:
    fleet = two_tiers()
    assert guess_drain(fleet.tiers, WANT, NOW).compute_rate(NOW) == pytest.approx(12)
    for member in find_group(fleet, "own").members:
        member.load.tell_first(4.0, NOW)
    assert guess_drain(fleet.tiers, WANT, NOW).compute_rate(NOW) == pytest.approx(8 / 4 + 4)


def test_a_pool_that_tokens_bound_counts_its_places_by_the_requests_there() -> None:
    load = PoolLoad(1, 0, 1000)
    assert count_places(load) == 1
    load.change(2, 200, NOW)
    assert count_places(load) == pytest.approx(10)


RULES = QueueRules(wait_max_s=60, default_wait_s=(4.0, 20.0, 300.0))


@pytest.mark.parametrize(
    ("rank", "named_s", "stood_s", "allowed_s"),
    [
        (0, None, 0, 4), (0, None, 4, 4), (0, None, 4.1, 1), (1, None, 21, 5), (2, None, 1000, 60),
        (0, 0.0, 0, 0), (0, 30.0, 100, 30), (1, 90.0, 0, 60),
    ],
)  # fmt: skip
def test_a_line_that_stands_is_kept_short_for_those_who_named_no_time(
    rank: int, named_s: float | None, stood_s: float, allowed_s: float
) -> None:
    assert compute_allowed_s(RULES, rank, named_s, stood_s) == allowed_s


@pytest.mark.parametrize(("wait_s", "told"), [(0.0, 1), (1.0, 1), (1.01, 2), (1e9, 600), (float("inf"), 600)])
def test_a_caller_is_told_whole_seconds(wait_s: float, told: int) -> None:
    assert round_retry_s(wait_s) == told


# --- between lines ------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 2), min_size=2, max_size=5))
def test_lines_that_wait_for_the_same_places_get_them_by_the_weights_of_their_classes(
    ranks: list[int],
) -> None:
    shares = [Share(0) for _ in ranks]
    weights = [(16, 4, 1)[rank] for rank in ranks]
    served = [0] * len(ranks)
    for _ in range(sum(weights) * 10):
        at = min(range(len(ranks)), key=lambda n: (shares[n].find_end(ranks[n]), n))
        shares[at].take(ranks[at])
        served[at] += 1
    for weight, count in zip(weights, served, strict=True):
        assert abs(count - weight * 10) <= 1
    assert len(PRIORITIES) == 3


# --- what engines and providers say themselves --------------------------------------------------------------


QUEUED = Choosing(order=Order.LOAD, queue=QueueRules())


def say(fleet: Fleet, pool: str, number: int, now: float, **facts: float) -> None:
    group = find_group(fleet, pool)
    engine = EngineLoad(f"{pool}#{number}", EngineState.READY, **facts)  # type: ignore[arg-type]
    group.members[number].load.hear_engine(engine, now, now + 5, now)
    tell_pool(group.load, [member.load for member in group.members], now)  # type: ignore[misc]


def test_an_engine_that_says_that_it_is_full_gets_nothing_more_until_it_says_otherwise() -> None:
    fleet = build_fleet(make_pool("own", 1, requests_max=8), choosing=QUEUED)
    fleet.groups[0].members[0].load.begin(100, NOW)
    for full in ({"kv_cache_used": 0.97}, {"waiting": 2}):
        say(fleet, "own", 0, NOW, **full)
        assert find_seat(fleet, fleet.tiers, WANT, NOW, 0.5) is None
        assert fleet.groups[0].load.count_free(NOW) == 0
        say(fleet, "own", 0, NOW, kv_cache_used=0.5, waiting=0)
        assert find_seat(fleet, fleet.tiers, WANT, NOW, 0.5) == 0


def test_of_several_replicas_the_others_fill_up_and_the_full_one_gets_nothing() -> None:
    fleet = build_fleet(make_pool("own", 2, requests_max=4))
    for member in fleet.groups[0].members:
        member.load.begin(100, NOW)
    say(fleet, "own", 0, NOW, waiting=1)
    assert fill(fleet) == 3
    assert [member.load.requests for member in fleet.groups[0].members] == [1, 4]


def test_an_engine_that_has_nothing_of_ours_is_asked_whatever_it_says() -> None:
    fleet = build_fleet(make_pool("own", 1, requests_max=4), choosing=QUEUED)
    say(fleet, "own", 0, NOW, kv_cache_used=1.0)
    assert fill(fleet) == 1


def test_an_account_with_nothing_left_is_full_until_some_of_it_is_back() -> None:
    fleet = build_fleet(
        make_pool("cloud", 1, tier="provider", requests_max=4, shares_quota=True), choosing=QUEUED
    )
    load = fleet.groups[0].members[0].load
    load.begin(100, NOW)
    assert load.account is not None
    load.account.say_used(1.0, NOW, NOW + 60)
    tell_pool(fleet.groups[0].load, [load], NOW)
    assert find_seat(fleet, fleet.tiers, WANT, NOW, 0.5) is None
    tell_pool(fleet.groups[0].load, [load], NOW + 10)
    assert find_seat(fleet, fleet.tiers, WANT, NOW + 10, 0.5) == 0
