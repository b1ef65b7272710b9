"""Other models that take over, through a real worker: when they do, and what they may not."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from limits_rig import HEADERS, Authority, workers
from test_routing import CHAT, STREAM, Fleet, slow

from forebay.core.limits import Kind, Limit, Measure, Period
from forebay.core.routes import Choosing, Endpoint, Route, Timeouts
from forebay.gateway.policy.load import EJECT_AFTER
from forebay.testing.gateway import GatewayProcess
from forebay.testing.openai import error_answer, well_behaved
from forebay.testing.upstream import Answer

LISTED = Choosing()
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
PICTURE: dict[str, Any] = {**CHAT, "messages": [{"role": "user", "content": [IMAGE]}]}


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with ExitStack() as stack:
        yield Fleet(tmp_path, stack)


def add_pair(fleet: Fleet, model: str, *, sees: bool, fallbacks: tuple[str, ...] = ()) -> Route:
    for _ in range(2):
        fleet.add(model, well_behaved("Hi"), capabilities=("images",) if sees else ())
    return fleet.make_route(model, fallbacks=fallbacks)


def test_a_model_that_lacks_something_is_no_fallback_and_hinders_nobody(fleet: Fleet) -> None:
    fleet.start(
        add_pair(fleet, "m", sees=True, fallbacks=("blind",)),
        add_pair(fleet, "blind", sees=False),
    )
    answer = fleet.ask(PICTURE)
    assert answer.status_code == 200
    assert "x-forebay-answered-by" not in answer.headers


def test_another_model_begins_where_the_one_that_is_asked_lacks_something(fleet: Fleet) -> None:
    fleet.start(
        add_pair(fleet, "m", sees=False, fallbacks=("blind", "eyes")),
        add_pair(fleet, "blind", sees=False),
        add_pair(fleet, "eyes", sees=True),
    )
    answer = fleet.ask(PICTURE)
    assert answer.status_code == 200
    assert answer.headers["x-forebay-answered-by"] == "eyes"
    assert answer.headers["x-forebay-attempts"] == "1"
    record = fleet.gateway.wait_for(lambda record: True)
    assert (record.model, record.asked_model) == ("eyes", "m")
    assert "x-forebay-answered-by" not in fleet.ask().headers


def test_a_request_that_no_model_can_answer_is_told_what_the_one_it_asks_for_lacks(fleet: Fleet) -> None:
    fleet.start(
        add_pair(fleet, "m", sees=False, fallbacks=("blind",)),
        add_pair(fleet, "blind", sees=False),
    )
    refused = fleet.ask(PICTURE)
    assert refused.status_code == 400
    assert "`m`" in refused.json()["error"]["message"]


def test_another_model_answers_where_no_engine_runs(fleet: Fleet) -> None:
    asleep = Route(model="m", endpoints=(Endpoint.CHAT,), targets=(), fallbacks=("ill", "small"))
    fleet.add("ill", error_answer(503))
    ill = fleet.make_route("ill", choosing=LISTED)
    fleet.add("small", well_behaved("Hi"))
    small = fleet.make_route("small", choosing=LISTED)
    fleet.start(asleep, ill, small)
    answer = fleet.ask()
    assert answer.status_code == 200
    assert answer.headers.get_list("x-forebay-answered-by") == ["small"]
    assert answer.headers["x-forebay-attempts"] == "2"
    record = fleet.gateway.wait_for(lambda record: True)
    assert (record.model, record.asked_model) == ("small", "m")


def test_the_model_that_answers_is_named_once_after_others_have_failed(fleet: Fleet) -> None:
    fleet.add("big", error_answer(503))
    big = fleet.make_route(fallbacks=("one", "two"))
    fleet.add("one", error_answer(503))
    one = fleet.make_route("one", choosing=LISTED)
    fleet.add("two", well_behaved("Hi"))
    two = fleet.make_route("two", choosing=LISTED)
    fleet.start(big, one, two)
    assert fleet.ask().headers.get_list("x-forebay-answered-by") == ["two"]


def test_the_only_place_in_service_has_all_its_time_for_a_first_token(fleet: Fleet) -> None:
    fleet.add("slow", slow(1.2), tier="provisioned", timeouts=Timeouts(first_token_s=0.5))
    fleet.add("ill", error_answer(500), tier="provider")
    shared = fleet.targets[-1]
    route = fleet.make_route()
    fleet.targets.append(shared)
    other = fleet.make_route("other")
    fleet.start(route, other)
    for _ in range(EJECT_AFTER):  # until the place that both share is out of service
        fleet.ask({**CHAT, "model": "other"})
    assert {each["pool"]: each["rejected"] for each in fleet.explain()["candidates"]} == {
        "slow": None,
        "ill": "ejected",
    }
    answer = fleet.ask(STREAM)
    assert answer.status_code == 200
    assert answer.headers["x-forebay-attempts"] == "1"


# --- limits -------------------------------------------------------------------------------------------------


def make_limit(limit_id: str, amount: int, *models: str, measure: Measure = Measure.REQUESTS) -> Limit:
    return Limit(
        id=limit_id,
        owner="key k1",
        measure=measure,
        amount=amount,
        period=Period.MONTH,
        kind=Kind.CALENDAR,
        models=models or ("*",),
    )


def add_listed(fleet: Fleet, model: str, answer: Answer, fallbacks: tuple[str, ...] = ()) -> Route:
    fleet.add(model, answer)
    return fleet.make_route(model, choosing=LISTED, fallbacks=fallbacks)


def ask_through(worker: GatewayProcess, model: str) -> tuple[int, str | None]:
    answer = httpx.post(
        f"{worker.url}/chat/completions", json=CHAT | {"model": model}, headers=HEADERS, timeout=30
    )
    return answer.status_code, answer.headers.get("x-forebay-answered-by")


def test_no_model_takes_over_beyond_its_own_limits(fleet: Fleet, tmp_path: Path) -> None:
    routes = (
        add_listed(fleet, "m", error_answer(503), ("small", "tiny")),
        add_listed(fleet, "small", well_behaved("Hi")),
        add_listed(fleet, "tiny", well_behaved("Hi")),
    )
    limits = (
        make_limit("all", 100),
        make_limit("m", 100, "m"),
        make_limit("small", 2, "small"),
        make_limit("tiny", 3, "tiny"),
    )
    with Authority(tmp_path, limits) as authority, workers(tmp_path, 1, "", limits, routes=routes) as (one,):
        got = [ask_through(one, "m") for _ in range(8)]
        assert got == [(200, "small")] * 2 + [(200, "tiny")] * 3 + [(503, None)] * 3
        assert ask_through(one, "small")[0] == 429
        one.wait_idle()
        print(authority.left())
        one.until(lambda: authority.left() == {"all": 92, "m": 97, "small": 0, "tiny": 0})


def test_tokens_of_an_answer_count_against_the_limits_of_the_model_that_gave_it_once(
    fleet: Fleet, tmp_path: Path
) -> None:
    routes = (
        add_listed(fleet, "m", error_answer(503), ("small",)),
        add_listed(fleet, "small", well_behaved("Hi")),
    )
    limits = (
        make_limit("all", 100_000, measure=Measure.TOTAL_TOKENS),
        make_limit("m", 100_000, "m", measure=Measure.TOTAL_TOKENS),
        make_limit("small", 100_000, "small", measure=Measure.TOTAL_TOKENS),
        msgspec.structs.replace(
            make_limit("at once", 4, "m", measure=Measure.CONCURRENT), period=None, kind=Kind.BUCKET
        ),
    )
    with Authority(tmp_path, limits) as authority, workers(tmp_path, 1, "", limits, routes=routes) as (one,):
        for _ in range(3):
            assert ask_through(one, "m") == (200, "small")
        used = sum(
            (record.tokens.input_total or 0) + (record.tokens.output_total or 0) for record in one.records()
        )
        assert used > 0
        left = 100_000 - used
        print(authority.left(), left)
        one.until(lambda: authority.left() == {"all": left, "m": 100_000, "small": left, "at once": 4})


def test_a_model_that_begins_for_another_keeps_its_own_limits(fleet: Fleet, tmp_path: Path) -> None:
    routes = (
        add_pair(fleet, "m", sees=False, fallbacks=("eyes",)),
        add_pair(fleet, "eyes", sees=True),
    )
    limits = (make_limit("m", 100, "m"), make_limit("eyes", 2, "eyes"))
    with Authority(tmp_path, limits) as authority, workers(tmp_path, 1, "", limits, routes=routes) as (one,):
        answers = [
            httpx.post(f"{one.url}/chat/completions", json=PICTURE, headers=HEADERS, timeout=30)
            for _ in range(3)
        ]
        assert [each.status_code for each in answers] == [200, 200, 429]
        assert "the limit of 2 requests" in answers[2].json()["error"]["message"]
        assert ask_through(one, "m") == (200, None)
        one.until(lambda: authority.left() == {"m": 99, "eyes": 0})
