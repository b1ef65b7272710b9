"""Bodies of any size: limits that are told, memory that stays bounded, callers and targets that are slow."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway_stage import Stage
from raw_caller import RawCaller

from forebay.core.events import Outcome
from forebay.core.routes import GatewayLimits
from forebay.testing.answers import Framing, answer, chunk, sse_answer, sse_head
from forebay.testing.gateway import TEST_KEY, GatewayProcess, make_route
from forebay.testing.openai import DONE, chat_chunk, event
from forebay.testing.steps import Gate, PauseReading, ResumeReading, Send, Sleep, Stall, Wait
from forebay.testing.threaded import ThreadedUpstream
from forebay.testing.upstream import UpstreamSettings

MIB = 1 << 20
JSON = [("content-type", "application/json")]
SIZES = {"0": 0, "32 KiB + 1": 32 * 1024 + 1, "64 KiB": 64 * 1024, "1 MiB": MIB, "20 MiB": 20 * MIB}


def body_of(size: int, model: str = "m", stream: bool = False) -> bytes:
    """A request with an inline image, of exactly that size where it can be."""
    front = b'{"model":"%b","messages":[{"role":"user","content":[{"type":"image_url","image_url":'
    front += b'{"url":"data:image/png;base64,'
    end = b'"}}]}],"stream":%b}' % (b"true" if stream else b"false")
    front %= model.encode()
    return front + b"A" * max(0, size - len(front) - len(end)) + end


def in_pieces(body: bytes, size: int = 65_536) -> Iterator[bytes]:
    for at in range(0, len(body), size):
        yield body[at : at + size]


@pytest.fixture(scope="module")
def narrow(_stages: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A worker with low limits."""
    limits = GatewayLimits(
        body_max_bytes=MIB, answer_max_bytes=2 * MIB, memory_max_bytes=3 * MIB, event_max_bytes=MIB
    )
    folder: Path = tmp_path_factory.mktemp("narrow")
    with GatewayProcess([make_route("m", _stages[0].url)], folder=folder, limits=limits) as process:
        yield process


@pytest.fixture
def narrow_client(narrow: GatewayProcess) -> Iterator[httpx.Client]:
    with httpx.Client(
        base_url=narrow.url, headers={"authorization": f"Bearer {TEST_KEY}"}, timeout=20
    ) as client:
        yield client
    assert narrow.metric("forebay_internal_errors_total") == 0, narrow.log


# --- requests -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
@pytest.mark.parametrize("model", ["m", "alias"])
@pytest.mark.parametrize("name", SIZES)
def test_a_body_of_any_allowed_size_arrives_whole(
    gateway: GatewayProcess, client: httpx.Client, upstream: Stage, name: str, model: str, chunked: bool
) -> None:
    upstream.answer = answer(b"{}", headers=JSON)
    body = body_of(SIZES[name], model)
    got = client.post("/chat/completions", content=in_pieces(body) if chunked else body)
    assert got.status_code == 200
    there = "the-name-there" if model == "alias" else "m"
    assert bytes(upstream.request.body) == body_of(SIZES[name] - len(model) + len(there), there)
    assert gateway.wait_record(got.headers["x-request-id"]).request_bytes == len(body)


def test_a_large_body_with_a_stream(client: httpx.Client, upstream: Stage) -> None:
    got = client.post("/chat/completions", content=body_of(5 * MIB, stream=True))
    assert got.content.endswith(DONE)
    assert len(upstream.request.body) > 5 * MIB


def test_memory_is_given_back_after_large_bodies(
    gateway: GatewayProcess, client: httpx.Client, upstream: Stage
) -> None:
    upstream.answer = answer(b"{}", headers=JSON)
    for _ in range(3):
        client.post("/chat/completions", content=body_of(20 * MIB))
    before = gateway.rss_bytes
    for _ in range(5):
        client.post("/chat/completions", content=body_of(20 * MIB))
    # One body may still be in the allocator's hands; five would be a leak.
    assert gateway.rss_bytes < before + 45 * MIB


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
@pytest.mark.parametrize("excess", [1, 20 * MIB])
def test_a_body_above_the_limit_is_refused_and_not_held(
    narrow: GatewayProcess, narrow_client: httpx.Client, upstream: Stage, chunked: bool, excess: int
) -> None:
    before = narrow.rss_bytes
    body = body_of(MIB + excess)
    got = narrow_client.post("/chat/completions", content=in_pieces(body) if chunked else body)
    assert got.status_code == 413
    told = got.json()["error"]
    assert (told["code"], told["type"]) == ("request_too_large", "invalid_request_error")
    assert "1048576" in told["message"]
    assert "body_max_bytes" in told["message"]
    assert not upstream.requests
    record = narrow.wait_record(got.headers["x-request-id"])
    assert (record.status, record.error) == (413, "request_too_large")
    assert narrow.rss_bytes < before + 8 * MIB
    assert narrow_client.post("/chat/completions", content=body_of(MIB)).status_code == 200


