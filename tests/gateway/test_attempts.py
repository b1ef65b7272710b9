"""What an attempt leaves behind: its count, a connection that can serve again, and nothing of the request."""

from pathlib import Path

import httpx
import msgspec
import pytest
from gateway_stage import Stage

from forebay.core.routes import Endpoint, GatewayLimits, Route
from forebay.testing.answers import chunk, last_chunk, sse_answer, sse_head
from forebay.testing.gateway import TEST_KEY, GatewayProcess, make_route
from forebay.testing.openai import chat_chunk, error, event, well_behaved
from forebay.testing.steps import Close, Reset, Sleep, Step
from forebay.testing.threaded import ThreadedUpstream

HEADERS = {"authorization": f"Bearer {TEST_KEY}", "content-type": "application/json"}
BODY_BYTES = 4_000_000


def make_broken_route(url: str | None) -> Route:
    """A route whose first target lacks its secret; the second, if there is one, works."""
    (known,) = make_route("m", url or "http://127.0.0.1:9/v1").targets
    broken = msgspec.structs.replace(known, id="broken", api_key="env:FOREBAY_TEST_NO_SUCH_SECRET")
    targets = (broken,) if url is None else (broken, msgspec.structs.replace(known, id="sound"))
    return Route(model="m", endpoints=tuple(Endpoint), targets=targets)


@pytest.mark.parametrize("second", [True, False])
def test_a_target_that_cannot_be_sent_to_keeps_nothing_of_a_request(tmp_path: Path, second: bool) -> None:
    body = b'{"model":"m","messages":[],"padding":"%b"}' % (b"x" * BODY_BYTES)
    with ThreadedUpstream(well_behaved("Hello")) as upstream:
        route = make_broken_route(upstream.url if second else None)
        with GatewayProcess([route], folder=tmp_path) as gateway, httpx.Client(timeout=30) as client:

            def ask() -> None:
                answer = client.post(f"{gateway.url}/chat/completions", content=body, headers=HEADERS)
                assert answer.status_code == (200 if second else 502)

            for _ in range(5):
                ask()
            before = gateway.rss_bytes
            for _ in range(20):
                ask()
            assert gateway.rss_bytes - before < 5 * BODY_BYTES


HE = event(chat_chunk({"content": "He"}))
BREAKS: dict[str, list[Step]] = {
    "a reset": [*sse_head(), chunk(HE), Sleep(0.05), Reset()],
    "an end": [*sse_head(), chunk(HE), Sleep(0.05), Close()],
    "an end in one read": sse_answer([HE]),
    "an error": [*sse_head(), chunk(HE), Sleep(0.05), chunk(event(error("no"))), last_chunk()],
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_stream_that_breaks_is_a_failed_attempt(tmp_path: Path, name: str) -> None:
    with ThreadedUpstream(BREAKS[name]) as upstream:
        with GatewayProcess([make_route("m", upstream.url)], folder=tmp_path) as gateway:
            ask = {"model": "m", "messages": [], "stream": True}
            for _ in range(2):  # over a new connection, and over a pooled one where that goes
                answer = httpx.post(f"{gateway.url}/chat/completions", json=ask, headers=HEADERS)
                assert answer.status_code == 200
                assert "[DONE]" not in answer.text
            gateway.until(lambda: gateway.metric("forebay_attempts_total", result="failed") == 2)
            assert gateway.metric("forebay_attempts_total", result="ok") == 0
            assert {record.outcome.value for record in gateway.records()} == {"failed"}
            assert "target m-0: upstream_" in gateway.log


def test_a_request_that_cannot_be_rewritten_costs_no_connection(tmp_path: Path, upstream: Stage) -> None:
    (known,) = make_route("m", upstream.url).targets
    route = Route(
        model="m", endpoints=tuple(Endpoint), targets=(msgspec.structs.replace(known, model="other"),)
    )
    fields = ",".join(f'"f{number}":0' for number in range(2000))
    body = f'{{"model":"m","messages":[],{fields}}}'.encode()
    with GatewayProcess([route], folder=tmp_path, limits=GatewayLimits()) as gateway:
        with httpx.Client(base_url=gateway.url, headers=HEADERS) as client:
            assert client.post("/chat/completions", json={"model": "m", "messages": []}).status_code == 200
            for _ in range(5):
                answer = client.post("/chat/completions", content=body)
                assert answer.status_code == 400
                assert "more than 1000 fields" in answer.json()["error"]["message"]
            assert client.post("/chat/completions", json={"model": "m", "messages": []}).status_code == 200
        assert len({request.connection for request in upstream.requests}) == 1
