"""What is told of a limit, and that it is told once: pure decisions over any sequence of uses."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.core.limits import Kind, Limit, Measure, Period
from forebay.gateway.policy.alerting import AlertKind, Due, Mark, choose_due, is_uncertain, may_be_due
from forebay.gateway.policy.lending import Standing
from forebay.gateway.policy.redelivery import GIVE_UP_S, LONGEST_S, compute_wait_s, is_given_up

SHARES = (500, 800, 1000)
SHARE = AlertKind.SHARE_REACHED


def make_limit(amount: int = 100, shares: tuple[int, ...] = SHARES, **other: object) -> Limit:
    return Limit(
        id="team:a/requests/month/calendar",
        owner="team a",
        measure=Measure.REQUESTS,
        amount=amount,
        period=Period.MONTH,
        kind=Kind.CALENDAR,
        alert_at=shares,
        **other,  # type: ignore[arg-type]
    )


def stand(limit: Limit, used: int, lent: int = 0, exceeded_ns: int = 0, epoch: int = 1) -> Standing:
    return Standing(limit, limit.amount - used - lent, lent, None, epoch, exceeded_ns)


def tell(standing: Standing, marks: list[Mark], now_ns: int = 0) -> list[Due]:
    """Decides and remembers, as the repo does."""
    found = list(choose_due(standing, marks, now_ns))
    marks += [Mark(due.kind, due.share, standing.limit.amount, now_ns) for due in found]
    return found


shares = st.lists(st.integers(1, 3000), min_size=1, max_size=6).map(tuple)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("use"), st.integers(0, 60)),
        st.tuples(st.just("lend"), st.integers(0, 60)),
        st.tuples(st.just("settle"), st.integers(0, 60)),
        st.tuples(st.just("next period"), st.just(0)),
        st.tuples(st.just("look"), st.integers(1, 3)),
    ),
    max_size=60,
)


@given(shares, st.integers(1, 200), steps)
def test_each_share_is_told_once_a_period_and_none_is_missed(
    alert_at: tuple[int, ...], amount: int, moves: list[tuple[str, int]]
) -> None:
    limit = make_limit(amount, alert_at)
    marks: list[Mark] = []
    told: Counter[int] = Counter()
    used = lent = highest = 0
    for move, size in moves:
        if move == "next period":
            marks, told, used, lent, highest = [], Counter(), 0, 0, 0
        elif move == "lend":
            lent += size
        elif move in ("use", "settle"):
            used += size
            lent = max(0, lent - size) if move == "settle" else lent
        for _ in range(size if move == "look" else 1):
            for due in tell(stand(limit, used, lent), marks):
                told.update((due.share, *due.passed))
        highest = max(highest, used)
        reached = {share for share in alert_at if highest * 1000 >= share * amount and highest}
        assert set(told) == reached
        assert all(count == 1 for count in told.values())


@given(
    shares,
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 300)), min_size=1, max_size=40),
)
def test_an_amount_that_moves_is_told_of_again_only_when_it_was_raised_by_a_tenth(
    alert_at: tuple[int, ...], moves: list[tuple[int, int]]
) -> None:
    marks: list[Mark] = []
    used = 0
    for more, amount in moves:
        used += more
        for due in choose_due(stand(make_limit(amount, alert_at), used), marks, 0):
            assert due.share * amount <= used * 1000
            for mark in marks:
                if mark.share >= due.share:
                    assert amount * 10 >= mark.amount * 11
            marks.append(Mark(due.kind, due.share, amount, 0))
        assert choose_due(stand(make_limit(amount, alert_at), used), marks, 0) == ()
        top = max((share for share in alert_at if used and share * amount <= used * 1000), default=0)
        assert top == 0 or any(mark.share >= top and amount * 10 < mark.amount * 11 for mark in marks)


def test_the_highest_of_several_shares_is_told_with_the_others() -> None:
    marks: list[Mark] = []
    assert tell(stand(make_limit(), 49), marks) == []
    assert tell(stand(make_limit(), 99), marks) == [Due(SHARE, 800, (500,))]
    assert tell(stand(make_limit(), 100), marks) == [Due(SHARE, 1000, ())]
    assert tell(stand(make_limit(), 40), marks) == [], "what was given back is not told of again"
    assert tell(stand(make_limit(), 100), marks) == []


def test_a_budget_that_was_raised_is_told_of_anew() -> None:
    marks: list[Mark] = []
    assert tell(stand(make_limit(100), 100), marks) == [Due(SHARE, 1000, (500, 800))]
    assert tell(stand(make_limit(109), 100), marks) == [], "by less than a tenth"
    assert tell(stand(make_limit(200), 100), marks) == [Due(SHARE, 500, ())]
    assert tell(stand(make_limit(200), 170), marks) == [Due(SHARE, 800, ())]
    assert tell(stand(make_limit(100), 170), marks) == [], "and back: told already"
    assert tell(stand(make_limit(200), 200), marks) == [Due(SHARE, 1000, ())]


@given(shares, st.integers(0, 300), st.integers(-50, 300), st.integers(0, 100), st.integers(0, 1))
def test_what_is_passed_over_has_nothing_to_tell(
    alert_at: tuple[int, ...], amount: int, used: int, lent: int, exceeded_ns: int
) -> None:
    standing = stand(make_limit(amount, alert_at), used, lent, exceeded_ns)
    is_due = bool(choose_due(standing, (), 9)) or is_uncertain(standing, (), 9)
    assert may_be_due(standing) or not is_due


@pytest.mark.parametrize(("amount", "used"), [(0, 0), (0, 5), (100, 0), (100, -20)])
def test_nothing_is_a_share_of_nothing(amount: int, used: int) -> None:
    assert choose_due(stand(make_limit(amount), used), (), 0) == ()


def test_what_is_lent_is_not_used_for_certain() -> None:
    limit = make_limit()
    assert choose_due(stand(limit, 40, 60), (), 0) == ()
    assert is_uncertain(stand(limit, 40, 10), (), 0)
    assert not is_uncertain(stand(limit, 40, 9), (), 0)
    assert not is_uncertain(stand(limit, 50, 0), (), 0)
    assert not is_uncertain(stand(limit, 60, 10), (Mark(SHARE, 500, 100, 0),), 0)
    assert is_uncertain(stand(limit, 60, 10), (), 0), "what is due is told with its true figure"
    assert is_uncertain(stand(limit, 60, 10, exceeded_ns=5), (Mark(SHARE, 500, 100, 0),), 9)


# --- no room ------------------------------------------------------------------------------------------------


def test_the_first_request_without_room_is_told_once() -> None:
    marks: list[Mark] = []
    limit = make_limit(shares=(5000,))
    assert tell(stand(limit, 100), marks, 5) == []
    assert tell(stand(limit, 100, exceeded_ns=6), marks, 7) == [Due(AlertKind.EXCEEDED)]
    assert tell(stand(limit, 100, exceeded_ns=6), marks, 8) == []


def test_grace_is_told_when_it_begins_and_when_its_time_is_over() -> None:
    marks: list[Mark] = []
    limit = make_limit(shares=(5000,), grace_units=20, grace_ns=100)
    assert tell(stand(limit, 101, exceeded_ns=6), marks, 7) == [Due(AlertKind.GRACE_ENTERED)]
    assert tell(stand(limit, 119, exceeded_ns=6), marks, 105) == []
    assert tell(stand(limit, 119, exceeded_ns=6), marks, 106) == [Due(AlertKind.GRACE_ENDED)]
    assert tell(stand(limit, 119, exceeded_ns=6), marks, 107) == []


def test_grace_is_over_when_all_of_it_is_used_and_is_not_told_as_begun_after_that() -> None:
    marks: list[Mark] = []
    limit = make_limit(shares=(5000,), grace_units=20, grace_ns=100)
    assert tell(stand(limit, 120, exceeded_ns=6), marks, 7) == [Due(AlertKind.GRACE_ENDED)]
    assert tell(stand(limit, 110, exceeded_ns=6), marks, 8) == []


# --- when to try again --------------------------------------------------------------------------------------


@given(st.integers(1, 10_000), st.floats(0, 3600), st.floats(0, 1))
def test_a_wait_grows_to_a_bound_and_is_never_shorter_than_asked(
    attempts: int, asked: float, draw: float
) -> None:
    wait = compute_wait_s(attempts, asked, draw)
    assert asked <= wait <= max(asked, LONGEST_S * 1.25)
    assert wait >= 1.5
    assert compute_wait_s(attempts + 1, asked, draw) >= wait


def test_a_receiver_that_is_gone_or_days_away_is_given_up() -> None:
    assert is_given_up(0, 410)
    assert not is_given_up(GIVE_UP_S - 1, 500)
    assert is_given_up(GIVE_UP_S, None)