def test_a_body_that_is_announced_too_large_is_refused_before_it_is_sent(narrow: GatewayProcess) -> None:
    with RawCaller(narrow.port) as caller:
        caller.post("chat/completions", b"x" * (MIB + 1), body_sent=0)
        reply = caller.read_all()
    assert (reply.status, reply.header("connection")) == (413, "close")


def test_all_bodies_together_are_bounded(narrow: GatewayProcess, upstream: Stage) -> None:
    """Three of the largest fit; the fourth is told to come again, also one of unknown size."""
    callers = [RawCaller(narrow.port) for _ in range(3)]
    for caller in callers:
        caller.post("chat/completions", body_of(MIB), body_sent=MIB - 10)
    narrow.until(lambda: narrow.metric("forebay_memory_held_bytes") == 3 * (MIB - 10))
    with RawCaller(narrow.port) as late:
        late.post("chat/completions", body_of(MIB))
        reply = late.read_all()
        assert (reply.status, reply.header("retry-after")) == (503, "1")
        assert reply.json()["error"]["code"] == "gateway_overloaded"
    with RawCaller(narrow.port) as late:
        late.send(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: t\r\nauthorization: Bearer " + TEST_KEY.encode()
        )
        late.send(b"\r\ntransfer-encoding: chunked\r\n\r\n10000\r\n" + b" " * 65536 + b"\r\n")
        assert late.read_all().status == 503
    for caller in callers:
        caller.send(body_of(MIB)[-10:])
        assert caller.read_all().status == 200
        caller.close()
    with RawCaller(narrow.port) as late:
        late.post("chat/completions", body_of(MIB))
        assert late.read_all().status == 200


def test_a_target_that_reads_slowly_still_gets_all(client: httpx.Client, upstream: Stage) -> None:
    """The body outgrows every socket buffer while the target does not read."""
    upstream.answer = answer(b"{}", headers=JSON)
    body = body_of(8 * MIB)
    got = client.post("/chat/completions", content=body)
    assert got.status_code == 200
    assert bytes(upstream.request.body) == body


def test_a_target_that_answers_before_it_has_read_the_body(
    gateway: GatewayProcess, client: httpx.Client, tmp_path: Path
) -> None:
    early = [
        PauseReading(),
        *answer(b'{"error":{"message":"too large"}}', status=413, headers=JSON),
        ResumeReading(),
        Sleep(0.2),
    ]
    with ThreadedUpstream(early, UpstreamSettings(answer_at_head=True)) as eager:
        with GatewayProcess([make_route("m", eager.url)], folder=tmp_path) as process:
            headers = {"authorization": f"Bearer {TEST_KEY}"}
            for _ in range(3):
                got = httpx.post(process.url + "/chat/completions", content=body_of(4 * MIB), headers=headers)
                assert (got.status_code, got.json()["error"]["message"]) == (413, "too large")


# --- answers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("framing", Framing)
def test_a_large_answer_arrives_whole(client: httpx.Client, upstream: Stage, framing: Framing) -> None:
    body = json.dumps({"choices": [{"message": {"content": "x" * (10 * MIB)}}]}).encode()
    upstream.answer = answer(in_pieces(body), headers=JSON, framing=framing)
    got = client.post("/chat/completions", json={"model": "m"})
    assert got.content == body


