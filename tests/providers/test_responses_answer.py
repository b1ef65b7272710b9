"""Answers, streams and errors of a target that speaks OpenAI's chat, as callers of responses see them."""

import itertools
import json
from typing import Any

import msgspec
import openai as openai_client
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from real_clients import read_response, read_response_stream

from forebay.core.errors import UpstreamProtocol
from forebay.core.events import Tokens
from forebay.net.sse import EventSplitter, EventTooLarge, parse_event
from forebay.providers.responses_dialect import ResponsesDialect
from forebay.providers.responses_meter import ResponsesMeter, read_response_usage
from forebay.providers.responses_to_chat import ResponsesToChat
from forebay.testing import responses
from forebay.testing.openai import (
    DONE,
    ToolCall,
    chat_chunk,
    chat_completion,
    event,
    tool_call_stream,
    usage,
    usage_chunk,
)

TRANSLATOR = ResponsesToChat()
FURTHER = ResponsesToChat(is_extended=True)
CALLS = (
    ToolCall(id="call_1", name="look_up", arguments='{"q":"a","deep":{"n":[1,2]}}'),
    ToolCall(id="call_2", name="now", arguments=""),
    ToolCall(id="call_3", name="look_up", arguments='{"q":"ü"}'),
)
SIGNED = [
    {"type": "thinking", "thinking": "Hm.", "signature": "c2ln=="},
    {"type": "redacted_thinking", "data": "ZGF0YQ=="},
]
_EVENT: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)
_RESPONSE = TypeAdapter(Response)


def encode(completion: dict[str, Any], translator: Any = TRANSLATOR) -> dict[str, Any]:
    body = translator.encode_answer(msgspec.json.encode(completion))
    read_response(body)
    made: dict[str, Any] = json.loads(body)
    _RESPONSE.validate_python(made)
    return made


def with_message(finish_reason: str = "stop", **fields: object) -> dict[str, Any]:
    made = chat_completion()
    made["choices"][0]["message"] |= fields
    made["choices"][0]["finish_reason"] = finish_reason
    return made


def translate(data: bytes, *cuts: int) -> bytes:
    stream = TRANSLATOR.new_stream()
    ends = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    pieces = [data[start:end] for start, end in itertools.pairwise(ends)]
    return b"".join([*map(stream.feed, pieces), stream.finish()])


def read_events(out: bytes) -> list[dict[str, Any]]:
    """The events of a stream: each named for its type, numbered, and one of those that OpenAI documents."""
    splitter = EventSplitter(1 << 20)
    events = []
    for raw in splitter.feed(out):
        parsed = parse_event(raw)
        if not parsed.data:
            continue
        made = json.loads(parsed.data)
        assert parsed.event == made["type"]
        assert made["sequence_number"] == len(events)
        _EVENT.validate_python(made)
        events.append(made)
    assert splitter.finish() == b""
    return events


def stream_of(
    *deltas: dict[str, Any], finish_reason: str = "stop", tokens: dict[str, Any] | None = None
) -> bytes:
    chunks = [chat_chunk({"role": "assistant", "content": ""}), *map(chat_chunk, deltas)]
    chunks += [chat_chunk({}, finish_reason=finish_reason), usage_chunk(tokens)]
    return b"".join([*map(event, chunks), DONE])


def test_a_completion_is_a_response() -> None:
    assert encode(chat_completion("Hello", tokens=usage(9, 5, cached=4, reasoning=2))) == {
        "id": "resp_chatcmpl-test",
        "object": "response",
        "created_at": 1_750_000_000,
        "status": "completed",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": None,
        "max_tool_calls": None,
        "metadata": {},
        "model": "m",
        "output": [
            {
                "id": "msg_chatcmpl-test_0",
                "type": "message",
                "status": "completed",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "Hello", "annotations": [], "logprobs": []}],
            }
        ],
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "prompt_cache_key": None,
        "reasoning": None,
        "safety_identifier": None,
        "service_tier": "default",
        "store": False,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "top_logprobs": 0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "completed_at": None,
        "truncation": "disabled",
        "user": None,
        "usage": {
            "input_tokens": 9,
            "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
            "output_tokens": 5,
            "output_tokens_details": {"reasoning_tokens": 2},
            "total_tokens": 14,
        },
    }


def test_a_response_repeats_its_request() -> None:
    asked = {
        "model": "m",
        "input": "hi",
        "instructions": "Be kind.",
        "max_output_tokens": 9,
        "metadata": {"a": "b"},
        "parallel_tool_calls": False,
        "temperature": 0.5,
        "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": False}],
        "tool_choice": None,
    }
    made = encode(chat_completion(), TRANSLATOR.bind(json.dumps(asked).encode()))
    for name in asked.keys() - {"input", "tool_choice", "tools"}:
        assert made[name] == asked[name]
    assert made["tool_choice"] == "auto"
    tool = {"name": "f", "parameters": {"type": "object"}, "strict": False}
    assert made["tools"] == [{"type": "function", "description": None} | tool]


