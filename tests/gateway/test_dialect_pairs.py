"""Each caller at each target, with the real clients: the same answer and record, whoever speaks what."""

import re
from typing import Any

import pytest
from dialect_stage import CALLS, PAIRS, PIXEL, TRANSLATED, Callers, callers, stages, worker
from gateway_stage import UPSTREAM_SECRET, Stage, _stages, fallback, upstream

from forebay.core.events import Outcome, Tokens, UsageSource
from forebay.testing import anthropic as claude
from forebay.testing import openai as gpt
from forebay.testing.answers import drip, json_answer, sse_answer
from forebay.testing.recorded import RecordedRequest
from forebay.testing.steps import Script

__all__ = ["_stages", "callers", "fallback", "stages", "upstream", "worker"]

pairs = pytest.mark.parametrize(("caller", "target"), PAIRS)
translated = pytest.mark.parametrize(("caller", "target"), TRANSLATED)
both = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
PIECES = ("Grüße ", "€ 😀 ", "\n\ndata: [DONE]\n\n")
WORDS = "".join(PIECES)
SCHEMAS: list[tuple[str, dict[str, Any]]] = [
    ("look", {"type": "object", "properties": {"at": {"type": "string"}}}),
    ("now", {"type": "object", "properties": {}}),
]
TOOLS: dict[str, list[dict[str, Any]]] = {
    "openai": [
        {"type": "function", "function": {"name": name, "description": "d", "parameters": schema}}
        for name, schema in SCHEMAS
    ],
    "anthropic": [
        {"name": name, "description": "d", "input_schema": schema} for name, schema in SCHEMAS
    ],
}  # fmt: skip
USE: dict[str, Any] = {"type": "tool_use", "id": "call_1", "name": "look", "input": {}}
USE_RESULT = {"type": "tool_result", "tool_use_id": "call_1", "content": "waves"}


def speak(target: str) -> Any:
    """A good target whose prompt has 9 tokens, of which 4 came from a cache."""
    if target == "openai":
        return gpt.well_behaved(*PIECES, tokens=gpt.usage(9, 5, cached=4))
    return claude.well_behaved(WORDS, tokens=claude.usage(5, 5, cache_read=4))


def call_tools(target: str) -> Any:
    def handle(request: RecordedRequest) -> Script:
        stream = bool(request.json().get("stream"))
        if target == "anthropic":
            blocks = [claude.text("I look."), *map(claude.tool_use, CALLS)]
            return claude.well_behaved(*blocks)(request)
        if stream:
            return sse_answer(gpt.tool_call_stream(CALLS))
        return json_answer(gpt.chat_completion(None, tool_calls=CALLS))

    return handle


@both
@pairs
def test_the_same_answer_and_the_same_record(
    callers: Callers, stages: dict[str, Stage], caller: str, target: str, stream: bool
) -> None:
    stages[target].answer = speak(target)
    said = callers.ask(caller, target, stream=stream)
    assert (said.text, said.calls, said.stop) == (WORDS, (), "end_turn")
    assert (said.input, said.output) == (9, 5)
    record = callers.worker.wait_record(said.request_id)
    assert (record.outcome, record.status, record.stream) == (Outcome.OK, 200, stream)
    assert record.endpoint == ("chat/completions" if caller == "openai" else "messages")
    assert record.tokens.input_cached == 4
    assert record.tokens.input_total == 9
    assert record.tokens.output == 5
    assert record.usage_source is UsageSource.REPORTED
    assert (record.first_token_ns is not None) is stream
    sent = stages[target].request
    assert sent.path == ("/v1/chat/completions" if target == "openai" else "/v1/messages")
    assert sent.json()["model"] == "there"
    secret = sent.header("x-api-key") if target == "anthropic" else sent.header("authorization")
    assert secret in (UPSTREAM_SECRET, f"Bearer {UPSTREAM_SECRET}")
    assert callers.worker.key not in str(sent.headers)


