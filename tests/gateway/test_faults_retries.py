"""Known faults of retries and health (H1 to H6), each with its neighbours, over real sockets."""

import itertools
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import httpx
import msgspec
import pytest
from raw_caller import RawCaller
from test_routing import CHAT, HEADERS, STREAM, Fleet
from test_routing import fleet as fleet

from forebay.core.events import Outcome
from forebay.core.routes import Choosing, Endpoint, RouteTable, Timeouts
from forebay.gateway.policy.budget import WINDOW_S
from forebay.gateway.policy.load import EJECT_AFTER
from forebay.testing.answers import chunk, json_answer, last_chunk, sse_answer, sse_head
from forebay.testing.openai import chat_chunk, error, error_answer, event, rate_limited, well_behaved
from forebay.testing.recorded import RecordedRequest
from forebay.testing.steps import Reset, Script, Sleep, Stall, Step
from forebay.testing.upstream import Answer

TOO_LONG = error(
    "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens.",
    type="invalid_request_error",
    code="context_length_exceeded",
)


def budget(fleet: Fleet, *routes: Any, share: float, least: float, explains: bool = True) -> None:
    """Starts the worker with a budget of retries."""
    made = routes or (fleet.make_route(),)
    fleet.start(*made, explains=explains)
    table = RouteTable(routes=tuple(made), retry_budget=share, retry_budget_min_per_s=least)
    before = fleet.gateway.snapshot
    fleet.gateway.write_snapshot(msgspec.structs.replace(before, table=table, price_book="changed"))
    fleet.gateway.until(lambda: "changed" in str(fleet.ask() and fleet.gateway.records()[-1].prices))


# --- H4 -----------------------------------------------------------------------------------------------------


def fail_mostly() -> Answer:
    """Every fourth request is answered well, so that no row of failures puts it out of service."""
    good, count = well_behaved("Hi"), itertools.count(1)

    def choose(request: RecordedRequest) -> Script:
        if next(count) % 4:
            return error_answer(500)
        return good(request) if callable(good) else good

    return choose


@pytest.mark.parametrize("body", [CHAT, STREAM], ids=["whole", "stream"])
def test_H4_a_spent_budget_gives_the_error_at_once(fleet: Fleet, body: dict[str, Any]) -> None:
    fleet.add("ill", fail_mostly())
    fleet.add("well", well_behaved("Hi"))
    route = fleet.make_route(choosing=Choosing())
    budget(fleet, route, share=0.2, least=0.5)
    before, begun_s = fleet.count(), time.monotonic()
    answers = [fleet.ask(body) for _ in range(80)]
    windows = 1.1 + (time.monotonic() - begun_s) / WINDOW_S  # each begins at most a tenth late
    denied = [answer for answer in answers if answer.status_code == 500]
    assert {answer.status_code for answer in answers} == {200, 500}
    assert all(answer.headers["x-forebay-retry-budget"] == "spent" for answer in denied)
    assert all(answer.headers["x-forebay-attempts"] == "1" for answer in denied)
    assert all(
        "x-forebay-retry-budget" not in answer.headers for answer in answers if answer.status_code == 200
    )
    made = fleet.count()["well"] - before["well"]
    assert 0 < made <= 0.2 * 100 + 0.5 * WINDOW_S * windows
    metric = fleet.gateway.metric
    fleet.gateway.until(lambda: metric("forebay_retries_total", result="denied") >= len(denied))
    assert metric("forebay_retries_total", result="made") == fleet.count()["well"]
    assert sum(record.attempts for record in fleet.gateway.records()) == sum(fleet.count().values())


def test_H4_a_target_that_never_saw_the_request_costs_no_budget(fleet: Fleet) -> None:
    fleet.add("gone", well_behaved("Hi"))
    fleet.add("well", well_behaved("Hi"))
    route = fleet.make_route(choosing=Choosing())
    dead = msgspec.structs.replace(route.targets[0], url="http://127.0.0.1:9/v1")
    route = msgspec.structs.replace(route, targets=(dead, route.targets[1]))
    budget(fleet, route, share=0.0, least=0.0)
    for body in (CHAT, STREAM) * 10:
        assert fleet.ask(body).status_code == 200
    attempts = [record.attempts for record in fleet.gateway.records()]
    assert attempts[:EJECT_AFTER] == [2] * EJECT_AFTER, "then it is out of service"
    assert fleet.gateway.metric("forebay_retries_total", result="made") == 0


