"""Pools that fail now and then, or come and go, where all others are far slower: what is tried, and when."""

import heapq
import random
from collections.abc import Callable
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from routing_fleets import build_fleet, find_group, load_at_random, make_pool
from test_route_choice import DRAWS, NOW, WANTS, dump, fleets, rank

from forebay.gateway.policy.attempt import Attempts
from forebay.gateway.policy.budget import RetryBudget
from forebay.gateway.policy.faults import BREAK_S, LAPSE_STEP, RETRY_S, compute_retry_s
from forebay.gateway.policy.fleet import Fleet, Group, Member
from forebay.gateway.policy.load import EJECT_AFTER, EJECT_S, TRIAL_S
from forebay.gateway.policy.pick import find_ill
from forebay.gateway.policy.route import Plan, choose, choose_first
from forebay.gateway.policy.want import Reason, Want

PLAIN = Want(tokens=100, output_tokens=0)
QUICK_S, SLOW_S = 0.04, 0.8


def build(quick: int = 2, slow: int = 2) -> tuple[Fleet, Group, Group]:
    fleet = build_fleet(make_pool("quick", quick), make_pool("slow", slow))
    for pool, seconds in (("quick", QUICK_S), ("slow", SLOW_S)):
        for member in find_group(fleet, pool).members:
            member.load.tell_first(seconds, NOW)
    return fleet, find_group(fleet, "quick"), find_group(fleet, "slow")


def eject(group: Group, lost_s: float = 0.001) -> None:
    for member in group.members:
        for _ in range(EJECT_AFTER):
            member.load.fail(NOW, lost_s)


def list_pools(fleet: Fleet, plan: Plan) -> list[str]:
    return [fleet.seats[index][0].pool for index in plan.order]


def count_firsts(fleet: Fleet, group: Group, now: float = NOW) -> int:
    """Of a hundred draws."""
    firsts = [choose(fleet, PLAIN, now, draw / 100, 3).order[0] for draw in range(100)]
    return sum(fleet.seats[index][0] is group for index in firsts)


# --- what fails is slower -----------------------------------------------------------------------------------


def test_what_fails_now_and_then_comes_before_what_is_far_slower_and_after_its_equal() -> None:
    fleet, quick, slow = build()
    for _ in range(4):
        quick.members[0].load.fail(NOW, 0.001)
        quick.members[0].load.succeed(NOW)
    assert count_firsts(fleet, quick) == 100
    slow.load.first_s = QUICK_S
    assert count_firsts(fleet, quick) == 0


def test_what_fails_nearly_always_comes_after_what_is_far_slower() -> None:
    fleet, quick, _ = build(quick=8)
    for _ in range(EJECT_AFTER - 1):
        for member in quick.members:
            member.load.fail(NOW, 0.001)
    assert not any(find_ill(member.load, NOW) for member in quick.members)
    assert count_firsts(fleet, quick) == 0


def test_a_failure_that_takes_long_weighs_more() -> None:
    fleet, quick, _ = build()
    quick.members[0].load.fail(NOW, 0.001)
    assert count_firsts(fleet, quick) == 100
    quick.members[0].load.succeed(NOW)
    quick.members[0].load.fail(NOW, 30.0)
    assert count_firsts(fleet, quick) == 0


def test_a_retry_is_dearer_the_less_is_left_of_their_budget() -> None:
    prices = [compute_retry_s(share / 10) for share in range(15)]
    assert prices == sorted(prices)
    assert prices[0] == RETRY_S
    assert prices[9] > 5 * RETRY_S
    assert prices[-1] < 1000, "also where nothing is left"
    fleet, quick, _ = build()
    for _ in range(4):
        quick.members[0].load.fail(NOW, 0.001)
    assert count_firsts(fleet, quick) == 100
    fleet.trouble.retry_s = compute_retry_s(0.99)
    assert count_firsts(fleet, quick) == 0


