"""Answers, streams and errors of a target that speaks OpenAI's chat, as callers of messages see them."""

import itertools
import json
from typing import Any

import msgspec
import pytest
from anthropic.types import RawMessageStreamEvent
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter
from real_clients import read_message, read_message_stream

from forebay.core.errors import UpstreamProtocol
from forebay.core.events import Tokens
from forebay.net.sse import EventSplitter, EventTooLarge, parse_event
from forebay.providers import openai
from forebay.providers.anthropic_chat_usage import NO_MESSAGES_USAGE
from forebay.providers.anthropic_stream import MessagesMeter
from forebay.providers.anthropic_usage import read_answer_usage
from forebay.providers.chat_to_anthropic import ChatToAnthropic
from forebay.providers.messages_to_chat import MessagesToChat
from forebay.testing import anthropic
from forebay.testing.openai import (
    DONE,
    ToolCall,
    chat_chunk,
    chat_completion,
    chat_stream,
    error,
    event,
    tool_call_stream,
    usage,
    usage_chunk,
)

TRANSLATOR = MessagesToChat()
CALLS = (
    ToolCall(id="call_1", name="look_up", arguments='{"q":"a","deep":{"n":[1,2]}}'),
    ToolCall(id="call_2", name="now", arguments=""),
    ToolCall(id="call_3", name="look_up", arguments='{"q":"ü"}'),
)
_EVENT: TypeAdapter[RawMessageStreamEvent] = TypeAdapter(RawMessageStreamEvent)


def encode(completion: dict[str, Any]) -> dict[str, Any]:
    body = TRANSLATOR.encode_answer(msgspec.json.encode(completion))
    read_message(body)
    made: dict[str, Any] = json.loads(body)
    return made


def with_message(
    finish_reason: str = "stop", choice: dict[str, Any] | None = None, **fields: object
) -> dict[str, Any]:
    """A completion whose message has these fields."""
    made = chat_completion()
    made["choices"][0]["message"] |= fields
    made["choices"][0] |= {"finish_reason": finish_reason} | (choice or {})
    return made


def translate(data: bytes, *cuts: int) -> bytes:
    """The whole stream in messages, fed in pieces."""
    stream = TRANSLATOR.new_stream()
    ends = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    pieces = [data[start:end] for start, end in itertools.pairwise(ends)]
    return b"".join([*map(stream.feed, pieces), stream.finish()])


def read_events(out: bytes) -> list[dict[str, Any]]:
    """The events of a stream, each named for its type, and each one of those that Anthropic documents."""
    splitter = EventSplitter(1 << 20)
    events = []
    for raw in splitter.feed(out):
        parsed = parse_event(raw)
        made = json.loads(parsed.data or b"")
        assert parsed.event == made["type"]
        if made["type"] not in ("ping", "error"):
            _EVENT.validate_python(made)
        events.append(made)
    assert splitter.finish() == b""
    return events


def meter_of(out: bytes) -> MessagesMeter:
    meter = MessagesMeter(event_max_bytes=1 << 20)
    meter.feed(out)
    meter.finish()
    return meter


def stream_of(
    *deltas: dict[str, Any], finish_reason: str = "stop", tokens: dict[str, Any] | None = None
) -> bytes:
    chunks = [chat_chunk({"role": "assistant", "content": ""}), *map(chat_chunk, deltas)]
    chunks += [chat_chunk({}, finish_reason=finish_reason), usage_chunk(tokens)]
    return b"".join([*map(event, chunks), DONE])


# --- whole answers ------------------------------------------------------------------------------------------


