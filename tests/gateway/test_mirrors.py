"""Mirrors: a copy goes out, is recorded apart, and nothing that becomes of it touches the request."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from limits_rig import workers

from forebay.core.events import Finished, Kind, Outcome, UsageSource
from forebay.core.limits import Kind as LimitKind
from forebay.core.limits import Limit, Measure, Period
from forebay.core.routes import FORMS, Endpoint, Mirror, Route
from forebay.gateway.mirror_digest import COMPARED
from forebay.testing import openai
from forebay.testing.answers import answer as audio_answer
from forebay.testing.answers import json_answer
from forebay.testing.gateway import GatewayProcess, make_route
from forebay.testing.obliging import answer_as_asked
from forebay.testing.recorded import RecordedRequest
from forebay.testing.steps import Gate, Script, Wait
from forebay.testing.threaded import Blackhole, ThreadedUpstream, find_closed_port

MODES = ("plain", "alive", "fails", "close", "stuck", "lost_")  #: of one length, as they stand in bodies
TOKENS = 1_000_000
SAID = [{"role": "user", "content": "Hello"}]
CALLS: dict[str, tuple[Endpoint, dict[str, Any]]] = {
    "chat": (Endpoint.CHAT, {"messages": SAID}),
    "chat stream": (Endpoint.CHAT, {"messages": SAID, "stream": True}),
    "completions": (Endpoint.COMPLETIONS, {"prompt": "Hello"}),
    "completions stream": (Endpoint.COMPLETIONS, {"prompt": "Hello", "stream": True}),
    "embeddings": (Endpoint.EMBEDDINGS, {"input": "Hello"}),
    "messages": (Endpoint.MESSAGES, {"messages": SAID, "max_tokens": 9}),
    "messages stream": (Endpoint.MESSAGES, {"messages": SAID, "max_tokens": 9, "stream": True}),
    "count": (Endpoint.COUNT_TOKENS, {"messages": SAID}),
    "responses": (Endpoint.RESPONSES, {"input": "Hello"}),
    "responses stream": (Endpoint.RESPONSES, {"input": "Hello", "stream": True}),
    "rerank": (Endpoint.RERANK, {"query": "sea", "documents": ["waves"]}),
    "score": (Endpoint.SCORE, {"text_1": "sea", "text_2": ["waves"]}),
    "infer": (Endpoint.INFER, {"inputs": []}),
    "speech": (Endpoint.SPEECH, {"input": "Hello", "voice": "alloy"}),
    "images": (Endpoint.IMAGES, {"prompt": "the sea"}),
    "transcriptions": (Endpoint.TRANSCRIPTIONS, {}),
    "image variations": (Endpoint.IMAGE_VARIATIONS, {}),
}
#: What is of the moment, or names the request or its model.
MOMENTARY = (
    *("request_id", "at_ns", "key", "model", "target", "pool", "route_hash"),
    *("duration_ns", "overhead_ns"),
)
SHOWN = ("content-type", "x-forebay-attempts", "x-ratelimit-remaining-tokens", "x-ratelimit-limit-tokens")


def answer(request: RecordedRequest, name: str = "primary") -> Script:
    if request.path.endswith("/rerank"):
        return json_answer({"results": [{"index": 0, "relevance_score": 0.9}], "usage": {"total_tokens": 11}})
    if request.path.endswith("/score"):
        return json_answer({"data": [{"index": 0, "score": 0.5}], "usage": {"total_tokens": 11}})
    if request.path.endswith("/infer"):
        return json_answer({"outputs": [{"name": "y", "data": [3]}], "id": name})
    if request.path.endswith("/speech"):
        return audio_answer(b"ID3" * 999, headers=[("content-type", "audio/mpeg")])
    if request.path.endswith("/transcriptions"):
        return json_answer({"text": "Hello", "usage": {"type": "duration", "seconds": 3}})
    if "/images/" in request.path:
        return json_answer({"created": 1, "data": [{"b64_json": "AAAA"}]})
    return answer_as_asked(request)


def dialect_of(endpoint: Endpoint) -> str:
    if endpoint is Endpoint.INFER:
        return "oip"
    return "anthropic" if endpoint is Endpoint.COUNT_TOKENS else "openai"


def make_pair(name: str, url: str, mirror_url: str | None, **rules: Any) -> list[Route]:
    """A model and its mirror for each dialect that the endpoints need."""
    routes = []
    for dialect in ("openai", "oip", "anthropic"):
        endpoints = [each for each in Endpoint if dialect_of(each) == dialect]
        more: dict[str, Any] = {"target_model": "there", "dialect": dialect, "endpoints": endpoints}
        cut = 3 if dialect == "oip" else 0
        route = make_route(f"{name}-{dialect}", url[: len(url) - cut], **more)
        if mirror_url is not None:
            other = f"{name}-{dialect}-mirror"
            routes.append(make_route(other, mirror_url[: len(mirror_url) - cut], **more))
            mirror = Mirror(**{"model": other, "share": 1.0, "timeout_s": 30.0, **rules})
            route = msgspec.structs.replace(route, mirrors=(mirror,))
        routes.append(route)
    return routes


def post(origin: str, key: str, name: str, call: str) -> httpx.Response:
    endpoint, body = CALLS[call]
    model = f"{name}-{dialect_of(endpoint)}"
    path = f"/v2/models/{model}/infer" if endpoint is Endpoint.INFER else f"/v1/{endpoint.value}"
    headers = {"authorization": f"Bearer {key}"}
    if endpoint in FORMS:
        files = {"file" if "audio" in endpoint else "image": ("a", b"RIFF" * 999, "application/octet-stream")}
        return httpx.post(origin + path, data={"model": model}, files=files, headers=headers, timeout=60)
    return httpx.post(origin + path, json={"model": model, **body}, headers=headers, timeout=60)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[GatewayProcess, ThreadedUpstream]]:
    """One worker, and for each mode a model, its mirror that is so, and a key with a limit of its own."""
    gate = Gate()
    limits = {
        f"fb-key-{mode}": Limit(
            id=f"of {mode}",
            owner=f"key {mode}",
            measure=Measure.TOTAL_TOKENS,
            amount=TOKENS,
            period=Period.MONTH,
            kind=LimitKind.CALENDAR,
        )
        for mode in MODES
    }
    with (
        ThreadedUpstream(answer) as first,
        ThreadedUpstream(lambda request: answer(request, "mirror")) as second,
        ThreadedUpstream(lambda _: json_answer(openai.error("overloaded"), status=500)) as failing,
        ThreadedUpstream(lambda _: [Wait(gate)]) as stuck,
        Blackhole() as hole,
    ):
        places = {
            "plain": None,
            "alive": second.url,
            "fails": failing.url,
            "close": f"http://127.0.0.1:{find_closed_port(keep=True)}/v1",
            "stuck": stuck.url,
            "lost_": f"http://127.0.0.1:{hole.port}/v1",
        }
        routes = [route for mode in MODES for route in make_pair(mode, first.url, places[mode])]
        keys = {secret: [limit] for secret, limit in limits.items()}
        folder: Path = tmp_path_factory.mktemp("mirrors")
        patient = {"forebay.gateway.mirrors.LAG_MAX_S": 30.0}  # a busy worker makes no copies
        with workers(
            folder, 1, first.url, tuple(limits.values()), keys=keys, routes=routes, constants=patient
        ) as found:
            yield found[0], second
            assert "Traceback" not in found[0].log
            gate.open()


def show(record: Finished) -> dict[str, Any]:
    fields = {name: getattr(record, name) for name in Finished.__struct_fields__ if name not in MOMENTARY}
    return fields | {"first_token_ns": record.first_token_ns is not None}


@pytest.mark.parametrize("call", CALLS)
def test_whatever_a_mirror_does_a_request_is_as_without_it(
    scene: tuple[GatewayProcess, ThreadedUpstream], call: str
) -> None:
    worker, _ = scene
    seen = {}
    for mode in MODES:
        got = post(worker.origin, f"fb-key-{mode}", mode, call)
        assert got.status_code == 200, got.text
        record = worker.wait_record(got.headers["x-request-id"])
        assert record.duration_ns < 10e9
        headers = {name: got.headers.get(name) for name in SHOWN} | {"names": sorted(got.headers)}
        seen[mode] = got.text.replace(mode, "plain"), headers, show(record)
    for mode in MODES[1:]:
        assert seen[mode] == seen["plain"], mode


def find_copy(worker: GatewayProcess, request_id: str) -> Finished:
    return worker.wait_for(lambda record: record.mirror_of == request_id)


@pytest.mark.parametrize("call", CALLS)
def test_a_copy_is_billed_apart_and_paired_with_its_request(
    scene: tuple[GatewayProcess, ThreadedUpstream], call: str
) -> None:
    worker, second = scene
    got = post(worker.origin, "fb-key-alive", "alive", call)
    request = worker.wait_record(got.headers["x-request-id"])
    copy = find_copy(worker, request.request_id)
    assert (request.kind, copy.kind, request.mirrors_dropped) == (Kind.REQUEST, Kind.MIRROR, 0)
    assert (copy.at_ns, copy.key, copy.project) == (request.at_ns, request.key, request.project)
    assert copy.model == f"alive-{dialect_of(CALLS[call][0])}-mirror"
    assert (copy.status, copy.outcome, copy.attempts, copy.stream) == (200, Outcome.OK, 1, request.stream)
    assert (copy.tokens, copy.usage_source) == (request.tokens, request.usage_source)
    assert (copy.first_token_ns is None) == (request.first_token_ns is None)
    assert copy.mirror_same is (True if CALLS[call][0] in COMPARED else None)
    sent = second.requests[-1]
    assert sent.header("x-request-id") == copy.request_id != request.request_id
    assert "fb-key" not in str(sent.headers)


@pytest.mark.parametrize(
    ("mode", "status", "error", "source"),
    [
        ("fails", 500, "upstream_500", UsageSource.ESTIMATED),
        ("close", 503, "upstream_unreachable", UsageSource.NONE),
    ],
)
def test_a_copy_that_fails_is_on_record_as_that(
    scene: tuple[GatewayProcess, ThreadedUpstream], mode: str, status: int, error: str, source: UsageSource
) -> None:
    worker, _ = scene
    got = post(worker.origin, f"fb-key-{mode}", mode, "chat stream")
    copy = find_copy(worker, got.headers["x-request-id"])
    assert (copy.status, copy.error, copy.outcome) == (status, error, Outcome.FAILED)
    failed = worker.metric("forebay_mirrors_total", model=f"{mode}-openai", result="failed")
    assert failed >= 1
    assert worker.metric("forebay_requests_total", model=f"{mode}-openai-mirror") == 0