def test_answers_and_time_make_up_for_failures_and_one_that_is_forgiven_was_none() -> None:
    _, quick, _ = build()
    load = quick.members[0].load
    for _ in range(4):
        load.fail(NOW)
    worst = quick.load.compute_lapses(NOW)
    assert worst == pytest.approx(1 - (1 - LAPSE_STEP) ** 4)
    assert quick.load.compute_lapses(NOW + 3) < worst / 2
    for _ in range(50):
        load.succeed(NOW)
    assert quick.load.compute_lapses(NOW) == 0.0
    assert not load.has_lapsed, "a place that is well has nothing to count"
    load.fail(NOW)
    load.forgive(NOW)
    assert quick.load.compute_lapses(NOW) == pytest.approx(0.0)


@settings(max_examples=200)
@given(fleets(), WANTS, DRAWS, st.booleans(), st.data(), st.floats(0, 60))
def test_what_fails_more_is_never_first_sooner(
    fleet: Fleet, want: Want, draw: float, stray: bool, data: st.DataObject, lost_s: float
) -> None:
    group = data.draw(st.sampled_from(fleet.groups))
    before = choose(fleet, want, NOW, draw, 3, may_stray=stray)
    group.load.note_failure(lost_s, NOW)
    after = choose(fleet, want, NOW, draw, 3, may_stray=stray)
    for member in group.members:
        if after.order and after.order[0] == member.index:
            assert before.order[0] == member.index


@settings(max_examples=300)
@given(fleets(), WANTS, DRAWS, st.integers(1, 4), st.data())
def test_what_becomes_slower_is_never_tried_sooner_by_who_may_stray(
    fleet: Fleet, want: Want, draw: float, limit: int, data: st.DataObject
) -> None:
    group = data.draw(st.sampled_from(fleet.groups))
    for each in fleet.groups:
        for _ in range(data.draw(st.integers(0, 4))):
            each.load.note_failure(0.01, NOW)
    group.load.first_at = max(group.load.first_at, NOW - 10)
    before = choose(fleet, want, NOW, draw, limit, may_stray=True)
    group.load.first_s += 1.5
    after = choose(fleet, want, NOW, draw, limit, may_stray=True)
    for member in group.members:
        assert rank(after, member.index) >= rank(before, member.index)


@settings(max_examples=200)
@given(fleets(), WANTS, DRAWS, st.integers(0, 1 << 32))
def test_the_short_way_leads_to_the_same_place_while_pools_fail(
    fleet: Fleet, want: Want, draw: float, seed: int
) -> None:
    rng = random.Random(seed)
    for group in fleet.groups:
        for _ in range(rng.randrange(6)):
            group.load.note_failure(rng.random(), NOW)
    first = choose_first(fleet, want, NOW, draw)
    if first is not None:
        assert choose(fleet, want, NOW, draw, 3, may_stray=True).order[0] == first


# --- the next attempt ---------------------------------------------------------------------------------------


def test_the_next_attempt_goes_to_the_same_pool_where_all_others_are_far_slower() -> None:
    fleet, _, slow = build()
    plan = choose(fleet, PLAIN, NOW, 0.3, 3, may_stray=True)
    assert list_pools(fleet, plan) == ["quick", "quick", "slow"], "and the last one elsewhere"
    plan = choose(fleet, PLAIN, NOW, 0.3, 2, may_stray=True)
    assert list_pools(fleet, plan) == ["quick", "slow"], "there is none to spare"
    slow.load.first_s = QUICK_S * 1.5
    assert set(list_pools(fleet, choose(fleet, PLAIN, NOW, 0.3, 2, may_stray=True))) == {"quick", "slow"}


@pytest.mark.parametrize("draw", [at / 20 for at in range(20)])
def test_the_last_attempt_is_for_who_fails_the_least(draw: float) -> None:
    fleet = build_fleet(make_pool("one", 2), make_pool("two", 2), make_pool("sure", 1))
    for pool, seconds in (("one", QUICK_S), ("two", QUICK_S), ("sure", 0.06)):
        find_group(fleet, pool).members[0].load.tell_first(seconds, NOW)
    for pool in ("one", "two"):
        for _ in range(4):
            find_group(fleet, pool).members[0].load.fail(NOW, 0.001)
    for stray in (False, True):
        assert "sure" in list_pools(fleet, choose(fleet, PLAIN, NOW, draw, 2, may_stray=stray))