def test_a_completion_is_a_message() -> None:
    assert encode(chat_completion("Hello")) == {
        "id": "chatcmpl-test",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [{"type": "text", "text": "Hello", "citations": None}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "stop_details": None,
        "container": None,
        "usage": NO_MESSAGES_USAGE | {"input_tokens": 7, "output_tokens": 5},
    }


def test_calls_become_blocks() -> None:
    made = encode(chat_completion("So.", tool_calls=CALLS))
    assert made["stop_reason"] == "tool_use"
    assert made["content"] == [
        {"type": "text", "text": "So.", "citations": None},
        {
            "type": "tool_use",
            "id": "call_1",
            "name": "look_up",
            "input": {"q": "a", "deep": {"n": [1, 2]}},
            "caller": {"type": "direct"},
        },
        {"type": "tool_use", "id": "call_2", "name": "now", "input": {}, "caller": {"type": "direct"}},
        {
            "type": "tool_use",
            "id": "call_3",
            "name": "look_up",
            "input": {"q": "ü"},
            "caller": {"type": "direct"},
        },
    ]


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_becomes_a_block_without_a_signature(name: str) -> None:
    assert encode(with_message(**{name: "Hm."}))["content"] == [
        {"type": "thinking", "thinking": "Hm.", "signature": ""},
        {"type": "text", "text": "Hello", "citations": None},
    ]


def test_signed_thinking_goes_before_reasoning() -> None:
    thoughts = [
        {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"},
        {"type": "redacted_thinking", "data": "ZGF0YQ=="},
    ]
    made = encode(with_message(reasoning_content="Hm.", thinking_blocks=thoughts))
    assert made["content"][:2] == thoughts


@pytest.mark.parametrize(
    ("content", "blocks"),
    [
        (None, []),
        ("", []),
        (" \n", [{"type": "text", "text": " \n", "citations": None}]),
        (
            [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            [{"type": "text", "text": "ab", "citations": None}],
        ),
    ],
)
def test_what_the_model_said_is_neither_dropped_nor_made_up(content: object, blocks: object) -> None:
    assert encode(with_message(content=content))["content"] == blocks


def test_a_call_without_an_id_gets_one_that_a_result_can_name() -> None:
    bare = {"type": "function", "function": {"name": "f", "arguments": None}}
    made = encode(with_message(content=None, tool_calls=[bare, bare]))["content"]
    assert len({block["id"] for block in made}) == 2


STOPS: list[tuple[str, dict[str, Any], tuple[str, str | None]]] = [
    ("stop", {}, ("end_turn", None)),
    ("stop", {"stop_reason": "END"}, ("stop_sequence", "END")),
    ("stop", {"stop_reason": 7}, ("end_turn", None)),
    ("length", {}, ("max_tokens", None)),
    ("tool_calls", {}, ("tool_use", None)),
    ("function_call", {}, ("tool_use", None)),
    ("content_filter", {}, ("refusal", None)),
    ("a_new_one", {}, ("end_turn", None)),
]


@pytest.mark.parametrize(("reason", "choice", "expected"), STOPS)
def test_reasons_to_stop_are_mapped_whole_and_streamed(
    reason: str, choice: dict[str, Any], expected: tuple[str, str | None]
) -> None:
    made = encode(with_message(reason, choice))
    assert (made["stop_reason"], made["stop_sequence"]) == expected
    last = chat_chunk({}, finish_reason=reason)
    last["choices"][0] |= choice
    out = translate(b"".join(map(event, [chat_chunk({"content": "a"}), last])) + DONE)
    ending = read_events(out)[-2]["delta"]
    assert (ending["stop_reason"], ending["stop_sequence"]) == expected


def test_a_forced_call_that_says_stop_has_called() -> None:
    completion = chat_completion(None, tool_calls=CALLS[:1])
    completion["choices"][0]["finish_reason"] = "stop"
    assert encode(completion)["stop_reason"] == "tool_use"
    out = b"".join(tool_call_stream(CALLS[:1])).replace(b'"tool_calls"}', b'"stop"}')
    assert read_message_stream(translate(out)).stop_reason == "tool_use"


def test_a_refusal_is_said_and_named() -> None:
    made = encode(with_message(content=None, refusal="Not that."))
    assert made["content"] == [{"type": "text", "text": "Not that.", "citations": None}]
    assert made["stop_reason"] == "refusal"
    told = read_message_stream(translate(stream_of({"refusal": "Not "}, {"refusal": "that."})))
    assert [block.model_dump(include={"text"}) for block in told.content] == [{"text": "Not that."}]
    assert told.stop_reason == "refusal"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[]",
        b"{}",
        b'{"choices":[]}',
        b'{"choices":[{}]}',
        b"\xff",
        json.dumps(error()).encode(),
    ],
)
def test_what_is_no_completion_is_said_to_be_none(body: bytes) -> None:
    with pytest.raises(UpstreamProtocol):
        TRANSLATOR.encode_answer(body)


@pytest.mark.parametrize("arguments", ["{", "[]", "nope"])
def test_arguments_that_are_no_object_cannot_be_said(arguments: str) -> None:
    call = ToolCall(id="i", name="look_up", arguments=arguments)
    with pytest.raises(UpstreamProtocol, match="look_up"):
        TRANSLATOR.encode_answer(msgspec.json.encode(chat_completion(None, tool_calls=[call])))


# --- usage --------------------------------------------------------------------------------------------------

USAGES: list[tuple[dict[str, Any], dict[str, Any], Tokens]] = [
    (usage(7, 5), {"input_tokens": 7, "output_tokens": 5}, Tokens(input=7, output=5)),
    (
        usage(350, 50, cached=300, reasoning=30) | {
            "prompt_tokens_details": {"cached_tokens": 300, "cache_write_tokens": 40}
        },
        {
            "input_tokens": 10,
            "output_tokens": 50,
            "cache_read_input_tokens": 300,
            "cache_creation_input_tokens": 40,
            "output_tokens_details": {"thinking_tokens": 30},
        },
        Tokens(input=10, input_cached=300, input_cache_write=40, output=20, output_reasoning=30),
    ),
    (
        usage(12, 4, cached=0, reasoning=0),
        {
            "input_tokens": 12,
            "output_tokens": 4,
            "cache_read_input_tokens": 0,
            "output_tokens_details": {"thinking_tokens": 0},
        },
        Tokens(input=12, input_cached=0, output=4, output_reasoning=0),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("told", "expected", "tokens"), USAGES)
def test_usage_is_what_anthropic_would_say_and_counts_the_same(
    told: dict[str, Any], expected: dict[str, Any], tokens: Tokens
) -> None:
    answer = msgspec.json.encode(chat_completion(tokens=told))
    made = TRANSLATOR.encode_answer(answer)
    assert json.loads(made)["usage"] == NO_MESSAGES_USAGE | expected
    assert openai.read_answer(answer) == read_answer_usage(made) == tokens
    out = translate(b"".join(chat_stream(tokens=told)))
    assert read_events(out)[-2]["usage"] == expected
    assert meter_of(out).tokens == tokens


@pytest.mark.parametrize(("told", "expected", "tokens"), USAGES)
def test_usage_survives_both_translations(
    told: dict[str, Any], expected: dict[str, Any], tokens: Tokens
) -> None:
    said = anthropic.message(tokens=expected)
    chat = ChatToAnthropic().decode_answer(msgspec.json.encode(said), "m")
    assert json.loads(TRANSLATOR.encode_answer(chat))["usage"] == NO_MESSAGES_USAGE | expected
    assert openai.read_answer(chat) == tokens


def test_nothing_counted_is_0_for_the_client() -> None:
    completion = chat_completion()
    del completion["usage"]
    assert encode(completion)["usage"] == NO_MESSAGES_USAGE
    out = translate(b"".join(chat_stream(include_usage=False)))
    assert read_events(out)[-2]["usage"] == {"input_tokens": 0, "output_tokens": 0}


# --- streams ------------------------------------------------------------------------------------------------

STREAM = b"".join(tool_call_stream(CALLS, tokens=usage(350, 50, cached=300)))


def test_a_stream_of_text_is_told_event_by_event() -> None:
    assert read_events(translate(b"".join(chat_stream()))) == [
        {
            "type": "message_start",
            "message": {
                "id": "chatcmpl-test",
                "type": "message",
                "role": "assistant",
                "model": "m",
                "content": [],
                "stop_reason": None,
                "stop_sequence": None,
                "stop_details": None,
                "container": None,
                "usage": NO_MESSAGES_USAGE,
            },
        },
        {
            "type": "content_block_start",
            "index": 0,
            "content_block": {"type": "text", "text": "", "citations": None},
        },
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hel"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "lo"}},
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {"input_tokens": 7, "output_tokens": 5},
        },
        {"type": "message_stop"},
    ]


def test_calls_that_take_turns_become_blocks_that_do_not() -> None:
    out = translate(STREAM)
    told = read_message_stream(out)
    assert [block.model_dump(include={"id", "name", "input"}) for block in told.content] == [
        {"id": call.id, "name": call.name, "input": json.loads(call.arguments or "{}")} for call in CALLS
    ]
    assert told.stop_reason == "tool_use"
    assert told.usage.cache_read_input_tokens == 300
    open_block = None
    for made in read_events(out):
        if made["type"] == "content_block_start":
            assert open_block is None
            open_block = made["index"]
        elif made["type"].startswith("content_block"):
            assert made["index"] == open_block
            open_block = None if made["type"] == "content_block_stop" else open_block
    assert open_block is None


def test_the_first_call_does_not_wait_for_the_others() -> None:
    events = tool_call_stream(CALLS)
    stream = TRANSLATOR.new_stream()
    out = stream.feed(b"".join(events[:6]))
    assert [made["type"] for made in read_events(out)][:3] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
    ]


