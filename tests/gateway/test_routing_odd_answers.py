"""Routing where targets are of several minds: some can't be told a request, some ask for odd waits."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from test_routing import Fleet

from forebay.testing.openai import rate_limited, well_behaved


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with ExitStack() as stack:
        yield Fleet(tmp_path, stack)


@pytest.mark.parametrize("digits", [10, 5000])
def test_a_target_may_ask_for_a_wait_of_any_length(fleet: Fleet, digits: int) -> None:
    for _ in range(2):
        fleet.add("p", rate_limited("9" * digits))
    fleet.start()
    answer = fleet.ask()
    assert answer.status_code == 429, answer.text


@pytest.mark.parametrize("digits", [10, 5000])
def test_a_target_that_asks_for_a_wait_for_ever_is_left_alone(fleet: Fleet, digits: int) -> None:
    fleet.add("p", rate_limited("9" * digits), tier="provisioned")
    fleet.add("q", well_behaved("Hi"), tier="provider")
    fleet.start()
    assert [fleet.ask().status_code for _ in range(5)] == [200] * 5
    assert fleet.count() == {"p": 1, "q": 5}
