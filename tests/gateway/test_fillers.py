"""Fillers in front of real clients: words of the operator's own, then the answer, as one message."""

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest
from client_cases import Job, ask_node, explain_no_node
from gateway_stage import Stage
from silence_stage import COMMENT, _quiet, calling, late_head, quiet
from streams_rig import events_in

from forebay.core.events import Outcome, Tokens, UsageSource
from forebay.testing import anthropic as anthropic_side
from forebay.testing import responses as responses_side
from forebay.testing.answers import sse_answer
from forebay.testing.gateway import GatewayProcess
from forebay.testing.openai import (
    ToolCall,
    chat_stream,
    completion_stream,
    error_answer,
    tool_call_stream,
    usage,
)
from forebay.testing.steps import Gate, Reset, Sleep

__all__ = ["_quiet", "quiet"]
ASKED: Any = [{"role": "user", "content": "Hello"}]
CHAT: dict[str, Any] = {"model": "filled", "messages": ASKED, "stream": True}
WELL = "Well… ".encode()
CALL = ToolCall(id="call_1", name="look", arguments='{"at":"sea"}')
SEA = anthropic_side.message(
    anthropic_side.text("The sea."), anthropic_side.tool_use(CALL), tokens=anthropic_side.usage(11, 4)
)


@pytest.fixture
def gpt(quiet: GatewayProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=quiet.url, api_key=quiet.key, max_retries=0) as client:
        yield client


@pytest.fixture
def claude(quiet: GatewayProcess) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=quiet.origin, api_key=quiet.key, max_retries=0) as client:
        yield client


def hold(stage: Stage, events: list[bytes]) -> Gate:
    gate = Gate()
    stage.answer = late_head(gate, sse_answer(events))
    return gate


def test_chat(quiet: GatewayProcess, upstream: Stage, gpt: openai.OpenAI) -> None:
    gate = hold(upstream, chat_stream(["The ", "sea."], tokens=usage(11, 4)))
    fillers = quiet.metric("forebay_fillers_total", model="filled")
    with gpt.chat.completions.stream(model="filled", messages=ASKED) as events:
        heard = ""
        for event in events:
            if event.type == "content.delta":
                heard += event.delta
                gate.open()  # the filler came before anything of the model
        answer = events.get_final_completion()
        request_id = events._response.headers["x-request-id"]
    assert heard == answer.choices[0].message.content == "Well… The sea."
    assert answer.choices[0].finish_reason == "stop"
    record = quiet.wait_record(request_id)
    assert record.filler_ns is not None
    assert record.first_token_ns is not None
    assert 100_000_000 <= record.filler_ns < record.first_token_ns, "the model's time is not masked"
    assert (record.tokens, record.usage_source) == (Tokens(input=11, output=4), UsageSource.REPORTED)
    assert quiet.metric("forebay_fillers_total", model="filled") == fillers + 1


def test_calls_of_tools(upstream: Stage, gpt: openai.OpenAI) -> None:
    gate = hold(upstream, tool_call_stream([CALL], fragment_chars=3))
    with gpt.chat.completions.stream(model="filled", messages=ASKED) as events:
        for _ in events:
            gate.open()
        message = events.get_final_completion().choices[0].message
    assert message.content == "Well… "
    assert [call.function.arguments for call in message.tool_calls or ()] == [CALL.arguments]


def test_completions(upstream: Stage, gpt: openai.OpenAI) -> None:
    gate = hold(upstream, completion_stream(["The ", "sea."], include_usage=False))
    heard = ""
    for piece in gpt.completions.create(model="filled", prompt="Hello", stream=True):
        heard += piece.choices[0].text
        gate.open()
    assert heard == "Well… The sea."


@pytest.mark.parametrize("model", ["filled-messages", "filled-mixed"])
def test_messages(
    quiet: GatewayProcess, upstream: Stage, fallback: Stage, claude: anthropic.Anthropic, model: str
) -> None:
    gate = hold(upstream if model == "filled-messages" else fallback, anthropic_side.message_events(SEA))
    with claude.messages.stream(model=model, max_tokens=9, messages=ASKED) as events:
        for _ in events.text_stream:
            gate.open()
        answer = events.get_final_message()
    assert [block.type for block in answer.content] == ["text", "text", "tool_use"]
    assert "".join(block.text for block in answer.content if block.type == "text") == "Well… The sea."
    assert [block.input for block in answer.content if block.type == "tool_use"] == [{"at": "sea"}]
    assert (answer.stop_reason, answer.usage.input_tokens, answer.usage.output_tokens) == ("tool_use", 11, 4)