def test_what_a_request_left_out_of_a_part_is_said_too() -> None:
    schema = {"type": "json_schema", "name": "n", "schema": {}}
    asked = {"reasoning": {"effort": "low"}, "text": {"format": schema}, "tools": [{"type": "web_search"}]}
    made = encode(chat_completion(), TRANSLATOR.bind(json.dumps(asked).encode()))
    assert made["reasoning"] == {"effort": "low", "summary": None}
    assert made["text"] == {"format": schema | {"description": None, "strict": False}}
    assert made["tools"] == [{"type": "web_search"}]
    brief = {"text": {"verbosity": "low"}}
    made = encode(chat_completion(), TRANSLATOR.bind(json.dumps(brief).encode()))
    assert made["text"] == {"format": {"type": "text"}, "verbosity": "low"}
    odd = TRANSLATOR.bind(b'{"reasoning": "x", "tools": 3, "text": {"format": null}}')
    made = json.loads(odd.encode_answer(json.dumps(chat_completion()).encode()))
    assert (made["reasoning"], made["tools"], made["text"]) == ("x", 3, {"format": None})


def test_calls_become_items() -> None:
    output = encode(chat_completion("So.", tool_calls=CALLS))["output"]
    assert [item["type"] for item in output] == ["message", *["function_call"] * 3]
    assert [(item["call_id"], item["name"], item["arguments"]) for item in output[1:]] == [
        ("call_1", "look_up", '{"q":"a","deep":{"n":[1,2]}}'),
        ("call_2", "now", "{}"),
        ("call_3", "look_up", '{"q":"ü"}'),
    ]
    assert len({item["id"] for item in output}) == 4


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_becomes_an_item(name: str) -> None:
    item = encode(with_message(**{name: "Hm."}))["output"][0]
    assert item["type"] == "reasoning"
    assert item["content"] == [{"type": "reasoning_text", "text": "Hm."}]
    assert "encrypted_content" not in item


def test_signed_thinking_comes_back_byte_for_byte() -> None:
    output = encode(with_message(reasoning_content="Hm.", thinking_blocks=SIGNED))["output"]
    asked = {"model": "m", "input": [{"role": "user", "content": "?"}, *output]}
    for translator, expected in ((FURTHER, SIGNED), (TRANSLATOR, None)):
        turn = json.loads(translator.decode_request(json.dumps(asked).encode()))["messages"][1]
        assert turn.get("thinking_blocks") == expected
        assert turn["content"][0]["text"] == "Hello"


@pytest.mark.parametrize(
    ("finish", "status", "why"),
    [
        ("stop", "completed", None),
        ("tool_calls", "completed", None),
        ("length", "incomplete", {"reason": "max_output_tokens"}),
        ("content_filter", "incomplete", {"reason": "content_filter"}),
    ],
)
def test_how_it_ended(finish: str, status: str, why: object) -> None:
    made = encode(with_message(finish))
    assert (made["status"], made["incomplete_details"]) == (status, why)
    events = read_events(translate(stream_of({"content": "Hi"}, finish_reason=finish)))
    assert events[-1]["type"] == f"response.{status}"
    assert events[-1]["response"]["incomplete_details"] == why


@pytest.mark.parametrize("body", [b"", b"[]", b"<html>", b'{"choices":[]}', b'{"choices":[{}]}'])
def test_what_is_no_completion_is_told(body: bytes) -> None:
    with pytest.raises(UpstreamProtocol):
        TRANSLATOR.encode_answer(body)


def test_usage_that_nobody_told_is_null() -> None:
    completion = chat_completion()
    del completion["usage"]
    assert encode(completion)["usage"] is None


# --- streams ------------------------------------------------------------------------------------------------


