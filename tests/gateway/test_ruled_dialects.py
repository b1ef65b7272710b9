"""Usage rules at targets that do not speak OpenAI's chat: they point into what the target itself said."""

from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest
from gateway_stage import Stage, _stages, fallback, upstream

from forebay.core.events import Outcome, Tokens
from forebay.core.pointers import parse_pointer
from forebay.core.routes import Endpoint
from forebay.core.usage_rules import UsageRule
from forebay.testing import anthropic, bedrock, gemini, responses
from forebay.testing.answers import drip
from forebay.testing.gateway import GatewayProcess, make_route

__all__ = ["_stages", "fallback", "upstream"]

ENDPOINTS = (Endpoint.CHAT, Endpoint.MESSAGES, Endpoint.RESPONSES, Endpoint.COUNT_TOKENS)
BASES = {
    "anthropic": "/v1",
    "openai-responses": "/v1",
    "bedrock": "",
    "gemini": "/v1beta",
    "vertex": gemini.VERTEX_BASE,
}
#: Where each says its usage, and the fields of ours there.
USAGES = {"gemini": "usageMetadata", "vertex": "usageMetadata"}
SECRETS = {"bedrock": "env:RULED_BEDROCK", "gemini": "env:RULED_GOOGLE", "vertex": "env:RULED_GOOGLE"}
EXTRA = {"thought": 30, "server_tool_use": {"web_search_requests": 2}, "hits": 4}
BODIES: dict[str, dict[str, Any]] = {
    "chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
    "messages": {"max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]},
    "responses": {"input": "Hi"},
}
PAIRS = [
    *((path, to) for path in BODIES for to in BASES if to != "openai-responses"),
    ("responses", "openai-responses"),
]


def make_rules(dialect: str) -> list[UsageRule]:
    place = USAGES.get(dialect, "usage")

    def point(pointer: str) -> tuple[str, ...]:
        return parse_pointer(f"/{place}/{pointer}")

    return [
        UsageRule(name="output_reasoning", steps=point("thought")),
        UsageRule(name="input_cached", steps=point("hits"), is_included=True),
        UsageRule(name="searches", steps=point("server_tool_use/web_search_requests"), is_unit=True),
        UsageRule(name="pages", steps=point("pages"), is_unit=True),
    ]


@pytest.fixture(scope="module")
def ruled(_stages: tuple[Stage, Stage], tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    routes = []
    for dialect, base in BASES.items():
        made = make_route(
            dialect,
            _stages[0].url.removesuffix("/v1") + base,
            dialect=dialect,
            usage=make_rules(dialect),
            endpoints=ENDPOINTS,
            api_key=SECRETS.get(dialect),
        )
        targets = tuple(msgspec.structs.replace(each, region=bedrock.REGION) for each in made.targets)
        routes.append(msgspec.structs.replace(made, targets=targets))
    environment = {"RULED_GOOGLE": gemini.API_KEY, "RULED_BEDROCK": bedrock.write_secret()}
    with GatewayProcess(routes, folder=tmp_path_factory.mktemp("ruled"), environment=environment) as worker:
        yield worker
        assert "Traceback" not in worker.log


def speak(dialect: str, extra: dict[str, Any]) -> Any:
    """A target of which the input has 20 tokens and the output 5, and that says more of them."""
    match dialect:
        case "anthropic":
            return anthropic.well_behaved("Hello", tokens=anthropic.usage(20, 5) | extra)
        case "bedrock":
            return bedrock.well_behaved("Hello", tokens=bedrock.usage(20, 5) | extra)
        case "openai-responses":
            tokens = responses.usage(20, 5) | {"input_tokens_details": {}, "output_tokens_details": {}}
            return responses.well_behaved("Hello", tokens=tokens | extra)
    return gemini.well_behaved("Hello", tokens=gemini.usage(20, 5) | extra)


def ask(worker: GatewayProcess, path: str, model: str, stream: bool) -> httpx.Response:
    headers = {"authorization": f"Bearer {worker.key}"}
    body = BODIES[path] | {"model": model} | ({"stream": True} if stream else {})
    answer = httpx.post(f"{worker.url}/{path}", json=body, headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer


both = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


@both
@pytest.mark.parametrize(("path", "dialect"), PAIRS)
def test_rules_find_what_the_target_said(
    ruled: GatewayProcess, upstream: Stage, path: str, dialect: str, stream: bool
) -> None:
    good = speak(dialect, EXTRA)
    upstream.answer = lambda request: drip(good(request), every=7)
    record = ruled.wait_record(ask(ruled, path, dialect, stream).headers["x-request-id"])
    assert record.outcome is Outcome.OK
    assert record.tokens == Tokens(input=16, input_cached=4, output=5, output_reasoning=30)
    assert record.units == (("searches", 2),)


@both
@pytest.mark.parametrize(("path", "dialect"), PAIRS)
def test_where_rules_find_nothing_the_dialect_counts(
    ruled: GatewayProcess, upstream: Stage, path: str, dialect: str, stream: bool
) -> None:
    upstream.answer = speak(dialect, {})
    record = ruled.wait_record(ask(ruled, path, dialect, stream).headers["x-request-id"])
    assert (record.tokens.input_total, record.tokens.output_total, record.units) == (20, 5, ())


def test_a_count_of_tokens_costs_nothing_whatever_rules_say(ruled: GatewayProcess, upstream: Stage) -> None:
    upstream.answer = speak("anthropic", EXTRA)
    headers = {"authorization": f"Bearer {ruled.key}"}
    body = {"model": "anthropic", "messages": BODIES["messages"]["messages"]}
    answer = httpx.post(f"{ruled.url}/messages/count_tokens", json=body, headers=headers, timeout=60)
    assert answer.json() == {"input_tokens": 42}
    record = ruled.wait_record(answer.headers["x-request-id"])
    assert (record.tokens.input_total, record.tokens.output_total, record.units) == (0, 0, ())
