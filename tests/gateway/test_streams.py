"""What a caller sees of a stream: the same bytes for any split, and never an end that did not happen."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from gateway_stage import Stage
from raw_caller import RawCaller
from streams_rig import ASKS, CHAT, CONTENT, STREAMS, ask, assert_broken, both

from forebay.core.events import Outcome, Tokens, UsageSource
from forebay.testing.answers import Framing, chunk, cut, drip, json_answer, last_chunk, sse_answer, sse_head
from forebay.testing.gateway import GatewayProcess
from forebay.testing.openai import (
    DONE,
    chat_chunk,
    chat_completion,
    chat_stream,
    completion_stream,
    error,
    error_answer,
    event,
    usage,
)
from forebay.testing.steps import Close, Gate, Reset, Script, Send, Stall, Step, Wait

# --- any split, any spelling --------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"])
def test_a_stream_that_comes_byte_by_byte(
    gateway: GatewayProcess, client: httpx.Client, upstream: Stage, path: str, newline: bytes
) -> None:
    make = STREAMS[path]
    upstream.answer = drip(sse_answer([b"".join(make(["Grüße ", "€ 😀"])).replace(b"\n", newline)]), every=1)
    answer = ask(client, path)
    assert answer.content == b"".join(make(["Grüße ", "€ 😀"], include_usage=False)).replace(b"\n", newline)
    record = gateway.wait_record(answer.headers["x-request-id"])
    assert (record.outcome, record.tokens) == (Outcome.OK, Tokens(input=7, output=5))
    assert record.answer_bytes == len(answer.content)


@pytest.mark.parametrize("every", [3, 50, 1000, 100_000])
@pytest.mark.parametrize("framing", Framing)
def test_a_stream_in_pieces_of_any_size_and_framing(
    client: httpx.Client, upstream: Stage, every: int, framing: Framing
) -> None:
    whole = b"".join(chat_stream([f"Wort{n} " for n in range(200)]))
    without = b"".join(chat_stream([f"Wort{n} " for n in range(200)], include_usage=False))
    upstream.answer = sse_answer(cut(whole, every=every), framing=framing)
    assert ask(client).content == without


SPELLINGS = {
    "no space": b'data:{"choices":[{"delta":{"content":"x"}}]}\n\n',
    "comments": b': hello\n\n: again\ndata: {"choices":[{"delta":{"content":"x"}}]}\n: inside\n\n',
    "several lines": b'data: {"choices":\ndata: [{"delta":{"content":"x"}}]}\n\n',
    "mark": b'\xef\xbb\xbfdata: {"choices":[{"delta":{"content":"x"}}]}\n\n',
    "fields": b'id: 7\nevent: message\nretry: 100\nodd\ndata: {"choices":[{"delta":{"content":"x"}}]}\n\n',
    "many blank lines": b'\n\n\n\ndata: {"choices":[{"delta":{"content":"x"}}]}\n\n\n\n',
    "carriage returns": b'data: {"choices":[{"delta":{"content":"x"}}]}\r\rdata: {"choices":[]}\r\r',
}


@pytest.mark.parametrize("name", SPELLINGS)
@pytest.mark.parametrize("ending", [DONE, b"data: [DONE]", b"data: [DONE]\n", b"data:[DONE]\r\n\r\n"])
def test_every_spelling_of_the_grammar_passes_byte_for_byte(
    gateway: GatewayProcess, client: httpx.Client, upstream: Stage, name: str, ending: bytes
) -> None:
    whole = SPELLINGS[name] + ending
    upstream.answer = sse_answer(cut(whole, every=11))
    answer = ask(client)
    assert answer.content == whole
    assert gateway.wait_record(answer.headers["x-request-id"]).outcome is Outcome.OK


def test_chunks_go_out_as_they_come(upstream: Stage, caller: RawCaller) -> None:
    """Each event is there before the next one comes."""
    events = chat_stream(["a", "b", "c"], include_usage=False)
    gates = [Gate() for _ in events]
    gates[0].open()
    pieces = [step for gate, piece in zip(gates, events, strict=True) for step in (Wait(gate), chunk(piece))]
    upstream.answer = [*sse_head(), *pieces, last_chunk()]
    caller.post("chat/completions", CHAT)
    for number, piece in enumerate(events[:-1]):
        # Until the first content nothing is out: another target could still answer.
        if number:
            caller.read_until(piece)
        gates[number + 1].open()
    assert bytes(caller.read_all().body) == b"".join(events)


# --- usage that nobody asked for ----------------------------------------------------------------------------


def engine(style: str, path: str) -> Any:
    """A server that sends usage as real ones do, and only when it is asked to."""

    def handle(request: Any) -> Script:
        asked = bool((request.json().get("stream_options") or {}).get("include_usage"))
        counted = usage(9, 30, reasoning=25)
        if style == "its own event":
            return sse_answer(STREAMS[path](["x"], tokens=counted, include_usage=asked))
        events = STREAMS[path](["x"], include_usage=False)
        if asked and style == "beside the finish":
            finish = next(n for n, raw in enumerate(events) if b'"stop"' in raw)
            events[finish] = event(json.loads(events[finish][6:]) | {"usage": counted})
        if asked and style == "no null before":
            events.insert(-1, event({"choices": [], "usage": counted}))
        return sse_answer(events)

    return handle


@both
@pytest.mark.parametrize("style", ["its own event", "beside the finish", "no null before"])
def test_usage_is_counted_and_hidden_from_a_caller_who_did_not_ask(
    gateway: GatewayProcess, client: httpx.Client, upstream: Stage, path: str, style: str
) -> None:
    upstream.answer = engine(style, path)
    direct = httpx.post(f"{upstream.url}/{path}", json=ASKS[path])
    upstream.requests.clear()
    answer = ask(client, path)
    assert answer.content == direct.content
    assert upstream.request.json()["stream_options"] == {"include_usage": True}
    record = gateway.wait_record(answer.headers["x-request-id"])
    assert record.tokens == Tokens(input=9, output=5, output_reasoning=25)
    assert record.usage_source is UsageSource.REPORTED


@both
@pytest.mark.parametrize("style", ["its own event", "beside the finish", "no null before"])
def test_a_caller_who_asked_gets_it_untouched(
    gateway: GatewayProcess, client: httpx.Client, upstream: Stage, path: str, style: str
) -> None:
    upstream.answer = engine(style, path)
    options = {"stream_options": {"include_usage": True}}
    direct = httpx.post(f"{upstream.url}/{path}", json=ASKS[path] | options)
    upstream.requests.clear()
    answer = ask(client, path, **options)
    assert answer.content == direct.content
    assert b'"reasoning_tokens":25' in answer.content
    assert bytes(upstream.request.body) == answer.request.content
    assert gateway.wait_record(answer.headers["x-request-id"]).tokens.output_reasoning == 25


@both
def test_a_reported_zero_stays_zero(
    gateway: GatewayProcess, client: httpx.Client, upstream: Stage, path: str
) -> None:
    upstream.answer = sse_answer(STREAMS[path](["x"], tokens=usage(0, 0)))
    record = gateway.wait_record(ask(client, path).headers["x-request-id"])
    assert record.tokens == Tokens(input=0, output=0)
    assert record.usage_source is UsageSource.REPORTED


@both
def test_without_any_usage_the_tokens_are_estimated(
    gateway: GatewayProcess, client: httpx.Client, upstream: Stage, path: str
) -> None:
    upstream.answer = sse_answer(STREAMS[path](["a", "b", "c"], include_usage=False))
    record = gateway.wait_record(ask(client, path).headers["x-request-id"])
    assert record.outcome is Outcome.OK
    assert record.usage_source is UsageSource.ESTIMATED
    assert (record.tokens.output or 0) >= 3
    assert (record.tokens.input or 0) > 0


@pytest.mark.parametrize("count", [-3, 1 << 70])
def test_a_count_that_cannot_be_costs_no_record(
    gateway: GatewayProcess, client: httpx.Client, upstream: Stage, count: int
) -> None:
    for stream in (True, False):
        tokens = {"prompt_tokens": count, "completion_tokens": 1}
        body = b'{"choices":[],"usage":' + json.dumps(tokens).encode() + b"}"
        events = [*chat_stream(["x"], include_usage=False, done=False), b"data: " + body + b"\n\n", DONE]
        upstream.answer = sse_answer(events) if stream else [*_whole(body)]
        answer = ask(client, stream=stream)
        assert answer.status_code == 200
        record = gateway.wait_record(answer.headers["x-request-id"])
        assert record.usage_source is UsageSource.ESTIMATED
        assert (record.tokens.input or 0) > 0


def _whole(body: bytes) -> list[Step]:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return [Send(head % len(body) + body)]


# --- broken off ---------------------------------------------------------------------------------------------

BREAKS: dict[str, tuple[list[Step], str]] = {
    "reset in mid content": ([*map(chunk, CONTENT), Reset()], "upstream_reset"),
    "closed in mid content": ([*map(chunk, CONTENT), Close()], "upstream_reset"),
    "reset in mid event": ([chunk(b"".join(CONTENT) + CONTENT[1][:40]), Reset()], "upstream_reset"),
    "reset in mid chunk": ([chunk(b"".join(CONTENT)), Send(b"ff\r\ndata: {"), Reset()], "upstream_reset"),
    "ended without [DONE]": ([*map(chunk, CONTENT), Send(b"0\r\n\r\n")], "upstream_truncated"),
    "ended in mid event": (
        [chunk(b"".join(CONTENT) + CONTENT[1][:40]), Send(b"0\r\n\r\n")],
        "upstream_truncated",
    ),
    "not HTTP any more": ([*map(chunk, CONTENT), Send(b"boom\r\n")], "upstream_protocol_error"),
    "an event too large": (
        [*map(chunk, CONTENT), chunk(b"data: " + b"x" * (1 << 20) + b"xxxxxxxxx"), Stall()],
        "upstream_event_too_large",
    ),
}


@pytest.mark.parametrize("asked", [False, True], ids=["", "usage asked for"])
@pytest.mark.parametrize("name", BREAKS)
def test_a_stream_that_breaks_off_ends_with_an_error(
    gateway: GatewayProcess,
    client: httpx.Client,
    upstream: Stage,
    fallback: Stage,
    fresh: Callable[[str], str],
    name: str,
    asked: bool,
) -> None:
    steps, code = BREAKS[name]
    upstream.answer = [*sse_head(), *steps]
    options = {"stream_options": {"include_usage": True}} if asked else {}
    answer = ask(client, model=fresh("two"), **options)
    assert answer.status_code == 200
    assert answer.content.startswith(b"".join(CONTENT))
    assert_broken(answer.content.replace(CONTENT[1][:40] + b'data: {"error', b'data: {"error'), code)
    record = gateway.wait_record(answer.headers["x-request-id"])
    assert (record.outcome, record.error, record.status) == (Outcome.FAILED, code, 200)
    assert record.usage_source is UsageSource.ESTIMATED
    assert (record.tokens.output or 0) >= 1
    assert not fallback.requests, "content was out already"


def test_a_completion_that_breaks_off_ends_with_an_error(
    gateway: GatewayProcess, client: httpx.Client, upstream: Stage
) -> None:
    upstream.answer = [*sse_head(), chunk(completion_stream(["one "])[0]), Reset()]
    answer = ask(client, "completions")
    assert_broken(answer.content, "upstream_reset")
    record = gateway.wait_record(answer.headers["x-request-id"])
    assert record.tokens.output == 1


def test_usage_that_came_before_the_break_is_kept(
    gateway: GatewayProcess, client: httpx.Client, upstream: Stage
) -> None:
    counted = event(chat_chunk({"content": "x"}) | {"usage": usage(50, 3)})
    upstream.answer = [*sse_head(), chunk(CONTENT[0]), chunk(counted), Reset()]
    record = gateway.wait_record(ask(client).headers["x-request-id"])
    assert record.outcome is Outcome.FAILED
    assert (record.tokens, record.usage_source) == (Tokens(input=50, output=3), UsageSource.REPORTED)


EARLY_BREAKS: dict[str, tuple[list[Step], str, int]] = {
    "reset before the head": ([Reset()], "upstream_reset", 502),
    "closed before the head": ([Close()], "upstream_reset", 502),
    "reset in the head": ([Send(b"HTTP/1.1 200 OK\r\ncontent-"), Reset()], "upstream_reset", 502),
    "reset after the head": ([*sse_head(), Reset()], "upstream_reset", 502),
    "reset after the role": ([*sse_head(), chunk(CONTENT[0]), Reset()], "upstream_reset", 502),
    "closed after the role": ([*sse_head(), chunk(CONTENT[0]), Close()], "upstream_reset", 502),
    "ended after the role": (
        [*sse_head(), chunk(CONTENT[0]), Send(b"0\r\n\r\n")],
        "upstream_truncated",
        502,
    ),
    "ended with nothing": ([*sse_head(), Send(b"0\r\n\r\n")], "upstream_truncated", 502),
    "no HTTP": ([Send(b"SSH-2.0\r\n\r\n"), Close()], "upstream_protocol_error", 502),
}


@pytest.mark.parametrize("name", EARLY_BREAKS)
def test_before_content_the_only_target_s_failure_is_an_answer_with_a_status(
    gateway: GatewayProcess, client: httpx.Client, upstream: Stage, name: str
) -> None:
    steps, code, status = EARLY_BREAKS[name]
    upstream.answer = steps
    answer = ask(client)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["error"]["code"] == code
    record = gateway.wait_record(answer.headers["x-request-id"])
    assert (record.outcome, record.status, record.error) == (Outcome.FAILED, status, code)
    assert record.usage_source is UsageSource.ESTIMATED
    upstream.wait_request()
    assert len(upstream.requests) == 1, "nothing is sent twice to a target that may have seen it"


@pytest.mark.parametrize("name", EARLY_BREAKS)
@both
def test_before_content_the_next_target_answers_and_the_caller_sees_one_preamble(
    gateway: GatewayProcess,
    client: httpx.Client,
    upstream: Stage,
    fallback: Stage,
    fresh: Callable[[str], str],
    name: str,
    path: str,
) -> None:
    model = fresh("two")
    upstream.answer = EARLY_BREAKS[name][0]
    fallback.answer = sse_answer(STREAMS[path](["from the second"]))
    answer = ask(client, path, model=model)
    assert answer.content == b"".join(STREAMS[path](["from the second"], include_usage=False))
    assert answer.headers["x-forebay-attempts"] == "2"
    record = gateway.wait_record(answer.headers["x-request-id"])
    assert (record.outcome, record.attempts, record.target) == (Outcome.OK, 2, f"{model}-1")
    assert record.tokens == Tokens(input=7, output=5)


# --- an error in the first events ---------------------------------------------------------------------------

TOO_LONG = {
    "a number": {"message": "too long", "type": "BadRequestError", "param": None, "code": 400},
    "a word": {"message": "too long", "type": "invalid_request_error", "code": "context_length_exceeded"},
}
BROKEN = {
    "a number": {"message": "out of memory", "type": "server_error", "code": 500},
    "nothing": {"message": "out of memory"},
}


@pytest.mark.parametrize("preamble", [0, 1], ids=["first", "after the role"])
@pytest.mark.parametrize("how", TOO_LONG)
@both
def test_an_early_error_that_is_the_callers_is_told_with_its_status(
    gateway: GatewayProcess,
    client: httpx.Client,
    upstream: Stage,
    fallback: Stage,
    fresh: Callable[[str], str],
    path: str,
    how: str,
    preamble: int,
) -> None:
    upstream.answer = sse_answer([*CONTENT[:preamble], event({"error": TOO_LONG[how]}), DONE])
    answer = ask(client, path, model=fresh("two"))
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == {"error": TOO_LONG[how]}
    assert not fallback.requests
    record = gateway.wait_record(answer.headers["x-request-id"])
    assert (record.outcome, record.status, record.error) == (Outcome.FAILED, 400, "upstream_400")


@pytest.mark.parametrize("preamble", [0, 1], ids=["first", "after the role"])
@pytest.mark.parametrize("how", BROKEN)
def test_after_an_early_error_of_the_target_the_next_one_answers(
    client: httpx.Client,
    upstream: Stage,
    fallback: Stage,
    fresh: Callable[[str], str],
    how: str,
    preamble: int,
) -> None:
    model = fresh("two")
    upstream.answer = sse_answer([*CONTENT[:preamble], event({"error": BROKEN[how]}), DONE])
    answer = ask(client, model=model)
    assert answer.content == b"".join(chat_stream(["Hel", "lo"], model=model, include_usage=False))
    upstream.answer = sse_answer([*CONTENT[:preamble], event({"error": BROKEN[how]}), DONE])
    fallback.answer = error_answer(503)
    assert ask(client, model=fresh("two")).status_code == 503
    alone = ask(client)
    assert alone.status_code == (500 if how == "a number" else 502)
    assert alone.json()["error"]["message"] == "out of memory"


def test_an_error_in_mid_stream_passes_and_is_recorded(
    gateway: GatewayProcess,
    client: httpx.Client,
    upstream: Stage,
    fallback: Stage,
    fresh: Callable[[str], str],
) -> None:
    said = [*CONTENT, event({"error": BROKEN["a number"]}), DONE]
    upstream.answer = sse_answer(said, pause_s=0.05)
    answer = ask(client, model=fresh("two"))
    assert answer.content == b"".join(said)
    record = gateway.wait_record(answer.headers["x-request-id"])
    assert (record.outcome, record.error) == (Outcome.FAILED, "upstream_error")
    assert not fallback.requests


def test_an_error_that_no_client_would_understand_is_told_again(
    client: httpx.Client, upstream: Stage
) -> None:
    boom = event({"object": "error", "message": "boom", "code": 500})
    upstream.answer = sse_answer([*CONTENT, boom], pause_s=0.05)
    assert_broken(ask(client).content, "upstream_error")


@pytest.mark.parametrize("status", [200, 400, 503])
def test_an_answer_that_is_no_stream_passes_as_it_is(
    client: httpx.Client, upstream: Stage, status: int
) -> None:
    payload = chat_completion() if status == 200 else error("not today")
    upstream.answer = json_answer(payload, status=status)
    answer = ask(client)
    assert (answer.status_code, answer.json()) == (status, payload)
    assert answer.headers["content-type"] == "application/json"