@both
@pairs
def test_parallel_calls_of_tools(
    callers: Callers, stages: dict[str, Stage], caller: str, target: str, stream: bool
) -> None:
    stages[target].answer = call_tools(target)
    said = callers.ask(caller, target, stream=stream, tools=TOOLS[caller])
    assert said.calls == (("call_1", "look", {"at": "sea", "depth": 3}), ("call_2", "now", {}))
    assert said.stop == "tool_use"
    sent = stages[target].request.json()["tools"]
    if target == "openai":
        assert [tool["function"]["name"] for tool in sent] == ["look", "now"]
        assert sent[0]["function"]["parameters"] == TOOLS["anthropic"][0]["input_schema"]
    else:
        assert [tool["name"] for tool in sent] == ["look", "now"]
        assert sent[0]["input_schema"] == TOOLS["anthropic"][0]["input_schema"]


@translated
def test_results_of_tools_go_back(
    callers: Callers, stages: dict[str, Stage], caller: str, target: str
) -> None:
    stages[target].answer = speak(target)
    told: dict[str, list[dict[str, Any]]] = {
        "openai": [
            {"role": "user", "content": "Look."},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
                ],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": "waves"},
        ],
        "anthropic": [
            {"role": "user", "content": "Look."},
            {"role": "assistant", "content": [USE]},
            {"role": "user", "content": [USE_RESULT]},
        ],
    }  # fmt: skip
    callers.ask(caller, target, stream=False, messages=told[caller], tools=TOOLS[caller])
    sent = stages[target].request.json()["messages"]
    if target == "openai":
        assert [message["role"] for message in sent] == ["user", "assistant", "tool"]
        assert sent[1]["tool_calls"][0]["function"] == {"name": "look", "arguments": "{}"}
        assert (sent[2]["tool_call_id"], sent[2]["content"]) == ("call_1", "waves")
    else:
        assert [message["role"] for message in sent] == ["user", "assistant", "user"]
        assert sent[1]["content"][0] == USE
        assert sent[2]["content"][0]["tool_use_id"] == "call_1"


IMAGES: dict[str, dict[str, dict[str, Any]]] = {
    "openai": {
        "base64": {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
        "url": {"type": "image_url", "image_url": {"url": "https://pictures.example/sea.png"}},
    },
    "anthropic": {
        "base64": {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}},
        "url": {"type": "image", "source": {"type": "url", "url": "https://pictures.example/sea.png"}},
    },
}


@pytest.mark.parametrize("kind", ["base64", "url"])
@pairs
def test_images(callers: Callers, stages: dict[str, Stage], caller: str, target: str, kind: str) -> None:
    stages[target].answer = speak(target)
    content = [{"type": "text", "text": "What is it?"}, IMAGES[caller][kind]]
    callers.ask(caller, target, stream=False, messages=[{"role": "user", "content": content}])
    assert stages[target].request.json()["messages"][0]["content"] == [
        {"type": "text", "text": "What is it?"},
        IMAGES[target][kind],
    ]


@both
def test_thinking_reaches_a_caller_of_chat_with_its_signature(
    callers: Callers, stages: dict[str, Stage], stream: bool
) -> None:
    thought = claude.thinking("Let me see …", "EqQBCkgIBRABGAIiQ+signature==")
    stages["anthropic"].answer = claude.well_behaved(thought, "It is there.")
    body = callers.post("openai", "anthropic", stream=stream)
    assert body.status_code == 200
    if not stream:
        told = body.json()["choices"][0]["message"]
        assert told["content"] == "It is there."
        assert told["reasoning_content"] == "Let me see …"
        assert told["thinking_blocks"] == [thought]
        callers.post("openai", "anthropic", messages=[{"role": "user", "content": "?"}, told,
                                                      {"role": "user", "content": "!"}])  # fmt: skip
        sent = stages["anthropic"].requests[1].json()["messages"][1]["content"]
        assert sent[0] == thought, "and it comes back as it was"
    else:
        assert "EqQBCkgIBRABGAIiQ+signature==" in body.text


