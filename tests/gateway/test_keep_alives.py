"""S8: a silence in a stream is broken by keep-alives, and costs nobody another target, an error or a byte."""

import json
from typing import Any

import anthropic
import openai
import pytest
from gateway_stage import Stage
from raw_caller import RawCaller
from silence_stage import COMMENT, PING, _quiet, calling, held_answer, late_head, quiet, strip

from forebay.core.events import Outcome, UsageSource
from forebay.testing import anthropic as said_by_anthropic
from forebay.testing import responses as said_by_responses
from forebay.testing.answers import chunk, json_answer, sse_answer, sse_head
from forebay.testing.gateway import GatewayProcess
from forebay.testing.openai import (
    chat_completion,
    chat_stream,
    completion_stream,
    error_answer,
    event,
    well_behaved,
)
from forebay.testing.steps import Close, Gate, Reset, Sleep, Stall, Step, Wait

__all__ = ["_quiet", "quiet"]
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "stream": True}
MESSAGES: dict[str, Any] = CHAT | {"max_tokens": 9}
MESSAGE_EVENTS = said_by_anthropic.message_events(said_by_anthropic.message())
RESPONSE_EVENTS = said_by_responses.response_events(said_by_responses.response("Hello"))
ASKS: dict[str, tuple[str, dict[str, Any], bytes, list[bytes]]] = {
    "chat": ("chat/completions", CHAT, COMMENT, chat_stream(["Hel", "lo"], include_usage=False)),
    "text": (
        "completions",
        {"model": "m", "prompt": "Hello", "stream": True},
        COMMENT,
        completion_stream(["Hel", "lo"], include_usage=False),
    ),
    "messages": ("messages", MESSAGES | {"model": "messages"}, PING, MESSAGE_EVENTS),
    "responses": (
        "responses",
        {"model": "responses", "input": "Hello", "stream": True},
        COMMENT,
        RESPONSE_EVENTS,
    ),
}
every_dialect = pytest.mark.parametrize("asked", ASKS)


@every_dialect
def test_S8_silence_before_the_first_content(quiet: GatewayProcess, upstream: Stage, asked: str) -> None:
    path, body, keep_alive, events = ASKS[asked]
    gate = Gate()
    upstream.answer = late_head(gate, sse_answer(events))
    with calling(quiet, path, body) as caller:
        caller.read_until(keep_alive * 2)
        gate.open()
        reply = caller.read_all()
    assert strip(bytes(reply.body), keep_alive) == b"".join(events)
    assert (reply.status, reply.header("content-type")) == (200, "text/event-stream")
    assert reply.header("x-forebay-attempts") is None, "who answers is not known yet"
    assert bytes(reply.body).count(b": x-forebay-attempts: 1\n\n") == 1
    record = quiet.wait_record(reply.id)
    assert (record.outcome, record.status, record.answer_bytes) == (Outcome.OK, 200, len(reply.body))
    assert record.usage_source is UsageSource.REPORTED or asked in ("chat", "text")


@every_dialect
def test_S8_silence_between_events(quiet: GatewayProcess, upstream: Stage, asked: str) -> None:
    """Also where the target is in the middle of an event: nothing goes out inside of one."""
    path, body, keep_alive, events = ASKS[asked]
    gate = Gate()
    first, rest = b"".join(events[:-3]), b"".join(events[-3:])
    head, last = sse_answer([first + rest])[0], sse_answer([rest[5:]])[1:]
    upstream.answer = [head, chunk(first + rest[:5]), Wait(gate), *last]
    with calling(quiet, path, body) as caller:
        caller.read_until(first + keep_alive * 2)
        gate.open()
        reply = caller.read_all()
    assert bytes(reply.body).replace(keep_alive, b"") == first + rest
    assert reply.header("x-forebay-attempts") == "1"


@pytest.mark.parametrize("path", ["messages", "responses", "chat/completions"])
def test_S8_silence_in_a_translated_stream(
    quiet: GatewayProcess, upstream: Stage, fallback: Stage, path: str
) -> None:
    gate = Gate()
    body = {"model": "mixed", "input": "Hello", "stream": True} if path == "responses" else MESSAGES
    fallback.answer = held_answer(gate, MESSAGE_EVENTS, before=3)
    keep_alive = PING if path == "messages" else COMMENT
    with calling(quiet, path, body | {"model": "mixed"}) as caller:
        caller.read_until(keep_alive)
        gate.open()
        told = caller.read_all()
    fallback.answer = sse_answer(MESSAGE_EVENTS)
    with calling(quiet, path, body | {"model": "mixed"}) as caller:
        straight = caller.read_all()
    assert without_times(strip(bytes(told.body), keep_alive)) == without_times(
        strip(bytes(straight.body), keep_alive)
    )