@pytest.mark.parametrize("piece", [1000, 300_000])
def test_a_large_stream_arrives_whole(
    gateway: GatewayProcess, client: httpx.Client, upstream: Stage, piece: int
) -> None:
    events = [event(chat_chunk({"content": "x" * piece}))] * (10 * MIB // piece)
    upstream.answer = sse_answer([*events, DONE])
    got = client.post("/chat/completions", json={"model": "m", "stream": True})
    assert got.content == b"".join([*events, DONE])
    record = gateway.wait_record(got.headers["x-request-id"])
    assert record.tokens.output is not None
    assert len(events) <= record.tokens.output <= len(events) + 1


def test_an_answer_above_the_limit_is_given_up(narrow_client: httpx.Client, upstream: Stage) -> None:
    for framing in Framing:
        upstream.answer = answer(in_pieces(b"x" * (3 * MIB)), headers=JSON, framing=framing)
        got = narrow_client.post("/chat/completions", json={"model": "m"})
        assert (got.status_code, got.json()["error"]["code"]) == (502, "upstream_answer_too_large")


@pytest.mark.parametrize("stream", [False, True])
def test_all_whole_answers_together_are_bounded(
    narrow: GatewayProcess, narrow_client: httpx.Client, upstream: Stage, stream: bool
) -> None:
    """Also one that came where a stream was wanted."""
    gate = Gate()
    body = b'{"x":"' + b"y" * (MIB * 17 // 10) + b'"}'
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
    upstream.answer = [Send(head), Send(body[:-10]), Wait(gate), Send(body[-10:])]
    wanted = {"model": "m", "stream": stream}
    with RawCaller(narrow.port) as first, RawCaller(narrow.port) as second:
        first.post("chat/completions", wanted)
        narrow.until(lambda: narrow.metric("forebay_memory_held_bytes") > 1.6 * MIB)
        second.post("chat/completions", wanted)
        reply = second.read_all()
        assert (reply.status, reply.header("retry-after")) == (503, "1")
        assert reply.json()["error"]["code"] == "gateway_overloaded"
        record = narrow.wait_record(reply.id)
        assert (record.status, record.error, record.attempts) == (503, "gateway_overloaded", 1)
        gate.open()
        assert first.read_all().status == 200
    narrow.until(lambda: narrow.metric("forebay_memory_held_bytes") == 0)
    assert narrow_client.post("/chat/completions", json=wanted).status_code == 200


def test_a_stream_is_not_cut_where_memory_is_short(
    narrow: GatewayProcess, narrow_client: httpx.Client, upstream: Stage
) -> None:
    """It holds little, and its content is on its way out."""
    with RawCaller(narrow.port) as hog, RawCaller(narrow.port) as other:
        for caller in (hog, other):
            caller.post("chat/completions", body_of(MIB), body_sent=MIB - 10)
        narrow.until(lambda: narrow.metric("forebay_memory_held_bytes") == 2 * (MIB - 10))
        third = RawCaller(narrow.port)
        third.post("chat/completions", body_of(MIB - 2000), body_sent=MIB - 2010)
        narrow.until(lambda: narrow.metric("forebay_memory_held_bytes") > 3 * MIB - 4000)
        events = [event(chat_chunk({"content": "x" * 300_000}))] * 20
        upstream.answer = sse_answer([*events, DONE])
        got = narrow_client.post("/chat/completions", json={"model": "m", "stream": True})
        assert got.content == b"".join([*events, DONE])
        third.close()


def test_a_stream_has_no_limit_of_size_but_each_event_has(
    narrow: GatewayProcess, narrow_client: httpx.Client, upstream: Stage
) -> None:
    events = [event(chat_chunk({"content": "x" * 100_000}))] * 100
    upstream.answer = sse_answer([*events, DONE])
    got = narrow_client.post("/chat/completions", json={"model": "m", "stream": True})
    assert len(got.content) > 100 * 100_000
    upstream.answer = sse_answer(
        [events[0], event(chat_chunk({"content": "x" * (2 * MIB)})), DONE], pause_s=0.05
    )
    got = narrow_client.post("/chat/completions", json={"model": "m", "stream": True})
    assert got.content.startswith(events[0])
    assert b"upstream_event_too_large" in got.content
    assert b"[DONE]" not in got.content


def test_a_caller_that_does_not_read_stops_the_target(gateway: GatewayProcess, upstream: Stage) -> None:
    """200 MiB wait on the other side; none of it piles up in the worker."""
    part = chunk(event(chat_chunk({"content": "x" * 60_000})))
    sent = [0]

    def plenty(_: object) -> Iterator[Any]:
        yield from sse_head()
        for _ in range(200 * MIB // 60_000):
            sent[0] += 1
            yield part
        yield chunk(DONE)
        yield Send(b"0\r\n\r\n")

    upstream.answer = plenty
    before = gateway.rss_bytes
    with RawCaller(gateway.port, receive_buffer=4096) as caller:
        caller.post("chat/completions", {"model": "m", "stream": True})
        caller.read_head()
        seen = -1
        while seen != sent[0]:
            seen = sent[0]
            time.sleep(0.15)
        # What the kernel's buffers hold between us and the two sides is not ours.
        assert sent[0] * 60_000 < 150 * MIB
        assert gateway.rss_bytes < before + 16 * MIB
        caller.socket.setsockopt(1, 8, MIB)
        taken = 0
        while taken < 40 * MIB:
            taken += len(caller.read(MIB))
        assert gateway.rss_bytes < before + 16 * MIB
    upstream.wait_closed(upstream.request)


def test_a_slow_caller_gets_all_and_the_idle_timeout_is_not_the_targets(
    gateway: GatewayProcess, upstream: Stage
) -> None:
    """The silence is the caller's: the target may not be cut for it."""
    part = chunk(event(chat_chunk({"content": "x" * 60_000})))
    upstream.answer = [*sse_head(), *[part] * 100, chunk(DONE), Send(b"0\r\n\r\n")]
    with RawCaller(gateway.port, receive_buffer=4096) as caller:
        caller.post("chat/completions", {"model": "steady", "stream": True})
        caller.read_head()
        time.sleep(2.5)  # longer than the idle timeout
        reply = caller.read_all()
    assert reply.body.endswith(DONE)
    assert gateway.wait_record(reply.id).outcome is Outcome.OK


def test_a_caller_that_never_reads_is_cut_at_the_total_timeout(
    gateway: GatewayProcess, upstream: Stage
) -> None:
    part = chunk(event(chat_chunk({"content": "x" * 60_000})))

    def endless(_: object) -> Iterator[Any]:
        yield from sse_head()
        while True:
            yield part

    upstream.answer = endless
    with RawCaller(gateway.port, receive_buffer=4096) as caller:
        caller.post("chat/completions", {"model": "total", "stream": True})
        caller.read_head()
        record = gateway.wait_record(caller.reply.id)
        assert (record.outcome, record.error, record.status) == (
            Outcome.FAILED,
            "upstream_total_timeout",
            200,
        )
        assert (record.tokens.output or 0) >= 1
        upstream.wait_closed(upstream.request)
        gateway.wait_idle()
        body = caller.read_all().body
    assert body.rstrip().endswith(b"}}")
    assert b"[DONE]" not in body


def test_many_large_bodies_at_once(gateway: GatewayProcess, upstream: Stage) -> None:
    upstream.answer = answer(b"{}", headers=JSON)
    body = body_of(4 * MIB)
    headers = {"authorization": f"Bearer {TEST_KEY}"}
    with ThreadPoolExecutor(8) as pool:
        results = list(
            pool.map(
                lambda _: httpx.post(gateway.url + "/completions", content=body, headers=headers, timeout=30),
                range(16),
            )
        )
    assert {result.status_code for result in results} == {200}
    assert all(len(request.body) == len(body) for request in upstream.requests)


def test_a_caller_that_reads_a_large_answer_slowly_gets_all_of_it(
    gateway: GatewayProcess, upstream: Stage
) -> None:
    body = b'{"x":"' + b"y" * (10 * MIB) + b'"}'
    upstream.answer = answer(body, headers=JSON)
    with RawCaller(gateway.port, receive_buffer=4096) as caller:
        caller.post("chat/completions", {"model": "m"})
        caller.read_head()
        time.sleep(0.3)
        assert bytes(caller.read_all().body) == body


def test_the_body_of_a_refused_request_does_not_become_the_next_request(
    gateway: GatewayProcess, upstream: Stage
) -> None:
    """A body that looks like a request, behind a head that is refused early."""
    smuggled = (
        b"POST /v1/completions HTTP/1.1\r\nhost: t\r\nauthorization: Bearer " + TEST_KEY.encode() + b"\r\n"
    )
    smuggled += b"content-length: 13\r\n\r\n" + b'{"model":"m"}'
    body = smuggled * 2000
    with RawCaller(gateway.port) as caller:
        caller.post("chat/completions", body, headers=("authorization: Bearer wrong",))
        assert caller.read_all().status == 401
        assert caller.socket.recv(1) == b""
    assert not upstream.requests


def test_a_gate_that_never_opens_holds_no_memory(narrow: GatewayProcess, upstream: Stage) -> None:
    upstream.answer = [Wait(Gate()), Stall()]
    for _ in range(3):
        with RawCaller(narrow.port) as caller:
            caller.post("chat/completions", body_of(MIB))
            upstream.wait_request(len(upstream.requests) or 1)
    narrow.wait_idle()
    upstream.answer = answer(b"{}", headers=JSON)
    with RawCaller(narrow.port) as caller:
        caller.post("chat/completions", body_of(MIB))
        assert caller.read_all().status == 200