def test_H4_attempts_of_retries_and_fallbacks_together_keep_to_the_limit(fleet: Fleet) -> None:
    for _ in range(6):
        fleet.add("big", error_answer(503))
    big = fleet.make_route("m", fallbacks=("a", "b"))
    fleet.add("a", error_answer(500))
    a = fleet.make_route("a", choosing=Choosing())
    fleet.add("b", error_answer(500))
    b = fleet.make_route("b", choosing=Choosing(), fallbacks=("m",))
    fleet.start(big, a, b)
    for body in (CHAT, STREAM):
        before = sum(fleet.count().values())
        answer = fleet.ask(body)
        assert answer.status_code in (500, 503)
        assert int(answer.headers["x-forebay-attempts"]) == sum(fleet.count().values()) - before <= 4


# --- H5 -----------------------------------------------------------------------------------------------------

OVERFLOWS: dict[str, tuple[dict[str, Any], Answer]] = {
    "a 400": (CHAT, json_answer(TOO_LONG, status=400)),
    "a 400 to a stream": (STREAM, json_answer(TOO_LONG, status=400)),
    "a 200": (CHAT, json_answer(TOO_LONG)),
    "the first event": (STREAM, sse_answer([event(TOO_LONG)])),
    "an event after the preamble": (
        STREAM,
        [*sse_head(), chunk(event(chat_chunk({"role": "assistant"}))), chunk(event(TOO_LONG)), last_chunk()],
    ),
    "a 500 of an old engine": (
        CHAT,
        json_answer(error("the request exceeds the available context size", code=500), status=500),
    ),
    "a 422": (CHAT, json_answer(error("`inputs` tokens + `max_new_tokens` must be <= 4096"), status=422)),
}


@pytest.mark.parametrize("name", OVERFLOWS)
def test_H5_only_a_larger_window_is_tried_next(fleet: Fleet, name: str) -> None:
    body, answer = OVERFLOWS[name]
    fleet.add("small", answer, tier="provisioned", context_window=8192)
    fleet.add("same", answer, tier="autoscaled", context_window=8192)
    fleet.add("less", answer, tier="quantized", context_window=4096)
    fleet.add("large", well_behaved("Hi"), tier="provider", context_window=200_000)
    fleet.start()
    for _ in range(7):
        found = fleet.ask(body)
        assert (found.status_code, found.headers["x-forebay-attempts"]) == (200, "2")
    assert fleet.count() == {"small": 7, "same": 0, "less": 0, "large": 7}
    assert not [each for each in fleet.explain()["candidates"] if each["rejected"]], "nobody is ill of it"


@pytest.mark.parametrize("name", OVERFLOWS)
def test_H5_where_no_window_is_larger_the_caller_gets_400(fleet: Fleet, name: str) -> None:
    body, answer = OVERFLOWS[name]
    fleet.add("one", answer, context_window=8192)
    fleet.add("two", answer, context_window=8192)
    fleet.start()
    found = fleet.ask(body)
    assert found.status_code == 400
    assert found.json()["error"]["code"] == "context_length_exceeded"
    assert "8192 tokens at most" in found.json()["error"]["message"]
    assert found.headers["x-forebay-attempts"] == "1"
    record = fleet.gateway.wait_record(found.headers["x-request-id"])
    assert (record.status, record.outcome, record.error) == (400, Outcome.FAILED, "context_length_exceeded")
    assert record.tokens.input is None, "nothing was used"


def test_H5_words_of_the_caller_are_no_overflow(fleet: Fleet) -> None:
    text = "Why is my prompt is too long for the maximum context length?"
    said = error(f"1 validation error: role: input_value={text}", type="BadRequestError")
    fleet.add("small", json_answer(said, status=400), tier="provisioned", context_window=8192)
    fleet.add("large", well_behaved("no"), tier="provider", context_window=200_000)
    fleet.start()
    found = fleet.ask({**CHAT, "messages": [{"role": "me", "content": text}]})
    assert (found.status_code, found.headers["x-forebay-attempts"]) == (400, "1")
    assert text in found.json()["error"]["message"], "an engine quotes what it refuses"
    assert fleet.count() == {"small": 1, "large": 0}