# --- trials -------------------------------------------------------------------------------------------------


def test_what_is_out_of_service_is_tried_where_all_else_is_far_slower() -> None:
    fleet, quick, slow = build()
    eject(quick)
    plan = choose(fleet, PLAIN, NOW, 0.5, 3, may_stray=True)
    assert list_pools(fleet, plan) == ["quick", "slow", "slow"]
    assert plan.rejected == ()
    assert list_pools(fleet, choose(fleet, PLAIN, NOW, 0.5, 3)) == ["slow", "slow"], "not by a next attempt"
    assert list_pools(fleet, choose(fleet, PLAIN, NOW, 0.5, 1, may_stray=True)) == ["slow"], "nor by the only"
    slow.load.first_s = QUICK_S * 1.9
    plan = choose(fleet, PLAIN, NOW, 0.5, 3, may_stray=True)
    assert list_pools(fleet, plan) == ["slow", "slow"]
    assert plan.rejected == ((quick, Reason.EJECTED),)


def test_one_at_a_time_tries_what_is_out_of_service() -> None:
    fleet, quick, _ = build(quick=1)
    eject(quick)
    load = quick.members[0].load
    load.begin(100, NOW)
    assert "quick" not in list_pools(fleet, choose(fleet, PLAIN, NOW, 0.5, 3, may_stray=True))
    load.end(100, NOW)
    load.note_trial(NOW)
    for after, tried in ((0.0, False), (TRIAL_S * 0.9, False), (TRIAL_S, True)):
        plan = choose(fleet, PLAIN, NOW + after, 0.5, 3, may_stray=True)
        assert ("quick" in list_pools(fleet, plan)) is tried


@pytest.mark.parametrize(
    "spoil",
    [
        lambda fleet, load: load.refuse(NOW, 5),
        lambda fleet, load: load.fail(NOW, 30.0),  # it hangs
        lambda fleet, load: setattr(fleet.trouble, "retry_s", compute_retry_s(1.0)),
    ],
    ids=["it refused", "it hangs", "no retry is left"],
)
def test_what_is_out_of_service_for_another_reason_is_left_alone(
    spoil: Callable[[Fleet, object], None],
) -> None:
    fleet, quick, _ = build(quick=1)
    eject(quick)
    spoil(fleet, quick.members[0].load)
    assert list_pools(fleet, choose(fleet, PLAIN, NOW, 0.5, 3, may_stray=True)) == ["slow", "slow"]


def test_nothing_of_a_later_tier_is_tried_and_no_session_goes_anywhere_for_it() -> None:
    fleet = build_fleet(make_pool("own", 1), make_pool("cloud", 1, tier="provider"))
    for pool, seconds in (("own", SLOW_S), ("cloud", QUICK_S)):
        find_group(fleet, pool).members[0].load.tell_first(seconds, NOW)
    eject(find_group(fleet, "cloud"))
    assert list_pools(fleet, choose(fleet, PLAIN, NOW, 0.5, 3, may_stray=True)) == ["own"]
    fleet, quick, _ = build()
    eject(quick)
    session = Want(tokens=100, affinity=7, is_sticky=True)
    assert list_pools(fleet, choose(fleet, session, NOW, 0.5, 3, may_stray=True)) == ["slow", "slow"]


