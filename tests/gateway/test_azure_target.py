"""Azure OpenAI through a real worker: its addresses and key, what its content filters add, and its errors.

The payloads are made after Microsoft's public documentation of content filtering and of content streaming.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import msgspec
import openai
import pytest
from gateway_stage import UPSTREAM_SECRET, Stage, _stages, fallback, upstream

from forebay.core.events import Outcome, Tokens
from forebay.core.routes import Route
from forebay.testing.answers import json_answer, sse_answer
from forebay.testing.gateway import GatewayProcess, make_route
from forebay.testing.openai import DONE, chat_completion, completion, embeddings, event, usage

__all__ = ["_stages", "fallback", "upstream"]

DEPLOYMENT = "/openai/deployments/gpt-there"
SAFE = {"filtered": False, "severity": "safe"}
RESULTS = {"hate": SAFE, "self_harm": SAFE, "sexual": SAFE, "violence": SAFE}
PROMPT = [{"prompt_index": 0, "content_filter_results": RESULTS}]
ASK: list[Any] = [{"role": "user", "content": "Hello"}]


def make_routes(origin: str) -> list[Route]:
    def speak(model: str, url: str) -> Route:
        return make_route(
            model, url, target_model="gpt-there", api_key="env:TEST_UPSTREAM_SECRET", dialect="azure"
        )

    return [
        speak("m", origin),
        speak("preview", f"{origin}/openai?api-version=2025-01-01-preview"),
        speak("v1", f"{origin}/openai/v1"),
    ]


@pytest.fixture(scope="module")
def worker(
    _stages: tuple[Stage, Stage], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    folder: Path = tmp_path_factory.mktemp("azure")
    with GatewayProcess(
        make_routes(_stages[0].url.removesuffix("/v1")),
        folder=folder,
        environment={"TEST_UPSTREAM_SECRET": UPSTREAM_SECRET},
    ) as process:
        yield process


@pytest.fixture
def http(worker: GatewayProcess) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {worker.key}"}
    with httpx.Client(base_url=worker.url, headers=headers, timeout=60) as client:
        yield client
    assert worker.process.poll() is None, worker.log
    assert "Traceback" not in worker.log, worker.log


def ask(http: httpx.Client, **changes: Any) -> httpx.Response:
    return http.post("/chat/completions", json={"model": "m", "messages": ASK} | changes)


def chunk(choice: dict[str, Any] | None, **more: Any) -> bytes:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-4o-2024-08-06"}
    return event(head | {"choices": [] if choice is None else [{"index": 0} | choice]} | more)


def say(words: str, **more: Any) -> bytes:
    return chunk({"delta": {"content": words}, "finish_reason": None} | more)


OFFSETS = {"check_offset": 0, "start_offset": 0, "end_offset": 5}
#: The asynchronous filter: what it found comes behind the text, in events without a delta.
EVENTS = [
    event(
        {"id": "", "object": "", "created": 0, "model": "", "choices": [], "prompt_filter_results": PROMPT}
    ),
    chunk({"delta": {"role": "assistant", "content": ""}, "finish_reason": None}),
    say("Hel", content_filter_results={}),
    say("lo", content_filter_results={"error": {"code": "content_filter_error", "message": "It timed out."}}),
    chunk({"delta": {}, "finish_reason": "stop"}),
    chunk({"content_filter_offsets": OFFSETS, "content_filter_results": RESULTS, "finish_reason": None}),
]


@pytest.mark.parametrize(
    ("model", "path"),
    [
        ("m", f"{DEPLOYMENT}/chat/completions?api-version=2024-10-21"),
        ("preview", f"{DEPLOYMENT}/chat/completions?api-version=2025-01-01-preview"),
        ("v1", "/openai/v1/chat/completions"),
    ],
)
def test_what_the_filters_found_passes_byte_for_byte(
    worker: GatewayProcess, http: httpx.Client, upstream: Stage, model: str, path: str
) -> None:
    made = chat_completion("Hello", tokens=usage(9, 4)) | {"prompt_filter_results": PROMPT}
    made["choices"][0]["content_filter_results"] = RESULTS
    upstream.answer = json_answer(made)
    got = ask(http, model=model)
    assert got.content == msgspec.json.encode(made)
    asked = upstream.request
    assert asked.target == path
    assert asked.json() == {"model": "gpt-there", "messages": ASK}
    assert asked.header("api-key") == UPSTREAM_SECRET
    assert asked.header("authorization") is None
    record = worker.wait_record(got.headers["x-request-id"])
    assert (record.outcome, record.tokens) == (Outcome.OK, Tokens(input=9, output=4))


def test_a_stream_passes_with_what_the_filters_found(
    worker: GatewayProcess, http: httpx.Client, upstream: Stage
) -> None:
    upstream.answer = sse_answer([*EVENTS, chunk(None, usage=usage(9, 4)), DONE])
    got = ask(http, stream=True)
    assert got.content == b"".join([*EVENTS, DONE])
    assert upstream.request.json()["stream_options"] == {"include_usage": True}
    record = worker.wait_record(got.headers["x-request-id"])
    assert (record.outcome, record.tokens) == (Outcome.OK, Tokens(input=9, output=4))


def test_openai_s_client_reads_the_stream(worker: GatewayProcess, upstream: Stage) -> None:
    upstream.answer = sse_answer([*EVENTS[:5], DONE])
    with openai.OpenAI(base_url=worker.url, api_key=worker.key, max_retries=0) as client:
        chunks = list(client.chat.completions.create(model="m", messages=ASK, stream=True))
    assert "".join(each.choices[0].delta.content or "" for each in chunks if each.choices) == "Hello"
    assert (chunks[0].model_extra or {})["prompt_filter_results"] == PROMPT


def test_the_other_endpoints_are_asked_at_the_deployment(http: httpx.Client, upstream: Stage) -> None:
    upstream.answer = json_answer(completion("Hello"))
    assert http.post("/completions", json={"model": "m", "prompt": "Say"}).status_code == 200
    upstream.answer = json_answer(embeddings([[1.0]]))
    assert http.post("/embeddings", json={"model": "m", "input": "a"}).status_code == 200
    assert [request.path for request in upstream.requests] == [
        f"{DEPLOYMENT}/completions",
        f"{DEPLOYMENT}/embeddings",
    ]


def test_anthropic_s_client_is_served_by_translation(worker: GatewayProcess, upstream: Stage) -> None:
    upstream.answer = json_answer(chat_completion("Hello"))
    with anthropic.Anthropic(base_url=worker.origin, api_key=worker.key, max_retries=0) as claude:
        made = claude.messages.create(model="m", max_tokens=9, messages=ASK)
    assert made.content[0].to_dict()["text"] == "Hello"
    assert upstream.request.path == f"{DEPLOYMENT}/chat/completions"


def test_a_filtered_prompt_is_the_caller_s_error_with_all_that_was_found(
    http: httpx.Client, upstream: Stage
) -> None:
    found = RESULTS | {"violence": {"filtered": True, "severity": "medium"}}
    inner = {"code": "ResponsibleAIPolicyViolation", "content_filter_result": found}
    words = {"message": "The response was filtered.", "type": None, "param": "prompt"}
    error = {"error": words | {"code": "content_filter", "status": 400, "innererror": inner}}
    upstream.answer = json_answer(error, status=400)
    got = ask(http)
    assert (got.status_code, got.json()) == (400, error)


@pytest.mark.parametrize(
    ("status", "error", "seen", "code"),
    [
        (401, {"error": {"code": "401", "message": "Access denied."}}, 502, "upstream_credentials_rejected"),
        (401, {"statusCode": 401, "message": "Unauthorized."}, 502, "upstream_credentials_rejected"),
        (404, {"error": {"code": "DeploymentNotFound", "message": "None."}}, 404, "DeploymentNotFound"),
        (429, {"error": {"code": "429", "message": "Please retry after 7 seconds."}}, 429, "429"),
        (404, {"statusCode": 404, "message": "Resource not found"}, 404, "upstream_error"),
    ],
)
def test_errors_in_azure_s_forms(
    http: httpx.Client, upstream: Stage, status: int, error: dict[str, Any], seen: int, code: str
) -> None:
    upstream.answer = json_answer(error, status=status, headers=[("retry-after", "7")])
    got = ask(http)
    assert (got.status_code, got.json()["error"]["code"]) == (seen, code)
    assert UPSTREAM_SECRET not in got.text
    if seen == 429:
        assert got.headers["retry-after"] == "7"


def test_tokens_are_counted_here_because_azure_can_t(http: httpx.Client, upstream: Stage) -> None:
    counted = http.post("/messages/count_tokens", json={"model": "m", "messages": ASK})
    assert counted.status_code == 200
    assert counted.json()["input_tokens"] > 0
    assert upstream.requests == []