def without_times(body: bytes) -> list[Any]:
    events = [json.loads(line[5:]) for line in body.split(b"\n") if line.startswith(b"data: {")]
    for payload in events:
        for part in (payload, payload.get("response", {})):
            part.pop("created", None)
            part.pop("created_at", None)
    return events


def test_streams_that_come_in_time_are_left_alone(quiet: GatewayProcess, upstream: Stage) -> None:
    events = chat_stream(["Hel", "lo"], include_usage=False)
    upstream.answer = sse_answer(events, pause_s=0.15)  # together longer than a silence may be
    for _ in range(5):
        with calling(quiet, "chat/completions", CHAT | {"model": "patient"}) as caller:
            body = bytes(caller.read_all().body)
        if COMMENT not in body:  # else this machine stood still for a third of a second
            break
    assert body == b"".join(events)
    for model in ("never", "default"):
        gate = Gate()
        upstream.answer = late_head(gate, sse_answer(events))
        with (
            calling(quiet, "chat/completions", CHAT) as other,
            calling(quiet, "chat/completions", CHAT | {"model": model}) as caller,
        ):
            other.read_until(COMMENT * 2)  # by then this one would have had some as well
            gate.open()
            reply = caller.read_all()
        assert (bytes(reply.body), reply.header("x-forebay-attempts")) == (b"".join(events), "1")


def test_a_whole_answer_has_no_keep_alives(quiet: GatewayProcess, upstream: Stage) -> None:
    gate = Gate()
    upstream.answer = late_head(gate, json_answer(chat_completion("Hello")))
    with (
        calling(quiet, "chat/completions", CHAT) as other,
        calling(quiet, "chat/completions", CHAT | {"stream": False}) as caller,
    ):
        other.read_until(COMMENT * 2)
        gate.open()
        assert caller.read_all().json() == chat_completion("Hello")


def test_real_clients_pass_over_keep_alives(quiet: GatewayProcess, upstream: Stage) -> None:
    """Before the first content, and in the middle."""
    sent = quiet.metric("forebay_keep_alives_total")

    def slow(events: list[bytes]) -> list[Step]:
        head, *pieces = sse_answer(events)
        return [Sleep(0.4), head, *pieces[:-4], Sleep(0.4), *pieces[-4:]]

    with (
        openai.OpenAI(base_url=quiet.url, api_key=quiet.key, max_retries=0) as gpt,
        anthropic.Anthropic(base_url=quiet.origin, api_key=quiet.key, max_retries=0) as claude,
    ):
        upstream.answer = slow(chat_stream(["Hel", "lo"]))
        with gpt.chat.completions.stream(model="m", messages=CHAT["messages"]) as chat:
            assert chat.get_final_completion().choices[0].message.content == "Hello"
        upstream.answer = slow(completion_stream(["Hel", "lo", "!"]))
        pieces = gpt.completions.create(model="m", prompt="Hello", stream=True)
        assert "".join(piece.choices[0].text for piece in pieces if piece.choices) == "Hello!"
        upstream.answer = slow(RESPONSE_EVENTS)
        with gpt.responses.stream(model="responses", input="Hello") as told:
            assert told.get_final_response().output_text == "Hello"
        upstream.answer = slow(MESSAGE_EVENTS)
        with claude.messages.stream(model="messages", max_tokens=9, messages=CHAT["messages"]) as message:
            assert message.get_final_text() == "Hello"
    assert quiet.metric("forebay_keep_alives_total") >= sent + 8


# --- what comes after a head that went out early ------------------------------------------------------------


