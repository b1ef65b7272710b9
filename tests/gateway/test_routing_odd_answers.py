"""Routing where targets are of several minds: some can't be told a request, some ask for odd waits."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from test_routing import Fleet

from forebay.testing.openai import rate_limited


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
    rejected = {each["target"]: each["rejected"] for each in fleet.explain()["candidates"]}
    assert rejected.keys() == {"p#0", "p#1"}
    assert all(rejected.values()), "both are left alone"