def test_thinking_text_and_calls_follow_each_other_as_they_came() -> None:
    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    out = translate(
        stream_of(
            {"reasoning_content": "Hm"},
            {"reasoning": ", so."},
            {"content": "One "},
            {"content": "two."},
            {"reasoning_content": "More."},
            {"content": "Three."},
            {"tool_calls": [call]},
            {"content": "Four."},
            finish_reason="tool_calls",
        )
    )
    told = [block.model_dump(exclude_none=True) for block in read_message_stream(out).content]
    assert [block.get("thinking") or block.get("text") or block.get("name") for block in told] == [
        *("Hm, so.", "One two.", "More.", "Three.", "f", "Four."),
    ]
    assert told[0]["signature"] == ""


def test_signed_thinking_survives_both_translations_of_a_stream() -> None:
    blocks = [
        anthropic.thinking("First, hm.\n", "c2lnMQ=="),
        {"type": "redacted_thinking", "data": "ZGF0YQ=="},
        anthropic.thinking("Then.", "c2lnMg=="),
        anthropic.text("Let me look."),
        *map(anthropic.tool_use, CALLS),
    ]
    said = anthropic.message(*blocks, tokens=anthropic.usage(10, 20, cache_read=300, cache_write=40))
    target = ChatToAnthropic().new_stream("m")
    chat = target.feed(b"".join(anthropic.message_events(said))) + target.finish()
    told = read_message_stream(translate(chat))
    assert [block.model_dump(exclude_none=True) for block in told.content] == [
        {name: value for name, value in block.items() if value is not None} for block in blocks
    ]
    assert told.stop_reason == "tool_use"
    assert told.usage.model_dump(exclude_none=True) == said["usage"]


