"""Rerank and score through a worker: bytes pass, and each answer is counted, limited and recorded."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway_stage import UPSTREAM_SECRET, Stage, _stages, fallback, upstream

from forebay.core.errors import ContextTooLong
from forebay.core.events import Outcome, Tokens, UsageSource
from forebay.core.routes import Endpoint
from forebay.providers import openai
from forebay.providers.openai_scores import ScoresDialect
from forebay.providers.translators import can_answer, list_dialects
from forebay.testing.answers import json_answer
from forebay.testing.gateway import GatewayProcess, make_route

__all__ = ["_stages", "fallback", "upstream"]

DIALECT = ScoresDialect()
BODIES: dict[str, dict[str, Any]] = {
    "rerank": {"model": "public", "query": "sea", "documents": ["waves", "ü"], "top_n": 1, "odd": [2.50]},
    "score": {"model": "public", "text_1": "sea", "text_2": ["waves", "ü"], "stream": True},
}
ANSWERS: dict[str, dict[str, Any]] = {
    "rerank": {"results": [{"index": 0, "relevance_score": 0.9}], "usage": {"total_tokens": 11}},
    "score": {"object": "list", "data": [{"index": 0, "object": "score", "score": 1e-3}],
              "usage": {"prompt_tokens": 11, "total_tokens": 11, "completion_tokens": 0}},
}  # fmt: skip
endpoints = pytest.mark.parametrize("endpoint", ["rerank", "score"])


@pytest.fixture(scope="module")
def worker(
    _stages: tuple[Stage, Stage], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    folder: Path = tmp_path_factory.mktemp("scores")
    more: dict[str, Any] = {"api_key": "env:TEST_UPSTREAM_SECRET"}
    routes = [
        make_route(
            "public",
            _stages[0].url,
            target_model="there",
            endpoints=(Endpoint.RERANK, Endpoint.SCORE),
            **more,
        ),
        make_route("chatty", _stages[0].url, endpoints=(Endpoint.CHAT,), **more),
    ]
    with GatewayProcess(
        routes, folder=folder, environment={"TEST_UPSTREAM_SECRET": UPSTREAM_SECRET}
    ) as process:
        yield process
    assert "Traceback" not in process.log


@pytest.fixture
def http(worker: GatewayProcess) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {worker.key}"}
    with httpx.Client(base_url=worker.url, headers=headers, timeout=30) as made:
        yield made


@endpoints
def test_bytes_pass_and_are_counted(
    worker: GatewayProcess, http: httpx.Client, upstream: Stage, endpoint: str
) -> None:
    upstream.answer = json_answer(ANSWERS[endpoint])
    body = json.dumps(BODIES[endpoint], ensure_ascii=False).encode()
    for _ in range(2):  # the second on a connection that lies ready
        got = http.post(f"/{endpoint}", content=body)
        assert got.status_code == 200
        assert got.json() == ANSWERS[endpoint]
        sent = upstream.requests[-1]
        assert sent.path == f"/v1/{endpoint}"
        assert sent.body == body.replace(b'"public"', b'"there"')
        assert sent.header("authorization") == f"Bearer {UPSTREAM_SECRET}"
        record = worker.wait_record(got.headers["x-request-id"])
        assert (record.endpoint, record.outcome, record.model) == (endpoint, Outcome.OK, "public")
        assert (record.tokens, record.usage_source) == (Tokens(input=11, output=0), UsageSource.REPORTED)
        assert not record.stream


@endpoints
def test_errors_are_handed_on(
    worker: GatewayProcess, http: httpx.Client, upstream: Stage, endpoint: str
) -> None:
    told = {"error": {"message": "too many documents", "type": "BadRequestError", "param": None, "code": 400}}
    upstream.answer = json_answer(told, status=400)
    got = http.post(f"/{endpoint}", json=BODIES[endpoint])
    assert (got.status_code, got.json()) == (400, told)
    assert worker.wait_record(got.headers["x-request-id"]).outcome is Outcome.FAILED
    upstream.answer = json_answer({"message": "invalid request"}, status=422)  # Cohere's
    assert "invalid request" in http.post(f"/{endpoint}", json=BODIES[endpoint]).json()["error"]["message"]


@endpoints
@pytest.mark.parametrize(
    ("more", "status", "param"),
    [({"model": "chatty"}, None, None), ({"model": "nothing"}, 404, None), ({"model": 3}, 400, "model")],
)
def test_what_can_not_go_anywhere(
    http: httpx.Client,
    upstream: Stage,
    endpoint: str,
    more: dict[str, Any],
    status: int | None,
    param: object,
) -> None:
    got = http.post(f"/{endpoint}", json=BODIES[endpoint] | more)
    assert got.status_code == status or (status is None and 400 <= got.status_code < 500)
    assert got.json()["error"]["message"]
    if param:
        assert got.json()["error"]["param"] == param
    assert upstream.requests == []


@pytest.mark.parametrize(
    ("answer", "tokens"),
    [
        ({"usage": {"total_tokens": 5}}, 5),
        ({"usage": {"prompt_tokens": 4, "total_tokens": 5}}, 4),
        ({"meta": {"tokens": {"input_tokens": 6}, "billed_units": {"search_units": 1}}}, 6),
        ({"meta": {"billed_units": {"input_tokens": 7}}}, 7),
        ({"usage": {"total_tokens": 0}}, 0),
        ({"meta": {"billed_units": {"search_units": 1}}}, None),
        ({"usage": {"total_tokens": -1}}, None),
        ({"usage": None}, None),
        ([], None),
    ],
)
def test_how_tokens_are_told(answer: object, tokens: int | None) -> None:
    expected = None if tokens is None else Tokens(input=tokens, output=0)
    assert DIALECT.read_answer(json.dumps(answer).encode()) == expected


def test_a_prompt_that_is_too_long() -> None:
    few = json.dumps({"model": "m", "query": "q", "documents": ["x" * 1000]}).encode()
    with pytest.raises(ContextTooLong) as caught:
        openai.check_context(few, Endpoint.RERANK, 20)
    assert caught.value.param == "documents"
    many = json.dumps({"model": "m", "query": "q", "documents": ["x" * 100] * 10}).encode()
    openai.check_context(many, Endpoint.RERANK, 20)  # each for itself is short
    pairs = json.dumps({"model": "m", "text_1": "q", "text_2": ["x" * 100] * 10}).encode()
    openai.check_context(pairs, Endpoint.SCORE, 20)


def test_who_can_answer() -> None:
    for endpoint in (Endpoint.RERANK, Endpoint.SCORE):
        able = [dialect for dialect in list_dialects() if can_answer(dialect, endpoint)]
        assert able == ["openai", "openai-responses"]
