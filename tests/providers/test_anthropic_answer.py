"""Answers, streams and errors of a target that speaks Anthropic's messages, as callers of chat see them."""

import itertools
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionChunk
from real_clients import read_chat, read_chat_stream

from forebay.core.errors import UpstreamProtocol
from forebay.core.events import Tokens
from forebay.net.sse import EventSplitter, EventTooLarge, parse_event
from forebay.providers import openai
from forebay.providers.anthropic_usage import read_answer_usage
from forebay.providers.chat_to_anthropic import ChatToAnthropic
from forebay.testing.anthropic import error, event, message, message_events, text, thinking, tool_use, usage
from forebay.testing.openai import ToolCall

TRANSLATOR = ChatToAnthropic()
CALLS = (
    ToolCall(id="toolu_1", name="look_up", arguments='{"q":"a","deep":{"n":[1,2]}}'),
    ToolCall(id="toolu_2", name="now", arguments=""),
)
REDACTED = {"type": "redacted_thinking", "data": "ZGF0YQ=="}
RICH = message(
    thinking("First, hm.\n", "c2lnMQ=="),
    REDACTED,
    text("Let me "),
    text("look."),
    *map(tool_use, CALLS),
    tokens=usage(10, 20, cache_read=300, cache_write=40),
)


def decode(answer: dict[str, Any]) -> dict[str, Any]:
    body = TRANSLATOR.decode_answer(msgspec.json.encode(answer), "claude")
    read_chat(body)
    made: dict[str, Any] = json.loads(body)
    return made


def translate(data: bytes, *cuts: int) -> bytes:
    """The whole stream in chat, fed in pieces."""
    stream = TRANSLATOR.new_stream("claude")
    ends = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    pieces = [data[start:end] for start, end in itertools.pairwise(ends)]
    return b"".join([*map(stream.feed, pieces), stream.finish()])


def read_chunks(out: bytes) -> list[dict[str, Any]]:
    splitter = EventSplitter(1 << 20)
    data = [parse_event(raw).data for raw in splitter.feed(out)]
    assert splitter.finish() == b""
    return [json.loads(part) for part in data if part and part != b"[DONE]"]


def read_end(out: bytes) -> dict[str, Any]:
    """The choice of the last chunk that has one; OpenAI's own types take each chunk."""
    chunks = [ChatCompletionChunk.model_validate(chunk).model_dump() for chunk in read_chunks(out)]
    assert len(chunks) > 2
    choices = [choice for chunk in read_chunks(out) for choice in chunk["choices"]]
    assert [choice["finish_reason"] for choice in choices[:-1]] == [None] * (len(choices) - 1)
    last: dict[str, Any] = choices[-1]
    return last


def meter_of(out: bytes) -> Any:
    meter = openai.new_meter(hide_usage=False, event_max_bytes=1 << 20)
    meter.feed(out)
    meter.finish()
    return meter


# --- whole answers ------------------------------------------------------------------------------------------


def test_a_whole_answer_is_a_chat_completion() -> None:
    assert decode(message(text("Hello"))) == {
        "id": "msg_test",
        "object": "chat.completion",
        "created": 0,
        "model": "claude",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello", "refusal": None, "annotations": []},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12},
    }


def test_all_kinds_of_blocks_find_their_place() -> None:
    made = decode(RICH)["choices"][0]
    assert made["finish_reason"] == "tool_calls"
    assert made["message"] == {
        "role": "assistant",
        "refusal": None,
        "annotations": [],
        "content": "Let me look.",
        "reasoning_content": "First, hm.\n",
        "thinking_blocks": [thinking("First, hm.\n", "c2lnMQ=="), REDACTED],
        "tool_calls": [
            {
                "id": "toolu_1",
                "type": "function",
                "function": {"name": "look_up", "arguments": '{"q":"a","deep":{"n":[1,2]}}'},
            },
            {"id": "toolu_2", "type": "function", "function": {"name": "now", "arguments": "{}"}},
        ],
    }