ENDINGS = [b"\n", b"\r\n", b"\r"]


@given(st.sampled_from(ENDINGS), st.lists(st.integers(0, 1 << 16), max_size=12))
def test_any_split_and_each_end_of_a_line_give_the_same_stream(ending: bytes, cuts: list[int]) -> None:
    assert translate(STREAM.replace(b"\n", ending), *cuts) == translate(STREAM)


def test_each_byte_on_its_own_gives_the_same_stream() -> None:
    assert translate(STREAM, *range(len(STREAM))) == translate(STREAM)


@given(st.integers(0, len(STREAM)))
def test_a_stream_that_was_cut_is_never_ended(at: int) -> None:
    out = translate(STREAM[:at])
    has_reason = b'"finish_reason":"tool_calls"' in STREAM[:at].rpartition(b"\n")[0]
    assert (b"message_stop" in out) == has_reason
    assert meter_of(out).ended_well == has_reason


def test_an_end_without_a_reason_is_an_end() -> None:
    out = translate(b"".join(chat_stream()[:-3]) + DONE)
    assert read_message_stream(out).stop_reason == "end_turn"


def test_an_end_without_a_beginning_is_none() -> None:
    assert translate(DONE) == b""


def test_nothing_follows_the_end() -> None:
    assert translate(STREAM + STREAM) == translate(STREAM)


