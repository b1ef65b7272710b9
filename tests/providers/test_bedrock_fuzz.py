"""Whatever comes from a caller or from Bedrock, the translator answers, or says whose fault it is."""

import json
from typing import Any

from bedrock_request import MODEL, TRANSLATOR
from hypothesis import given
from hypothesis import strategies as st

from forebay.core.errors import CallerError, UpstreamProtocol
from forebay.providers.chat_to_bedrock import MAPPED
from forebay.testing.bedrock import converse, event, text, thinking, tool_use
from forebay.testing.openai import ToolCall

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
CHAT: dict[str, Any] = {
    "model": "m",
    "messages": [
        {
            "role": "system",
            "content": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
        },
        {
            "role": "user",
            "content": [
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
                {"type": "file", "file": {"file_data": "data:text/plain;base64,AA==", "filename": "a.txt"}},
                {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}},
            ],
        },
        {
            "role": "assistant",
            "content": "x",
            "tool_calls": [CALL],
            "thinking_blocks": [{"type": "thinking", "thinking": "t", "signature": "s"}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "r", "is_error": True},
    ],
    "tools": [
        {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "strict": True}}
    ],
    "tool_choice": {"type": "function", "function": {"name": "f"}},
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}},
    "stop": ["a"],
    "max_tokens": 5,
    "temperature": 0.5,
}
ANSWER = converse(
    thinking("t", "s"), text("x"), tool_use(ToolCall(id="c1", name="f", arguments='{"a":1}'))
) | {"serviceTier": {"type": "default"}}
EVENTS: list[tuple[str, dict[str, Any]]] = [
    ("messageStart", {"role": "assistant"}),
    (
        "contentBlockStart",
        {"contentBlockIndex": 0, "start": {"toolUse": {"toolUseId": "c", "name": "f"}}},
    ),
    ("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"toolUse": {"input": "{}"}}}),
    ("contentBlockDelta", {"contentBlockIndex": 1, "delta": {"text": "x"}}),
    ("contentBlockDelta", {"contentBlockIndex": 2, "delta": {"reasoningContent": {"text": "t"}}}),
    ("contentBlockStop", {"contentBlockIndex": 0}),
    ("messageStop", {"stopReason": "end_turn"}),
    ("metadata", {"usage": {"inputTokens": 1, "outputTokens": 2}, "metrics": {}}),
]


def list_places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, dict):
        inner = [place for key in value for place in list_places(value[key], (*path, key))]
    elif isinstance(value, list):
        inner = [place for at, each in enumerate(value) for place in list_places(each, (*path, at))]
    else:
        inner = []
    return [path, *inner] if path else inner


def put(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    head, *rest = path
    if isinstance(value, dict):
        return value | {head: put(value[head], tuple(rest), new)}
    return [put(each, tuple(rest), new) if at == head else each for at, each in enumerate(value)]


def send(body: bytes) -> CallerError | None:
    """Why a request is not sent; None if it is, as JSON."""
    try:
        json.loads(TRANSLATOR.encode_request(body, MODEL, stream=True))
    except CallerError as error:
        return error
    return None


@given(place=st.sampled_from(list_places(CHAT)), value=JSON)
def test_a_request_with_anything_anywhere_is_sent_or_named(place: tuple[Any, ...], value: Any) -> None:
    refused = send(json.dumps(put(CHAT, place, value)).encode())
    assert refused is None or (refused.status == 400 and refused.message)


@given(name=st.sampled_from(sorted(MAPPED)), value=JSON)
def test_a_parameter_with_any_value_is_sent_or_named(name: str, value: Any) -> None:
    refused = send(json.dumps(CHAT | {name: value}).encode())
    assert refused is None or (refused.status == 400 and refused.message)


@given(body=st.binary(max_size=60))
def test_any_bytes_are_no_request(body: bytes) -> None:
    refused = send(body)
    assert refused is not None
    assert refused.status == 400


@given(place=st.sampled_from(list_places(ANSWER)), value=JSON)
def test_an_answer_with_anything_anywhere_is_one_or_the_target_s_fault(
    place: tuple[Any, ...], value: Any
) -> None:
    try:
        json.loads(TRANSLATOR.decode_answer(json.dumps(put(ANSWER, place, value)).encode(), "m"))
    except UpstreamProtocol:
        pass


@given(at=st.integers(0, len(EVENTS) - 1), value=JSON, data=st.data())
def test_a_stream_with_anything_anywhere_is_one_or_the_target_s_fault(
    at: int, value: Any, data: st.DataObject
) -> None:
    events = [[kind, payload] for kind, payload in EVENTS]
    events[at][1] = put(events[at][1], data.draw(st.sampled_from(list_places(events[at][1]))), value)
    translator = TRANSLATOR.new_stream("m")
    try:
        for kind, payload in events:
            translator.feed(event(str(kind), payload))  # type: ignore[arg-type]
    except UpstreamProtocol:
        pass