def test_arguments_keep_their_spelling() -> None:
    body = (
        b'{"content":[{"type":"tool_use","id":"i","name":"f","input":{"n": 1E+2,'
        b'"big":123456789012345678901234567890}}],"stop_reason":"tool_use"}'
    )
    made = json.loads(TRANSLATOR.decode_answer(body, "m"))
    arguments = made["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]
    assert arguments == '{"n": 1E+2,"big":123456789012345678901234567890}'


def test_calls_alone_have_null_for_content_and_nothing_at_all_is_an_empty_text() -> None:
    assert decode(message(tool_use(CALLS[1])))["choices"][0]["message"]["content"] is None
    assert decode(RICH | {"content": []})["choices"][0]["message"]["content"] == ""


def test_a_block_that_nobody_knows_is_passed_over() -> None:
    assert decode(message({"type": "novelty", "text": "x"}, text("a")))["choices"][0]["message"] == {
        "role": "assistant",
        "refusal": None,
        "annotations": [],
        "content": "a",
    }


STOPS = [
    ("end_turn", "stop"),
    ("stop_sequence", "stop"),
    ("pause_turn", "stop"),
    ("max_tokens", "length"),
    ("model_context_window_exceeded", "length"),
    ("tool_use", "tool_calls"),
    ("refusal", "content_filter"),
    ("a_new_one", "stop"),
]


@pytest.mark.parametrize(("reason", "expected"), STOPS)
def test_reasons_to_stop_are_mapped_whole_and_streamed(reason: str, expected: str) -> None:
    answer = message(text("a"), stop_reason=reason)
    assert decode(answer)["choices"][0]["finish_reason"] == expected
    out = b"".join(message_events(answer))
    assert read_end(translate(out))["finish_reason"] == expected


def test_why_it_refuses_is_told() -> None:
    details = {"stop_details": {"type": "refusal", "category": "cyber", "explanation": "Not that."}}
    answer = message(text("I"), stop_reason="refusal") | details
    assert decode(answer)["choices"][0]["message"]["refusal"] == "Not that."
    events = message_events(answer)
    last = {"type": "message_delta", "delta": {"stop_reason": "refusal", "stop_sequence": None, **details}}
    events[-2] = event(last | {"usage": {"output_tokens": 5}})
    assert read_end(translate(b"".join(events)))["delta"] == {"refusal": "Not that."}


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[]", b"{}", b'{"content":3}', b"\xff", json.dumps(error()).encode()]
)
def test_what_is_no_answer_is_said_to_be_none(body: bytes) -> None:
    with pytest.raises(UpstreamProtocol):
        TRANSLATOR.decode_answer(body, "m")


# --- usage --------------------------------------------------------------------------------------------------