def test_other_choices_are_not_asked_for_and_passed_over() -> None:
    other = event(chat_chunk({"content": "no"}, index=1))
    events = chat_stream()
    assert translate(b"".join([events[0], other, *events[1:]])) == translate(b"".join(events))


def test_a_comment_becomes_a_ping_once_the_message_has_begun() -> None:
    events = chat_stream()
    out = translate(b"".join([b": wait\n\n", events[0], b": wait\n\n", *events[1:]]))
    types = [made["type"] for made in read_events(out)]
    assert types[:2] == ["message_start", "ping"]
    assert types.count("ping") == 1
    assert read_message_stream(out).content[0].model_dump()["text"] == "Hello"


ERRORS: list[tuple[dict[str, Any], str]] = [
    (error("No.", type="invalid_request_error"), "invalid_request_error"),
    (error("Slow down.", type="rate_limit_error", code="rate_limit_exceeded"), "rate_limit_error"),
    (error("Busy.", type="overloaded_error"), "overloaded_error"),
    (error("Oh.", type="server_error"), "api_error"),
    ({"error": {"message": "Oh.", "code": 400}}, "invalid_request_error"),
]


@pytest.mark.parametrize(("told", "kind"), ERRORS)
@pytest.mark.parametrize("after", [0, 2])
def test_an_error_in_a_stream_is_the_last_that_is_told(after: int, told: dict[str, Any], kind: str) -> None:
    events = chat_stream()
    out = translate(b"".join([*events[:after], event(told), *events[after:]]))
    last = read_events(out)[-1]
    assert last == {"type": "error", "error": {"type": kind, "message": told["error"]["message"]}}
    meter = meter_of(out)
    assert meter.error_told
    assert not meter.ended_well


def test_an_error_that_only_its_event_names_is_one() -> None:
    for raw in (
        b"event: error\ndata: out of memory\n\n",
        b'event: error\ndata: {"message":"out of memory"}\n\n',
    ):
        last = read_events(translate(chat_stream()[0] + raw + DONE))[-1]
        assert last["type"] == "error"
        assert last["error"]["message"] == "out of memory"


@pytest.mark.parametrize(
    "raw", [b"data: nope\n\n", b"data: []\n\n", b'data: {"choices":3}\n\n', b"data: \xff\n\n"]
)
def test_an_event_that_is_no_chunk_is_said_to_be_none(raw: bytes) -> None:
    with pytest.raises(UpstreamProtocol):
        TRANSLATOR.new_stream().feed(raw)


def test_neither_an_event_nor_calls_are_held_without_limit() -> None:
    stream = TRANSLATOR.new_stream(event_max_bytes=2000)
    stream.feed(b"data: " + b"x" * 1900)
    with pytest.raises(EventTooLarge):
        stream.feed(b"x" * 200)
    stream = TRANSLATOR.new_stream(event_max_bytes=2000)
    out = stream.feed(b"".join(tool_call_stream(CALLS)[:4]))
    piece = event(chat_chunk({"tool_calls": [{"index": 1, "function": {"arguments": "x" * 500}}]}))
    for _ in range(3):
        out += stream.feed(piece)
    with pytest.raises(EventTooLarge):
        stream.feed(piece)


