"""Answers, streams and errors of Google's Gemini API and Vertex AI, as callers of chat see them."""

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
from forebay.providers.chat_to_gemini import ChatToGemini
from forebay.testing.gemini import (
    blocked,
    candidate,
    error,
    error_info,
    event,
    events,
    function_call,
    response,
    retry_info,
    text,
    thought,
    usage,
)
from forebay.testing.openai import ToolCall

TRANSLATOR = ChatToGemini()
CALLS = (
    ToolCall(id="c1", name="look_up", arguments='{"q":"a","deep":{"n":[1,2]}}'),
    ToolCall(id="c2", name="now", arguments=""),
)
RICH = response(
    thought("First, "),
    thought("hm.\n", "dGhvdWdodA=="),
    text("Let me "),
    text("look. 😀"),
    function_call(CALLS[0], "Y2FsbA=="),
    function_call(CALLS[1]),
    tokens=usage(350, 20, cached=300, thoughts=9, tool_use=4),
)
RICH_TOKENS = Tokens(input=54, input_cached=300, output=20, output_reasoning=9)


def decode(answer: dict[str, Any]) -> dict[str, Any]:
    body = TRANSLATOR.decode_answer(msgspec.json.encode(answer), "gem")
    read_chat(body)
    made: dict[str, Any] = json.loads(body)
    return made


def translate(data: bytes, *cuts: int) -> bytes:
    """The whole stream in chat, fed in pieces."""
    stream = TRANSLATOR.new_stream("gem")
    ends = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    pieces = [data[start:end] for start, end in itertools.pairwise(ends)]
    return b"".join([*map(stream.feed, pieces), stream.finish()])


def read_chunks(out: bytes) -> list[dict[str, Any]]:
    splitter = EventSplitter(1 << 20)
    data = [parse_event(raw).data for raw in splitter.feed(out)]
    assert splitter.finish() == b""
    return [json.loads(part) for part in data if part and part != b"[DONE]"]


def read_choices(out: bytes, index: int = 0) -> list[dict[str, Any]]:
    """The choices of all chunks; OpenAI's own types take each chunk."""
    chunks = read_chunks(out)
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk)
    return [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]


def meter_of(out: bytes) -> Any:
    meter = openai.new_meter(hide_usage=False, event_max_bytes=1 << 20)
    meter.feed(out)
    meter.finish()
    return meter


# --- whole answers ------------------------------------------------------------------------------------------


def test_a_whole_answer_is_a_chat_completion() -> None:
    assert decode(response(text("Hello"))) == {
        "id": "test-response",
        "object": "chat.completion",
        "created": 0,
        "model": "gem",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello"},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12},
    }


def test_all_kinds_of_parts_find_their_place() -> None:
    made = decode(RICH)["choices"][0]
    assert made["finish_reason"] == "tool_calls"
    assert made["message"] == {
        "role": "assistant",
        "content": "Let me look. 😀",
        "reasoning_content": "First, hm.\n",
        "thinking_blocks": [
            {"type": "thinking", "thinking": "First, hm.\n", "signature": "gemini:thought:dGhvdWdodA=="},
            {"type": "thinking", "thinking": "", "signature": "gemini:call0:Y2FsbA=="},
        ],
        "tool_calls": [
            {
                "id": "c1",
                "type": "function",
                "function": {"name": "look_up", "arguments": '{"q":"a","deep":{"n":[1,2]}}'},
                "extra_content": {"google": {"thought_signature": "Y2FsbA=="}},
            },
            {"id": "c2", "type": "function", "function": {"name": "now", "arguments": "{}"}},
        ],
    }


