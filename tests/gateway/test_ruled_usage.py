"""Usage rules on a real worker: whole answers and streams, on the record, in the metrics and in the log."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from gateway_stage import Stage

from forebay.core.events import Tokens, UsageSource
from forebay.core.pointers import parse_pointer
from forebay.core.usage_rules import UsageRule
from forebay.testing.answers import json_answer, sse_answer
from forebay.testing.gateway import GatewayProcess, make_route
from forebay.testing.openai import DONE, chat_completion, chat_stream, event, usage_chunk

RULES = [
    UsageRule(name="input_cached", steps=parse_pointer("/usage/hits"), is_included=True),
    UsageRule(name="output_reasoning", steps=parse_pointer("/usage/thought")),
    UsageRule(
        name="searches", steps=parse_pointer("/usage/server_tool_use/web_search_requests"), is_unit=True
    ),
    UsageRule(name="pages", steps=parse_pointer("/pages/0"), is_unit=True),
]
ASK = {"model": "ruled", "messages": [{"role": "user", "content": "Hi"}]}


@pytest.fixture(scope="module")
def ruled(_stages: tuple[Stage, Stage], tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    first, second = _stages
    routes = [make_route("ruled", first.url, second.url, usage=RULES), make_route("plain", first.url)]
    with GatewayProcess(routes, folder=tmp_path_factory.mktemp("ruled")) as gateway:
        yield gateway
        assert "Traceback" not in gateway.log


def answer_with(stage: Stage, stream: bool, usage: dict[str, Any] | None, **more: Any) -> None:
    if not stream:
        answer = chat_completion() | more
        stage.answer = json_answer(answer | {"usage": usage} if usage else {**answer, "usage": None})
        return
    events = chat_stream(include_usage=False, done=False)
    if usage is not None or more:
        events.append(event(usage_chunk() | {"usage": usage} | more))
    stage.answer = sse_answer([*events, DONE])


def ask(gateway: GatewayProcess, stream: bool, model: str = "ruled") -> httpx.Response:
    headers = {"authorization": f"Bearer {gateway.key}"}
    body = ASK | {"model": model} | ({"stream": True} if stream else {})
    answer = httpx.post(f"{gateway.url}/chat/completions", json=body, headers=headers, timeout=60)
    assert answer.status_code == 200
    return answer


FULL = {
    **{"prompt_tokens": 100, "completion_tokens": 20, "hits": 60, "thought": 500},
    "server_tool_use": {"web_search_requests": 2},
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("usage", "more", "tokens", "units"),
    [
        (
            FULL,
            {"pages": [7, "x"]},
            Tokens(input=40, input_cached=60, output=20, output_reasoning=500),
            (("searches", 2), ("pages", 7)),
        ),
        (
            {"prompt_tokens": 100, "completion_tokens": 0, "hits": 0},
            {"pages": [0]},
            Tokens(input=100, input_cached=0, output=0),
            (("pages", 0),),
        ),
        ({"prompt_tokens": 9, "completion_tokens": 1}, {}, Tokens(input=9, output=1), ()),
    ],
)
def test_what_rules_find_is_on_the_record(
    ruled: GatewayProcess,
    upstream: Stage,
    stream: bool,
    usage: dict[str, Any],
    more: dict[str, Any],
    tokens: Tokens,
    units: object,
) -> None:
    answer_with(upstream, stream, usage, **more)
    record = ruled.wait_record(ask(ruled, stream).headers["x-request-id"])
    assert (record.tokens, record.units) == (tokens, units)
    assert record.usage_source is UsageSource.REPORTED


@pytest.mark.parametrize("stream", [False, True])
def test_units_are_kept_where_tokens_had_to_be_estimated(
    ruled: GatewayProcess, upstream: Stage, stream: bool
) -> None:
    answer_with(upstream, stream, None, pages=[3])
    record = ruled.wait_record(ask(ruled, stream).headers["x-request-id"])
    assert record.usage_source is UsageSource.ESTIMATED
    assert record.units == (("pages", 3),)


@pytest.mark.parametrize("stream", [False, True])
def test_targets_without_rules_are_read_as_ever(ruled: GatewayProcess, upstream: Stage, stream: bool) -> None:
    answer_with(upstream, stream, FULL, pages=[7])
    record = ruled.wait_record(ask(ruled, stream, "plain").headers["x-request-id"])
    assert (record.tokens, record.units) == (Tokens(input=100, output=20), ())


def test_units_are_of_the_target_that_answered(
    ruled: GatewayProcess, upstream: Stage, fallback: Stage
) -> None:
    upstream.answer = json_answer({"error": {"message": "full"}, "pages": [9]}, status=503)
    answer_with(fallback, False, FULL, pages=[1])
    record = ruled.wait_record(ask(ruled, False).headers["x-request-id"])
    assert record.target == "ruled-1"
    assert dict(record.units)["pages"] == 1
    # What has refused is left alone for a while, which is not to be seen by the tests that follow.
    answer_with(upstream, False, FULL)
    ruled.until(lambda: ruled.wait_record(ask(ruled, False).headers["x-request-id"]).target == "ruled-0")


def test_what_each_rule_found_is_counted_and_what_is_of_no_use_is_told_once(
    ruled: GatewayProcess, upstream: Stage
) -> None:
    def count(rule: str) -> dict[str, float]:
        labels = {"target": "ruled-0", "rule": rule}
        results = ("found", "absent", "unusable")
        return {
            result: ruled.metric("forebay_usage_rules_total", **labels, result=result) for result in results
        }

    names = [rule.name for rule in RULES]
    before = {name: count(name) for name in names}
    useless = FULL | {"hits": -4, "thought": "many"}
    for stream in (False, True, False):
        answer_with(upstream, stream, useless, pages=[1e2])
        record = ruled.wait_record(ask(ruled, stream).headers["x-request-id"])
        assert record.tokens == Tokens(input=100, output=20)
        assert record.units == (("searches", 2),)
    answer_with(upstream, False, {"prompt_tokens": 1, "completion_tokens": 1})
    ask(ruled, False)
    ruled.wait_idle()
    after = {name: count(name) for name in names}
    more = {
        name: {result: after[name][result] - old for result, old in before[name].items()} for name in names
    }
    assert more == {
        "input_cached": {"found": 0, "absent": 1, "unusable": 3},
        "output_reasoning": {"found": 0, "absent": 1, "unusable": 3},
        "searches": {"found": 3, "absent": 1, "unusable": 0},
        "pages": {"found": 0, "absent": 1, "unusable": 3},
    }
    told = [line for line in ruled.log.splitlines() if "usage rule" in line]
    assert len(told) == 3, "once for each rule"
    assert all("ruled-0" in line for line in told)
