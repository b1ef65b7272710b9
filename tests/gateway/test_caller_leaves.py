"""A caller that leaves: the target is let go within a second, and one record says what was spent."""

import contextlib
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest
from gateway_stage import Stage, wait_by_work
from raw_caller import RawCaller

from forebay.core.events import Finished, Outcome, UsageSource
from forebay.gateway.server import SWEEP_S
from forebay.testing.answers import chunk, head, sse_head
from forebay.testing.gateway import GatewayProcess
from forebay.testing.openai import chat_stream, completion_stream
from forebay.testing.steps import Send, Stall, Step

ASK: dict[str, dict[str, Any]] = {
    "chat/completions": {"model": "m", "messages": [{"role": "user", "content": "Count to a hundred."}]},
    "completions": {"model": "m", "prompt": "1, 2, 3,"},
    "embeddings": {"model": "m", "input": ["one", "two"]},
}
STREAMED = {"chat/completions": chat_stream, "completions": completion_stream}
Leave = Callable[[RawCaller], None]
leaves = pytest.mark.parametrize("leave", [RawCaller.close, RawCaller.reset], ids=["fin", "rst"])


def events_of(path: str, count: int) -> list[bytes]:
    """The events of a stream with `count` parts, up to the last part and without an end."""
    events = STREAMED[path]([f"part{number} " for number in range(count)])
    end = next(number for number, event in enumerate(events) if b"part%d" % (count - 1) in event)
    return events[: end + 1]


def stalled_stream(events: list[bytes]) -> list[Step]:
    return [*sse_head(), *map(chunk, events), Stall()]


def assert_abandoned(gateway: GatewayProcess, record: Finished, *, output_min: int) -> None:
    assert (record.status, record.outcome, record.error) == (499, Outcome.ABANDONED, "client_closed_request")
    assert record.usage_source is UsageSource.ESTIMATED
    assert record.tokens.input is not None
    assert record.tokens.input > 0
    assert record.tokens.output is not None
    assert record.tokens.output >= output_min
    assert record.key == "k1"
    assert record.target == "m-0"
    gateway.wait_idle()


@pytest.mark.parametrize("path", STREAMED)
@leaves
def test_after_five_chunks(
    gateway: GatewayProcess, upstream: Stage, caller: RawCaller, path: str, leave: Leave
) -> None:
    upstream.answer = stalled_stream(events_of(path, 5))
    counted = gateway.metric("forebay_requests_total", model="m", endpoint=path, status="499")
    caller.post(path, ASK[path] | {"stream": True})
    caller.read_until(b"part4")
    leave(caller)
    upstream.wait_let_go(gateway, upstream.request)
    record = gateway.wait_record(caller.reply.id)
    assert_abandoned(gateway, record, output_min=5)
    assert record.tokens.output == 5
    assert record.answer_bytes == len(caller.reply.body)
    assert record.stream
    assert record.first_token_ns is not None
    assert gateway.metric("forebay_requests_total", model="m", endpoint=path, status="499") == counted + 1


@pytest.mark.parametrize("path", STREAMED)
@pytest.mark.parametrize("preamble", [0, 1], ids=["silence", "preamble"])
@leaves
def test_before_the_first_token(
    gateway: GatewayProcess, upstream: Stage, caller: RawCaller, path: str, preamble: int, leave: Leave
) -> None:
    events = chat_stream()[:1] if path == "chat/completions" else [b": wait\n\n"]
    upstream.answer = stalled_stream(events) if preamble else [Stall()]
    caller.post(path, ASK[path] | {"stream": True})
    request = upstream.wait_request()
    leave(caller)
    upstream.wait_let_go(gateway, request)
    record = gateway.wait_record(request.header("x-request-id") or "")
    assert_abandoned(gateway, record, output_min=0)
    assert record.first_token_ns is None