def test_arguments_keep_their_spelling() -> None:
    body = (
        b'{"candidates":[{"content":{"parts":[{"functionCall":{"name":"f","args":{"n": 1E+2,'
        b'"big":123456789012345678901234567890}}}]},"finishReason":"STOP"}]}'
    )
    made = json.loads(TRANSLATOR.decode_answer(body, "m"))
    arguments = made["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]
    assert arguments == '{"n": 1E+2,"big":123456789012345678901234567890}'


def test_a_call_without_an_id_gets_one_that_is_its_own() -> None:
    calls = [function_call(CALLS[1], with_id=False)] * 2
    ids = [call["id"] for call in decode(response(*calls))["choices"][0]["message"]["tool_calls"]]
    assert len(set(ids)) == 2
    other = response(*calls) | {"responseId": "another"}
    assert not {call["id"] for call in decode(other)["choices"][0]["message"]["tool_calls"]} & set(ids)
    assert decode(response(*calls)) == decode(response(*calls))


def test_calls_alone_have_null_for_content_and_nothing_at_all_is_an_empty_text() -> None:
    assert decode(response(function_call(CALLS[1])))["choices"][0]["message"]["content"] is None
    bare = response() | {"candidates": [{"finishReason": "MAX_TOKENS"}]}
    assert decode(bare)["choices"][0]["message"] == {"role": "assistant", "content": ""}


def test_parts_that_nobody_knows_are_passed_over() -> None:
    image = {"inlineData": {"mimeType": "image/png", "data": "iVBO"}}
    made = decode(response({"novelty": {"a": 1}}, image, text("a")))
    assert made["choices"][0]["message"] == {"role": "assistant", "content": "a"}


def test_several_candidates_are_several_choices() -> None:
    answer = response() | {"candidates": [candidate(text("a")), candidate(text("b"), index=1)]}
    made = decode(answer)["choices"]
    assert [(choice["index"], choice["message"]["content"]) for choice in made] == [(0, "a"), (1, "b")]
    out = translate(b"".join(events(answer)))
    assert [choice["delta"].get("content") for choice in read_choices(out, 1)] == ["", "b", None]
    assert meter_of(out).ended_well


FINISHES = [
    ("STOP", "stop"),
    ("OTHER", "stop"),
    ("FINISH_REASON_UNSPECIFIED", "stop"),
    ("A_NEW_ONE", "stop"),
    ("MAX_TOKENS", "length"),
    ("CONTINUATION", "length"),
    ("SAFETY", "content_filter"),
    ("RECITATION", "content_filter"),
    ("LANGUAGE", "content_filter"),
    ("BLOCKLIST", "content_filter"),
    ("PROHIBITED_CONTENT", "content_filter"),
    ("SPII", "content_filter"),
    ("MODEL_ARMOR", "content_filter"),
    ("IMAGE_SAFETY", "content_filter"),
]


@pytest.mark.parametrize(("reason", "expected"), FINISHES)
def test_reasons_to_finish_are_mapped_whole_and_streamed(reason: str, expected: str) -> None:
    answer = response(text("a"), reason=reason)
    assert decode(answer)["choices"][0]["finish_reason"] == expected
    choices = read_choices(translate(b"".join(events(answer))))
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + [expected]


FAILURES = ["MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS", "MALFORMED_RESPONSE"]


@pytest.mark.parametrize("reason", [*FAILURES, "MISSING_THOUGHT_SIGNATURE"])
def test_output_of_no_use_is_an_error(reason: str) -> None:
    answer = response(text("a"), reason=reason)
    answer["candidates"][0]["finishMessage"] = "Malformed: call(1"
    with pytest.raises(UpstreamProtocol, match=rf"{reason}\. Malformed: call\(1"):
        decode(answer)
    meter = meter_of(translate(b"".join(events(answer))))
    assert json.loads(meter.error)["code"] == reason.lower()
    assert not meter.ended_well


def test_why_it_was_blocked_is_told() -> None:
    answer = response(text("I"), reason="SAFETY")
    answer["candidates"][0]["finishMessage"] = "Not that."
    assert decode(answer)["choices"][0]["message"]["refusal"] == "Not that."
    assert read_choices(translate(b"".join(events(answer))))[-1]["delta"] == {"refusal": "Not that."}


def test_a_prompt_that_was_blocked_is_a_choice_without_content() -> None:
    made = decode(blocked("SAFETY"))
    assert made["choices"] == [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": None,
                "refusal": "The prompt was blocked: SAFETY.",
            },
            "logprobs": None,
            "finish_reason": "content_filter",
        }
    ]
    assert made["usage"] == {"prompt_tokens": 7, "completion_tokens": 0, "total_tokens": 7}
    told = blocked() | {"promptFeedback": {"blockReason": "MODEL_ARMOR", "blockReasonMessage": "No."}}
    assert decode(told)["choices"][0]["message"]["refusal"] == "No."
    out = translate(event(told))
    last = read_choices(out)[-1]
    assert (last["delta"], last["finish_reason"]) == ({"refusal": "No."}, "content_filter")
    assert meter_of(out).tokens == Tokens(input=7, output=0)
    assert meter_of(out).ended_well