def test_a_trial_that_is_answered_well_ends_the_ejection_and_its_start_is_as_slow_as_it_was_away() -> None:
    _, quick, _ = build()
    eject(quick)
    load = quick.members[0].load
    load.succeed(NOW + 1, NOW - 1)
    assert find_ill(load, NOW + 1) is Reason.EJECTED, "that began before it was put out of service"
    load.succeed(NOW + 2, NOW + 1.9)
    assert find_ill(load, NOW + 2) is None
    assert load.compute_share(NOW + 2) < 1.0 == load.compute_share(NOW + 4.01)
    assert find_ill(quick.members[1].load, NOW + 2) is Reason.EJECTED, "of that one nobody knows"
    for _ in range(EJECT_AFTER - 1):
        load.fail(NOW + 3)
    assert find_ill(load, NOW + 3) is None, "since then it takes so many again"
    load.fail(NOW + 3)
    assert load.ejected_until == NOW + 3 + 2 * EJECT_S, "it was not well for long"


@settings(max_examples=300)
@given(fleets(), WANTS, DRAWS, st.integers(1, 5))
def test_nothing_but_a_first_attempt_at_one_that_failed_breaks_the_rules(
    fleet: Fleet, want: Want, draw: float, limit: int
) -> None:
    before = dump(fleet)
    plain = choose(fleet, want, NOW, draw, limit)
    plan = choose(fleet, want, NOW, draw, limit, may_stray=True)
    assert dump(fleet) == before
    assert len(set(plan.order)) == len(plan.order) <= limit
    assert bool(plan.order) == bool(plain.order)
    rejected = {group for group, _ in plain.rejected}
    strays = [index for index in plan.order if fleet.seats[index][0] in rejected]
    assert strays in ([], list(plan.order[:1]))
    for index in strays:
        assert find_ill(fleet.seats[index][1].load, NOW) is Reason.EJECTED
        assert len(plan.order) > 1


# --- all of it together -------------------------------------------------------------------------------------


