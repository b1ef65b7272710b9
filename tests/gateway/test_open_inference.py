"""The Open Inference Protocol through a worker: JSON and binary pass, and each request is recorded."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway_stage import UPSTREAM_SECRET, Stage, _stages, fallback, upstream
from raw_caller import RawCaller

from forebay.core.events import Outcome, Tokens
from forebay.core.routes import Endpoint
from forebay.providers.inference_protocol import InferenceDialect
from forebay.providers.translators import can_answer, list_dialects
from forebay.testing.answers import json_answer
from forebay.testing.gateway import GatewayProcess, make_key, make_route
from forebay.testing.steps import Reset, Send, Stall, Step
from forebay.version import __version__

__all__ = ["_stages", "fallback", "upstream"]

LENGTH = "inference-header-content-length"
ASKED = {"inputs": [{"name": "x", "shape": [2], "datatype": "FP32", "data": [1.50, 2]}]}
ANSWER = {"model_name": "there", "outputs": [{"name": "y", "shape": [1], "datatype": "FP32", "data": [3]}]}
PATH = "/v2/models/public/infer"


@pytest.fixture(scope="module")
def worker(
    _stages: tuple[Stage, Stage], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    more: dict[str, Any] = {"api_key": "env:TEST_UPSTREAM_SECRET"}
    url, other = (stage.url.removesuffix("/v1") for stage in _stages)
    routes = [
        make_route("public", url, target_model="a/b", endpoints=(Endpoint.INFER,), dialect="oip", **more),
        make_route("chatty", _stages[0].url, endpoints=(Endpoint.CHAT,), **more),
        make_route("single", url, target_model="a/b", endpoints=(Endpoint.INFER,), dialect="oip", **more),
        make_route(
            "double", url, other, target_model="c", endpoints=(Endpoint.INFER,), dialect="oip", **more
        ),
        make_route("keyless", url, endpoints=(Endpoint.INFER,), dialect="oip", api_key="env:TEST_NOT_THERE"),
    ]
    folder: Path = tmp_path_factory.mktemp("tensors")
    with GatewayProcess(
        routes,
        folder=folder,
        keys=[make_key(), make_key("fb-narrow", id="narrow", models=["chatty"])],
        environment={"TEST_UPSTREAM_SECRET": UPSTREAM_SECRET},
    ) as process:
        yield process
    assert "Traceback" not in process.log


@pytest.fixture
def http(worker: GatewayProcess) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {worker.key}"}
    with httpx.Client(base_url=worker.origin, headers=headers, timeout=30) as made:
        yield made


def test_json_passes(worker: GatewayProcess, http: httpx.Client, upstream: Stage) -> None:
    upstream.answer = json_answer(ANSWER)
    for body in (json.dumps(ASKED).encode(), b'{"model":"other","stream":true,"inputs":[]}'):
        got = http.post(PATH, content=body, headers={"content-type": "application/json"})
        assert (got.status_code, got.json()) == (200, ANSWER)
        assert LENGTH not in got.headers
        sent = upstream.requests[-1]
        assert (sent.path, sent.body) == ("/v2/models/a%2Fb/infer", body)
        assert sent.header("content-type") == "application/json"
        assert sent.header("authorization") == f"Bearer {UPSTREAM_SECRET}"
        assert sent.header(LENGTH) is None
        record = worker.wait_record(got.headers["x-request-id"])
        assert (record.endpoint, record.model, record.outcome) == ("infer", "public", Outcome.OK)
        assert (record.tokens, record.stream) == (Tokens(input=0, output=0), False)


def test_tensors_in_binary_pass(worker: GatewayProcess, http: httpx.Client, upstream: Stage) -> None:
    head = json.dumps(ANSWER).encode()
    tensors = bytes(range(256)) * 300
    answer = head + tensors
    lines = f"HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\n{LENGTH}: {len(head)}\r\n"
    upstream.answer = [Send(f"{lines}content-length: {len(answer)}\r\n\r\n".encode() + answer)]
    asked = json.dumps(ASKED).encode()
    for size in (8, 200_000):  # at once, and in pieces
        body = asked + b"\0\xff\r\n" * size
        kind = {"content-type": "application/octet-stream", LENGTH: str(len(asked))}
        got = http.post(PATH, content=body, headers=kind)
        assert got.content == answer
        assert got.headers[LENGTH] == str(len(head))
        assert got.headers["content-type"] == "application/octet-stream"
        sent = upstream.requests[-1]
        assert sent.body == body
        assert [value for name, value in sent.headers if name.lower() == "content-type"] == [
            "application/octet-stream"
        ]
        assert sent.header(LENGTH) == str(len(asked))
        assert worker.wait_record(got.headers["x-request-id"]).answer_bytes == len(answer)


def test_errors_in_the_protocols_own_form(
    worker: GatewayProcess, http: httpx.Client, upstream: Stage
) -> None:
    upstream.answer = json_answer({"error": "unexpected shape"}, status=400)
    got = http.post(PATH, json=ASKED)
    assert (got.status_code, got.json()) == (400, {"error": "unexpected shape"})
    assert worker.wait_record(got.headers["x-request-id"]).outcome is Outcome.FAILED
    upstream.answer = json_answer({"error": f"no such key {UPSTREAM_SECRET}"}, status=500)
    assert UPSTREAM_SECRET not in http.post(PATH, json=ASKED).text


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v2/models/nothing/infer", 404),
        ("POST", "/v2/models/chatty/infer", None),
        ("POST", "/v2/models/public/versions/1/infer", 404),
        ("GET", "/v2/models/public/versions/1", 404),
        ("GET", "/v2/models/public/versions/1/ready", 404),
        ("GET", "/v2/models/nothing", 404),
        ("GET", "/v2/models/nothing/ready", 404),
        ("GET", "/v2/models/chatty", 404),
        ("GET", "/v2/models/chatty/ready", 404),
        ("POST", "/v2/models/public", 405),
        ("POST", "/v2", 405),
        ("POST", "/v1/infer", 404),
    ],
)
def test_what_is_not_served(
    http: httpx.Client, upstream: Stage, method: str, path: str, status: int | None
) -> None:
    got = http.request(method, path, json=ASKED if method == "POST" else None)
    assert got.status_code == status or (status is None and 400 <= got.status_code < 500)
    told = got.json()["error"]
    assert isinstance(told, dict if path.startswith("/v1") else str)
    assert upstream.requests == []


def test_a_key_is_needed(worker: GatewayProcess, upstream: Stage) -> None:
    got = httpx.post(worker.origin + PATH, json=ASKED)
    assert got.status_code == 401
    assert isinstance(got.json()["error"], str)
    assert upstream.requests == []


def test_health(worker: GatewayProcess) -> None:
    for what in ("live", "ready"):
        assert httpx.get(f"{worker.origin}/v2/health/{what}").status_code == 200


METADATA = {
    "name": "a/b", "versions": ["1"], "platform": "onnxruntime_onnx", "odd": 2.50,
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}], "outputs": [],
}  # fmt: skip


def test_the_server_tells_what_it_is(http: httpx.Client, upstream: Stage) -> None:
    told = http.get("/v2").json()
    assert (told["name"], told["version"]) == ("forebay", __version__)
    assert told["extensions"] == ["binary_tensor_data"]
    assert not upstream.requests


def test_what_a_model_takes_is_told_by_its_target_under_the_public_name(
    worker: GatewayProcess, http: httpx.Client, upstream: Stage
) -> None:
    upstream.answer = json_answer(METADATA)
    got = http.get("/v2/models/public")
    assert (got.status_code, got.json()) == (200, METADATA | {"name": "public"})
    assert b"2.5" in got.content
    sent = upstream.request
    assert (sent.method, sent.path, bytes(sent.body)) == ("GET", "/v2/models/a%2Fb", b"")
    assert sent.header("authorization") == f"Bearer {UPSTREAM_SECRET}"
    assert worker.key not in repr(sent.headers)
    assert http.get("/v2/models/public").json() == got.json()
    assert len(upstream.requests) == 1  # a crowd of those who ask meets what is known


def test_a_model_is_ready_by_the_gateways_own_knowledge(http: httpx.Client, upstream: Stage) -> None:
    got = http.get("/v2/models/public/ready")
    assert (got.status_code, got.json()) == (200, {"name": "public", "ready": True})
    assert not upstream.requests
    got = http.get("/v2/models/keyless/ready")  # its credentials are missing
    assert (got.status_code, got.json()) == (400, {"name": "keyless", "ready": False})


@pytest.mark.parametrize(
    "bad",
    [
        json_answer({"error": f"unknown model, {UPSTREAM_SECRET}"}, status=404),
        json_answer([1]),
        [Send(b"HTTP/1.1 200 OK\r\ncontent-length: 2000000\r\n\r\n" + b"x" * 2_000_000)],
        [Reset()],
    ],
    ids=["404", "list", "large", "reset"],
)
def test_a_target_that_does_not_tell(
    http: httpx.Client, upstream: Stage, fallback: Stage, bad: list[Step]
) -> None:
    upstream.answer, fallback.answer = bad, json_answer(METADATA)
    got = http.get("/v2/models/single")
    assert got.status_code == 502
    assert isinstance(got.json()["error"], str)
    assert UPSTREAM_SECRET not in got.text
    assert "a/b" not in got.text
    assert not fallback.requests
    assert http.get("/v2/models/double").json()["name"] == "double"
    fallback.requests.clear()


def test_a_caller_that_leaves_is_not_asked_for_any_more(worker: GatewayProcess, upstream: Stage) -> None:
    upstream.answer = [Stall()]
    with RawCaller(worker.port) as caller:
        caller.send(f"GET /v2/models/single HTTP/1.1\r\nauthorization: Bearer {worker.key}\r\n\r\n".encode())
        request = upstream.wait_request()
    upstream.wait_closed(request)


def test_keys_hear_of_their_own_models_alone(worker: GatewayProcess, upstream: Stage) -> None:
    for path in ("/v2", "/v2/models/public", "/v2/models/public/ready"):
        assert httpx.get(worker.origin + path).status_code == 401
        narrow = httpx.get(worker.origin + path, headers={"authorization": "Bearer fb-narrow"})
        assert narrow.status_code == (200 if path == "/v2" else 404)
    assert not upstream.requests


def test_who_can_answer() -> None:
    assert [each for each in list_dialects() if can_answer(each, Endpoint.INFER)] == ["oip"]
    assert [each for each in Endpoint if can_answer("oip", each)] == [Endpoint.INFER]


def test_only_errors_are_errors() -> None:
    dialect = InferenceDialect("m")
    assert dialect.read_error(b'{"error":"x"}') == b'"x"'
    for body in (b"{}", b'{"error":null}', b"{\0", b'{"error":"x"}' + b" " * 100_000):
        assert dialect.read_error(body) is None