THOUGHT = usage(5, 50) | {"output_tokens_details": {"thinking_tokens": 30}}
USAGES = [
    (
        usage(7, 5),
        {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12},
        Tokens(input=7, output=5),
    ),
    (
        usage(10, 20, cache_read=300, cache_write=40),
        {
            "prompt_tokens": 350,
            "completion_tokens": 20,
            "total_tokens": 370,
            "prompt_tokens_details": {"cached_tokens": 300, "cache_write_tokens": 40},
        },
        Tokens(input=10, input_cached=300, input_cache_write=40, output=20),
    ),
    (
        usage(0, 1, cache_read=0, cache_write=0),
        {
            "prompt_tokens": 0,
            "completion_tokens": 1,
            "total_tokens": 1,
            "prompt_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        },
        Tokens(input=0, input_cached=0, input_cache_write=0, output=1),
    ),
    (
        usage(3, 4, cache_read=9),
        {
            "prompt_tokens": 12,
            "completion_tokens": 4,
            "total_tokens": 16,
            "prompt_tokens_details": {"cached_tokens": 9},
        },
        Tokens(input=3, input_cached=9, output=4),
    ),
    (
        THOUGHT,
        {
            "prompt_tokens": 5,
            "completion_tokens": 50,
            "total_tokens": 55,
            "completion_tokens_details": {"reasoning_tokens": 30},
        },
        Tokens(input=5, output=20, output_reasoning=30),
    ),
]


@pytest.mark.parametrize(("told", "expected", "tokens"), USAGES)
def test_usage_is_what_openai_would_say_and_counts_the_same(
    told: dict[str, Any], expected: dict[str, Any], tokens: Tokens
) -> None:
    answer = json.dumps(message(tokens=told)).encode()
    chat = TRANSLATOR.decode_answer(answer, "m")
    assert json.loads(chat)["usage"] == expected
    assert openai.read_answer(chat) == read_answer_usage(answer) == tokens


@pytest.mark.parametrize(("told", "expected", "tokens"), USAGES)
def test_usage_of_a_stream_is_that_of_its_end(
    told: dict[str, Any], expected: dict[str, Any], tokens: Tokens
) -> None:
    events = message_events(message(tokens=told))
    ending = {"stop_reason": "end_turn", "stop_sequence": None}
    events[-2] = event({"type": "message_delta", "delta": ending, "usage": told})
    out = translate(b"".join(events))
    assert read_chunks(out)[-1]["usage"] == expected
    assert meter_of(out).tokens == tokens


def test_an_answer_that_counts_nothing_has_no_usage() -> None:
    assert "usage" not in decode(message() | {"usage": {}})
    assert "usage" not in decode(message() | {"usage": {"input_tokens": -1, "output_tokens": 3}})


# --- streams ------------------------------------------------------------------------------------------------

STREAM = b"".join(message_events(RICH))


def test_the_real_client_puts_a_stream_together_as_the_whole_answer() -> None:
    whole, streamed = read_chat(TRANSLATOR.decode_answer(json.dumps(RICH).encode(), "m")), None
    streamed = read_chat_stream(translate(STREAM))
    said, told = whole.choices[0].message, streamed.choices[0].message
    assert told.content == said.content == "Let me look."
    assert [
        (call.id, call.function.name, json.loads(call.function.arguments))  # type: ignore[union-attr]
        for call in told.tool_calls or []
    ] == [(call.id, call.name, json.loads(call.arguments or "{}")) for call in CALLS]
    extra = told.model_extra or {}
    assert extra["reasoning_content"] == "First, hm.\n"
    thoughts = [thinking("First, hm.\n", "c2lnMQ=="), REDACTED]
    assert extra["thinking_blocks"] == [{"index": at, **thought} for at, thought in enumerate(thoughts)]
    assert streamed.usage == whole.usage
    assert meter_of(translate(STREAM)).ended_well


def test_what_was_thought_can_be_sent_back_byte_for_byte() -> None:
    told = read_chat_stream(translate(STREAM)).choices[0].message
    asked = {"messages": [{"role": "user", "content": "hi"}, told.model_dump(exclude={"parsed"})]}
    for call in asked["messages"][1]["tool_calls"]:  # what the client's helper adds on its own
        call["function"].pop("parsed_arguments", None)
        call.pop("index", None)
    made = json.loads(TRANSLATOR.encode_request(json.dumps(asked).encode(), "m", stream=False))
    assert made["messages"][1]["content"][:2] == RICH["content"][:2]
    calls = [
        {name: value for name, value in block.items() if name != "caller"} for block in RICH["content"][4:]
    ]
    assert made["messages"][1]["content"][3:] == calls


ENDINGS = [b"\n", b"\r\n", b"\r"]


@pytest.mark.parametrize("ending", ENDINGS)
def test_each_end_of_a_line_is_one(ending: bytes) -> None:
    assert translate(STREAM.replace(b"\n", ending)) == translate(STREAM)


@given(st.sampled_from(ENDINGS), st.lists(st.integers(0, 1 << 16), max_size=12))
def test_any_split_gives_the_same_stream(ending: bytes, cuts: list[int]) -> None:
    assert translate(STREAM.replace(b"\n", ending), *cuts) == translate(STREAM)


def test_each_byte_on_its_own_gives_the_same_stream() -> None:
    assert translate(STREAM, *range(len(STREAM))) == translate(STREAM)


@given(st.integers(0, len(STREAM)))
def test_a_stream_that_was_cut_is_never_ended(at: int) -> None:
    """Its end is told only if all of it came, but for the last blank line."""
    out = translate(STREAM[:at])
    has_reason = b'"stop_reason":"tool_use"' in STREAM[:at].rpartition(b"\n")[0]
    assert meter_of(out).ended_well == has_reason
    assert (b"[DONE]" in out) == (at >= len(STREAM) - 1)
    assert translate(STREAM).startswith(
        out.partition(b'{"id":"msg_test","object":"chat.completion.chunk"')[0]
    )


def test_usage_is_told_where_only_the_very_end_is_missing() -> None:
    events = message_events(RICH)
    out = translate(b"".join(events[:-1]))
    assert meter_of(out).tokens == Tokens(input=10, input_cached=300, input_cache_write=40, output=20)
    assert b"[DONE]" not in out


def test_a_call_without_fragments_has_the_arguments_that_it_began_with() -> None:
    begun = {"type": "tool_use", "id": "i", "name": "f", "input": {"a": 1}}
    events = message_events(message(tool_use(CALLS[1])))
    start = next(at for at, raw in enumerate(events) if b"content_block_start" in raw)
    events[start] = event({"type": "content_block_start", "index": 0, "content_block": begun})
    del events[start + 1]
    told = read_chat_stream(translate(b"".join(events))).choices[0].message
    assert [call.function.arguments for call in told.tool_calls or []] == ['{"a":1}']  # type: ignore[union-attr]


def test_blocks_may_take_turns() -> None:
    """Anthropic does not do so, but its indices allow it."""

    def delta(index: int, words: str) -> bytes:
        piece = {"type": "input_json_delta", "partial_json": words}
        return event({"type": "content_block_delta", "index": index, "delta": piece})

    starts = [
        event({"type": "content_block_start", "index": at, "content_block": tool_use(call) | {"input": {}}})
        for at, call in enumerate(CALLS)
    ]
    stops = [event({"type": "content_block_stop", "index": at}) for at in (0, 1)]
    frame = message_events(message(tool_use(CALLS[0])))
    parts = [delta(0, '{"a"'), delta(1, '{"b"'), delta(0, ":1}"), delta(1, ":2}")]
    out = translate(b"".join([frame[0], *starts, *parts, *stops, *frame[-2:]]))
    told = read_chat_stream(out).choices[0].message.tool_calls or []
    assert [call.function.arguments for call in told] == ['{"a":1}', '{"b":2}']  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "odd",
    [
        event({"type": "ping"}),
        event({"type": "novelty", "index": 0}),
        event({"type": "content_block_start", "index": 9, "content_block": {"type": "novelty"}}),
        event({"type": "content_block_delta", "index": 9, "delta": {"type": "novelty_delta"}}),
        event({"type": "content_block_stop", "index": 9}),
        b": comment\n\n",
        b"\n",
        b"id: 3\n\n",
    ],
)
def test_events_that_say_nothing_to_chat_are_passed_over(odd: bytes) -> None:
    events = message_events(RICH)
    with_odd = translate(b"".join(itertools.chain.from_iterable((odd, raw) for raw in events)))
    assert read_chunks(with_odd) == read_chunks(translate(STREAM))