FAILURES: dict[str, list[Any]] = {
    "a reset": [Reset()],
    "a close": [Close()],
    "a status": error_answer(503),
    "no stream": json_answer(chat_completion("whole")),
    "an error as the first event": sse_answer([event({"error": {"message": "no", "code": 503}})]),
    "an end without content": sse_answer([chat_stream(["x"])[0]]),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_another_target_may_answer_after_keep_alives(
    quiet: GatewayProcess, upstream: Stage, fallback: Stage, failure: str
) -> None:
    gate = Gate()
    upstream.answer = late_head(gate, FAILURES[failure])
    fallback.answer = well_behaved("Hel", "lo")
    model = f"two-{list(FAILURES).index(failure)}"
    with calling(quiet, "chat/completions", CHAT | {"model": model}) as caller:
        caller.read_until(COMMENT)
        gate.open()
        reply = caller.read_all()
    assert strip(bytes(reply.body)) == b"".join(
        chat_stream(["Hel", "lo"], model=model, include_usage=False)
    ), "one preamble, of the target that answered"
    assert b": x-forebay-attempts: 2\n\n" in reply.body
    record = quiet.wait_record(reply.id)
    assert (record.target, record.attempts, record.outcome) == (f"{model}-1", 2, Outcome.OK)


@every_dialect
def test_an_error_after_keep_alives_is_told_in_the_stream(
    quiet: GatewayProcess, upstream: Stage, asked: str
) -> None:
    path, body, keep_alive, _ = ASKS[asked]
    gate = Gate()
    upstream.answer = late_head(gate, [Reset()])
    with calling(quiet, path, body) as caller:
        caller.read_until(keep_alive)
        gate.open()
        reply = caller.read_all()
    last = json.loads(bytes(reply.body).rsplit(b"data: ", 1)[1])
    assert "closed the connection" in last["error"]["message"]
    assert (b"event: error\n" in reply.body) == (asked in ("messages", "responses"))
    assert b"[DONE]" not in reply.body
    record = quiet.wait_record(reply.id)
    assert (record.status, record.outcome, record.error) == (200, Outcome.FAILED, "upstream_reset")


@every_dialect
def test_a_targets_own_error_after_keep_alives_is_told_in_its_words(
    quiet: GatewayProcess, upstream: Stage, asked: str
) -> None:
    path, body, keep_alive, _ = ASKS[asked]
    gate = Gate()
    answer = said_by_anthropic.error_answer if asked == "messages" else error_answer
    lines = json_answer(
        json.loads(b"".join(getattr(step, "data", b"") for step in answer(400)).split(b"\r\n\r\n", 1)[1]),
        status=400,
    )
    upstream.answer = late_head(gate, lines)
    with calling(quiet, path, body) as caller:
        caller.read_until(keep_alive)
        gate.open()
        reply = caller.read_all()
    last = json.loads(bytes(reply.body).rsplit(b"data: ", 1)[1])
    assert last["error"]["message"] == "It went wrong."
    assert asked != "responses" or last["message"] == "It went wrong."
    record = quiet.wait_record(reply.id)
    assert (record.status, record.outcome, record.error) == (200, Outcome.FAILED, "upstream_400")


def test_a_timeout_of_the_first_token_hands_over_during_keep_alives(
    quiet: GatewayProcess, upstream: Stage, fallback: Stage
) -> None:
    upstream.answer = [*sse_head(), Stall()]
    fallback.answer = well_behaved("Hel", "lo")
    with calling(quiet, "chat/completions", CHAT | {"model": "two"}) as caller:
        reply = caller.read_all()
    assert COMMENT in reply.body
    assert b": x-forebay-attempts: 2\n\n" in reply.body
    upstream.wait_closed(upstream.requests[-1])


# --- callers ------------------------------------------------------------------------------------------------


def test_a_caller_that_leaves_during_a_silence_frees_the_target(
    quiet: GatewayProcess, upstream: Stage
) -> None:
    upstream.answer = [Stall()]
    with calling(quiet, "chat/completions", CHAT) as caller:
        caller.read_until(COMMENT)
        request_id = caller.reply.id
    upstream.wait_closed(upstream.request)
    record = quiet.wait_record(request_id)
    assert (record.outcome, record.status) == (Outcome.ABANDONED, 499)


def test_a_caller_of_HTTP_1_0_has_keep_alives_without_chunks(quiet: GatewayProcess, upstream: Stage) -> None:
    gate = Gate()
    upstream.answer = late_head(gate, sse_answer(chat_stream(["Hello"])))
    body = json.dumps(CHAT).encode()
    head = f"POST /v1/chat/completions HTTP/1.0\r\nauthorization: Bearer {quiet.key}\r\n"
    with RawCaller(quiet.port) as caller:
        caller.send(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        got = b""
        while COMMENT * 2 not in got:
            got += caller.read()
        gate.open()
        while data := caller.read():
            got += data
    assert b"transfer-encoding" not in got
    assert got.endswith(b"data: [DONE]\n\n")
