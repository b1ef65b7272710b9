"""Choosing as properties: what a plan never holds, what it depends on, and how evenly it loads."""

import random
from collections import Counter

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from routing_fleets import (
    build_fleet,
    build_large_fleet,
    find_group,
    list_members,
    load_at_random,
    make_pool,
    make_target,
)

from forebay.core.keys import PRIORITIES, TIERS
from forebay.core.routes import CAPABILITIES, Choosing, Order
from forebay.gateway.policy.fleet import Fleet, Group, Member, compute_mask
from forebay.gateway.policy.load import STALE_S, PoolLoad, ReplicaLoad
from forebay.gateway.policy.pick import LOAD_CAP, find_ill, list_unfit, pick_member
from forebay.gateway.policy.route import (
    Plan,
    Reason,
    Want,
    choose,
    choose_first,
    find_lack,
)

NOW = 1000.0
DRAWS = st.floats(0, 1, exclude_max=True)
PLAIN = Want(tokens=500)

POOLS = st.lists(
    st.tuples(
        st.integers(1, 6),
        st.fixed_dictionaries(
            {"tier": st.sampled_from(TIERS)},
            optional={
                "region": st.sampled_from(["eu", "us"]),
                "requests_max": st.integers(1, 8),
                "tokens_max": st.integers(1000, 50_000),
                "context_window": st.sampled_from([1000, 8000]),
                "capabilities": st.sampled_from([(), ("tools",), ("tools", "images")]),
                "distance_s": st.sampled_from([0.0, 0.05]),
                "price_usd_per_mtok": st.sampled_from([0.5, 10.0]),
                "weight": st.sampled_from([0.0, 1.0, 3.0]),
            },
        ),
    ),
    min_size=2,
    max_size=6,
)
WANTS = st.builds(
    Want,
    tokens=st.sampled_from([10, 2000, 100_000]),
    output_tokens=st.integers(0, 1000),
    needs=st.sampled_from([0, compute_mask(("tools",)), compute_mask(("tools", "audio"))]),
    priority=st.sampled_from(PRIORITIES),
    affinity=st.none() | st.integers(0, 2**32 - 1),
    is_sticky=st.booleans(),
)


@st.composite
def fleets(draw: st.DrawFn, *, loaded: bool = True) -> Fleet:
    choosing = Choosing(order=Order.LOAD, price_s_per_usd=draw(st.sampled_from([0.0, 0.1])))
    pools = [make_pool(f"p{at}", size, **facts) for at, (size, facts) in enumerate(draw(POOLS))]
    fleet = build_fleet(*pools, choosing=choosing)
    if loaded:
        load_at_random(fleet, random.Random(draw(st.integers(0, 1 << 32))), NOW)
    return fleet


def dump(fleet: Fleet) -> list[object]:
    """All that choosing may look at."""
    loads = [load for group in fleet.groups for load in (group.load, *(each.load for each in group.members))]
    slots = [name for kind in {type(load) for load in loads} for each in kind.__mro__
             for name in getattr(each, "__slots__", ()) if name != "pools"]  # fmt: skip
    return [getattr(load, name, None) for load in loads for name in slots]


def rank(plan: Plan, index: int) -> float:
    return plan.order.index(index) if index in plan.order else float("inf")


@given(fleets(), WANTS, DRAWS, st.integers(1, 10))
def test_the_same_arguments_give_the_same_plan_and_change_nothing(
    fleet: Fleet, want: Want, draw: float, limit: int
) -> None:
    before = dump(fleet)
    first = choose(fleet, want, NOW, draw, limit)
    assert choose(fleet, want, NOW, draw, limit) == first
    assert dump(fleet) == before


@settings(max_examples=300)
@given(fleets(), WANTS, DRAWS)
def test_the_short_way_to_the_first_place_leads_there(fleet: Fleet, want: Want, draw: float) -> None:
    first = choose_first(fleet, want, NOW, draw)
    plan = choose(fleet, want, NOW, draw, 3)
    if first is not None:
        assert plan.order[0] == first
    elif not want.needs & fleet.lacking and want.tokens <= fleet.window_min:
        assert any(list_unfit(group, NOW) for group in fleet.groups)


@settings(max_examples=300)
@given(fleets(), WANTS, DRAWS, st.integers(1, 10))
def test_nothing_that_is_rejected_is_in_the_plan(fleet: Fleet, want: Want, draw: float, limit: int) -> None:
    plan = choose(fleet, want, NOW, draw, limit)
    assert len(set(plan.order)) == len(plan.order) <= limit
    rejected = {group for group, _ in plan.rejected}
    left = [group for group in fleet.groups if group not in rejected]
    assert all(
        reason in (find_lack(group, want), *(why for _, why in list_unfit(group, NOW)))
        for group, reason in plan.rejected
    )
    by_index = {member.index: (group, member) for group in fleet.groups for member in group.members}
    all_ill = all(find_ill(member.load, NOW) for group in left for member in group.members)
    for index in plan.order:
        group, member = by_index[index]
        assert group in left
        assert all_ill or not find_ill(member.load, NOW)
    assert bool(plan.order) == bool(left)
    if left and not all_ill:
        fit = sum(group.size - len(list_unfit(group, NOW)) for group in left)
        assert len(plan.order) == min(limit, fit)


