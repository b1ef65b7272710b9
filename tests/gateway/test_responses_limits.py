"""Limits of keys and of the gateway for callers of responses, through a real worker."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import pytest
from gateway_stage import Stage, _stages, fallback, upstream

from forebay.core.routes import Endpoint, GatewayLimits
from forebay.testing import openai as gpt
from forebay.testing import responses
from forebay.testing.gateway import GatewayProcess, make_key, make_route

__all__ = ["_stages", "fallback", "upstream"]

KEY = "fb-responses-limited-0123456789"


@pytest.fixture(scope="module")
def worker(
    _stages: tuple[Stage, Stage], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    routes = [
        make_route(dialect, _stages[0].url, dialect=dialect, endpoints=(Endpoint.CHAT, Endpoint.RESPONSES))
        for dialect in ("openai", "openai-responses")
    ]
    limited = msgspec.structs.replace(make_key(KEY), output_max_tokens=50, context_max_tokens=100)
    folder: Path = tmp_path_factory.mktemp("limits")
    limits = GatewayLimits(body_max_bytes=100_000)
    with GatewayProcess(routes, folder=folder, keys=[limited], limits=limits) as process:
        yield process
    assert "Traceback" not in process.log


@pytest.fixture
def http(worker: GatewayProcess) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {KEY}"}
    with httpx.Client(base_url=worker.url, headers=headers, timeout=30) as made:
        yield made


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("model", ["openai", "openai-responses"])
def test_a_request_without_a_limit_gets_the_key_s(
    http: httpx.Client, upstream: Stage, model: str, stream: bool
) -> None:
    upstream.answer = gpt.well_behaved("Hi") if model == "openai" else responses.well_behaved("Hi")
    got = http.post("/responses", json={"model": model, "input": "Hello", "stream": stream})
    assert got.status_code == 200
    name = "max_completion_tokens" if model == "openai" else "max_output_tokens"
    assert upstream.request.json()[name] == 50


@pytest.mark.parametrize("model", ["openai", "openai-responses"])
def test_more_than_the_key_allows(http: httpx.Client, upstream: Stage, model: str) -> None:
    asked = {"model": model, "input": "Hello"}
    for more, param in (({"max_output_tokens": 51}, "max_output_tokens"), ({"input": "x" * 5000}, "input")):
        got = http.post("/responses", json=asked | more)
        assert got.status_code == 400
        assert got.json()["error"]["param"] == param
    assert http.post("/responses", json=asked | {"input": "x" * 200_000}).status_code == 413
    assert upstream.requests == []