@both
def test_reasoning_reaches_a_caller_of_messages(
    callers: Callers, stages: dict[str, Stage], stream: bool
) -> None:
    def think(request: RecordedRequest) -> Script:
        if not request.json().get("stream"):
            answer = gpt.chat_completion("It is there.")
            answer["choices"][0]["message"]["reasoning_content"] = "Let me see …"
            return json_answer(answer)
        events = gpt.chat_stream(["It is ", "there."])
        thought = gpt.event(gpt.chat_chunk({"reasoning_content": "Let me see …"}))
        return sse_answer([events[0], thought, *events[1:]])

    stages["openai"].answer = think
    if stream:
        with callers.claude.messages.stream(
            model="openai", max_tokens=9, messages=[{"role": "user", "content": "Hello"}]
        ) as events:
            answer = events.get_final_message()
    else:
        answer = callers.claude.messages.create(
            model="openai", max_tokens=9, messages=[{"role": "user", "content": "Hello"}]
        )
    thoughts = [block.thinking for block in answer.content if block.type == "thinking"]
    words = [block.text for block in answer.content if block.type == "text"]
    assert (thoughts, "".join(words)) == (["Let me see …"], "It is there.")


@translated
def test_where_to_stop(callers: Callers, stages: dict[str, Stage], caller: str, target: str) -> None:
    stages[target].answer = speak(target)
    names = {"openai": "stop", "anthropic": "stop_sequences"}
    callers.ask(caller, target, stream=False, **{names[caller]: ["END", "###"]})
    assert stages[target].request.json()[names[target]] == ["END", "###"]


@translated
@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_a_stream_that_comes_byte_by_byte(
    callers: Callers, stages: dict[str, Stage], caller: str, target: str, newline: bytes
) -> None:
    if target == "openai":
        events = gpt.tool_call_stream(CALLS, fragment_chars=2)
    else:
        blocks = [claude.text(WORDS), *map(claude.tool_use, CALLS)]
        events = claude.message_events(claude.message(*blocks), fragment_chars=2)
    stages[target].answer = sse_answer([b"".join(events)])
    at_once = callers.post(caller, target, stream=True)
    stages[target].answer = drip(sse_answer([b"".join(events).replace(b"\n", newline)]), every=1)
    in_pieces = callers.post(caller, target, stream=True)
    assert in_pieces.status_code == 200
    assert strip_times(in_pieces.content) == strip_times(at_once.content)
    record = callers.worker.wait_record(in_pieces.headers["x-request-id"])
    assert (record.outcome, record.tokens) == (Outcome.OK, Tokens(input=7, output=5))


def strip_times(body: bytes) -> bytes:
    """A stream without what differs between two of the same."""
    return re.sub(rb'"created":\d+', b'"created":0', body)


def test_a_caller_of_chat_sees_no_usage_that_it_did_not_ask_for(
    callers: Callers, stages: dict[str, Stage]
) -> None:
    stages["anthropic"].answer = speak("anthropic")
    hidden = callers.post("openai", "anthropic", stream=True)
    assert b'"usage":{' not in hidden.content
    assert hidden.content.endswith(b"data: [DONE]\n\n")
    shown = callers.post("openai", "anthropic", stream=True, stream_options={"include_usage": True})
    assert b'"usage":{' in shown.content
    record = callers.worker.wait_record(hidden.headers["x-request-id"])
    assert record.tokens == Tokens(input=5, input_cached=4, output=5)


def test_tokens_are_counted_here_where_the_target_can_not(callers: Callers, stages: dict[str, Stage]) -> None:
    words = "a word and another " * 40
    counted = callers.claude.messages.count_tokens(
        model="openai", messages=[{"role": "user", "content": words}]
    )
    assert 100 < counted.input_tokens < 400
    assert stages["openai"].requests == []
    record = callers.worker.wait_for(lambda each: each.endpoint == "messages/count_tokens")
    assert (record.status, record.attempts, record.usage_source) == (200, 0, UsageSource.NONE)
