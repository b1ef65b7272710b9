"""The table of `policy.attempt`: every row decides something, and together they leave nothing out."""

from itertools import product

import pytest

from forebay.gateway.policy.attempt import TABLE, Attempts, Happened, Row, Step, choose_step


def make_attempts(*, content: bool, other: bool, resent: bool, place: bool) -> Attempts:
    return Attempts(
        limit=3, targets_left=int(place), made=1, content_sent=content, resent=resent, has_other=other
    )


def list_cases(row: Row) -> list[tuple[Happened, bool, bool, bool, bool, bool]]:
    columns = [(False, True) if each is None else (each,) for each in row[1:6]]
    return [
        (happened, *state)
        for happened in sorted(row.happened, key=lambda each: each.name)
        for state in product(*columns)
    ]


def choose(case: tuple[Happened, bool, bool, bool, bool, bool]) -> Step:
    happened, content, other, resent, place, budget = case
    attempts = make_attempts(content=content, other=other, resent=resent, place=place and not content)
    return choose_step(attempts, happened, has_budget=budget)


@pytest.mark.parametrize("number", range(len(TABLE)))
def test_each_row_decides_what_no_row_before_it_did(number: int) -> None:
    earlier = {case for row in TABLE[:number] for case in list_cases(row)}
    own = [case for case in list_cases(TABLE[number]) if case not in earlier]
    assert own, "this row is never reached"
    for case in own:
        if not (case[1] and case[4]):  # with content out there is no other place
            assert choose(case) is TABLE[number].step, case


def test_the_rows_leave_nothing_out() -> None:
    covered = {case for row in TABLE for case in list_cases(row)}
    assert covered == {(each, *state) for each in Happened for state in product((False, True), repeat=5)}


def test_what_must_always_hold() -> None:
    for case in ((each, *state) for each in Happened for state in product((False, True), repeat=5)):
        happened, content, other, resent, place, budget = case
        step = choose(case)
        if content:
            assert step is Step.STOP, "nothing is sent again once content is out"
        if step in (Step.NEXT, Step.HEDGE):
            assert place
            assert not other, "two at once are the most"
            assert budget or happened is Happened.UNTOLD
        if step is Step.SAME:
            assert happened is Happened.STALE
            assert not resent
        if step is Step.SPENT:
            assert place
            assert not budget
        if happened in (Happened.ANSWERED, Happened.HOPELESS):
            assert step is Step.STOP
        if step is Step.WAIT and not content:
            assert other or happened is Happened.SILENT
