"""Answers, errors and streams of Bedrock's Converse as OpenAI's chat, read by OpenAI's own client."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai._models import construct_type
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from forebay.core.errors import UpstreamProtocol
from forebay.core.events import Tokens
from forebay.net.sse import EventSplitter, EventTooLarge, parse_event
from forebay.providers import openai as dialect
from forebay.providers.bedrock_stream import BedrockStream
from forebay.providers.chat_to_bedrock import ChatToBedrock
from forebay.providers.eventstream import encode_message
from forebay.testing.bedrock import (
    converse,
    converse_events,
    event,
    exception,
    text,
    thinking,
    tool_use,
    usage,
)
from forebay.testing.openai import ToolCall

TRANSLATOR = ChatToBedrock()
LOOK = ToolCall(id="tooluse_1", name="look", arguments='{"at":"Zürich 😀","deep":[1,{"a":2}]}')
NOW = ToolCall(id="tooluse_2", name="now")
REDACTED = {"reasoningContent": {"redactedContent": "c2VjcmV0"}}
THOUGHT = thinking("Let me see … 😀", "EqQBCkgIBRABGAIiQ+signature==")
DONE = b"data: [DONE]\n\n"


def decode(answer: dict[str, Any]) -> dict[str, Any]:
    """A whole answer as chat; OpenAI's client finds nothing missing."""
    body = TRANSLATOR.decode_answer(json.dumps(answer).encode(), "m")
    ChatCompletion.model_validate_json(body)
    made: dict[str, Any] = json.loads(body)
    return made


def stream(data: bytes, cuts: list[int] | None = None) -> bytes:
    translator = TRANSLATOR.new_stream("m")
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts or ())})
    pieces = [data[start:end] for start, end in zip(places, places[1:], strict=False)]  # noqa: RUF007
    return b"".join(map(translator.feed, pieces)) + translator.finish()


def read_chunks(out: bytes) -> list[dict[str, Any]]:
    events = [parse_event(raw).data or b"" for raw in EventSplitter(1 << 20).feed(out)]
    return [json.loads(data) for data in events if data != b"[DONE]"]


def assemble(out: bytes) -> ChatCompletion:
    """What OpenAI's client makes of a stream."""
    state: ChatCompletionStreamState[None] = ChatCompletionStreamState()
    for chunk in read_chunks(out):
        ChatCompletionChunk.model_validate(chunk)
        state.handle_chunk(construct_type(value=chunk, type_=ChatCompletionChunk))  # type: ignore[arg-type]
    return state.current_completion_snapshot


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ((), {"content": "Hello"}),
        ((text("Hel"), text("lo")), {"content": "Hello"}),
        ((text(""),), {"content": ""}),
        (
            (text("I look."), tool_use(LOOK), tool_use(NOW)),
            {
                "content": "I look.",
                "tool_calls": [
                    {
                        "id": call.id,
                        "type": "function",
                        "function": {"name": call.name, "arguments": call.arguments or "{}"},
                    }
                    for call in (LOOK, NOW)
                ],
            },
        ),
        (
            (THOUGHT, REDACTED, text("So.")),
            {
                "content": "So.",
                "reasoning_content": "Let me see … 😀",
                "thinking_blocks": [
                    {
                        "type": "thinking",
                        "thinking": "Let me see … 😀",
                        "signature": "EqQBCkgIBRABGAIiQ+signature==",
                    },
                    {"type": "redacted_thinking", "data": "c2VjcmV0"},
                ],
            },
        ),
        (
            (
                {"citationsContent": {"content": [{"text": "It is "}, {"text": "so."}], "citations": [{}]}},
                {"toolUse": {"toolUseId": "s", "name": "search", "input": {}, "type": "server_tool_use"}},
                {"image": {"format": "png", "source": {"bytes": "AA=="}}},
                {"somethingNew": {}},
            ),
            {"content": "It is so."},
        ),
    ],
)
def test_whole_answers(blocks: tuple[Any, ...], message: dict[str, Any]) -> None:
    made = decode(converse(*blocks))
    found = made["choices"][0]["message"]
    if "tool_calls" in found:
        for call in found["tool_calls"]:
            call["function"]["arguments"] = json.dumps(
                json.loads(call["function"]["arguments"]), ensure_ascii=False, separators=(",", ":")
            )
    assert found == {"role": "assistant", "refusal": None, "annotations": []} | message
    assert (made["model"], made["object"]) == ("m", "chat.completion")
    assert made["choices"][0]["finish_reason"] == ("tool_calls" if "tool_calls" in message else "stop")


