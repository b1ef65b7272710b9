"""A worker that ends, and answers that are too large, as callers of both dialects meet them."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from dialect_stage import ENDPOINTS, PAIRS, build_body

from forebay.core.events import Outcome
from forebay.core.routes import GatewayLimits
from forebay.testing import anthropic as claude
from forebay.testing import openai as gpt
from forebay.testing.answers import chunk, sse_head
from forebay.testing.gateway import GatewayProcess, make_route
from forebay.testing.steps import Script, Stall, Step
from forebay.testing.threaded import ThreadedUpstream

PATHS = {"openai": "chat/completions", "anthropic": "messages"}
pairs = pytest.mark.parametrize(("caller", "target"), PAIRS)


def start(target: str, folder: Path, url: str, **limits: Any) -> GatewayProcess:
    route = make_route("m", url, endpoints=ENDPOINTS, dialect=target)
    return GatewayProcess([route], folder=folder, limits=GatewayLimits(**limits))


@pairs
def test_a_stream_that_a_drain_cuts_is_told_so(caller: str, target: str, tmp_path: Path) -> None:
    events = gpt.chat_stream(["A long ", "answer"])[:2]
    if target == "anthropic":
        events = claude.message_events(claude.message(claude.text("A long answer")))[:5]
    steps: list[Step] = [*sse_head(), *map(chunk, events), Stall()]
    with ThreadedUpstream(steps) as upstream:
        with start(target, tmp_path, upstream.url, drain_deadline_s=0.3) as worker:
            url, headers = f"{worker.url}/{PATHS[caller]}", {"authorization": f"Bearer {worker.key}"}
            seen = b""
            body = build_body(caller, "m", stream=True)
            with httpx.stream("POST", url, json=body, headers=headers, timeout=60) as answer:
                for data in answer.iter_raw():
                    if not seen:
                        worker.terminate()
                    seen += data
            assert worker.wait() == 0
            record = worker.wait_record(answer.headers["x-request-id"])
    assert (record.outcome, record.error) == (Outcome.FAILED, "gateway_draining")
    last = json.loads(seen.decode().split("data: ")[-1])
    assert last["error"]["type"] == "overloaded_error"
    assert ("type" in last) is (caller == "anthropic")
    assert b"message_stop" not in seen
    assert b"[DONE]" not in seen


@pairs
def test_an_answer_that_is_too_large(caller: str, target: str, tmp_path: Path) -> None:
    def answer(request: Any) -> Script:
        words = "word " * 40_000
        return (gpt.well_behaved(words) if target == "openai" else claude.well_behaved(words))(request)

    with ThreadedUpstream(answer) as upstream:
        with start(target, tmp_path, upstream.url, answer_max_bytes=100_000) as worker:
            url, headers = f"{worker.url}/{PATHS[caller]}", {"authorization": f"Bearer {worker.key}"}
            told = httpx.post(url, json=build_body(caller, "m"), headers=headers, timeout=60)
            streamed = httpx.post(url, json=build_body(caller, "m", stream=True), headers=headers, timeout=60)
            record = worker.wait_record(told.headers["x-request-id"])
            assert worker.get("/healthz")[0] == 200
    assert (told.status_code, record.error) == (502, "upstream_answer_too_large")
    assert told.json()["error"]["type"] == ("upstream_error" if caller == "openai" else "api_error")
    assert streamed.status_code == 200, "it bounds only what is not streamed"
    assert len(streamed.content) > 100_000


@pairs
def test_no_room_for_the_translation(caller: str, target: str, tmp_path: Path) -> None:
    """A body that fits, and does not fit twice."""
    words = "word " * 60_000
    body = build_body(caller, "m", messages=[{"role": "user", "content": words}])
    answer = gpt.well_behaved("Hi") if target == "openai" else claude.well_behaved("Hi")
    with ThreadedUpstream(answer) as upstream:
        with start(target, tmp_path, upstream.url, memory_max_bytes=500_000) as worker:
            url, headers = f"{worker.url}/{PATHS[caller]}", {"authorization": f"Bearer {worker.key}"}
            told = httpx.post(url, json=body, headers=headers, timeout=60)
            worker.wait_idle()
            assert worker.metric("forebay_memory_held_bytes") == 0
    if caller == target:
        assert told.status_code == 200
    else:
        assert told.status_code == 503
        assert told.json()["error"]["type"] == "overloaded_error"
        assert told.headers["retry-after"] == "1"
        assert upstream.requests == []