def test_messages_from_a_target_of_chat(
    upstream: Stage, fallback: Stage, claude: anthropic.Anthropic
) -> None:
    gate = hold(upstream, chat_stream(["The ", "sea."], tokens=usage(11, 4)))
    fallback.answer = [Reset()]
    with claude.messages.stream(model="filled-mixed", max_tokens=9, messages=ASKED) as events:
        for _ in events.text_stream:
            gate.open()
        answer = events.get_final_message()
    assert "".join(block.text for block in answer.content if block.type == "text") == "Well… The sea."
    assert (answer.stop_reason, answer.usage.input_tokens, answer.usage.output_tokens) == ("end_turn", 11, 4)


@pytest.mark.parametrize("model", ["filled-responses", "filled"])
def test_responses(upstream: Stage, gpt: openai.OpenAI, model: str) -> None:
    events = responses_side.response_events(responses_side.response("The sea."))
    gate = hold(upstream, events if model == "filled-responses" else chat_stream(["The sea."]))
    with gpt.responses.stream(model=model, input="Hello") as told:
        for event in told:
            if event.type == "response.output_text.delta":
                gate.open()
        answer = told.get_final_response()
    assert answer.output_text == "Well… The sea."
    assert len(answer.output) == 2


def test_the_clients_for_node_put_both_together(quiet: GatewayProcess, upstream: Stage) -> None:
    if why := explain_no_node():
        pytest.skip(why)
    streams = {
        "/v1/chat/completions": tool_call_stream([CALL], tokens=usage(11, 4)),
        "/v1/messages": anthropic_side.message_events(SEA),
        "/v1/responses": responses_side.response_events(
            responses_side.response("The sea.", tokens=responses_side.usage(11, 4))
        ),
    }
    upstream.answer = lambda request: [Sleep(0.5), *sse_answer(streams[request.path])]
    bodies: dict[str, dict[str, Any]] = {
        "chat": {"messages": ASKED},
        "messages": {"messages": ASKED, "max_tokens": 9},
        "responses": {"input": "Hello"},
    }
    models = {"chat": "filled", "messages": "filled-messages", "responses": "filled-responses"}
    jobs = [Job(id=api, api=api, model=models[api], body=body, stream=True) for api, body in bodies.items()]
    said = ask_node(quiet.origin, quiet.key, jobs)
    assert [(each["input"], each["output"]) for each in said.values()] == [(11, 4)] * 3
    calls = [["call_1", "look", {"at": "sea"}]]
    assert (said["chat"]["text"], said["chat"]["calls"]) == ("Well… ", calls)
    assert (said["messages"]["text"], said["messages"]["calls"]) == ("Well… The sea.", calls)
    assert said["responses"]["text"] == "Well… The sea."


def test_an_answer_in_time_has_none(quiet: GatewayProcess, upstream: Stage) -> None:
    events = chat_stream(["Hel", "lo"], include_usage=False)
    upstream.answer = sse_answer(events)
    with calling(quiet, "chat/completions", CHAT) as caller:
        reply = caller.read_all()
    assert bytes(reply.body) == b"".join(events)
    assert quiet.wait_record(reply.id).filler_ns is None


@pytest.mark.parametrize(
    ("model", "header", "fills"),
    [("filled", "", True), ("filled", "off", False), ("filled", "on", True), ("filled", "ON", True),
     ("filled", "maybe", False), ("asked", "", False), ("asked", "on", True), ("asked", "off", False)],
)  # fmt: skip
def test_the_caller_has_a_say(
    quiet: GatewayProcess, upstream: Stage, model: str, header: str, fills: bool
) -> None:
    gate = hold(upstream, chat_stream(["Hello"]))
    headers = [f"x-forebay-filler: {header}"] if header else []
    with (
        calling(quiet, "chat/completions", CHAT | {"model": model}, *headers) as caller,
        calling(quiet, "chat/completions", CHAT) as other,
    ):
        other.read_until(WELL)  # so this one, which came before, would have had its own
        gate.open()
        reply = caller.read_all()
    assert (WELL in reply.body) == fills
    upstream.wait_request(2)
    assert not any(name == "x-forebay-filler" for each in upstream.requests for name, _ in each.headers)