def test_a_call_alone_has_no_content() -> None:
    assert decode(converse(tool_use(NOW)))["choices"][0]["message"]["content"] is None


@pytest.mark.parametrize(
    ("stop_reason", "finish_reason"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("tool_use", "tool_calls"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("guardrail_intervened", "content_filter"),
        ("content_filtered", "content_filter"),
        ("something_new", "stop"),
    ],
)
def test_reasons_to_stop(stop_reason: str, finish_reason: str) -> None:
    answer = converse(stop_reason=stop_reason)
    assert decode(answer)["choices"][0]["finish_reason"] == finish_reason
    assert assemble(stream(b"".join(converse_events(answer)))).choices[0].finish_reason == finish_reason


@pytest.mark.parametrize("reason", ["malformed_model_output", "malformed_tool_use"])
def test_output_that_is_of_no_use_is_an_error(reason: str) -> None:
    answer = converse("Hello", stop_reason=reason)
    with pytest.raises(UpstreamProtocol, match=reason):
        decode(answer)
    last = read_chunks(stream(b"".join(converse_events(answer))))[-1]
    assert reason in last["error"]["message"]


@pytest.mark.parametrize(
    ("reported", "tokens", "total"),
    [
        (usage(9, 4), Tokens(input=9, output=4), 13),
        # The User Guide on prompt caching: what caches had and got is beside the input.
        (
            usage(368, 19, cache_read=10536, cache_write=0),
            Tokens(input=368, input_cached=10536, input_cache_write=0, output=19),
            10923,
        ),
        (
            usage(14, 3, cache_read=0, cache_write=2500),
            Tokens(input=14, input_cached=0, input_cache_write=2500, output=3),
            2517,
        ),
        # The total says that the caches are within the input.
        (
            usage(100, 5) | {"cacheReadInputTokens": 60, "cacheWriteInputTokens": 20},
            Tokens(input=20, input_cached=60, input_cache_write=20, output=5),
            105,
        ),
        # It can't hold them all.
        (
            usage(100, 5) | {"cacheReadInputTokens": 160},
            Tokens(input=100, input_cached=160, output=5),
            265,
        ),
    ],
)
def test_usage_is_counted_as_openai_counts(reported: dict[str, Any], tokens: Tokens, total: int) -> None:
    answer = converse(tokens=reported)
    made = decode(answer)
    assert dialect.read_answer(json.dumps(made).encode()) == tokens
    assert made["usage"]["total_tokens"] == total
    meter = dialect.new_meter(hide_usage=False, event_max_bytes=1 << 20)
    meter.feed(stream(b"".join(converse_events(answer))))
    assert (meter.tokens, meter.ended_well, meter.is_done) == (tokens, True, True)


@pytest.mark.parametrize("reported", [None, {}, {"inputTokens": -1, "outputTokens": 5}, "many"])
def test_usage_that_can_t_be_believed_is_none(reported: Any) -> None:
    answer = converse() | {"usage": reported}
    assert "usage" not in decode(answer)
    assert stream(b"".join(converse_events(answer))).endswith(DONE)


def test_the_tier_that_served_is_told() -> None:
    answer = converse() | {"serviceTier": {"type": "flex"}}
    assert decode(answer)["service_tier"] == "flex"
    assert "service_tier" not in decode(converse() | {"serviceTier": {"type": "reserved"}})


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[]", b"{}", b'{"output":{}}', b'{"message":"Forbidden"}', b"\xff\xfe"]
)
def test_what_is_no_answer_is_the_target_s_fault(body: bytes) -> None:
    with pytest.raises(UpstreamProtocol):
        TRANSLATOR.decode_answer(body, "m")