class Scene:
    """Three regions of two replicas under an open-loop load, without a wire: a slow one, one that fails half
    of the time, and one that is well for two seconds and fails for two, in the middle of answers too."""

    def __init__(self, seed: int, kinds: tuple[str, ...], answer_s: float = 0.03) -> None:
        self.luck = random.Random(seed)
        self.answer_s = answer_s
        pools = [make_pool(f"{kind}-{at}", 2, requests_max=16) for at, kind in enumerate(kinds)]
        self.fleet = build_fleet(*pools)
        self.budget = RetryBudget()
        self.number = count()
        self.events: list[tuple[float, int, Callable[[float], None]]] = []
        self.begun = self.broken = 0
        self.took: list[float] = []
        self.firsts: list[str] = []

    def at(self, when: float, do: Callable[[float], None]) -> None:
        heapq.heappush(self.events, (when, next(self.number), do))

    def has_room(self, now: float) -> bool:
        room = self.budget.look(now, self.begun, 0.2, 10.0)
        self.fleet.trouble.retry_s = compute_retry_s(self.budget.strain)
        return room

    def ask(self, now: float) -> None:
        self.begun += 1
        self.has_room(now)
        plan = choose(self.fleet, PLAIN, now, self.luck.random(), 3, may_stray=True)
        group, member = self.fleet.seats[plan.order[0]]
        member.load.note_trial(now)
        self.firsts.append(group.pool)
        self.attempt(Attempts(3, len(plan.order)), plan, now, now)

    def attempt(self, tries: Attempts, plan: Plan, begun: float, now: float) -> None:
        group, member = self.fleet.seats[plan.order[tries.made]]
        tries.begin_next()
        kind = group.pool.partition("-")[0]
        first_s = QUICK_S * self.luck.uniform(0.75, 1.25) * (20 if kind == "slow" else 1)
        member.load.begin(100, now)
        fails_at = now if kind == "failing" and self.luck.random() < 0.5 else None
        if kind == "flapping":
            fails_at = now if int(now / 2) % 2 else (now // 2 + 1) * 2
        if fails_at is not None and fails_at <= now + first_s:
            self.at(fails_at + 0.001, lambda then: self.fail(tries, plan, member, begun, now, then))
            return
        self.at(now + first_s, lambda then: member.load.tell_first(first_s, then))
        if fails_at is not None and fails_at <= now + first_s + self.answer_s:
            self.at(fails_at, lambda then: self.break_off(member, now, then))
        else:
            self.at(now + first_s + self.answer_s, lambda then: self.end(member, begun, now, first_s, then))

    def end(self, member: Member, begun: float, at: float, first_s: float, now: float) -> None:
        member.load.end(100, now)
        member.load.succeed(now, at)
        self.took.append(at + first_s - begun)

    def break_off(self, member: Member, at: float, now: float) -> None:
        member.load.end(100, now)
        member.load.fail(now, now - at, has_begun=True)
        self.broken += 1
        self.took.append(10.0)

    def fail(self, tries: Attempts, plan: Plan, member: Member, begun: float, at: float, now: float) -> None:
        member.load.end(100, now)
        member.load.fail(now, now - at)
        if tries.has_alternative and self.has_room(now):
            self.budget.spend()
            self.attempt(tries, plan, begun, now)
        else:
            self.took.append(10.0)

    def run(self, seconds: float, rate: float = 40.0) -> list[float]:
        """Seconds to first tokens, sorted; 10 where there is none or the answer broke off."""
        now = NOW
        while now < NOW + seconds:
            self.at(now, self.ask)
            now += self.luck.expovariate(rate)
        while self.events:
            when, _, do = heapq.heappop(self.events)
            do(when)
        return sorted(self.took)


@pytest.mark.parametrize("seed", range(4))
def test_most_first_tokens_come_soon_though_all_regions_are_ill(seed: int) -> None:
    scene = Scene(seed, ("slow", "failing", "flapping"))
    took = scene.run(40)
    assert took[len(took) // 2] < 2 * QUICK_S
    assert took[len(took) * 99 // 100] < SLOW_S * 1.4
    assert sum(each == 10.0 for each in took) - scene.broken <= len(took) * 0.003


@pytest.mark.parametrize("answer_s", [0.2, 1.0, 5.0])
def test_a_region_that_breaks_answers_off_gets_few_though_all_others_are_slower(answer_s: float) -> None:
    scene = Scene(1, ("slow", "flapping"), answer_s)
    took = scene.run(60)
    first_time = 40 * min(2.0, answer_s)  # what is in flight when nobody can know yet
    assert scene.broken - first_time < len(took) * 0.03


@pytest.mark.parametrize("kind", ["slow", "failing", "flapping"])
def test_who_is_ill_alone_gets_little(kind: str) -> None:
    scene = Scene(1, ("well", "good", kind))
    took = scene.run(20)
    assert took[len(took) * 98 // 100] < 2 * QUICK_S
    assert sum(first.startswith(kind) for first in scene.firsts) < len(took) * 0.2


def test_what_breaks_off_in_the_middle_weighs_more_and_longer_than_what_fails_before() -> None:
    _, quick, _ = build()
    load = quick.members[0].load
    load.fail(NOW, 0.1, has_begun=True)
    first = quick.load.compute_break_s(NOW)
    assert 0.0 < first < BREAK_S / 2
    load.fail(NOW, 0.1, has_begun=True)
    assert quick.load.compute_break_s(NOW) > first
    worst = quick.load.add_faults(QUICK_S, NOW + 10)
    for _ in range(100):
        load.succeed(NOW + 10, NOW + 9)
    assert QUICK_S < quick.load.add_faults(QUICK_S, NOW + 10) < worst
    assert load.has_lapsed, "for its answers are counted"
    load.succeed(NOW + 300, NOW + 299)
    assert not load.has_lapsed
    assert quick.load.add_faults(QUICK_S, NOW + 300) == QUICK_S


def test_load_at_random_leaves_no_share_of_failures_below_nothing() -> None:
    fleet, quick, _ = build()
    load_at_random(fleet, random.Random(3), NOW)
    for member in quick.members:
        for _ in range(3):
            member.load.forgive(NOW)
    assert 0.0 <= quick.load.compute_lapses(NOW) < 1.0
