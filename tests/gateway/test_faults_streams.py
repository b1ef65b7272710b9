"""Known faults of streams whose end tells less than the whole, and what limits make of them."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from faults_scene import STREAMS, WAYS, Scene, scene
from gateway_stage import Stage
from limits_rig import ask
from raw_caller import RawCaller

from forebay.core.events import Outcome, Tokens, UsageSource
from forebay.testing.answers import chunk, json_answer, sse_answer, sse_head
from forebay.testing.openai import chat_completion, completion, embeddings, usage
from forebay.testing.recorded import RecordedRequest
from forebay.testing.steps import Script, Stall

__all__ = ["scene"]


@pytest.mark.parametrize(
    ("owner", "path", "leave"),
    [
        ("key k1", "chat/completions", RawCaller.close),
        ("project test", "completions", RawCaller.reset),
        ("team default", "chat/completions", RawCaller.reset),
        ("key k1", "completions", RawCaller.close),
    ],
)
def test_S1_a_caller_that_leaves_after_five_chunks_is_charged_and_releases_all(
    scene: Scene, upstream: Stage, owner: str, path: str, leave: Callable[[RawCaller], None]
) -> None:
    scene.wait_left(owner, places=2)
    before = scene.left(owner)[f"total_tokens of {owner}"]
    parts = [f"part{number} " for number in range(5)]
    events = STREAMS[path](parts, include_usage=False, done=False)
    end = next(number for number, event in enumerate(events) if b"part4" in event)
    upstream.answer = [*sse_head(), *map(chunk, events[: end + 1]), Stall()]
    asked = {"model": "m", "messages": [], "prompt": "Count.", "stream": True, "max_tokens": 40}
    with RawCaller(scene.gateway.port) as caller:
        caller.post(path, asked, headers=(f"authorization: Bearer fb-test-of-{owner}",))
        caller.read_until(b"part4")
        leave(caller)
        upstream.wait_closed(upstream.request)
        record = scene.gateway.wait_record(caller.reply.id)
    assert (record.status, record.outcome, record.usage_source) == (
        499,
        Outcome.ABANDONED,
        UsageSource.ESTIMATED,
    )
    assert record.tokens.output == 5
    assert (record.tokens.input or 0) > 0
    # Nobody knows how much more was made than was seen: what was reserved stays taken, and nothing else.
    reserved = (record.tokens.input or 0) + 40
    scene.wait_left(owner, places=2, tokens=before - reserved)


@pytest.mark.parametrize("path", STREAMS)
@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}])
def test_S2_usage_is_asked_for_hidden_and_counted_with_hidden_reasoning(
    scene: Scene, upstream: Stage, path: str, options: dict[str, Any] | None
) -> None:
    counted = usage(9, 30, reasoning=25)

    def engine(request: RecordedRequest) -> Script:
        wanted = bool((request.json().get("stream_options") or {}).get("include_usage"))
        return sse_answer(STREAMS[path](["x", "y"], tokens=counted, include_usage=wanted))

    upstream.answer = engine
    owner = "key k1"
    scene.wait_left(owner, places=2)
    before = scene.left(owner)[f"total_tokens of {owner}"]
    more = {} if options is None else {"stream_options": options}
    direct = ask(upstream.url, path, stream=True, **more)
    answer = ask(scene.url, path, key=f"fb-test-of-{owner}", stream=True, max_tokens=100, **more)
    assert answer.content == direct.content
    assert b"usage" not in answer.content.replace(b'"usage":null', b"")
    assert json.loads(bytes(upstream.requests[-1].body))["stream_options"]["include_usage"] is True
    record = scene.gateway.wait_record(answer.headers["x-request-id"])
    assert record.tokens == Tokens(input=9, output=5, output_reasoning=25)
    scene.wait_left(owner, places=2, tokens=before - 39)


@pytest.mark.parametrize(("path", "stream"), WAYS)
def test_S2_a_usage_of_0_stays_0_and_is_refunded_whole(
    scene: Scene, upstream: Stage, path: str, stream: bool
) -> None:
    owner = "key k1"
    scene.wait_left(owner, places=2)
    before = scene.left(owner)[f"total_tokens of {owner}"]
    if path == "embeddings":
        upstream.answer = json_answer(embeddings([[1.0]], prompt_tokens=0))
    elif stream:
        upstream.answer = sse_answer(STREAMS[path](["x"], tokens=usage(0, 0)))
    else:
        whole = chat_completion if path == "chat/completions" else completion
        upstream.answer = json_answer(whole("x", tokens=usage(0, 0)))
    answer = ask(scene.url, path, key=f"fb-test-of-{owner}", stream=stream, max_tokens=100)
    record = scene.gateway.wait_record(answer.headers["x-request-id"])
    assert record.usage_source is UsageSource.REPORTED
    assert (record.tokens.input, record.tokens.output) == (0, 0)
    scene.wait_left(owner, places=2, tokens=before)