def test_H5_each_overflow_raises_what_is_too_small(fleet: Fleet) -> None:
    answer = json_answer(TOO_LONG, status=400)
    fleet.add("a", answer, tier="provisioned", context_window=4000)
    fleet.add("b", answer, tier="autoscaled", context_window=8000)
    fleet.add("c", answer, tier="quantized", context_window=6000)
    fleet.add("d", well_behaved("Hi"), tier="provider", context_window=16_000)
    fleet.start()
    found = fleet.ask()
    assert (found.status_code, found.headers["x-forebay-attempts"]) == (200, "3")
    assert fleet.count() == {"a": 1, "b": 1, "c": 0, "d": 1}


def test_H5_a_fallback_with_a_smaller_window_is_skipped(fleet: Fleet) -> None:
    fleet.add("big", json_answer(TOO_LONG, status=400), context_window=8192)
    big = fleet.make_route("m", fallbacks=("less", "more"), choosing=Choosing())
    fleet.add("less", well_behaved("no"), context_window=4096)
    less = fleet.make_route("less", choosing=Choosing())
    fleet.add("small", well_behaved("no"), context_window=8192)
    fleet.add("more", well_behaved("Hi"), context_window=32_768)
    more = fleet.make_route("more", choosing=Choosing())
    fleet.start(big, less, more)
    for body in (CHAT, STREAM):
        found = fleet.ask(body)
        assert found.status_code == 200
        assert found.headers["x-forebay-answered-by"] == "more"
    assert fleet.count() == {"big": 2, "less": 0, "small": 0, "more": 2}


def test_H5_words_of_a_target_whose_window_is_unknown_pass(fleet: Fleet) -> None:
    fleet.add("one", json_answer(TOO_LONG, status=400))
    fleet.add("two", well_behaved("Hi"), context_window=200_000)
    fleet.start(fleet.make_route(choosing=Choosing()))
    found = fleet.ask()
    assert (found.status_code, found.json()) == (400, TOO_LONG)
    assert fleet.count() == {"one": 1, "two": 0}


def test_H5_in_another_dialect_both_ways(fleet: Fleet) -> None:
    said = {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": "prompt is too long: 9000 tokens > 8192"},
    }
    fleet.add("claude", json_answer(said, status=400), context_window=8192, dialect="anthropic")
    fleet.add("large", well_behaved("Hi"), context_window=200_000)
    route = fleet.make_route(choosing=Choosing())
    fleet.add("alone", json_answer(TOO_LONG, status=400), context_window=8192)
    alone = fleet.make_route("alone", choosing=Choosing())
    routes = [msgspec.structs.replace(each, endpoints=tuple(Endpoint)) for each in (route, alone)]
    fleet.start(*routes)
    found = fleet.ask({**CHAT, "max_tokens": 5})
    assert (found.status_code, found.headers["x-forebay-attempts"]) == (200, "2")
    ask = {"model": "m", "max_tokens": 5, "messages": CHAT["messages"]}
    found = httpx.post(f"{fleet.gateway.url}/messages", json=ask, headers=HEADERS, timeout=30)
    assert (found.status_code, found.headers["x-forebay-attempts"]) == (200, "2"), found.text
    found = httpx.post(f"{fleet.gateway.url}/messages", json=ask | {"model": "alone"}, headers=HEADERS)
    assert found.status_code == 400
    assert found.json()["error"]["type"] == "invalid_request_error"
    assert "8192 tokens at most" in found.json()["error"]["message"]


# --- H3 -----------------------------------------------------------------------------------------------------


def in_seconds(seconds: int) -> str:
    return format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)


FORMS: dict[str, tuple[list[tuple[str, str]], int, int]] = {
    "seconds": ([("retry-after", "17")], 17, 17),
    "decimals": ([("retry-after", "1.2")], 2, 2),
    "a date": ([("retry-after", in_seconds(9000))], 1000, 9000),
    "milliseconds": ([("retry-after-ms", "2500")], 3, 3),
    "a used-up quota": ([("x-ratelimit-reset-tokens", "6m0s")], 360, 360),
}


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("body", [CHAT, STREAM], ids=["whole", "stream"])
def test_H3_each_form_of_retry_after_reaches_the_caller_as_seconds(
    fleet: Fleet, name: str, body: dict[str, Any]
) -> None:
    headers, least, most = FORMS[name]
    fleet.add("busy", json_answer(error("slow down"), status=429, headers=headers))
    fleet.start()
    answer = fleet.ask(body)
    assert answer.status_code == 429
    assert least <= int(answer.headers["retry-after"]) <= most