@pytest.mark.parametrize(
    "asked", [{"n": 2}, {"logprobs": True}, {"response_format": {"type": "json_object"}}]
)
def test_what_it_would_break_has_none(quiet: GatewayProcess, upstream: Stage, asked: dict[str, Any]) -> None:
    events = chat_stream(["{}"], include_usage=False)
    gate = hold(upstream, events)
    with (
        calling(quiet, "chat/completions", CHAT | asked) as caller,
        calling(quiet, "chat/completions", CHAT) as other,
    ):
        other.read_until(WELL)
        gate.open()
        assert bytes(caller.read_all().body) == b"".join(events)


def test_another_target_may_answer_after_a_filler(
    quiet: GatewayProcess, upstream: Stage, fallback: Stage, gpt: openai.OpenAI
) -> None:
    gate = Gate()
    upstream.answer = late_head(gate, [Reset()])
    fallback.answer = sse_answer(chat_stream(["The ", "sea."]))
    with gpt.chat.completions.stream(model="filled-two", messages=ASKED) as events:
        for _ in events:
            gate.open()
        answer = events.get_final_completion()
        request_id = events._response.headers["x-request-id"]
    assert answer.choices[0].message.content == "Well… The sea."
    record = quiet.wait_record(request_id)
    assert (record.target, record.attempts, record.outcome) == ("filled-two-1", 2, Outcome.OK)


def test_keep_alives_follow_a_filler(quiet: GatewayProcess, upstream: Stage) -> None:
    gate = hold(upstream, chat_stream(["The ", "sea."]))
    with calling(quiet, "chat/completions", CHAT | {"model": "filled-two"}) as caller:
        caller.read_until(COMMENT * 2)
        gate.open()
        body = bytes(caller.read_all().body)
    assert body.index(WELL) < body.index(COMMENT) < body.index(b"sea")
    assert body.count(WELL) == 1


@pytest.mark.parametrize("failure", ["reset", "status"])
def test_a_failure_after_a_filler_is_told_in_the_dialect(
    quiet: GatewayProcess, upstream: Stage, gpt: openai.OpenAI, claude: anthropic.Anthropic, failure: str
) -> None:
    gate = Gate()
    upstream.answer = late_head(gate, [Reset()] if failure == "reset" else error_answer(400))
    with gpt.chat.completions.stream(model="filled", messages=ASKED) as events:
        assert next(iter(events)).type == "chunk"
        gate.open()
        with pytest.raises(openai.APIError) as caught:
            list(events)
    assert ("closed the connection" if failure == "reset" else "It went wrong.") in caught.value.message
    gate = Gate()
    answer = anthropic_side.error_answer(400, "invalid_request_error")
    upstream.answer = late_head(gate, [Reset()] if failure == "reset" else answer)
    with claude.messages.stream(model="filled-messages", max_tokens=9, messages=ASKED) as told:
        assert next(iter(told)).type == "message_start"
        gate.open()
        with pytest.raises(anthropic.APIStatusError):
            list(told)


def test_any_split_of_the_target_s_bytes_gives_the_same(quiet: GatewayProcess, upstream: Stage) -> None:
    events = chat_stream(["The “", "ü”"], tokens=usage(11, 4))
    bodies = set()
    for cut_every in (1, 7, None):
        gate = Gate()
        upstream.answer = late_head(gate, sse_answer(events, cut_every=cut_every))
        with calling(quiet, "chat/completions", CHAT) as caller:
            caller.read_until(WELL)
            gate.open()
            chunks = events_in(bytes(caller.read_all().body))[:-1]
        assert len({each.pop("id") for each in chunks}) == len({each.pop("created") for each in chunks}) == 1
        bodies.add(json.dumps(chunks))
    assert len(bodies) == 1