def test_a_ping_keeps_the_callers_connection_alive() -> None:
    stream = TRANSLATOR.new_stream("m")
    out = stream.feed(event({"type": "ping"}))
    assert out.startswith(b":")
    assert out.endswith(b"\n\n")


def test_an_error_in_a_stream_is_the_last_that_is_told() -> None:
    events = message_events(RICH)
    failure = event(error("overloaded_error", "Overloaded"))
    out = translate(b"".join([*events[:5], failure, *events[5:]]))
    assert read_chunks(out)[-1] == {
        "error": {"message": "Overloaded", "type": "overloaded_error", "param": None, "code": None}
    }
    meter = meter_of(out)
    assert meter.error_told
    assert not meter.ended_well
    assert openai.read_error_status(meter.error) == 503


@pytest.mark.parametrize(
    "raw", [b"data: nope\n\n", b"data: []\n\n", b'data: {"type":3}\n\n', b"data: \xff\n\n"]
)
def test_an_event_that_is_none_of_the_dialect_is_said_to_be_none(raw: bytes) -> None:
    with pytest.raises(UpstreamProtocol):
        TRANSLATOR.new_stream("m").feed(raw)


def test_an_event_that_never_ends_is_not_held_forever() -> None:
    stream = TRANSLATOR.new_stream("m", event_max_bytes=1000)
    stream.feed(b"data: " + b"x" * 900)
    with pytest.raises(EventTooLarge):
        stream.feed(b"x" * 200)


