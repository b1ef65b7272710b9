"""What is left of one limit: exact in integers, whatever the steps of time and the order of things."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.core.limits import Kind, Limit, Measure, Period
from forebay.gateway.policy.meter import PERIOD_NS, Now, find_period, make_meter

S = 1_000_000_000


def limit(
    amount: int, period: Period | None = Period.MINUTE, kind: Kind = Kind.BUCKET, zone: str = "UTC"
) -> Limit:
    measure = Measure.CONCURRENT if period is None else Measure.REQUESTS
    return Limit(
        id="x", owner="team t", measure=measure, amount=amount, period=period, kind=kind, time_zone=zone
    )


def at(seconds: float, wall_s: float = 0) -> Now:
    return Now(round(seconds * S), round(wall_s * S))


@given(
    amount=st.integers(1, 10**9),
    period=st.sampled_from(list(Period)),
    steps=st.lists(st.integers(0, 10**16), max_size=20),
)
def test_a_bucket_fills_the_same_in_any_steps(amount: int, period: Period, steps: list[int]) -> None:
    whole, stepped = make_meter(limit(amount, period), at(0)), make_meter(limit(amount, period), at(0))
    whole.take(amount)
    stepped.take(amount)
    now = 0
    for step in steps:
        now += step
        stepped.advance(Now(now, 0))
    whole.advance(Now(now, 0))
    assert whole.level == stepped.level
    assert whole.left == min(amount, amount * now // PERIOD_NS[period])


@given(
    amount=st.integers(1, 1000),
    moves=st.lists(st.tuples(st.integers(0, 70 * S), st.integers(0, 500)), max_size=40),
)
def test_no_bucket_gives_more_than_it_held_and_got(amount: int, moves: list[tuple[int, int]]) -> None:
    meter = make_meter(limit(amount), at(0))
    now = taken = 0
    for passed, units in moves:
        now += passed
        meter.advance(Now(now, 0))
        if units <= meter.left:
            meter.take(units)
            taken += units
        assert taken * 60 * S <= amount * 60 * S + amount * now
        assert meter.left <= amount


@given(
    amount=st.integers(1, 10**6),
    used=st.integers(0, 10**6),
    units=st.integers(1, 10**6),
    period=st.sampled_from(list(Period)),
)
def test_the_wait_that_is_told_is_exact(amount: int, used: int, units: int, period: Period) -> None:
    meter = make_meter(limit(amount, period), at(0))
    meter.take(used)
    wait = meter.compute_wait_ns(units, at(0))
    if units > amount:
        assert wait is None
        return
    assert wait is not None
    if wait:
        meter.advance(Now(wait - 1, 0))
        assert meter.left < units
    meter.advance(Now(wait, 0))
    assert meter.left >= units


def test_a_clock_that_goes_back_gives_and_takes_nothing() -> None:
    meter = make_meter(limit(60), at(100))
    meter.take(60)
    meter.advance(at(110))
    assert meter.left == 10
    meter.advance(at(50))
    assert meter.left == 10
    meter.advance(at(111))
    assert meter.left == 11


def test_a_calendar_is_full_again_when_the_next_period_begins() -> None:
    meter = make_meter(limit(100, Period.MINUTE, Kind.CALENDAR), at(0, 59))
    meter.take(100)
    assert meter.compute_wait_ns(1, at(0, 59.5)) == S // 2
    epoch = meter.epoch
    meter.advance(at(0, 60))
    assert meter.left == 100
    meter.give(40, epoch)
    assert meter.left == 100, "what was lent in an earlier period is void"
    meter.take(30)
    meter.advance(at(0, 30))
    assert meter.left == 70, "a clock that goes back begins no period again"


@pytest.mark.parametrize(
    ("period", "zone", "moment", "start", "end"),
    [
        (Period.HOUR, "UTC", "2026-11-30T13:59:59", "2026-11-30T13:00", "2026-11-30T14:00"),
        (Period.DAY, "UTC", "2026-11-30T00:00", "2026-11-30T00:00", "2026-12-01T00:00"),
        (Period.DAY, "Europe/Berlin", "2026-03-29T12:00", "2026-03-28T23:00", "2026-03-29T22:00"),  # 23 hours
        (Period.DAY, "Europe/Berlin", "2026-10-25T12:00", "2026-10-24T22:00", "2026-10-25T23:00"),  # 25 hours
        (Period.WEEK, "UTC", "2026-11-29T23:00", "2026-11-23T00:00", "2026-11-30T00:00"),
        (Period.MONTH, "UTC", "2026-12-31T23:59", "2026-12-01T00:00", "2027-01-01T00:00"),
        (Period.MONTH, "America/New_York", "2026-03-01T04:00", "2026-02-01T05:00", "2026-03-01T05:00"),
        (Period.MONTH, "UTC", "2024-02-29T12:00", "2024-02-01T00:00", "2024-03-01T00:00"),
    ],
)
def test_periods_of_the_calendar(period: Period, zone: str, moment: str, start: str, end: str) -> None:
    def ns(text: str) -> int:
        return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * S

    assert find_period(period, zone, ns(moment)) == (ns(start), ns(end))


@given(
    st.integers(0, 4 * 10**18),
    st.sampled_from([Period.DAY, Period.WEEK, Period.MONTH]),
    st.sampled_from(["UTC", "Europe/Berlin", "Asia/Kathmandu", "America/St_Johns", "Australia/Lord_Howe"]),
)
def test_periods_follow_each_other_without_a_gap(wall_ns: int, period: Period, zone: str) -> None:
    start, end = find_period(period, zone, wall_ns)
    assert start <= wall_ns < end
    assert find_period(period, zone, end)[0] == end
    assert find_period(period, zone, start - 1)[1] == start
    assert datetime.fromtimestamp(start / S, ZoneInfo(zone)).hour in (0, 1)


def test_places_for_concurrent_requests_come_back_only_by_hand() -> None:
    meter = make_meter(limit(2, None), at(0))
    meter.take(2)
    meter.advance(at(10**6, 10**6))
    assert (meter.left, meter.compute_wait_ns(1, at(0))) == (0, None)
    meter.give(1, 0)
    meter.give(5, 0)
    assert meter.left == 2


def test_an_amount_that_changes_keeps_what_was_used() -> None:
    bucket = make_meter(limit(100), at(0))
    bucket.take(90)
    bucket.change(limit(50), at(0))
    assert bucket.left == 10
    bucket.change(limit(5), at(0))
    assert bucket.left == 5
    calendar = make_meter(limit(100, Period.DAY, Kind.CALENDAR), at(0))
    calendar.take(90)
    calendar.change(limit(50, Period.DAY, Kind.CALENDAR), at(0))
    assert calendar.left == -40
    calendar.change(limit(200, Period.DAY, Kind.CALENDAR), at(0))
    assert calendar.left == 110


def test_a_clock_that_ran_ahead_and_was_put_right_keeps_what_was_used() -> None:
    day = 86_400
    meter = make_meter(limit(100, Period.DAY, Kind.CALENDAR), at(0, 10 * day))
    meter.take(30)
    meter.advance(at(0, 400 * day))
    meter.take(60)
    meter.advance(at(0, 10 * day + 60))
    assert (meter.left, meter.ends_ns) == (40, 11 * day * S)
    meter.advance(at(0, 11 * day))
    assert meter.left == 100


def test_a_clock_that_goes_back_and_is_put_right_gives_no_amount_again() -> None:
    day = 86_400
    meter = make_meter(limit(100, Period.DAY, Kind.CALENDAR), at(0, 60 * day))
    meter.take(90)
    meter.advance(at(0, 10 * day))
    meter.take(1)
    assert meter.left == 9
    epoch = meter.epoch
    meter.advance(at(0, 60 * day + 60))
    assert (meter.left, meter.ends_ns) == (9, 61 * day * S)
    meter.give(5, epoch)
    assert meter.left == 9, "what was lent by the wrong clock is void"
    meter.advance(at(0, 61 * day))
    assert meter.left == 100


def test_a_clock_that_passes_other_periods_on_its_way_is_no_help_either() -> None:
    day = 86_400
    meter = make_meter(limit(100, Period.DAY, Kind.CALENDAR), at(0, 60 * day))
    meter.take(90)
    for days in (10, 11, 12):
        meter.advance(at(0, days * day))
    meter.take(30)
    meter.change(limit(200, Period.DAY, Kind.CALENDAR), at(0, 12 * day))
    assert meter.left == 170
    meter.advance(at(0, 60 * day + 60))
    assert meter.left == 110
    meter.advance(at(0, 10 * day))
    meter.advance(at(0, 62 * day))
    assert meter.left == 200, "a later period than any is a new one"


@given(
    amount=st.integers(1, 1000),
    moves=st.lists(
        st.tuples(st.sampled_from([-30, -2, -1, 0, 0, 1]), st.integers(0, 86_399), st.integers(0, 500)),
        max_size=30,
    ),
)
def test_no_period_gives_more_than_its_amount_however_far_a_clock_goes_back(
    amount: int, moves: list[tuple[int, int, int]]
) -> None:
    """By a clock that goes back and is put right each time, in which every day is one period."""
    day = 86_400
    today = 100
    meter = make_meter(limit(amount, Period.DAY, Kind.CALENDAR), at(0, today * day))
    used = 0
    for days, seconds, units in moves:
        if days > 0:
            today, used = today + 1, 0
        elif days < 0:
            meter.advance(at(0, (today + days) * day + seconds))
        meter.advance(at(0, today * day + seconds))
        if units <= meter.left:
            meter.take(units)
            used += units
        assert used <= amount
        assert meter.left == amount - used


@pytest.mark.parametrize(("zone", "left"), [("America/New_York", 40), ("Europe/Berlin", 100)])
def test_a_time_zone_that_is_edited_fills_nothing_twice(zone: str, left: int) -> None:
    """The period goes on until its end; where the new zone's is about to end then, until that."""
    now = at(0, datetime(2026, 11, 20, tzinfo=UTC).timestamp())
    meter = make_meter(limit(100, Period.MONTH, Kind.CALENDAR), now)
    meter.take(60)
    meter.change(limit(100, Period.MONTH, Kind.CALENDAR, zone), now)
    assert meter.left == 40
    meter.advance(at(0, datetime(2026, 12, 1, 1, tzinfo=UTC).timestamp()))
    assert meter.left == left
    meter.advance(at(0, datetime(2026, 12, 1, 6, tzinfo=UTC).timestamp()))
    assert meter.left == 100
    assert meter.ends_ns == find_period(Period.MONTH, zone, meter.ends_ns - 1)[1]
