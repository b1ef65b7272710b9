"""The line that shows when the tokens of a row were used."""

from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.cli.usage_hours import compute_sparkline, fold_hours
from forebay.ledger.rollup import NOTHING
from forebay.ledger.usage import UsageRow

HOUR_S = 3600
NOW_S = 1_800_000_000  # the start of an hour


def row(hours_ago: int, key: str = "a") -> UsageRow:
    return UsageRow(start_s=NOW_S - hours_ago * HOUR_S, key=key, totals=NOTHING)


def test_one_mark_for_each_hour_and_the_last_is_now() -> None:
    hours = fold_hours(
        [row(0), row(2), row(2, "b")], lambda _: 5, first_s=NOW_S - 3 * HOUR_S, now_s=NOW_S + 99
    )
    assert hours.title == "By hour"
    assert hours.draw(row(0, "a")) == "▁█▁█"
    assert hours.draw(row(0, "b")) == "▁█▁▁"
    assert hours.draw(row(0, "c")) == ""


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(-2, 400), st.sampled_from("ab")), min_size=1, max_size=30),
    st.integers(1, 30),
)
def test_no_token_is_lost_however_few_marks_there_are(given: list[tuple[int, str]], marks_max: int) -> None:
    hours = fold_hours(
        [row(ago, key) for ago, key in given], lambda _: 1, first_s=None, now_s=NOW_S, marks_max=marks_max
    )
    assert sum(sum(tokens) for tokens in hours.tokens.values()) == len(given)
    assert {len(tokens) for tokens in hours.tokens.values()} <= set(range(1, marks_max + 1))


@settings(deadline=None)
@given(st.lists(st.integers(0, 10**9), max_size=50))
def test_a_sparkline_has_one_mark_for_each_value_and_orders_as_they_do(values: list[int]) -> None:
    line = compute_sparkline(values)
    assert len(line) == len(values)
    for one, mark in zip(values, line, strict=True):
        for other, its in zip(values, line, strict=True):
            assert one > other or mark <= its