@pytest.mark.parametrize("path", ASK)
@pytest.mark.parametrize("sent", ["nothing", "head", "half"])
@leaves
def test_while_a_whole_answer_is_awaited(
    gateway: GatewayProcess, upstream: Stage, caller: RawCaller, path: str, sent: str, leave: Leave
) -> None:
    said = {
        "nothing": [],
        "head": [Send(head(200, [("content-length", "100")]))],
        "half": [Send(head(200, [("content-length", "100")]) + b'{"id":"x",')],
    }[sent]
    upstream.answer = [*said, Stall()]
    caller.post(path, ASK[path])
    request = upstream.wait_request()
    leave(caller)
    upstream.wait_let_go(gateway, request)
    record = gateway.wait_record(request.header("x-request-id") or "")
    assert_abandoned(gateway, record, output_min=0)
    assert not record.stream


@pytest.mark.parametrize("size", [100, 100_000, None])
@leaves
def test_while_the_body_is_being_sent(
    gateway: GatewayProcess, upstream: Stage, caller: RawCaller, size: int | None, leave: Leave
) -> None:
    gateway.wait_idle()
    before = len(gateway.records())
    body = b'{"model":"m","messages":[{"role":"user","content":"'
    if size is None:
        headers = f"POST /v1/chat/completions HTTP/1.1\r\nhost: t\r\nauthorization: Bearer {gateway.key}\r\n"
        caller.send(headers.encode() + b"transfer-encoding: chunked\r\n\r\n")
        caller.send(b"%x\r\n%b\r\n" % (len(body), body))
    else:
        caller.post("chat/completions", body + b" " * size, body_sent=len(body))
    gateway.until(lambda: gateway.metric("forebay_requests_in_flight") == 1)
    leave(caller)
    wait_by_work(gateway, lambda: gateway.metric("forebay_requests_in_flight") == 0)
    (record,) = gateway.records()[before:]
    assert (record.status, record.outcome) == (499, Outcome.ABANDONED)
    assert record.usage_source is UsageSource.NONE
    assert record.target == ""
    assert not upstream.requests


@pytest.mark.parametrize("stream", [False, True])
@leaves
def test_while_the_gateway_connects(
    gateway: GatewayProcess, caller: RawCaller, stream: bool, leave: Leave
) -> None:
    gateway.wait_idle()
    before = len(gateway.records())
    caller.post("chat/completions", ASK["chat/completions"] | {"model": "hole", "stream": stream})
    gateway.until(lambda: gateway.metric("forebay_requests_in_flight") == 1)
    leave(caller)
    wait_by_work(gateway, lambda: gateway.metric("forebay_requests_in_flight") == 0)
    (record,) = gateway.records()[before:]
    assert (record.status, record.outcome) == (499, Outcome.ABANDONED)
    # The target never saw it.
    assert record.usage_source is UsageSource.NONE
    assert record.tokens.output is None


@leaves
def test_while_it_reads_a_stream_that_never_pauses(
    gateway: GatewayProcess, upstream: Stage, caller: RawCaller, leave: Leave
) -> None:
    def endless(_: object) -> Any:
        yield from sse_head()
        while True:
            yield chunk(b"".join(events_of("chat/completions", 20)[1:]))

    upstream.answer = endless
    caller.post("chat/completions", ASK["chat/completions"] | {"stream": True})
    caller.read_until(b"part19")
    leave(caller)
    upstream.wait_let_go(gateway, upstream.request)
    record = gateway.wait_record(caller.reply.id)
    assert_abandoned(gateway, record, output_min=20)


def close_half(caller: RawCaller) -> None:
    """And leave unread what has come."""
    caller.socket.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("behind", [0, 2], ids=["alone", "with requests behind it"])