def test_log_probabilities_are_told_whole_and_streamed() -> None:
    def token(words: str, probability: float) -> dict[str, Any]:
        return {"token": words, "tokenId": 3, "logProbability": probability}

    answer = response(text("ja"))
    answer["candidates"][0]["logprobsResult"] = {
        "chosenCandidates": [token("ja", -0.5)],
        "topCandidates": [{"candidates": [token("ja", -0.5), token("né", -1)]}],
    }
    said = {"token": "ja", "logprob": -0.5, "bytes": [106, 97]}
    expected = {
        "content": [
            said | {"top_logprobs": [said, {"token": "né", "logprob": -1.0, "bytes": [110, 195, 169]}]}
        ],
        "refusal": None,
    }
    assert decode(answer)["choices"][0]["logprobs"] == expected
    told = [choice["logprobs"] for choice in read_choices(translate(event(answer)))]
    assert [each for each in told if each] == [expected]


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[]", b"{}", b'{"candidates":3}', b'{"candidates":[]}', b"\xff"]
)
def test_what_is_no_answer_is_said_to_be_none(body: bytes) -> None:
    with pytest.raises(UpstreamProtocol):
        TRANSLATOR.decode_answer(body, "m")


# --- usage --------------------------------------------------------------------------------------------------

HEARD = usage(100, 10, cached=40) | {
    "promptTokensDetails": [
        {"modality": "TEXT", "tokenCount": 30},
        {"modality": "AUDIO", "tokenCount": 70},
    ],
    "cacheTokensDetails": [{"modality": "AUDIO", "tokenCount": 40}],
    "candidatesTokensDetails": [{"modality": "TEXT", "tokenCount": 10}],
}
USAGES = [
    (
        usage(7, 5),
        {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12},
        Tokens(input=7, output=5),
    ),
    (
        usage(350, 20, cached=300),
        {
            "prompt_tokens": 350,
            "completion_tokens": 20,
            "total_tokens": 370,
            "prompt_tokens_details": {"cached_tokens": 300},
        },
        Tokens(input=50, input_cached=300, output=20),
    ),
    (
        usage(8, 20, thoughts=30),
        {
            "prompt_tokens": 8,
            "completion_tokens": 50,
            "total_tokens": 58,
            "completion_tokens_details": {"reasoning_tokens": 30},
        },
        Tokens(input=8, output=20, output_reasoning=30),
    ),
    (  # it thought until the limit: a count of 0 is not on the wire
        usage(8, 0, thoughts=30),
        {
            "prompt_tokens": 8,
            "completion_tokens": 30,
            "total_tokens": 38,
            "completion_tokens_details": {"reasoning_tokens": 30},
        },
        Tokens(input=8, output=0, output_reasoning=30),
    ),
    (
        usage(8, 2, tool_use=90),
        {"prompt_tokens": 98, "completion_tokens": 2, "total_tokens": 100},
        Tokens(input=98, output=2),
    ),
    (
        HEARD,
        {
            "prompt_tokens": 100,
            "completion_tokens": 10,
            "total_tokens": 110,
            "prompt_tokens_details": {"cached_tokens": 40, "audio_tokens": 30},
        },
        Tokens(input=30, input_cached=40, input_audio=30, output=10),
    ),
]


