"""What is told of places, purely: by engines, providers and workers; slow starts, newest words (H3, H6)."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from routing_fleets import build_fleet, find_group, follow, list_members, make_pool, make_route

from forebay.core.engine_load import ENGINE_STALE_S, EngineLoad, EngineState
from forebay.core.keys import PRIORITIES
from forebay.core.routes import Affinity, Choosing, Order, RouteTable, Target
from forebay.gateway.loads import Loads
from forebay.gateway.policy.fleet import Fleet
from forebay.gateway.policy.load import EJECT_AFTER, EJECT_S, SLOW_START, ReplicaLoad
from forebay.gateway.policy.pick import find_ill, pick_member
from forebay.gateway.policy.route import choose, choose_first
from forebay.gateway.policy.spill import compute_spill
from forebay.gateway.policy.told import compute_engine_use
from forebay.gateway.policy.want import Reason, Want

NOW = 1000.0
PLAIN = Want(tokens=500)
DRAWS = st.floats(0, 1, exclude_max=True)
ENGINES = st.builds(
    EngineLoad,
    target_id=st.just(""),
    state=st.just(EngineState.READY),
    running=st.none() | st.integers(0, 50),
    waiting=st.none() | st.integers(0, 50),
    kv_cache_used=st.none() | st.floats(0, 1),
    queue_wait_s=st.none() | st.floats(0, 100),
)


class Scene:
    """Two pools of a tier and a provider, and what is told of them."""

    def __init__(self, size: int = 2, **facts: object) -> None:
        self.loads = Loads()
        self.route = make_route(
            make_pool("one", size, **facts),
            make_pool("two", size, **facts),
            make_pool("cloud", 1, tier="provider"),
            choosing=Choosing(order=Order.LOAD, affinity=Affinity.NONE),
        )
        self.fleet = Fleet(follow(self.loads, self.route).groups["m"], self.route.choosing)

    def hear(self, pool: str, at: float = NOW, number: int | None = None, **said: object) -> None:
        for member in find_group(self.fleet, pool).members:
            if number is None or member.target.id.endswith(f"#{number}"):
                said.setdefault("state", EngineState.READY)
                self.loads.hear_engine(EngineLoad(member.target.id, **said), at, at)  # type: ignore[arg-type]
        self.loads.sweep(at)

    def spill(self, priority: str = "standard", now: float = NOW) -> float:
        return compute_spill(self.fleet.tiers[0].groups, priority, 0.8, now)

    def pool(self, draw: float, now: float = NOW) -> str:
        index = choose(self.fleet, PLAIN, now, draw, 1).order[0]
        assert choose_first(self.fleet, PLAIN, now, draw) in (index, None)
        return self.route.targets[index].pool


# --- engines ------------------------------------------------------------------------------------------------


@given(ENGINES, ENGINES, DRAWS, st.sampled_from(["", "requests_max"]))
def test_a_fuller_engine_is_never_tried_sooner_and_spills_no_less(
    one: EngineLoad, two: EngineLoad, draw: float, known: str
) -> None:
    facts = {known: 16} if known else {}
    names = ("running", "waiting", "kv_cache_used", "queue_wait_s")
    both = [[getattr(each, name) for name in names] for each in (one, two)]
    low = [None if None in pair else min(pair) for pair in zip(*both, strict=True)]
    high = [None if None in pair else max(pair) for pair in zip(*both, strict=True)]
    chosen, spilled = [], []
    for said in (low, high):
        scene = Scene(**facts)
        scene.hear("one", **dict(zip(names, said, strict=True)))
        scene.hear("two", running=4, waiting=0, kv_cache_used=0.3, queue_wait_s=0.0)
        chosen.append(scene.pool(draw))
        spilled.append([scene.spill(priority) for priority in PRIORITIES])
    assert chosen[1] != "one" or chosen[0] == "one"
    assert all(more >= less - 1e-9 for less, more in zip(*spilled, strict=True))


@given(ENGINES, DRAWS)
def test_what_an_engine_said_long_ago_is_as_if_it_had_said_nothing(engine: EngineLoad, draw: float) -> None:
    scene, silent = Scene(requests_max=16), Scene(requests_max=16)
    for each in (scene, silent):
        for _ in range(9):
            find_group(each.fleet, "one").members[0].load.begin(100, NOW)
    said = {name: getattr(engine, name) for name in ("running", "waiting", "kv_cache_used", "queue_wait_s")}
    scene.hear("one", **said)
    later = NOW + ENGINE_STALE_S + 0.1
    scene.loads.sweep(later)
    assert scene.pool(draw, later) == silent.pool(draw, later)
    assert scene.spill(now=later) == silent.spill(now=later)


def test_an_engine_that_says_idle_does_not_make_a_place_emptier() -> None:
    scene = Scene(requests_max=4)
    for member in list_members(scene.fleet):
        for _ in range(6):
            member.load.begin(100, NOW - 60)
    before = scene.spill()
    scene.hear("one", running=0, waiting=0, kv_cache_used=0.0, queue_wait_s=0.0)
    scene.hear("two", running=0, waiting=0, kv_cache_used=0.0, queue_wait_s=0.0)
    assert before == scene.spill() == 1.0


def test_a_full_kv_cache_or_a_queue_spills_and_fades_only_slowly() -> None:
    for said in ({"kv_cache_used": 1.0}, {"running": 20, "waiting": 20}):
        scene = Scene()
        scene.hear("one", **said)
        scene.hear("two", **said)
        assert scene.spill() > 0.5
        shares = []
        for second in range(1, 15):
            for pool in ("one", "two"):
                scene.hear(pool, NOW + second, kv_cache_used=0.1, running=1, waiting=0)
            shares.append(scene.spill(now=NOW + second))
        assert shares[0] > 0.2
        assert shares == sorted(shares, reverse=True)
        assert shares[-1] == 0


def test_a_wait_in_engines_counts_by_what_the_class_bears() -> None:
    scene = Scene(requests_max=100)
    for pool in ("one", "two"):
        scene.hear(pool, queue_wait_s=1.0, running=1, waiting=0)
    assert [scene.spill(priority) for priority in PRIORITIES] == [1.0, 0.0, 0.0]
    for pool in ("one", "two"):
        scene.hear(pool, queue_wait_s=4.0)
    assert [scene.spill(priority) for priority in PRIORITIES] == [1.0, pytest.approx(0.6), 0.0]
    for pool in ("one", "two"):
        scene.hear(pool, queue_wait_s=70.0)
    assert [scene.spill(priority) for priority in PRIORITIES] == [1.0, 1.0, 1.0]


def test_a_replica_whose_engine_is_full_gets_only_what_no_other_can_take() -> None:
    scene = Scene(size=3)
    scene.hear("one", number=1, kv_cache_used=0.99)
    group = find_group(scene.fleet, "one")
    full = group.members[1]
    luck = random.Random(1)
    assert all(pick_member(group, PLAIN, NOW, luck.random()) is not full for _ in range(200))
    scene.hear("one", number=1, kv_cache_used=0.9)  # not clearly less
    assert all(pick_member(group, PLAIN, NOW, luck.random()) is not full for _ in range(200))
    scene.hear("one", number=1, kv_cache_used=0.5)
    assert any(pick_member(group, PLAIN, NOW, luck.random()) is full for _ in range(200))
    scene.hear("one", kv_cache_used=0.99)
    assert {pick_member(group, PLAIN, NOW, luck.random()) for _ in range(200)} == set(group.members)


@pytest.mark.parametrize(("state", "reason"), [("cold", Reason.COLD), ("down", Reason.DOWN)])
def test_cold_places_are_none_unless_all_are(state: str, reason: Reason) -> None:
    scene = Scene(size=1)
    scene.hear("one", state=EngineState(state))
    assert find_ill(find_group(scene.fleet, "one").members[0].load, NOW) is reason
    assert {scene.pool(draw / 50) for draw in range(50)} == {"two"}
    scene.hear("two", state=EngineState(state))
    assert {scene.pool(draw / 50) for draw in range(50)} == {"cloud"}
    scene.hear("cloud", state=EngineState.DOWN)
    assert {scene.pool(draw / 50) for draw in range(50)} == {"one", "two"}, "tried rather than none"
    scene.loads.sweep(NOW + ENGINE_STALE_S + 1)
    assert {scene.pool(draw / 50, NOW + ENGINE_STALE_S + 1) for draw in range(50)} == {"one", "two"}


def test_a_place_that_gets_warm_starts_slowly() -> None:
    scene = Scene(size=1)
    scene.hear("one", state=EngineState.COLD)
    scene.hear("one", NOW + 1)
    assert find_group(scene.fleet, "one").members[0].load.compute_share(NOW + 1) == SLOW_START


@given(st.floats(0, 1), st.integers(0, 60), st.integers(0, 60))
def test_use_is_never_less_than_nothing(kv: float, running: int, waiting: int) -> None:
    use = compute_engine_use(EngineLoad("", EngineState.READY, running, waiting, kv), 16)
    assert use is not None
    assert 0 <= use <= 2
    assert compute_engine_use(EngineLoad("", EngineState.READY), 16) is None


# --- the other workers --------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9), st.integers(0, 9000)), max_size=30))
def test_counts_of_others_add_and_close(told: list[tuple[int, int, int]]) -> None:
    fleet = build_fleet(make_pool("p", 4, requests_max=8), make_pool("q", 1))
    group = find_group(fleet, "p")
    group.members[0].load.begin(100, NOW)
    for number, requests, tokens in told:
        group.members[number].load.set_others(requests, tokens, NOW)
    loads = [member.load for member in group.members]
    assert group.load.requests == sum(load.requests for load in loads)
    assert group.load.tokens == sum(load.tokens for load in loads)
    assert loads[0].requests == 1 + loads[0].others_requests
    for load in loads:
        load.set_others(0, 0, NOW)
    loads[0].end(100, NOW)
    assert (group.load.requests, group.load.tokens, group.load.used) == (0, 0, 0)


def test_a_worker_that_sees_all_has_all_of_the_capacity() -> None:
    loads = Loads()
    (group, _) = follow(
        loads, make_route(make_pool("p", 2, requests_max=8), make_pool("q", 1)), workers=4
    ).groups["m"]
    for member in group.members:
        member.load.begin(10, NOW)
    assert group.load.used == pytest.approx(2 / 4)
    loads.see_workers(2)
    assert group.load.used == pytest.approx(2 / 8)
    loads.see_workers(4)
    assert group.load.used == pytest.approx(2 / 16)
    loads.see_workers(7)
    assert group.load.used == pytest.approx(2 / 16)
    group.members[0].load.set_others(6, 60, NOW)
    assert group.load.used == pytest.approx(8 / 16)
    loads.forget_others(NOW)
    assert group.load.used == pytest.approx(2 / 4)


# --- H3: the newest word ------------------------------------------------------------------------------------


def make_account() -> tuple[Loads, list[ReplicaLoad]]:
    """Three places of one account, one of another, and one that shares nothing."""
    loads = Loads()
    facts = {"url": "https://api.example/v1", "tier": "provider", "shares_quota": True, "api_key": "env:A"}
    one = make_pool("p", 1)[0]
    targets = [
        replace(one, id="a", **facts),
        replace(one, id="b", **facts | {"url": "https://api.example/v2"}),
        replace(one, id="c", **facts | {"model": "other"}),
        replace(one, id="d", **facts | {"api_key": "env:B"}),
        replace(one, id="e", **facts | {"url": "https://api.example/v3", "shares_quota": False}),
    ]
    parts = follow(loads, make_route(targets))
    return loads, [parts.replicas[name] for name in "abcde"]


def test_h3_a_refusal_holds_for_all_who_share_the_quota_and_the_newest_word_counts() -> None:
    _, (a, b, c, d, e) = make_account()
    a.refuse(NOW, 1, of_account=True)
    b.refuse(NOW + 0.5, 5, of_account=True)
    ill = [find_ill(each, NOW + 5) for each in (a, b, c, d, e)]
    assert ill == [Reason.BUSY, Reason.BUSY, Reason.BUSY, None, None]
    c.refuse(NOW + 1, 2, of_account=True)
    assert [find_ill(each, NOW + 3) for each in (a, b, c)] == [None] * 3, "the newest word is shorter"
    b.refuse(NOW + 4, 60, of_account=True)
    b.succeed(NOW + 5, NOW + 3)
    assert find_ill(a, NOW + 5) is Reason.BUSY, "it began before the refusal"
    c.succeed(NOW + 6, NOW + 5)
    assert [find_ill(each, NOW + 6) for each in (a, b, c)] == [None] * 3
    a.refuse(NOW + 7, 30)
    assert [find_ill(each, NOW + 8) for each in (a, b)] == [Reason.BUSY, None], "it spoke of no quota"


def test_h3_an_older_word_of_another_worker_is_none() -> None:
    loads, (a, b, *_) = make_account()
    account = a.account
    assert account is not None
    a.refuse(NOW, 5, of_account=True)
    assert not account.word.take(NOW - 1, NOW + 100)
    account.settle(NOW)
    assert find_ill(b, NOW + 6) is None
    assert account.word.take(NOW + 1, NOW + 50)
    account.settle(NOW + 1)
    assert find_ill(b, NOW + 6) is Reason.BUSY
    assert loads.accounts[account.id] is account


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 60))
def test_less_of_a_quota_is_left_never_makes_it_emptier(one: float, two: float, after: float) -> None:
    uses = []
    for used in sorted((one, two)):
        loads, (a, *_) = make_account()
        assert a.account is not None
        a.account.say_used(used, NOW, NOW + 30)
        loads.sweep(NOW + after)
        uses.append(a.pools[0].used)
        assert (a.pools[0].told is None) == (after >= 30)
    assert uses[0] <= uses[1]


# --- H6: ejection, return, slow start -----------------------------------------------------------------------


def test_h6_a_replica_comes_back_slowly_and_the_others_are_unaffected() -> None:
    fleet = build_fleet(make_pool("p", 3, slow_start_s=10.0), make_pool("q", 1, tier="provider"))
    group = find_group(fleet, "p")
    ill = group.members[0]
    for _ in range(EJECT_AFTER):
        ill.load.fail(NOW)
    luck = random.Random(7)

    def measure(now: float) -> float:
        picked = [pick_member(group, PLAIN, now, luck.random()) for _ in range(4000)]
        return sum(each is ill for each in picked) / len(picked)

    assert measure(NOW + EJECT_S - 0.1) == 0
    back = NOW + EJECT_S
    shares = [measure(back + after) for after in (0, 2.5, 5, 7.5, 10)]
    expected = [(SLOW_START + (1 - SLOW_START) * part) / 3 for part in (0, 0.25, 0.5, 0.75, 1)]
    assert shares == pytest.approx(expected, abs=0.03)


def test_h6_a_flapping_replica_is_out_longer_each_time_and_one_failure_is_enough() -> None:
    load = ReplicaLoad()
    now, lengths = NOW, []
    for _ in range(EJECT_AFTER):
        load.fail(now)
    for _ in range(3):
        lengths.append(load.ejected_until - now)
        now = load.ejected_until
        load.fail(now)
        assert find_ill(load, now) is Reason.EJECTED
    assert lengths == [EJECT_S * 2**number for number in range(3)]
    now = load.ejected_until
    load.succeed(now + 1, now)
    for _ in range(EJECT_AFTER - 1):
        load.fail(now + 1)
    assert find_ill(load, now + 1) is None, "since its success it takes so many again"
    load.fail(now + 1)
    assert load.ejected_until - now - 1 == EJECT_S * 2**4, "it was well for a moment only"
    now = load.ejected_until + load.ejected_for_s
    load.succeed(now, now - 1)
    for _ in range(EJECT_AFTER):
        load.fail(now)
    assert load.ejected_until - now == EJECT_S, "it had been well as long as it was out"


def test_a_place_that_is_new_starts_slowly_and_a_first_table_does_not() -> None:
    loads = Loads()
    parts = loads.follow(_table(make_pool("p", 2), make_pool("q", 1)), 1)
    loads.commit(parts, NOW)
    assert {load.compute_share(NOW) for load in parts.replicas.values()} == {1.0}
    more = loads.follow(_table(make_pool("p", 3, slow_start_s=20.0), make_pool("q", 1)), 1)
    loads.commit(more, NOW)
    shares = {target: load.compute_share(NOW + 10) for target, load in more.replicas.items()}
    assert shares.pop("m@p#2") == pytest.approx(SLOW_START + (1 - SLOW_START) / 2)
    assert set(shares.values()) == {1.0}
    again = loads.follow(_table(make_pool("p", 3, slow_start_s=20.0), make_pool("q", 1)), 1)
    loads.commit(again, NOW + 15)
    assert again.replicas["m@p#2"].compute_share(NOW + 20) == 1.0


def test_without_a_slow_start_there_is_none() -> None:
    fleet = build_fleet(make_pool("p", 2, slow_start_s=0.0), make_pool("q", 1))
    load = find_group(fleet, "p").members[0].load
    for _ in range(EJECT_AFTER):
        load.fail(NOW)
    assert load.compute_share(NOW + EJECT_S) == 1.0


def test_a_pool_that_comes_back_whole_leaves_most_to_the_other() -> None:
    fleet = build_fleet(make_pool("p", 1), make_pool("q", 1))
    load = find_group(fleet, "p").members[0].load
    for _ in range(EJECT_AFTER):
        load.fail(NOW)
    luck = random.Random(5)
    group = find_group(fleet, "p")

    def measure(now: float) -> float:
        index = group.members[0].index
        return sum(choose(fleet, PLAIN, now, luck.random(), 1).order[0] == index for _ in range(3000)) / 3000

    shares = [measure(NOW + EJECT_S + after) for after in (0.0, 5.0, 10.0)]
    assert shares == sorted(shares)
    assert shares[0] == pytest.approx(SLOW_START / 2, abs=0.03)
    assert shares[-1] == pytest.approx(0.5, abs=0.05)


def test_a_session_stays_where_it_is_though_its_place_is_new() -> None:
    fleet = build_fleet(make_pool("p", 3), make_pool("q", 1, tier="provider"))
    group = find_group(fleet, "p")
    want = Want(tokens=100, affinity=12345, is_sticky=True)
    owner = pick_member(group, want, NOW, 0.5)
    owner.load.start_slowly(NOW, NOW)
    assert all(pick_member(group, want, NOW, draw / 100) is owner for draw in range(100))


def _table(*pools: list[Target]) -> RouteTable:
    return RouteTable(routes=(make_route(*pools),))
