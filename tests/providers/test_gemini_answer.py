"""Answers of Google's Gemini API and Vertex AI, as callers of chat see them, and what they cost."""

import json
from typing import Any

import pytest
from gemini_side import CALLS, RICH, TRANSLATOR, decode, meter_of, read_choices, read_chunks, translate

from forebay.core.errors import UpstreamProtocol
from forebay.core.events import Tokens
from forebay.providers import openai
from forebay.testing.gemini import blocked, candidate, event, events, function_call, response, text, usage


def test_a_whole_answer_is_a_chat_completion() -> None:
    assert decode(response(text("Hello"))) == {
        "id": "test-response",
        "object": "chat.completion",
        "created": 0,
        "model": "gem",
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


def test_all_kinds_of_parts_find_their_place() -> None:
    made = decode(RICH)["choices"][0]
    assert made["finish_reason"] == "tool_calls"
    assert made["message"] == {
        "role": "assistant",
        "refusal": None,
        "annotations": [],
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
    assert decode(bare)["choices"][0]["message"] == {
        "role": "assistant",
        "content": "",
        "refusal": None,
        "annotations": [],
    }


def test_parts_that_nobody_knows_are_passed_over() -> None:
    image = {"inlineData": {"mimeType": "image/png", "data": "iVBO"}}
    made = decode(response({"novelty": {"a": 1}}, image, text("a")))
    assert made["choices"][0]["message"] == {
        "role": "assistant",
        "content": "a",
        "refusal": None,
        "annotations": [],
    }


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
                "annotations": [],
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