_INDEX = st.integers(0, 2)
_WORDS = st.sampled_from(["", "a", "ü😀", "{", '"'])
_BLOCK = st.one_of(
    st.builds(lambda words: {"type": "text", "text": words}, _WORDS),
    st.builds(lambda a, b: {"type": "thinking", "thinking": a, "signature": b}, _WORDS, _WORDS),
    st.builds(lambda words: {"type": "redacted_thinking", "data": words}, _WORDS),
    st.builds(lambda: {"type": "tool_use", "id": "i", "name": "f", "input": {}}),
    st.just({"type": "novelty"}),
)
_PIECE = st.one_of(
    st.builds(lambda words: {"type": "text_delta", "text": words}, _WORDS),
    st.builds(lambda words: {"type": "thinking_delta", "thinking": words}, _WORDS),
    st.builds(lambda words: {"type": "signature_delta", "signature": words}, _WORDS),
    st.builds(lambda words: {"type": "input_json_delta", "partial_json": words}, _WORDS),
)
_EVENTS = st.one_of(
    st.builds(lambda i, b: {"type": "content_block_start", "index": i, "content_block": b}, _INDEX, _BLOCK),
    st.builds(lambda i, piece: {"type": "content_block_delta", "index": i, "delta": piece}, _INDEX, _PIECE),
    st.builds(lambda i: {"type": "content_block_stop", "index": i}, _INDEX),
    st.just({"type": "ping"}),
)


@given(st.lists(_EVENTS, max_size=10), st.lists(st.integers(0, 1 << 16), max_size=5))
def test_whatever_events_come_each_chunk_is_one_of_openais(
    events: list[dict[str, Any]], cuts: list[int]
) -> None:
    frame = message_events(message())
    data = b"".join([frame[0], *map(event, events), *frame[-2:]])
    out = translate(data)
    assert translate(data, *cuts) == out
    for chunk in read_chunks(out):
        ChatCompletionChunk.model_validate(chunk)
    deltas = [choice["delta"] for chunk in read_chunks(out) for choice in chunk["choices"]]
    said = [e["delta"]["text"] for e in events if e["type"].endswith("delta") and "text" in e["delta"]]
    begun = [e for e in events if e.get("content_block", {}).get("type") == "text"]
    assert sum(len(d.get("content") or "") for d in deltas) == sum(
        len(words) for words in [*said, *(e["content_block"]["text"] for e in begun)]
    )
    assert out.endswith(b"data: [DONE]\n\n")


# --- errors -------------------------------------------------------------------------------------------------

ERRORS = [
    (400, "invalid_request_error", "max_tokens: Field required", None),
    (400, "invalid_request_error", "prompt is too long: 2 tokens > 1 maximum", "context_length_exceeded"),
    (401, "authentication_error", "invalid x-api-key", None),
    (402, "billing_error", "no credit", None),
    (403, "permission_error", "not yours", None),
    (404, "not_found_error", "model: claude-0", None),
    (413, "request_too_large", "too large", None),
    (429, "rate_limit_error", "slow down", "rate_limit_exceeded"),
    (500, "api_error", "Internal server error", None),
    (504, "timeout_error", "too slow", None),
    (529, "overloaded_error", "Overloaded", None),
]  # fmt: skip


@pytest.mark.parametrize(("status", "kind", "words", "code"), ERRORS)
def test_errors_keep_their_words(status: int, kind: str, words: str, code: str | None) -> None:
    body = json.dumps(error(kind, words) | {"request_id": "req_1"}).encode()
    assert json.loads(TRANSLATOR.decode_error(status, body)) == {
        "error": {"message": words, "type": kind, "param": None, "code": code}
    }


@pytest.mark.parametrize(
    "body", [b"", b"<html>bad gateway</html>", b"{}", b'{"error":3}', b'{"error":{}}', b"\xff"]
)
def test_what_is_no_error_becomes_one_without_it(body: bytes) -> None:
    made = json.loads(TRANSLATOR.decode_error(502, body))["error"]
    assert "502" in made["message"]
    assert "html" not in made["message"]
    assert made["type"] == "upstream_error"
