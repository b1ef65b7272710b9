"""How the ledger is compared with the upstream's book: each difference shows, and nothing else does."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCH = Path(__file__).parent.parent.parent / "bench"
#: Of five answers, two ended unseen: one has a record, the other was in flight in a worker that was killed.
ANSWERED = {"a": (1, 2), "b": (3, 4), "c": (5, 6), "d": (7, 8), "e": (9, 10)}
ROWS = [("a", 1, 2), ("b", 3, 4), ("c", 5, 6), ("d", 7, 8)]


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    sys.path.insert(0, str(BENCH))
    try:
        import ledger_difference
    finally:
        sys.path.remove(str(BENCH))
    return ledger_difference


def compare(bench: ModuleType, rows: list[tuple[str, int, int]], hourly: int = 4, broken: int = 2) -> Any:
    books = bench.Books(answered=dict(ANSWERED), seen={"a", "b", "c"}, broken=broken)
    return bench.compare(books, rows, hourly)


def test_what_was_in_flight_in_a_killed_worker_is_no_difference(bench: ModuleType) -> None:
    found = compare(bench, ROWS)
    assert (found.requests, found.tokens, found.in_flight) == (0, 0, 1)


@pytest.mark.parametrize(
    ("kind", "rows", "tokens"),
    [
        ("lost", [*ROWS[:2], ROWS[3]], -11),
        ("doubled", [*ROWS, ROWS[0]], 3),
        ("invented", [*ROWS, ("x", 1, 1)], 2),
        ("unequal", [*ROWS[:3], ("d", 7, 9)], 1),
    ],
)
def test_each_difference_shows(
    bench: ModuleType, kind: str, rows: list[tuple[str, int, int]], tokens: int
) -> None:
    found = compare(bench, rows, hourly=len(rows))
    assert getattr(found, kind) == 1
    assert (found.requests, found.tokens) == (1, tokens)


def test_totals_that_are_not_those_of_the_records_show(bench: ModuleType) -> None:
    assert compare(bench, ROWS, hourly=5).requests == 1


def test_more_unseen_ends_than_broken_connections_show(bench: ModuleType) -> None:
    assert compare(bench, ROWS, broken=0).requests == 1


@pytest.mark.parametrize("stream", [False, True])
def test_answers_say_the_tokens_that_are_written_down(bench: ModuleType, stream: bool) -> None:
    answer, (tokens_in, tokens_out) = bench.build_answer(5000, stream=stream)
    assert b'"prompt_tokens":%d,"completion_tokens":%d,' % (tokens_in, tokens_out) in answer
    assert answer.endswith(b"[DONE]\n\n\r\n0\r\n\r\n" if stream else b"}}")