_TEXT = st.sampled_from([None, "", " ", "a", "ü😀", "{", '"'])
_CALL = st.fixed_dictionaries(
    {"index": st.integers(0, 2)},
    optional={
        "id": _TEXT,
        "type": st.just("function"),
        "function": st.fixed_dictionaries({}, optional={"name": _TEXT, "arguments": _TEXT}),
    },
)
_THOUGHT = st.fixed_dictionaries(
    {"type": st.sampled_from(["thinking", "redacted_thinking"])},
    optional={"index": st.integers(0, 1), "thinking": _TEXT, "signature": _TEXT, "data": _TEXT},
)
_DELTA = st.fixed_dictionaries(
    {},
    optional={
        "content": _TEXT,
        "refusal": _TEXT,
        "reasoning_content": _TEXT,
        "thinking_blocks": st.none() | st.lists(_THOUGHT, max_size=2),
        "tool_calls": st.none() | st.lists(_CALL, max_size=3),
    },
)


@given(st.lists(_DELTA, max_size=6), st.sampled_from(["stop", "length", "tool_calls", ""]), st.data())
def test_whatever_deltas_come_blocks_follow_each_other(
    deltas: list[dict[str, Any]], finish_reason: str, data: st.DataObject
) -> None:
    stream = stream_of(*deltas, finish_reason=finish_reason)
    out = translate(stream)
    assert translate(stream, *data.draw(st.lists(st.integers(0, 1 << 16), max_size=5))) == out
    expected, kind = 0, "content_block_stop"
    for made in read_events(out)[1:-2]:
        if made["type"] == "content_block_start":
            assert kind == "content_block_stop"
        else:
            assert kind != "content_block_stop"
        assert made["index"] == expected
        kind = made["type"]
        expected += kind == "content_block_stop"
    assert kind == "content_block_stop"
    texts = "".join(delta.get(name) or "" for delta in deltas for name in ("content", "refusal"))
    told = [made["delta"] for made in read_events(out) if made["type"] == "content_block_delta"]
    assert "".join(piece.get("text", "") for piece in told) == texts
    for index in range(3):
        calls = [call for delta in deltas for call in delta.get("tool_calls") or () if call["index"] == index]
        spelled = "".join((call.get("function") or {}).get("arguments") or "" for call in calls)
        assert spelled in "".join(piece.get("partial_json", "") for piece in told)


# --- errors -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "told", "kind"),
    [
        (400, "invalid_request_error", "invalid_request_error"),
        (401, "invalid_request_error", "authentication_error"),
        (402, "billing", "billing_error"),
        (403, "permission_error", "permission_error"),
        (404, "invalid_request_error", "not_found_error"),
        (413, "invalid_request_error", "request_too_large"),
        (422, "invalid_request_error", "invalid_request_error"),
        (429, "insufficient_quota", "rate_limit_error"),
        (500, "server_error", "api_error"),
        (502, "upstream_error", "api_error"),
        (503, "overloaded_error", "overloaded_error"),
        (504, "upstream_error", "timeout_error"),
        (529, "overloaded_error", "overloaded_error"),
    ],
)
def test_errors_get_the_type_of_their_status(status: int, told: str, kind: str) -> None:
    body = json.dumps(error("Oh.", type=told)).encode()
    assert json.loads(TRANSLATOR.encode_error(body, status)) == {
        "type": "error",
        "error": {"type": kind, "message": "Oh."},
    }


@pytest.mark.parametrize("body", [b"", b"<html>", b"{}", b'{"error":{}}', b"\xff"])
def test_what_is_no_error_becomes_one_without_it(body: bytes) -> None:
    made = json.loads(TRANSLATOR.encode_error(body, 502))["error"]
    assert made["type"] == "api_error"
    assert "502" in made["message"]
