"""The meter of a stream: what is held before content, which ends are good ones, which errors count."""

import json
from typing import Any

import pytest
from hypothesis import settings
from stream_rig import LIMIT, run

from forebay.providers.openai_stream import StreamMeter
from forebay.testing.answers import cut
from forebay.testing.openai import (
    DONE,
    ToolCall,
    chat_chunk,
    chat_stream,
    completion_stream,
    event,
    tool_call_stream,
    usage_chunk,
)

few = settings(max_examples=80, deadline=None)

# --- the commit point ---------------------------------------------------------------------------------------

SILENT: list[dict[str, Any] | bytes] = [
    chat_chunk({"role": "assistant", "content": ""}),
    chat_chunk({"role": "assistant", "content": None}),
    chat_chunk({"role": "assistant", "content": "", "refusal": None, "tool_calls": []}),
    {"choices": [], "prompt_filter_results": []},
    {"choices": [{"index": 0, "text": "", "finish_reason": None}]},
    b": ping\n\n",
    b"event: ping\n\n",
    b"\n\n",
]
SPEAKING: list[dict[str, Any] | bytes] = [
    chat_chunk({"content": " "}),
    chat_chunk({"content": "Hi"}),
    chat_chunk({"role": "assistant", "content": "Hi"}),
    chat_chunk({"reasoning_content": "Hm"}),
    chat_chunk({"reasoning": "Hm"}),
    chat_chunk({"refusal": "No"}),
    chat_chunk({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": ""}}]}),
    chat_chunk({}, finish_reason="stop"),
    {"choices": [{"index": 0, "text": "x"}]},
    {"choices": "a shape that we don't know"},
    b"data: not even JSON\n\n",
    DONE,
]


def spell(said: dict[str, Any] | bytes) -> bytes:
    return said if isinstance(said, bytes) else event(said)


@pytest.mark.parametrize("said", SILENT, ids=str)
def test_a_preamble_is_held(said: dict[str, Any] | bytes) -> None:
    meter = StreamMeter(hide_usage=True, event_max_bytes=LIMIT)
    assert meter.feed(spell(said)) == b""
    assert not meter.content_seen
    assert meter.content_events == 0
    assert meter.feed(event(chat_chunk({"content": "x"}))).startswith(spell(said))


@pytest.mark.parametrize("said", SPEAKING, ids=str)
def test_content_goes_out_at_once_with_what_was_held(said: dict[str, Any] | bytes) -> None:
    meter = StreamMeter(hide_usage=True, event_max_bytes=LIMIT)
    held = spell(SILENT[0])
    assert meter.feed(held) == b""
    assert meter.feed(spell(said)) == held + spell(said)
    assert meter.content_seen


def test_an_endless_preamble_is_not_held_for_ever() -> None:
    meter = StreamMeter(hide_usage=True, event_max_bytes=LIMIT)
    out = b"".join(meter.feed(b": still thinking about it\n\n") for _ in range(5000))
    assert len(out) > 60_000


@pytest.mark.parametrize("parts", [1, 5, 4000])
@pytest.mark.parametrize("make", [chat_stream, completion_stream])
def test_tokens_are_not_underestimated(make: Any, parts: int) -> None:
    events = make([f"{number} " for number in range(parts)], include_usage=False, done=False)[:-1]
    for pieces in (events, [b"".join(events)]):
        _, meter = run(pieces, hide=True)
        assert meter.content_events == parts


# --- ends and errors ----------------------------------------------------------------------------------------

FINISH = event(chat_chunk({}, finish_reason="stop"))
HELLO = event(chat_chunk({"content": "Hello"}))
BIG_USAGE = event(usage_chunk() | {"padding": "x" * 3000})
GOOD_ENDS = {
    "done": [HELLO, DONE],
    "finish": [HELLO, FINISH],
    "finish and done": [HELLO, FINISH, DONE],
    "finish and usage": [HELLO, FINISH, event(usage_chunk())],
    "finish and a long usage": [HELLO, FINISH, BIG_USAGE],
    "finish beside content": [event(chat_chunk({"content": "Hello"}, finish_reason="length"))],
    "done without a space": [HELLO, b"data:[DONE]\n\n"],
    "done and a comment": [HELLO, DONE, b": thank you for your custom, and good bye\n\n"],
    "done without a blank line": [HELLO, b"data: [DONE]"],
    "done in another line ending": [HELLO, b"data: [DONE]\r\n\r\n"],
    "a tool call's": tool_call_stream([ToolCall(id="c", name="f", arguments="{}")]),
    "completions": completion_stream(done=False),
}
BAD_ENDS = {
    "nothing": [],
    "preamble": [spell(SILENT[0])],
    "content": [HELLO],
    "mid event": [HELLO, FINISH[:60]],
    "the word in the text": [event(chat_chunk({"content": "[DONE]"}))],
    "the word at an event's end": [b'data: {"choices":[{"delta":{"content":"[DONE]"}}]}\n\n'],
    "the word in a completion": [b'data: {"choices":[{"text":"data: [DONE]"}]}\n\n'],
    "a finish reason in the text": [event(chat_chunk({"content": '"finish_reason":"stop"'}))],
    "content after another choice's finish": [FINISH, event(chat_chunk({"content": "more"}, index=1))],
    "usage without a finish": [HELLO, event(usage_chunk())],
    "an empty finish": [event(chat_chunk({"content": "x"}, finish_reason=""))],
}


@pytest.mark.parametrize("hide", [False, True])
@pytest.mark.parametrize("name", GOOD_ENDS)
def test_a_good_end_is_recognised(name: str, hide: bool) -> None:
    for pieces in (GOOD_ENDS[name], [b"".join(GOOD_ENDS[name])]):
        assert run(pieces, hide=hide)[1].ended_well


@pytest.mark.parametrize("hide", [False, True])
@pytest.mark.parametrize("name", BAD_ENDS)
def test_no_other_end_passes_for_a_good_one(name: str, hide: bool) -> None:
    for pieces in (BAD_ENDS[name], [b"".join(BAD_ENDS[name])]):
        assert not run(pieces, hide=hide)[1].ended_well


ERROR = {"message": "out of memory", "type": "server_error", "code": 500}
ERRORS = {
    "own event": (b"data: " + json.dumps({"error": ERROR}, separators=(",", ":")).encode() + b"\n\n", True),
    "spaces": (b"data: " + json.dumps({"error": ERROR}).encode() + b"\n\n", True),
    "space before the key": (b'data: { "error": {"message": "x"}}\n\n', True),
    "typed event": (b'event: error\ndata: {"error":{"message":"x"}}\n\n', True),
    "beside choices": (event(chat_chunk({"content": ""}, finish_reason="error") | {"error": ERROR}), True),
    "a string": (b'data: {"error":"overloaded","error_type":"overloaded"}\n\n', True),
    "an error object without envelope": (event({"object": "error", "message": "x", "code": 400}), False),
    "marked by its type": (b'event: error\ndata: {"type":"error","message":"x"}\n\n', False),
    "carriage returns": (b'data: {"error":{"message":"x"}}\r\n\r\n', True),
}
NO_ERRORS = [
    event(chat_chunk({"content": '{"error":{"message":"x"}}'})),
    event(chat_chunk({"content": "an error"}) | {"error": None}),
    event(chat_chunk({"content": "x"}, finish_reason="error")),
    event(chat_chunk({"content": "x"}) | {"error": {}}),
    b'data: {"choices":[{"text":"error"}]}\n\n',
]


@pytest.mark.parametrize("name", ERRORS)
@pytest.mark.parametrize("every", [1, 1 << 20])
def test_an_error_in_the_stream_is_noticed(name: str, every: int) -> None:
    raw, told = ERRORS[name]
    out, meter = run(list(cut(HELLO + raw + DONE, every=every)), hide=True)
    assert out == HELLO + raw + DONE
    assert meter.error is not None
    assert json.loads(meter.error)
    assert meter.error_told is told


@pytest.mark.parametrize("every", [1, 1 << 20])
@pytest.mark.parametrize("first", ERRORS)
@pytest.mark.parametrize("second", ["own event", "an error object without envelope"])
def test_the_first_error_is_the_one_that_counts(first: str, second: str, every: int) -> None:
    raw, told = ERRORS[first]
    _, alone = run([raw], hide=True)
    _, meter = run(list(cut(HELLO + raw + ERRORS[second][0], every=every)), hide=True)
    assert (meter.error, meter.error_told) == (alone.error, told)


@pytest.mark.parametrize("raw", NO_ERRORS, ids=str)
def test_what_only_looks_like_an_error_is_none(raw: bytes) -> None:
    out, meter = run([raw], hide=True)
    assert out == raw
    assert meter.error is None


def test_deep_nesting_harms_nobody() -> None:
    deep = b'data: {"usage":' + b"[" * 5000 + b"]" * 5000 + b',"error":1}\n\n'
    out, meter = run([HELLO, deep, DONE], hide=True)
    assert out == HELLO + deep + DONE
    assert meter.ended_well
