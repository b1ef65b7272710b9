"""Streams of Google's Gemini API and Vertex AI, as callers of chat see them."""

import json

import pytest
from gemini_side import CALLS, RICH, TRANSLATOR, meter_of, translate
from hypothesis import given
from hypothesis import strategies as st
from real_clients import read_chat, read_chat_stream

from forebay.core.errors import UpstreamProtocol
from forebay.core.events import Tokens
from forebay.net.sse import EventTooLarge
from forebay.testing.gemini import candidate, error, event, events, function_call, response, text, thought

RICH_TOKENS = Tokens(input=54, input_cached=300, output=20, output_reasoning=9)
EVENTS = events(RICH)
STREAM = b"".join(EVENTS)


def test_the_real_client_puts_a_stream_together_as_the_whole_answer() -> None:
    whole = read_chat(TRANSLATOR.decode_answer(json.dumps(RICH).encode(), "m"))
    streamed = read_chat_stream(translate(STREAM))
    said, told = whole.choices[0].message, streamed.choices[0].message
    assert told.content == said.content == "Let me look. 😀"
    assert [
        (call.id, call.function.name, json.loads(call.function.arguments))  # type: ignore[union-attr]
        for call in told.tool_calls or []
    ] == [(call.id, call.name, json.loads(call.arguments or "{}")) for call in CALLS]
    assert (told.model_extra or {})["reasoning_content"] == "First, hm.\n"
    assert streamed.usage == whole.usage
    assert meter_of(translate(STREAM)).tokens == RICH_TOKENS
    assert meter_of(translate(STREAM)).ended_well


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("drop", ["thinking_blocks", "extra_content", ""])
def test_what_was_signed_can_be_sent_back_from_either_place(stream: bool, drop: str) -> None:
    body = TRANSLATOR.decode_answer(json.dumps(RICH).encode(), "m")
    told = (read_chat_stream(translate(STREAM)) if stream else read_chat(body)).choices[0].message
    message = told.model_dump(exclude={"parsed"})
    for call in message["tool_calls"]:  # what the client's helper adds on its own
        call["function"].pop("parsed_arguments", None)
        call.pop("index", None)
        call.pop(drop, None)
    message.pop(drop, None)
    asked = {"messages": [{"role": "user", "content": "hi"}, message]}
    made = json.loads(TRANSLATOR.encode_request(json.dumps(asked).encode(), "gemini-3-pro", stream=False))
    parts = made["contents"][1]["parts"]
    calls = [part for part in parts if "functionCall" in part]
    assert calls == [function_call(CALLS[0], "Y2FsbA=="), function_call(CALLS[1])]
    if drop != "thinking_blocks":
        assert parts[0] == thought("First, hm.\n", "dGhvdWdodA==")


def test_the_signature_of_a_text_comes_at_its_end() -> None:
    streamed = [event(response(text("Hi"), reason=None)), event(response(text("", "c2ln")))]
    told = read_chat_stream(translate(b"".join(streamed))).choices[0].message
    extra = told.model_extra or {}
    assert [block["signature"] for block in extra["thinking_blocks"]] == ["gemini:text:c2ln"]
    asked = {"messages": [{"role": "user", "content": "hi"}, told.model_dump(exclude={"parsed"})]}
    made = json.loads(TRANSLATOR.encode_request(json.dumps(asked).encode(), "m", stream=False))
    assert made["contents"][1]["parts"] == [text("Hi", "c2ln")]


ENDINGS = [b"\n", b"\r\n", b"\r"]


@pytest.mark.parametrize("ending", ENDINGS)
def test_each_end_of_a_line_is_one(ending: bytes) -> None:
    assert translate(STREAM.replace(b"\r\n", ending)) == translate(STREAM)


@given(st.sampled_from(ENDINGS), st.lists(st.integers(0, 1 << 16), max_size=12))
def test_any_split_gives_the_same_stream(ending: bytes, cuts: list[int]) -> None:
    assert translate(STREAM.replace(b"\r\n", ending), *cuts) == translate(STREAM)


def test_each_byte_on_its_own_gives_the_same_stream() -> None:
    assert translate(STREAM, *range(len(STREAM))) == translate(STREAM)


@given(st.integers(0, len(STREAM)))
def test_a_stream_that_was_cut_is_never_ended(at: int) -> None:
    """Its end is told only if its reason to finish came."""
    out = translate(STREAM[:at])
    has_all = at >= len(STREAM.rstrip())
    assert meter_of(out).ended_well == has_all
    assert (b"[DONE]" in out) == has_all
    assert translate(STREAM).startswith(out)


def test_an_answer_is_not_ended_while_another_candidate_goes_on() -> None:
    both = response() | {"candidates": [candidate(text("a")), candidate(text("b"), reason=None, index=1)]}
    out = translate(event(both))
    assert b"[DONE]" not in out
    assert b'"usage"' not in out


def test_nothing_follows_the_end_of_a_candidate() -> None:
    out = translate(event(response(text("a"))) + event(response(text("late"))))
    assert b"late" not in out


def test_an_error_in_a_stream_is_told_and_ends_it() -> None:
    failed = error(503, "UNAVAILABLE", "The model is overloaded.")
    out = translate(EVENTS[0] + event(failed) + b"".join(EVENTS[1:]))
    meter = meter_of(out)
    assert json.loads(meter.error) == {
        "message": "The model is overloaded.",
        "type": "overloaded_error",
        "param": None,
        "code": None,
    }
    assert out.endswith(b"}}\n\n")
    assert b"[DONE]" not in out
    assert json.loads(meter_of(translate(b'data: {"error": 3}\n\n')).error)["message"].startswith("The upstr")


@pytest.mark.parametrize("data", [b"data: <html>\n\n", b"data: [1]\n\n", b'data: {"candidates": 3}\n\n'])
def test_what_is_no_event_is_said_to_be_none(data: bytes) -> None:
    with pytest.raises(UpstreamProtocol):
        translate(data)


def test_an_event_has_a_limit_and_so_has_the_number_of_candidates() -> None:
    stream = TRANSLATOR.new_stream("m", event_max_bytes=100)
    with pytest.raises(EventTooLarge):
        stream.feed(b"data: " + b"x" * 200)
    many = [candidate(text("a"), index=at) for at in range(129)]
    with pytest.raises(UpstreamProtocol, match="128"):
        translate(event(response() | {"candidates": many}))