@pytest.mark.parametrize("headers", [[("retry-after-ms", "300000")], [("retry-after", in_seconds(3000))]])
def test_H3_each_form_leaves_the_place_alone(fleet: Fleet, headers: list[tuple[str, str]]) -> None:
    fleet.add("busy", json_answer(error("slow down"), status=429, headers=headers))
    fleet.add("free", well_behaved("Hi"))
    fleet.start()
    fleet.ask_until_asked("busy")
    for _ in range(10):
        assert fleet.ask().status_code == 200
    assert fleet.count()["busy"] == 1


# --- H6 and S7 ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [CHAT, STREAM], ids=["whole", "stream"])
@pytest.mark.parametrize("kind", ["resets", "accepts and is silent"])
def test_H6_one_dead_backend_of_three(fleet: Fleet, kind: str, body: dict[str, Any]) -> None:
    dead: Answer = [Reset()] if kind == "resets" else [Stall()]
    times = Timeouts(first_token_s=0.3, idle_s=0.3, total_s=0.5)
    fleet.add("p", dead, timeouts=times)
    fleet.add("p", well_behaved("Hi"), timeouts=times)
    fleet.add("p", well_behaved("Hi"), timeouts=times)
    fleet.start()
    numbers = itertools.count()

    def ask() -> int:
        """Each begins otherwise; the addresses of the replicas decide whose it is."""
        said = [{"role": "user", "content": str(next(numbers))}]
        return fleet.ask({**body, "messages": said}).status_code

    while fleet.count()["p"] < EJECT_AFTER:
        assert ask() == 200
        assert next(numbers) < 1000
    assert {ask() for _ in range(20)} == {200}
    assert fleet.count()["p"] == EJECT_AFTER, "five failures in a row, and it is left alone"
    states = [each["rejected"] for each in fleet.explain()["candidates"]]
    assert sorted(map(str, states)) == ["None", "None", "ejected"]


def slow_stream(seconds: float) -> Answer:
    return [
        *sse_head(),
        Sleep(seconds),
        chunk(event(chat_chunk({"content": "Hi"}))),
        chunk(event(chat_chunk({}, finish_reason="stop"))),
        chunk(b"data: [DONE]\n\n"),
        last_chunk(),
    ]


def test_S7_a_fallback_that_is_out_of_service_is_no_candidate(fleet: Fleet) -> None:
    times = Timeouts(first_token_s=0.3, idle_s=10, total_s=20)
    fleet.add("slow", slow_stream(1.0), timeouts=times)
    main = fleet.make_route("m", fallbacks=("other",))
    fleet.add("busy", rate_limited("60"))
    fleet.add("busy", rate_limited("60"))
    other = fleet.make_route("other")
    fleet.start(main, other)
    assert fleet.ask({**CHAT, "model": "other"}).headers["x-forebay-attempts"] == "2"  # both are busy now
    answer = fleet.ask(STREAM)
    assert (answer.status_code, answer.headers["x-forebay-attempts"]) == (200, "1")
    assert "[DONE]" in answer.text


def test_S7_a_spent_budget_leaves_no_other_candidate(fleet: Fleet) -> None:
    times = Timeouts(first_token_s=0.3, idle_s=10, total_s=20)
    fleet.add("slow", slow_stream(1.0), timeouts=times)
    fleet.add("other", well_behaved("no"), timeouts=times)
    route = fleet.make_route(choosing=Choosing())
    budget(fleet, route, share=0.0, least=0.0)
    for _ in range(3):
        answer = fleet.ask(STREAM)
        if answer.status_code == 200:  # else the worker has not looked at its budget since it changed
            break
    assert (answer.status_code, answer.headers["x-forebay-attempts"]) == (200, "1")
    assert "[DONE]" in answer.text


# --- H1, H2, S5 and S6 --------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [CHAT, STREAM], ids=["whole", "stream"])
def test_H1_a_caller_that_leaves_ends_the_attempt_that_runs_and_begins_no_other(
    fleet: Fleet, body: dict[str, Any]
) -> None:
    fleet.add("ill", error_answer(500), tier="provisioned")
    fleet.add("silent", [Stall()], tier="autoscaled")
    fleet.add("well", well_behaved("no"), tier="quantized")
    fleet.start()
    silent = fleet.upstreams["silent"]
    with RawCaller(fleet.gateway.port) as caller:
        caller.post("chat/completions", body)
        silent.wait_requests(1)
    silent.wait_until(lambda: silent.connections[0].closed_by_peer_at_s is not None)
    record = fleet.gateway.wait_for(lambda each: each.status == 499)
    assert (record.outcome, record.attempts) == (Outcome.ABANDONED, 2)
    assert fleet.count() == {"ill": 1, "silent": 1, "well": 0}
    assert {each["requests"] for each in fleet.explain()["candidates"]} == {0}