# --- errors -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "body", "kind", "code", "words"),
    [
        (429, {"message": "Too many tokens."}, "rate_limit_error", "rate_limit_exceeded", "Too many tokens."),
        (429, {"message": "Wait.", "__type": "ModelNotReadyException"}, "overloaded_error", None, "Wait."),
        (
            400,
            {"__type": "com.amazon.coral.validate#ValidationException:http://x/", "message": "Malformed."},
            *("invalid_request_error", None, "Malformed."),
        ),
        (
            400,
            {"message": "The model returned the following errors: Input is too long for requested model."},
            *("invalid_request_error", "context_length_exceeded", "The model returned"),
        ),
        (404, {"message": "No such model."}, "not_found_error", "model_not_found", "No such model."),
        (403, {"Message": "User is not authorized"}, "permission_error", None, "User is not authorized"),
        (424, {"message": "It broke."}, "upstream_error", "ModelErrorException", "It broke."),
        (500, {"message": "Oh."}, "upstream_error", "InternalServerException", "Oh."),
        (503, {"message": "Later."}, "overloaded_error", None, "Later."),
        (500, {"__type": "InternalFailure"}, "upstream_error", "InternalFailure", "InternalFailure"),
    ],
)
def test_errors_keep_their_words(
    status: int, body: dict[str, Any], kind: str, code: str | None, words: str
) -> None:
    made = json.loads(TRANSLATOR.decode_error(status, json.dumps(body).encode()))["error"]
    assert (made["type"], made["code"], made["param"]) == (kind, code, None)
    assert made["message"].startswith(words)


def test_a_model_that_broke_is_no_fault_of_the_caller() -> None:
    body = b'{"message":"It broke."}'
    assert [TRANSLATOR.read_status(status, body) for status in (400, 424, 429)] == [400, 502, 429]
    assert json.loads(TRANSLATOR.decode_error(502, body))["error"]["code"] == "ModelErrorException"
    assert TRANSLATOR.read_retry_after_s(body) is None


@given(status=st.integers(300, 599), body=st.binary(max_size=50))
def test_no_error_is_without_words(status: int, body: bytes) -> None:
    made = json.loads(TRANSLATOR.decode_error(status, body))["error"]
    assert made["message"]
    assert made.keys() == {"message", "type", "param", "code"}


# --- streams ------------------------------------------------------------------------------------------------

BLOCKS = st.lists(
    st.one_of(
        st.text(min_size=1, max_size=30).map(text),
        st.builds(thinking, st.text(min_size=1, max_size=20), st.text("abc+/=", min_size=1, max_size=8)),
        st.just(REDACTED),
        st.builds(
            lambda number, given: tool_use(
                ToolCall(id=f"t{number}", name="look", arguments=json.dumps(given) if given else "")
            ),
            st.integers(0, 9),
            st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=10), max_size=3),
        ),
    ),
    min_size=1,
    max_size=5,
)


