"""Routing where targets are of several minds: some can't be told a request, some ask for odd waits."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from test_routing import CHAT, Fleet

from forebay.core.routes import Choosing, Order
from forebay.testing.openai import error_answer, rate_limited, well_behaved


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


#: What Anthropic's dialect has no word for.
TWICE = {**CHAT, "n": 2}


@pytest.mark.parametrize("order", [Order.LISTED, Order.LOAD])
def test_targets_that_can_not_be_told_a_request_use_up_no_attempts(fleet: Fleet, order: Order) -> None:
    for _ in range(5):
        fleet.add("a", well_behaved("Hi"), dialect="anthropic")
    fleet.add("o", well_behaved("Hi"))
    fleet.start(fleet.make_route(choosing=Choosing(order=order)))
    answers = [fleet.ask(TWICE) for _ in range(12)]
    assert {answer.status_code for answer in answers} == {200}, [answer.text for answer in answers]
    assert fleet.count()["o"] == 12
    assert sum(fleet.count().values()) == 12


@pytest.mark.parametrize("order", [Order.LISTED, Order.LOAD])
def test_where_none_can_be_told_a_request_the_caller_hears_what_is_wrong(fleet: Fleet, order: Order) -> None:
    for _ in range(5):
        fleet.add("a", well_behaved("Hi"), dialect="anthropic")
    fleet.start(fleet.make_route(choosing=Choosing(order=order)))
    answer = fleet.ask(TWICE)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "n")
    assert sum(fleet.count().values()) == 0


@pytest.mark.parametrize("order", [Order.LISTED, Order.LOAD])
def test_attempts_that_were_sent_count_as_ever(fleet: Fleet, order: Order) -> None:
    for _ in range(2):
        fleet.add("a", well_behaved("Hi"), dialect="anthropic")
    for _ in range(6):
        fleet.add("o", error_answer(500))
    fleet.start(fleet.make_route(choosing=Choosing(order=order)))
    assert fleet.ask(TWICE).status_code == 500
    assert 1 <= sum(fleet.count().values()) <= 3