@settings(max_examples=300)
@given(
    fleets(),
    WANTS,
    DRAWS,
    st.integers(1, 4),
    st.data(),
    st.sampled_from(["first", "token", "price", "distance"]),
)
def test_what_becomes_slower_or_dearer_is_never_tried_sooner(
    fleet: Fleet, want: Want, draw: float, limit: int, data: st.DataObject, what: str
) -> None:
    group = data.draw(st.sampled_from(fleet.groups))
    before = choose(fleet, want, NOW, draw, limit)
    match what:
        case "first":
            assume(NOW - group.load.first_at <= STALE_S)
            group.load.first_s += 1.5
        case "token":
            assume(NOW - group.load.token_at <= STALE_S)
            group.load.token_s += 0.01
        case "price":
            group.price += 5
        case _:
            group.distance_s += 0.3
    after = choose(fleet, want, NOW, draw, limit)
    for member in group.members:
        assert rank(after, member.index) >= rank(before, member.index)


def test_a_slow_place_is_left_for_the_others_and_tried_again_once_that_is_old() -> None:
    fleet = build_fleet(make_pool("slow", 1), make_pool("one", 1), make_pool("two", 1))
    for name, seconds in (("slow", 3.0), ("one", 0.1), ("two", 0.1)):
        find_group(fleet, name).members[0].load.tell_first(seconds, NOW)
    rng = random.Random(1)
    first = Counter(choose(fleet, PLAIN, NOW, rng.random(), 3).order[0] for _ in range(2000))
    assert set(first) == {1, 2}
    for name in ("one", "two"):
        find_group(fleet, name).members[0].load.tell_first(0.1, NOW + STALE_S + 1)
    later = Counter(choose(fleet, PLAIN, NOW + STALE_S + 1, rng.random(), 3).order[0] for _ in range(2000))
    assert later[0] > 200  # unknown is neither fast nor slow


@pytest.mark.parametrize("shape", ["pools", "replicas"])
def test_two_choices_load_evenly(shape: str) -> None:
    pools = [make_pool(f"p{at}", 1) for at in range(20)] if shape == "pools" else [make_pool("p", 20)]
    fleet = build_fleet(*pools)
    members = {member.index: member for member in list_members(fleet)}
    rng = random.Random(5)
    for _ in range(20_000):
        plan = choose(fleet, PLAIN, NOW, rng.random(), 1)
        members[plan.order[0]].load.begin(PLAIN.tokens, NOW)
    counts = [member.load.requests for member in members.values()]
    assert sum(counts) == 20_000
    assert max(counts) - 1000 <= 6, counts  # a single draw would be off by about 80
    assert 1000 - min(counts) <= 12, counts


@given(st.integers(2, 30), st.integers(0, 1 << 32), st.booleans())
def test_no_replica_keeps_more_than_its_share_for_the_sake_of_affinity(
    size: int, seed: int, one_key: bool
) -> None:
    fleet = build_fleet(make_pool("p", size))
    group = fleet.groups[0]
    rng = random.Random(seed)
    for _ in range(300):
        want = Want(tokens=rng.randrange(1, 4000), affinity=7 if one_key else rng.getrandbits(32))
        before = group.load.tokens
        member = pick_member(group, want, NOW, rng.random())
        assert member.load.tokens <= LOAD_CAP * before / size
        member.load.begin(want.tokens, NOW)


def test_a_replica_keeps_what_is_its_own_until_it_is_half_full() -> None:
    fleet = build_fleet(make_pool("p", 10, requests_max=8))
    want = Want(tokens=100, affinity=7)
    taken = []
    for _ in range(6):
        member = pick_member(fleet.groups[0], want, NOW, 0.5)
        member.load.begin(want.tokens, NOW)
        taken.append(member.index)
    assert len(set(taken[:4])) == 1
    assert taken[4] != taken[0]


def test_requests_that_begin_alike_go_to_one_replica_and_few_move_when_one_comes() -> None:
    small, large = build_fleet(make_pool("p", 9)), build_fleet(make_pool("p", 10))
    keys = [random.Random(3).getrandbits(32) + number for number in range(0, 1 << 32, 1 << 21)]
    wants = [Want(tokens=10, affinity=key & 0xFFFFFFFF) for key in keys]
    rng = random.Random(4)
    owners = [pick_member(small.groups[0], want, NOW, rng.random()).index for want in wants]
    assert owners == [pick_member(small.groups[0], want, NOW, rng.random()).index for want in wants]
    assert min(Counter(owners).values()) > len(wants) / 9 / 2.5
    moved = [
        now
        for want, was in zip(wants, owners, strict=True)
        if (now := pick_member(large.groups[0], want, NOW, rng.random()).index) != was
    ]
    assert set(moved) == {9}
    assert len(moved) < len(wants) / 5