def join_thoughts(chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    blocks: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            for piece in choice["delta"].get("thinking_blocks", ()):
                block = blocks.setdefault(piece.pop("index"), {})
                for name, value in piece.items():
                    block[name] = block.get(name, "") + value if name != "type" else value
    return [blocks[index] for index in sorted(blocks)]


@given(blocks=BLOCKS, cuts=st.lists(st.integers(0, 5000), max_size=6), size=st.integers(1, 7))
def test_a_stream_says_what_the_whole_answer_says(
    blocks: list[dict[str, Any]], cuts: list[int], size: int
) -> None:
    answer = converse(*blocks, tokens=usage(9, 4, cache_read=2))
    data = b"".join(converse_events(answer, fragment_chars=size))
    out = stream(data, cuts)
    assert out == stream(data)
    whole = decode(answer)
    said, told = whole["choices"][0], assemble(out).choices[0]
    assert told.finish_reason == said["finish_reason"]
    assert (told.message.content or "") == (said["message"]["content"] or "")
    calls = [
        (call.id, call.function.name, json.loads(call.function.arguments))  # type: ignore[union-attr]
        for call in told.message.tool_calls or ()
    ]
    assert calls == [
        (call["id"], call["function"]["name"], json.loads(call["function"]["arguments"]))
        for call in said["message"].get("tool_calls", ())
    ]
    chunks = read_chunks(out)
    assert join_thoughts(chunks) == said["message"].get("thinking_blocks", [])
    assert chunks[-1]["usage"] == whole["usage"]
    assert out.endswith(DONE)


@given(blocks=BLOCKS, cut=st.integers(0, 10_000))
def test_a_stream_that_was_cut_has_no_end(blocks: list[dict[str, Any]], cut: int) -> None:
    events = converse_events(converse(*blocks))
    whole = b"".join(events)
    out = stream(whole[: cut % len(whole)])
    assert DONE not in out
    meter = dialect.new_meter(hide_usage=False, event_max_bytes=1 << 20)
    meter.feed(out)
    meter.finish()
    has_stopped = cut % len(whole) >= len(whole) - len(events[-1])  # all but the usage came
    assert meter.ended_well is has_stopped
    assert meter.tokens is None


@given(blocks=BLOCKS, at=st.integers(0, 10_000), flip=st.integers(1, 255))
def test_a_damaged_stream_is_an_error_of_the_target(blocks: list[dict[str, Any]], at: int, flip: int) -> None:
    raw = bytearray(b"".join(converse_events(converse(*blocks))))
    raw[at % len(raw)] ^= flip
    translator = BedrockStream("m", event_max_bytes=1 << 20)
    with pytest.raises(UpstreamProtocol):
        translator.feed(bytes(raw))


@pytest.mark.parametrize(
    ("message", "status", "words"),
    [
        (exception("throttlingException", "Slow down."), 429, "Slow down."),
        (exception("validationException", "Input is too long."), 400, "Input is too long."),
        (exception("serviceUnavailableException", "Later."), 503, "Later."),
        (exception("internalServerException", "Oh."), 502, "Oh."),
        (exception("modelStreamErrorException", ""), 502, "modelStreamErrorException"),
        (
            encode_message(
                {":message-type": "error", ":error-code": "BadThing", ":error-message": "Bad."}, b""
            ),
            *(502, "Bad."),
        ),
    ],
)
def test_an_exception_inside_a_stream_ends_it(message: bytes, status: int, words: str) -> None:
    events = converse_events(converse("Hello"))
    out = stream(b"".join([*events[:3], message, *events[3:]]))
    *_, last = chunks = read_chunks(out)
    assert words in last["error"]["message"]
    assert dialect.read_error_status(json.dumps(last["error"]).encode()) == status
    assert [chunk for chunk in chunks if "error" in chunk] == [last]
    assert DONE not in out


def test_unknown_events_are_passed_over_and_unknown_kinds_are_not() -> None:
    events = converse_events(converse("Hello"))
    assert stream(b"".join([events[0], event("somethingNew", {"a": 1}), *events[1:]])) == stream(
        b"".join(events)
    )
    with pytest.raises(UpstreamProtocol, match="kind"):
        stream(encode_message({":message-type": "odd"}, b"{}"))
    with pytest.raises(UpstreamProtocol, match="ConverseStream"):
        stream(encode_message({":message-type": "event", ":event-type": "messageStop"}, b"<html>"))
    with pytest.raises(UpstreamProtocol):
        stream(b"<html><body>Bad Gateway</body></html>")


def test_an_event_may_be_as_long_as_is_allowed() -> None:
    translator = TRANSLATOR.new_stream("m", event_max_bytes=200)
    with pytest.raises(EventTooLarge):
        translator.feed(event("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": "x" * 300}}))