@pytest.mark.parametrize("status", [400, 404, 413, 422])
def test_H2_what_is_wrong_with_requests_is_no_ill_health(fleet: Fleet, status: int) -> None:
    bad = json_answer(error("no", type="invalid_request_error"), status=status)
    for pool in ("one", "two"):
        fleet.add(pool, bad)
    fleet.start()
    for number in range(14):
        answer = fleet.ask(STREAM if number % 2 else CHAT)
        assert (answer.status_code, answer.headers["x-forebay-attempts"]) == (status, "1")
    assert not [each for each in fleet.explain()["candidates"] if each["rejected"]]


@pytest.mark.parametrize("kind", ["a reset", "an error", "silence"])
def test_S6_before_content_the_next_place_answers_and_its_preamble_alone_is_seen(
    fleet: Fleet, kind: str
) -> None:
    role = chunk(event(chat_chunk({"role": "assistant", "content": ""})))
    rest: dict[str, list[Step]] = {
        "a reset": [Reset()],
        "an error": [chunk(event(error("no"))), last_chunk()],
        "silence": [Stall()],
    }
    times = Timeouts(first_token_s=0.3, idle_s=0.3, total_s=5)
    fleet.add("ill", [*sse_head(), role, *rest[kind]], tier="provisioned", timeouts=times)
    fleet.add("well", well_behaved("Hi"), tier="autoscaled", timeouts=times)
    fleet.start()
    answer = fleet.ask(STREAM)
    assert (answer.status_code, answer.headers["x-forebay-attempts"]) == (200, "2")
    assert answer.text.count('"role"') == 1
    assert "[DONE]" in answer.text


def test_S5_after_content_no_other_place_is_asked(fleet: Fleet) -> None:
    hel = chunk(event(chat_chunk({"content": "Hel"})))
    fleet.add("ill", [*sse_head(), hel, Sleep(0.05), Reset()], tier="provisioned")
    fleet.add("well", well_behaved("no"), tier="autoscaled")
    fleet.start()
    answer = fleet.ask(STREAM)
    assert "Hel" in answer.text
    assert "[DONE]" not in answer.text
    assert '"finish_reason":"' not in answer.text
    assert "upstream_reset" in answer.text
    assert fleet.count() == {"ill": 1, "well": 0}
    assert fleet.gateway.wait_record(answer.headers["x-request-id"]).outcome is Outcome.FAILED


def test_a_response_that_says_that_it_failed_is_no_success(fleet: Fleet) -> None:
    failed = {"id": "r", "object": "response", "status": "failed", "output": []} | error("no")
    fleet.add("one", json_answer(failed), dialect="openai-responses")
    route = msgspec.structs.replace(fleet.make_route(), endpoints=(Endpoint.RESPONSES,))
    fleet.start(route, explains=False)
    for _ in range(2):  # over a new connection, and over a pooled one
        ask = {"model": "m", "input": "Hello", "store": False}
        answer = httpx.post(f"{fleet.gateway.url}/responses", json=ask, headers=HEADERS, timeout=30)
        assert (answer.status_code, answer.json()) == (200, failed), "it passes as it is"
        record = fleet.gateway.wait_record(answer.headers["x-request-id"])
        assert (record.outcome, record.error) == (Outcome.FAILED, "upstream_error")
    assert fleet.gateway.metric("forebay_attempts_total", result="failed") == 2
    assert fleet.gateway.metric("forebay_attempts_total", result="ok") == 0


def test_a_place_that_cannot_be_told_the_request_is_no_attempt(fleet: Fleet) -> None:
    fleet.add("claude", well_behaved("no"), dialect="anthropic", tier="provisioned")
    fleet.add("plain", well_behaved("Hi"), tier="autoscaled")
    fleet.start()
    answer = fleet.ask({**CHAT, "n": 2})  # several choices can't be said there
    assert (answer.status_code, answer.headers["x-forebay-attempts"]) == (200, "1"), answer.text
    assert fleet.count() == {"claude": 0, "plain": 1}
    assert fleet.gateway.wait_record(answer.headers["x-request-id"]).attempts == 1