def test_a_session_stays_where_it_is_however_full() -> None:
    fleet = build_fleet(*(make_pool(f"p{at}", 5, tier=TIERS[at // 2]) for at in range(4)))
    rng = random.Random(6)
    for session in range(200):
        want = Want(tokens=2000, affinity=session * 0x9E3779B1 & 0xFFFFFFFF, is_sticky=True)
        place = choose(fleet, want, NOW, rng.random(), 3).order[0]
        load = {member.index: member.load for member in list_members(fleet)}[place]
        for _ in range(20):
            load.begin(want.tokens, NOW)
        assert choose(fleet, want, NOW, rng.random(), 3).order[0] == place


def test_weights_hold_and_nothing_means_only_where_none_is_left() -> None:
    fleet = build_fleet(
        make_pool("three", 3, weight=1.0), make_pool("one", 1, weight=1.0), make_pool("none", 1, weight=0.0)
    )
    find_group(fleet, "one").members[0].load.tell_first(0.001, NOW)  # which weights don't care for
    rng = random.Random(7)
    pools = {member.index: member.target.pool for member in list_members(fleet)}
    first = Counter(pools[choose(fleet, PLAIN, NOW, rng.random(), 3).order[0]] for _ in range(20_000))
    assert set(first) == {"three", "one"}
    assert first["three"] / first["one"] == pytest.approx(3, rel=0.06)
    for name in ("three", "one"):
        for member in find_group(fleet, name).members:
            member.load.refuse(NOW, 10)
    assert [pools[index] for index in choose(fleet, PLAIN, NOW, 0.5, 3).order] == ["none"]


@pytest.mark.parametrize(
    "want", [PLAIN, Want(tokens=500, affinity=7, is_sticky=True)], ids=["any", "session"]
)
@pytest.mark.parametrize("draw", [0.0, 0.3, 0.99])
def test_a_weight_of_nothing_is_tried_after_all_others_of_every_tier(want: Want, draw: float) -> None:
    fleet = build_fleet(
        make_pool("none", 2, weight=0.0, tier="provisioned"),
        make_pool("some", 2, weight=1.0, tier="provisioned"),
        make_pool("far", 2, tier="provider"),
    )
    pools = {member.index: member.target.pool for member in list_members(fleet)}
    order = [pools[index] for index in choose(fleet, want, NOW, draw, 6).order]
    assert order[0] == "some"
    assert order[-2:] == ["none", "none"]


@pytest.mark.parametrize("affinity", [None, 7])
def test_replicas_that_share_their_counts_are_tried_though_these_are_out_of_service(
    affinity: int | None,
) -> None:
    load = ReplicaLoad()
    pool = PoolLoad(2)
    load.pools = [pool]
    group = Group([Member(at, make_target("p", at), load) for at in range(2)], pool)
    load.refuse(NOW, 10)
    assert pick_member(group, Want(tokens=10, affinity=affinity), NOW, 0.3) in group.members


def test_what_a_place_lacks_is_named_and_an_estimate_alone_refuses_nobody() -> None:
    fleet = build_fleet(
        make_pool("plain", 1, capabilities=(), context_window=9000),
        make_pool("tools", 1, capabilities=("tools",), context_window=4000),
        make_pool("unknown", 1, context_window=4000),
    )
    order = [group.pool for group in fleet.groups]
    want = Want(tokens=10, needs=compute_mask(("tools", "images")))
    plan = choose(fleet, want, NOW, 0.3, 3)
    assert {group.pool: reason for group, reason in plan.rejected} == {
        "plain": Reason.CAPABILITY,
        "tools": Reason.CAPABILITY,
    }
    assert [order[index] for index in plan.order] == ["unknown"]
    long = choose(fleet, Want(tokens=5000), NOW, 0.3, 3)
    assert [order[index] for index in long.order] == ["plain"]
    longest = choose(fleet, Want(tokens=50_000), NOW, 0.3, 3)
    assert [order[index] for index in longest.order] == ["plain"]  # the widest, since it may be shorter
    del fleet
    nobody = build_fleet(make_pool("one", 1, capabilities=()), make_pool("two", 1, capabilities=()))
    assert choose(nobody, want, NOW, 0.3, 3).order == ()


def test_a_plan_goes_to_other_places_before_other_replicas() -> None:
    fleet = build_large_fleet()
    members = {member.index: member.target for member in list_members(fleet)}
    plan = choose(fleet, PLAIN, NOW, 0.77, 6)
    targets = [members[index] for index in plan.order]
    assert len({target.pool for target in targets}) == 6
    assert [target.tier for target in targets[:3]] == ["provisioned"] * 3
    assert [target.tier for target in targets[3:]] == ["autoscaled", "quantized", "provider"]


def test_every_capability_has_a_bit() -> None:
    assert [compute_mask((name,)) for name in CAPABILITIES] == [1 << at for at in range(len(CAPABILITIES))]
    assert compute_mask(None) == compute_mask(CAPABILITIES)
