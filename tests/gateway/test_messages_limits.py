"""Limits of all kinds as a caller of messages meets them: keys', rates, sizes; told in its own words."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anthropic
import httpx
import msgspec
import pytest
from dialect_stage import ENDPOINTS
from limits_rig import Authority, workers

from forebay.core.limits import Kind, Limit, Measure, Period
from forebay.core.routes import GatewayLimits, Route
from forebay.providers.anthropic_dialect import SPOKEN
from forebay.testing import anthropic as claude
from forebay.testing import openai as gpt
from forebay.testing.gateway import GatewayProcess, make_key, make_route
from forebay.testing.recorded import RecordedRequest
from forebay.testing.steps import Script
from forebay.testing.threaded import ThreadedUpstream

REQUESTS = Limit(
    id="r", owner="team test", measure=Measure.REQUESTS, amount=3, period=Period.MONTH, kind=Kind.CALENDAR
)
TOKENS = Limit(
    id="t", owner="key k1", measure=Measure.TOTAL_TOKENS, amount=1000, period=Period.MONTH, kind=Kind.CALENDAR
)
ASKED: dict[str, Any] = {"max_tokens": 50, "messages": [{"role": "user", "content": "Hello"}]}
BOUNDED = "fb-key-with-bounds"
TARGETS = ("openai", "anthropic")
targets = pytest.mark.parametrize("target", TARGETS)


def answer(request: RecordedRequest) -> Script:
    """A good server of either dialect, by the path."""
    if request.path.endswith("/chat/completions"):
        return gpt.well_behaved("Hi", tokens=gpt.usage(60, 40))(request)
    return claude.well_behaved("Hi", tokens=claude.usage(60, 40))(request)


def make_routes(url: str) -> list[Route]:
    return [make_route(dialect, url, endpoints=ENDPOINTS, dialect=dialect) for dialect in TARGETS]


@pytest.fixture(scope="module")
def upstream() -> Iterator[ThreadedUpstream]:
    with ThreadedUpstream(answer) as upstream:
        yield upstream


@pytest.fixture(scope="module")
def bounded(upstream: ThreadedUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    key = make_key(BOUNDED, id="bounded")
    with GatewayProcess(
        make_routes(upstream.url),
        folder=tmp_path_factory.mktemp("bounded"),
        keys=[msgspec.structs.replace(key, output_max_tokens=30, context_max_tokens=1000)],
        limits=GatewayLimits(body_max_bytes=64 * 1024, memory_max_bytes=1 << 20),
    ) as process:
        yield process


def ask(worker: GatewayProcess, model: str, **more: Any) -> httpx.Response:
    body = {key: value for key, value in (ASKED | {"model": model} | more).items() if value is not None}
    return httpx.post(f"{worker.url}/messages", json=body, headers={"x-api-key": BOUNDED}, timeout=60)


@targets
def test_a_key_bounds_the_output_it_asks_for(bounded: GatewayProcess, target: str) -> None:
    refused = ask(bounded, target)
    assert refused.status_code == 400
    assert refused.json()["error"]["type"] == "invalid_request_error"
    assert "`max_tokens` 50 is more than the 30" in refused.json()["error"]["message"]
    assert ask(bounded, target, max_tokens=30).status_code == 200


@targets
def test_a_key_bounds_the_output_of_who_names_none(
    bounded: GatewayProcess, upstream: ThreadedUpstream, target: str
) -> None:
    upstream.requests.clear()
    answered = ask(bounded, target, max_tokens=None)
    assert answered.status_code == 200, answered.text
    sent = upstream.requests[0].json()
    assert sent.get("max_tokens", sent.get("max_completion_tokens")) == 30


@targets
def test_a_key_bounds_the_prompt(bounded: GatewayProcess, target: str) -> None:
    long = ask(bounded, target, max_tokens=5, messages=[{"role": "user", "content": "word " * 4000}])
    assert (long.status_code, long.json()["error"]["type"]) == (400, "invalid_request_error")
    assert "this key allows 1000" in long.json()["error"]["message"]


@targets
def test_a_body_that_is_too_large(bounded: GatewayProcess, target: str) -> None:
    large = ask(bounded, target, messages=[{"role": "user", "content": "x" * 70_000}])
    assert (large.status_code, large.json()["error"]["type"]) == (413, "request_too_large")


def test_counting_tokens_has_no_output_to_bound(bounded: GatewayProcess) -> None:
    with anthropic.Anthropic(base_url=bounded.origin, api_key=BOUNDED, max_retries=0) as client:
        counted = client.messages.count_tokens(model="openai", messages=ASKED["messages"])
    assert counted.input_tokens > 0


@targets
def test_a_limit_is_told_in_headers_and_in_the_refusal(
    upstream: ThreadedUpstream, tmp_path: Path, target: str
) -> None:
    limits = (REQUESTS, TOKENS)
    with Authority(tmp_path, limits) as authority:
        with workers(tmp_path, 1, "", limits, routes=make_routes(upstream.url)) as (worker,):
            with anthropic.Anthropic(base_url=worker.origin, api_key=worker.key, max_retries=0) as client:
                asked = client.messages.with_raw_response
                served = [asked.create(**ASKED, model=target).headers for _ in range(3)]
                with pytest.raises(anthropic.RateLimitError, match="3 requests a month of team test") as over:
                    asked.create(**ASKED, model=target)
            worker.until(lambda: len(worker.records()) == 4)
            worker.until(lambda: authority.left()["t"] == 1000 - 3 * 100)
    assert served[0]["anthropic-ratelimit-requests-limit"] == "3"
    assert [int(one["anthropic-ratelimit-requests-remaining"]) for one in served] == [2, 1, 0]
    assert int(served[0]["anthropic-ratelimit-tokens-remaining"]) < 1000
    reset = datetime.fromisoformat(served[0]["anthropic-ratelimit-requests-reset"])
    assert timedelta(0) < reset - datetime.now(UTC) < timedelta(days=32)
    assert isinstance(over.value.body, dict)
    assert over.value.body["error"]["type"] == "rate_limit_error"
    assert int(over.value.response.headers["retry-after"]) > 0
    assert over.value.response.headers["request-id"].startswith("req_")


def test_names_of_headers() -> None:
    [speech, *_] = SPOKEN.values()
    told = speech.name_headers(
        "req_1",
        "x-ratelimit-limit-tokens: 9\r\nx-ratelimit-remaining-tokens: 4\r\n"
        "x-ratelimit-reset-tokens: 1h2m3s\r\nx-forebay-waited-ms: 5\r\n",
        0,
    )
    assert told == (
        "request-id: req_1\r\n"
        "anthropic-ratelimit-tokens-limit: 9\r\n"
        "anthropic-ratelimit-tokens-remaining: 4\r\n"
        "anthropic-ratelimit-tokens-reset: 1970-01-01T01:02:03Z\r\n"
    )