@pytest.mark.parametrize(("told", "expected", "tokens"), USAGES)
def test_usage_is_what_openai_would_say_in_disjoint_classes(
    told: dict[str, Any], expected: dict[str, Any], tokens: Tokens
) -> None:
    chat = TRANSLATOR.decode_answer(json.dumps(response(tokens=told)).encode(), "m")
    assert json.loads(chat)["usage"] == expected
    assert openai.read_answer(chat) == tokens
    out = translate(b"".join(events(response(tokens=told))))
    assert read_chunks(out)[-1]["usage"] == expected
    assert meter_of(out).tokens == tokens


def test_an_answer_that_counts_nothing_has_no_usage() -> None:
    assert "usage" not in decode(response() | {"usageMetadata": {}})
    assert "usage" not in decode(response() | {"usageMetadata": {"promptTokenCount": -1}})


# --- streams ------------------------------------------------------------------------------------------------

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


# --- errors -------------------------------------------------------------------------------------------------

TOO_LONG = "The input token count (1048577) exceeds the maximum number of tokens allowed (1048576)."
ERRORS = [
    (400, "INVALID_ARGUMENT", "Bad.", "invalid_request_error", None),
    (400, "INVALID_ARGUMENT", TOO_LONG, "invalid_request_error", "context_length_exceeded"),
    (400, "FAILED_PRECONDITION", "Not here.", "invalid_request_error", None),
    (401, "UNAUTHENTICATED", "Who?", "authentication_error", "invalid_api_key"),
    (402, "RESOURCE_EXHAUSTED", "Pay.", "rate_limit_error", "insufficient_quota"),
    (403, "PERMISSION_DENIED", "No.", "permission_error", None),
    (404, "NOT_FOUND", "models/x is not found.", "not_found_error", "model_not_found"),
    (429, "RESOURCE_EXHAUSTED", "Quota exceeded.", "rate_limit_error", "rate_limit_exceeded"),
    (499, "CANCELLED", "Left.", "upstream_error", None),
    (500, "INTERNAL", "Oops.", "api_error", None),
    (503, "UNAVAILABLE", "Later.", "overloaded_error", None),
    (504, "DEADLINE_EXCEEDED", "Slow.", "timeout_error", None),
]


@pytest.mark.parametrize(("status", "name", "words", "kind", "code"), ERRORS)
def test_errors_keep_googles_words(status: int, name: str, words: str, kind: str, code: str | None) -> None:
    body = json.dumps(error(status, name, words)).encode()
    expected = {"error": {"message": words, "type": kind, "param": None, "code": code}}
    assert json.loads(TRANSLATOR.decode_error(status, body)) == expected
    assert json.loads(TRANSLATOR.decode_error(status, b"[" + body + b"]")) == expected  # of a stream


def test_a_key_that_is_not_valid_is_our_fault_though_it_is_told_with_400() -> None:
    refused = error(400, "INVALID_ARGUMENT", "API key not valid.", error_info("API_KEY_INVALID"))
    body = json.dumps(refused).encode()
    assert TRANSLATOR.read_status(400, body) == 401
    assert json.loads(TRANSLATOR.decode_error(401, body))["error"]["type"] == "authentication_error"
    assert TRANSLATOR.read_status(400, json.dumps(error(400, "INVALID_ARGUMENT")).encode()) == 400
    assert TRANSLATOR.read_status(503, b"<html>") == 503


@pytest.mark.parametrize(
    ("delay", "seconds"), [("22s", 22), ("10.689924287s", 11), ("0s", 0), ("soon", None), ("-3s", None)]
)
def test_when_to_come_again_is_read_from_the_body(delay: str, seconds: int | None) -> None:
    body = json.dumps(error(429, "RESOURCE_EXHAUSTED", "Q.", error_info("X"), retry_info(delay))).encode()
    assert TRANSLATOR.read_retry_after_s(body) == seconds
    assert TRANSLATOR.read_retry_after_s(b"<html>") is None
    assert TRANSLATOR.read_retry_after_s(b"[]") is None


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"{}", b'{"error":"x"}', b"\xff"])
def test_what_is_no_error_of_googles_is_told_without_its_text(body: bytes) -> None:
    made = json.loads(TRANSLATOR.decode_error(502, body))["error"]
    assert made["type"] == "upstream_error"
    assert "502" in made["message"]
    assert "html" not in made["message"]
