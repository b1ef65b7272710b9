"""Fillers before answers, pure: what real clients make of both, and which requests have none."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from real_clients import read_chat_stream, read_message_stream, read_response_stream

from forebay.core.filler import Filler, Opening
from forebay.core.routes import Endpoint
from forebay.net.sse import EventSplitter
from forebay.providers import openai
from forebay.providers.anthropic_dialect import MessagesDialect
from forebay.providers.filler_chat import ChatFiller
from forebay.providers.filler_messages import MessagesFiller
from forebay.providers.filler_responses import ResponsesFiller
from forebay.providers.responses_dialect import ResponsesDialect
from forebay.providers.responses_echo import read_echo
from forebay.providers.responses_stream import ResponsesStream
from forebay.testing import anthropic as anthropic_side
from forebay.testing import responses as responses_side
from forebay.testing.openai import (
    ToolCall,
    chat_stream,
    completion_stream,
    event,
    tool_call_stream,
    usage,
    usage_chunk,
)

OPENING = Opening(text="Well, “ü”… ", id="req_1", model="m", created_s=1_800_000_000)
CALLS = [
    ToolCall(id="call_1", name="look", arguments='{"at":"sea","depth":3}'),
    ToolCall(id="call_2", name="now", arguments="{}"),
]
MESSAGE = anthropic_side.message(
    anthropic_side.text("The sea."),
    anthropic_side.tool_use(CALLS[0]),
    anthropic_side.tool_use(CALLS[1]),
    tokens=anthropic_side.usage(11, 4),
)
RESPONSE = responses_side.response("The sea.", tokens=responses_side.usage(11, 4))
STREAMS: dict[str, tuple[Callable[[], Filler], list[bytes]]] = {
    "chat": (lambda: ChatFiller(OPENING, Endpoint.CHAT), chat_stream(["The ", "sea."])),
    "calls": (lambda: ChatFiller(OPENING, Endpoint.CHAT), tool_call_stream(CALLS, fragment_chars=5)),
    "text": (lambda: ChatFiller(OPENING, Endpoint.COMPLETIONS), completion_stream(["The ", "sea."])),
    "messages": (lambda: MessagesFiller(OPENING), anthropic_side.message_events(MESSAGE)),
    "responses": (lambda: ResponsesFiller(OPENING, b"{}"), responses_side.response_events(RESPONSE)),
}
every_stream = pytest.mark.parametrize("name", STREAMS)


def join(name: str, pieces: list[bytes] | None = None) -> bytes:
    make, events = STREAMS[name]
    filler = make()
    return filler.opening + b"".join(map(filler.feed, pieces or events)) + filler.finish()


def payloads(body: bytes) -> list[Any]:
    events = EventSplitter(1 << 20).feed(body)
    data = [line[6:] for raw in events for line in raw.split(b"\n") if line.startswith(b"data: {")]
    return [json.loads(each) for each in data]


@every_stream
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_any_split_of_the_answer_gives_the_same_bytes(name: str, data: st.DataObject) -> None:
    body = b"".join(STREAMS[name][1])
    ends = sorted(data.draw(st.sets(st.integers(1, len(body) - 1), max_size=8)))
    pieces = [body[a:b] for a, b in zip([0, *ends], [*ends, len(body)], strict=True)]
    assert join(name, pieces) == join(name)


def test_chat_is_one_message_of_one_id() -> None:
    body = join("chat")
    answer = read_chat_stream(body)
    message = answer.choices[0].message
    assert (message.content, message.role) == ("Well, “ü”… The sea.", "assistant")
    assert answer.choices[0].finish_reason == "stop"
    chunks = payloads(body)
    assert {(each["id"], each["created"], each["model"]) for each in chunks} == {
        ("chatcmpl-req_1", 1_800_000_000, "m")
    }
    assert [each["choices"][0]["delta"].get("role") for each in chunks if each["choices"]].count(
        "assistant"
    ) == 1
    assert body.endswith(b"data: [DONE]\n\n")


def test_calls_of_tools_after_a_filler_assemble() -> None:
    message = read_chat_stream(join("calls")).choices[0].message
    told = [(call.id, call.function.name, call.function.arguments) for call in message.tool_calls or ()]
    assert (message.content, told) == (OPENING.text, [(c.id, c.name, c.arguments) for c in CALLS])


def test_text_goes_on_in_the_same_choice() -> None:
    chunks = payloads(join("text"))
    assert "".join(each["choices"][0]["text"] for each in chunks if each["choices"]) == "Well, “ü”… The sea."
    assert {each["id"] for each in chunks} == {"cmpl-req_1"}


def test_a_message_has_the_filler_as_its_first_block() -> None:
    body = join("messages")
    answer = read_message_stream(body)
    assert [block.type for block in answer.content] == ["text", "text", "tool_use", "tool_use"]
    texts = [block.text for block in answer.content if block.type == "text"]
    assert texts == [OPENING.text, "The sea."]
    calls = [(block.id, block.input) for block in answer.content if block.type == "tool_use"]
    assert calls == [(call.id, json.loads(call.arguments)) for call in CALLS]
    assert (answer.id, answer.model, answer.stop_reason) == ("msg_req_1", "m", "tool_use")
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (11, 4)
    assert body.count(b"event: message_start\n") == 1


def test_a_response_has_the_filler_as_its_first_item() -> None:
    body = join("responses")
    answer = read_response_stream(body)
    assert answer.output_text == "Well, “ü”… The sea."
    assert [item.type for item in answer.output] == ["message", "message"]
    assert (answer.id, answer.model, answer.status) == ("resp_req_1", "m", "completed")
    assert answer.usage is not None
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (11, 4)
    told = payloads(body)
    assert [each["sequence_number"] for each in told] == list(range(len(told)))
    assert [each["type"] for each in told].count("response.created") == 1
    places = {each["item_id"]: each["output_index"] for each in told if "item_id" in each}
    assert sorted(places.values()) == [0, 1]


def test_no_item_of_a_translated_answer_has_the_filler_s_id() -> None:
    """Also where the answer is called by the request's id, as Bedrock's answers are, which have none."""
    chunks = [each.replace(b"chatcmpl-test", b"req_1") for each in chat_stream(["The ", "sea."])]
    answer = ResponsesStream(read_echo(b"{}"), event_max_bytes=1 << 20)
    filler = ResponsesFiller(OPENING, b"{}")
    body = filler.opening + b"".join(filler.feed(answer.feed(each)) for each in chunks)
    (done,) = (each["response"] for each in payloads(body) if each["type"] == "response.completed")
    assert len({item["id"] for item in done["output"]}) == len(done["output"]) == 2


def test_usage_errors_comments_and_what_is_not_understood_pass() -> None:
    filler = ChatFiller(OPENING, Endpoint.CHAT)
    odd = [
        b": a comment\n\n",
        event({"error": {"message": "no"}}),
        b"data: no JSON\n\n",
        b'data: {"choices": "none"}\n\n',
        b"data: [DONE]\n\n",
    ]
    assert filler.feed(b"".join(odd[:3])) == b"".join(odd[:3])
    assert json.loads(filler.feed(odd[3])[6:])["choices"] == "none"
    assert filler.feed(odd[4]) == odd[4]
    told = payloads(filler.feed(event(usage_chunk(usage(4, 2)))))
    assert told[0]["usage"] == usage(4, 2)
    messages = MessagesFiller(OPENING)
    for raw in (anthropic_side.event(anthropic_side.error()), b"event: ping\ndata: {}\n\n", b"data: x\n\n"):
        assert messages.feed(raw) == raw
    responses = ResponsesFiller(OPENING, b"{}")
    assert responses.feed(b"data: x\n\n") == b"data: x\n\n"
    assert responses.finish() == b""


def test_a_last_event_without_its_blank_line_is_joined_too() -> None:
    events = chat_stream(["x"])
    filler = ChatFiller(OPENING, Endpoint.CHAT)
    assert filler.feed(events[1][:-1]) == b""
    assert json.loads(filler.finish()[6:])["id"] == "chatcmpl-req_1"


def test_an_end_without_usage_takes_what_the_begin_said() -> None:
    events = anthropic_side.message_events(
        anthropic_side.message(tokens=anthropic_side.usage(11, 4) | {"cache_read_input_tokens": 5})
    )
    filler = MessagesFiller(OPENING)
    for raw in events:
        out = filler.feed(raw)
        if raw.startswith(b"event: message_delta"):
            told = payloads(out)[0]["usage"]
            assert (told["input_tokens"], told["cache_read_input_tokens"]) == (11, 5)


# --- when there is none -------------------------------------------------------------------------------------

ASKED: Any = [{"role": "user", "content": "hi"}]
PREFILLED: Any = [*ASKED, {"role": "assistant", "content": "{"}]
DIALECTS: dict[str, tuple[Any, Endpoint, dict[str, Any]]] = {
    "chat": (openai, Endpoint.CHAT, {"messages": ASKED}),
    "text": (openai, Endpoint.COMPLETIONS, {"prompt": "hi"}),
    "messages": (MessagesDialect(), Endpoint.MESSAGES, {"messages": ASKED, "max_tokens": 9}),
    "responses": (ResponsesDialect(), Endpoint.RESPONSES, {"input": "hi"}),
}
FORM: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}
REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("chat", {"n": 2}),
    ("chat", {"logprobs": True}),
    ("chat", {"response_format": {"type": "json_object"}}),
    ("chat", {"response_format": FORM}),
    ("chat", {"tool_choice": "required"}),
    ("chat", {"tool_choice": {"type": "function", "function": {"name": "f"}}}),
    ("chat", {"guided_json": {"type": "object"}}),
    ("chat", {"structured_outputs": {"choice": ["a"]}}),
    ("chat", {"grammar": "root ::= x"}),
    ("chat", {"audio": {"voice": "x", "format": "wav"}}),
    ("chat", {"messages": PREFILLED}),
    ("text", {"n": 2}),
    ("text", {"best_of": 3}),
    ("text", {"logprobs": 0}),
    ("text", {"echo": True}),
    ("text", {"suffix": "end"}),
    ("messages", {"thinking": {"type": "enabled", "budget_tokens": 1024}}),
    ("messages", {"thinking": {"type": "adaptive"}}),
    ("messages", {"tool_choice": {"type": "any"}}),
    ("messages", {"tool_choice": {"type": "tool", "name": "f"}}),
    ("messages", {"output_format": FORM}),
    ("messages", {"output_config": {"format": FORM}}),
    ("messages", {"messages": PREFILLED}),
    ("responses", {"text": {"format": FORM}}),
    ("responses", {"text": {"format": {"type": "json_object"}}}),
    ("responses", {"top_logprobs": 2}),
    ("responses", {"include": ["message.output_text.logprobs"]}),
    ("responses", {"tool_choice": "required"}),
]
TAKEN: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in DIALECTS),
    ("chat", {"n": 1, "logprobs": False, "response_format": {"type": "text"}, "tool_choice": "auto"}),
    (
        "chat",
        {"tools": [{"type": "function", "function": {"name": "f"}}], "guided_json": None, "audio": None},
    ),
    ("text", {"logprobs": None, "echo": False, "n": None}),
    ("messages", {"thinking": {"type": "disabled"}, "output_config": {"effort": "low"}}),
    ("responses", {"text": {"format": {"type": "text"}, "verbosity": "low"}, "include": []}),
]


def begin(name: str, changes: dict[str, Any]) -> Filler | None:
    dialect, endpoint, asked = DIALECTS[name]
    made: Filler | None = dialect.begin_filler(json.dumps(asked | changes).encode(), endpoint, OPENING)
    return made


@pytest.mark.parametrize(("name", "changes"), REFUSED)
def test_what_a_filler_would_break_has_none(name: str, changes: dict[str, Any]) -> None:
    assert begin(name, changes) is None


@pytest.mark.parametrize(("name", "changes"), TAKEN)
def test_other_requests_have_room_for_one(name: str, changes: dict[str, Any]) -> None:
    assert begin(name, changes) is not None


@pytest.mark.parametrize("name", DIALECTS)
def test_what_can_not_be_read_has_none(name: str) -> None:
    dialect, endpoint, _ = DIALECTS[name]
    for body in (b"[]", b"{", b'{"messages": 1, "text": 2, "thinking": 3, "n": 2}', b""):
        assert dialect.begin_filler(body, endpoint, OPENING) is None