@pytest.mark.parametrize("leave", [RawCaller.close, RawCaller.reset, close_half], ids=["fin", "rst", "half"])
def test_while_it_does_not_read(gateway: GatewayProcess, upstream: Stage, leave: Leave, behind: int) -> None:
    """Also where no more is read from it, for what it has sent already."""
    part = chunk(b'data: {"choices":[{"index":0,"delta":{"content":"' + b"x" * 60_000 + b'"}}]}\n\n')

    sent = [0]

    def endless(_: object) -> Any:
        yield from sse_head()
        while True:
            sent[0] += 1
            yield part

    upstream.answer = endless
    caller = RawCaller(gateway.port, receive_buffer=4096)
    caller.post("chat/completions", ASK["chat/completions"] | {"stream": True})
    caller.read_head()
    for _ in range(behind):  # enough that no more is read
        caller.post("completions", b'{"model":"m"%b}' % (b" " * 50_000))
    request = upstream.wait_request()
    wait_until_steady(lambda: sent[0])
    leave(caller)
    upstream.wait_let_go(gateway, request, 1.0 if not behind else SWEEP_S + 1.0)
    record = gateway.wait_record(caller.reply.id)
    assert_abandoned(gateway, record, output_min=1)
    assert len(upstream.requests) == 1
    caller.close()


def wait_until_steady(read: Callable[[], int]) -> None:
    """Until the gateway has stopped reading, and so the target sending."""
    before = -1
    while before != (before := read()):
        time.sleep(0.1)


@pytest.mark.parametrize("path", STREAMED)
@pytest.mark.parametrize("end", ["done", "finish"])
@leaves
def test_after_the_end_of_the_answer_it_has_had_it(
    gateway: GatewayProcess, upstream: Stage, caller: RawCaller, path: str, end: str, leave: Leave
) -> None:
    """Only the body's own end is missing, which a client that stops at `[DONE]` does not wait for."""
    events = STREAMED[path](["a", "b"])
    if end == "finish":
        events = [event for event in events if b"[DONE]" not in event]
    upstream.answer = stalled_stream(events)
    caller.post(path, ASK[path] | {"stream": True})
    caller.read_until(b"[DONE]" if end == "done" else b'"stop"')
    leave(caller)
    upstream.wait_let_go(gateway, upstream.request)
    record = gateway.wait_record(caller.reply.id)
    assert (record.status, record.outcome, record.error) == (200, Outcome.OK, "")
    assert record.answer_bytes == len(caller.reply.body)
    gateway.wait_idle()


@leaves
def test_after_an_error_in_the_stream_it_has_left(
    gateway: GatewayProcess, upstream: Stage, caller: RawCaller, leave: Leave
) -> None:
    error = b'data: {"error":{"message":"broke","type":"server_error"}}\n\n'
    upstream.answer = stalled_stream([*events_of("chat/completions", 2), error, b"data: [DONE]\n\n"])
    caller.post("chat/completions", ASK["chat/completions"] | {"stream": True})
    caller.read_until(b"broke")
    leave(caller)
    record = gateway.wait_record(caller.reply.id)
    assert record.outcome is not Outcome.OK


def test_forty_at_once_leave_nothing_behind(gateway: GatewayProcess, upstream: Stage) -> None:
    gateway.wait_idle()
    before = len(gateway.records())
    upstream.answer = stalled_stream(events_of("chat/completions", 3))
    with contextlib.ExitStack() as stack:
        callers = [stack.enter_context(RawCaller(gateway.port)) for _ in range(40)]
        for caller in callers:
            caller.post("chat/completions", ASK["chat/completions"] | {"stream": True})
        for caller in callers:
            caller.read_until(b"part2")
    upstream.upstream.wait_until(lambda: upstream.upstream.connections_open == 0)
    gateway.wait_idle()
    records = gateway.records()[before:]
    assert len(records) == 40
    assert {record.outcome for record in records} == {Outcome.ABANDONED}


def test_a_caller_that_stays_is_served_after_others_have_left(
    gateway: GatewayProcess, upstream: Stage, caller: RawCaller
) -> None:
    upstream.next.append([Stall()])
    with RawCaller(gateway.port) as leaver:
        leaver.post("chat/completions", ASK["chat/completions"])
        upstream.wait_request()
    caller.post("chat/completions", ASK["chat/completions"])
    assert caller.read_all().status == 200