def test_the_events_of_a_text() -> None:
    events = read_events(translate(stream_of({"content": "Hel"}, {"content": "lo"})))
    assert [each["type"] for each in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert events[-1]["response"] == encode(chat_completion("Hello"))


@pytest.mark.parametrize(
    "deltas",
    [
        [{"reasoning_content": "Let "}, {"reasoning_content": "me."}, {"content": "Hello"}],
        [{"content": "Hello"}, {"refusal": "No"}, {"refusal": "."}],
        [],
    ],
)
def test_a_stream_ends_with_what_the_whole_answer_says(deltas: list[dict[str, Any]]) -> None:
    message: dict[str, Any] = {"content": None}
    for delta in deltas:
        for name, words in delta.items():
            message[name] = (message.get(name) or "") + words
    out = translate(stream_of(*deltas))
    last = read_events(out)[-1]["response"]
    whole = encode(with_message(**message))
    assert last["output"] == whole["output"]
    assert read_response_stream(out).output_text == read_response(json.dumps(whole).encode()).output_text


def test_signed_thinking_in_a_stream() -> None:
    pieces = [
        {"reasoning_content": "H", "thinking_blocks": [{"index": 0, "type": "thinking", "thinking": "H"}]},
        {"reasoning_content": "m.", "thinking_blocks": [{"index": 0, "type": "thinking", "thinking": "m."}]},
        {"thinking_blocks": [{"index": 0, "type": "thinking", "signature": "c2ln=="}]},
        {"thinking_blocks": [{"index": 1} | SIGNED[1]]},
        {"content": "Hello"},
    ]
    last = read_events(translate(stream_of(*pieces)))[-1]["response"]
    assert last["output"] == encode(with_message(reasoning_content="Hm.", thinking_blocks=SIGNED))["output"]


def test_parallel_calls_take_turns() -> None:
    out = translate(b"".join(tool_call_stream(CALLS, fragment_chars=3)))
    final = read_response_stream(out)
    assert [
        (item.call_id, item.name, item.arguments) for item in final.output if item.type == "function_call"
    ] == [(call.id, call.name, call.arguments or "{}") for call in CALLS]
    assert (
        read_events(out)[-1]["response"]["output"]
        == encode(chat_completion(None, tool_calls=CALLS))["output"]
    )


@given(st.lists(st.integers(0, 10_000), max_size=12))
def test_any_split_gives_the_same(cuts: list[int]) -> None:
    data = stream_of({"reasoning_content": "Hm."}, {"content": "Grüße 😀"}).replace(DONE, b"") + b"".join(
        tool_call_stream(CALLS)
    )
    for source in (data, data.replace(b"\n", b"\r\n")):
        assert translate(source, *cuts) == translate(source)


@pytest.mark.parametrize("kept", range(1, 4))
def test_a_stream_that_was_cut_has_no_end(kept: int) -> None:
    chunks = [chat_chunk({"role": "assistant", "content": ""}), *[chat_chunk({"content": "x"})] * 3]
    events = read_events(translate(b"".join(map(event, chunks[:kept]))))
    assert not {"response.completed", "response.incomplete", "response.failed"} & {
        each["type"] for each in events
    }


def test_an_error_in_a_stream_is_told_and_nothing_follows() -> None:
    told = {"error": {"message": "Slow.", "code": "rate_limit_exceeded"}}
    out = translate(event(chat_chunk({"content": "x"})) + event(told) + stream_of({"content": "y"}))
    events = read_events(out)
    assert [each["type"] for each in events[-2:]] == ["error", "response.failed"]
    assert (events[-2]["code"], events[-2]["message"]) == ("rate_limit_exceeded", "Slow.")
    assert events[-1]["response"]["status"] == "failed"
    with pytest.raises(openai_client.APIError, match="Slow"):
        read_response_stream(out)


def test_an_answer_longer_than_an_event_is_refused() -> None:
    stream = TRANSLATOR.new_stream(event_max_bytes=2000)
    data = event(chat_chunk({"content": "x" * 100})) * 100
    with pytest.raises(EventTooLarge):
        stream.feed(data)


# --- the meter of those that pass ---------------------------------------------------------------------------


@given(st.lists(st.integers(0, 10_000), max_size=12))
def test_the_meter_hands_on_each_byte(cuts: list[int]) -> None:
    data = b"".join(
        responses.response_events(responses.response("Grüße", tokens=responses.usage(9, 5, cached=4)))
    )
    ends = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    meter = ResponsesMeter(event_max_bytes=1 << 20)
    out = b"".join(meter.feed(data[start:end]) for start, end in itertools.pairwise(ends))
    assert out + meter.finish() == data
    assert meter.ended_well
    assert meter.is_done
    assert meter.tokens == Tokens(input=5, input_cached=4, input_cache_write=0, output=5, output_reasoning=0)


def test_the_meter_waits_for_content() -> None:
    events = responses.response_events(responses.response())
    meter = ResponsesMeter(event_max_bytes=1 << 20)
    assert [meter.feed(each) for each in events[:4]] == [b""] * 4
    assert meter.feed(events[4]) == b"".join(events[:5])
    assert meter.content_events == 1
    assert not meter.ended_well


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"type": "error", "code": "x", "message": "Bad.", "param": None}, "Bad."),
        ({"type": "error", "error": {"message": "Worse."}}, "Worse."),
        ({"type": "response.failed", "response": {"error": {"code": "x", "message": "Broken."}}}, "Broken."),
    ],
)
def test_the_meter_sees_errors(raw: dict[str, Any], message: str) -> None:
    meter = ResponsesMeter(event_max_bytes=1 << 20)
    meter.feed(responses.event(raw))
    assert meter.error is not None
    assert json.loads(meter.error)["message"] == message
    assert meter.error_told
    assert not meter.ended_well


@pytest.mark.parametrize("body", [b"{}", b"[]", b'{"usage":null}', b'{"usage":{"input_tokens":-1}}', b"x"])
def test_usage_that_can_not_be_believed(body: bytes) -> None:
    assert read_response_usage(body) is None


@pytest.mark.parametrize("message", [b'"\xff"', b"5", b'{"a":' * 50 + b"1" + b"}" * 50, b'"It went wrong."'])
def test_a_target_s_error_is_an_event_whatever_its_bytes(message: bytes) -> None:
    raw = ResponsesDialect().wrap_error_event(b'{"error":{"message":%b,"code":[1]}}' % message)
    parsed = parse_event(raw)
    told = json.loads(parsed.data or b"")
    assert (parsed.event, told["type"]) == ("error", "error")
    assert set(told["error"]) >= {"message"}
