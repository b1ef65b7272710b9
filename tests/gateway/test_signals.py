"""What reported load is worth: a report holds for its time, by a clock that never jumps, then the default."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.core.expressions import parse_expression
from forebay.gateway.policy.meter import Now
from forebay.gateway.policy.signals import SKEW_NS, SignalBoard, SignalRule, Source, compute_default
from forebay.gateway.signals import MICRO, SignalRecord

S = 10**9
RULES = {"ccu": SignalRule(5 * MICRO, 120 * S), "rooms": SignalRule(0, 10 * S)}
WALL = 1_800_000_000 * S


def at(seconds: float, jump_s: float = 0) -> Now:
    return Now(int(seconds * S), WALL + int((seconds + jump_s) * S))


def source(text: str, project: str = "search", unit: int = 1) -> Source:
    return Source(parse_expression(text), "web", project, unit, 10**12)


def report(
    value: float, at_s: float = 0, project: str = "search", name: str = "ccu", **more: int
) -> SignalRecord:
    return SignalRecord(
        team="web", project=project, name="ccu", value_micro=int(value * MICRO),
        reported_ns=WALL + int(at_s * S), **more,
    )  # fmt: skip


def board(*records: SignalRecord, now: Now | None = None) -> SignalBoard:
    made = SignalBoard()
    made.set_rules(RULES)
    made.absorb(records, now or at(0))
    return made


CCU = source("600 + 1.5 * ccu")


def test_a_report_holds_for_its_time_and_then_the_default_does() -> None:
    made = board(report(100))
    assert made.compute_amount(CCU, at(0)) == 750
    assert made.compute_amount(CCU, at(119.9)) == 750
    assert made.compute_amount(CCU, at(120)) == 607
    assert made.find_next_change_ns(at(0)) == 120 * S
    assert made.find_next_change_ns(at(120)) is None


def test_a_report_may_name_a_time_of_its_own() -> None:
    made = board(report(100, ttl_ns=3 * S))
    assert made.compute_amount(CCU, at(2.9)) == 750
    assert made.compute_amount(CCU, at(3)) == 607


def test_without_a_report_the_default_counts() -> None:
    assert board().compute_amount(CCU, at(0)) == 607
    assert board(report(100, project="chat")).compute_amount(CCU, at(0)) == 607
    assert compute_default(CCU.expression, RULES, 1, 10**12) == 607


def test_another_report_begins_the_time_anew_and_none_gives_it_back() -> None:
    made = board(report(100))
    made.absorb([report(100)], at(119))
    assert made.compute_amount(CCU, at(120)) == 607, "it is the report of before"
    made.absorb([report(100, 119, version=2)], at(119))
    assert made.compute_amount(CCU, at(200)) == 750
    made.absorb([], at(200))
    assert made.compute_amount(CCU, at(200)) == 607


def test_a_team_has_the_sum_of_its_projects_that_report_each_with_its_own_time() -> None:
    team = source("ccu + 0 * rooms", project="")
    made = board(report(100), report(30, project="chat", ttl_ns=10 * S), report(7, project="lab"))
    assert made.compute_amount(team, at(0)) == 137
    assert made.compute_amount(team, at(10)) == 100 + 5 + 7, "one is stale: the default in its place"
    ccu, rooms = made.read(team, at(10))
    assert (ccu.value_micro, ccu.fresh, ccu.stale) == (112 * MICRO, ("web/lab", "web/search"), ("web/chat",))
    assert (rooms.value_micro, rooms.fresh, rooms.stale) == (0, (), ())
    assert made.compute_amount(team, at(200)) == 15
    other = Source(parse_expression("ccu"), "lab", "", 1, 10**12)
    assert made.compute_amount(other, at(0)) == 5


def test_a_start_knows_how_old_reports_are() -> None:
    made = board(report(100, -100), now=at(0))
    assert made.compute_amount(CCU, at(19)) == 750
    assert made.compute_amount(CCU, at(20)) == 607


def test_jumps_of_the_clock_change_nothing_that_is_known() -> None:
    made = board(report(100))
    for jump_s in (-(10**6), 10**6):
        assert made.compute_amount(CCU, at(119, jump_s)) == 750
        assert made.compute_amount(CCU, at(120, jump_s)) == 607
        made.absorb([report(100)], at(121, jump_s))
        assert made.compute_amount(CCU, at(121, jump_s)) == 607


@given(jump_s=st.integers(-(10**7), 10**7), age_s=st.integers(0, 10**6))
def test_no_clock_keeps_a_report_fresh_beyond_its_time_from_a_start_on(jump_s: int, age_s: int) -> None:
    made = board(report(100, -age_s), now=at(0, jump_s))
    assert made.compute_amount(CCU, at(120, jump_s)) == 607
    if age_s + jump_s < -SKEW_NS // S:
        assert made.compute_amount(CCU, at(0, jump_s)) == 607, "it says that it is from the future"


@given(skew_s=st.integers(-(10**7), 10**7), unseen_s=st.integers(0, 200))
def test_between_two_looks_the_clocks_of_several_machines_may_differ(skew_s: int, unseen_s: int) -> None:
    """A report by a machine whose clock is so far ahead, seen so long after the last look."""
    made = board()
    made.confirm(at(10))
    made.absorb([report(100, 10 + unseen_s + skew_s)], at(10 + unseen_s))
    for seconds, is_known in ((0, unseen_s < 120), (119 - unseen_s, unseen_s < 120), (120, False)):
        moment = at(10 + unseen_s + max(0, seconds))
        if skew_s >= 0:  # of a machine that is ahead, it counts as just made
            assert made.compute_amount(CCU, moment) == (750 if seconds < 120 else 607)
        elif is_known:
            assert made.compute_amount(CCU, moment) == 750


def test_a_signal_that_the_configuration_forgets_counts_no_more() -> None:
    made = board(report(100))
    assert made.is_fresh(report(100), at(0))
    made.set_rules({})
    assert not made.is_fresh(report(100), at(0))
    assert made.find_next_change_ns(at(0)) is None


@pytest.mark.parametrize(
    ("text", "amount"), [("10 + 0.25 * ccu", 35 * S), ("0.000000001", 1), ("ccu - 900", 0)]
)
def test_amounts_are_in_their_unit_and_never_negative(text: str, amount: int) -> None:
    assert board(report(100)).compute_amount(source(text, unit=S), at(0)) == amount
