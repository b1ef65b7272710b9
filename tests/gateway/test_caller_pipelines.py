"""Requests behind each other on one connection: each is answered in its turn, or the connection ends."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from caller_side import HEAD, Side, request
from gateway_stage import Stage
from raw_caller import RawCaller

from forebay.core.events import Outcome
from forebay.gateway.caller import IDLE_MAX_S, LINGER_MAX_S
from forebay.testing.answers import json_answer, sse_answer, sse_head
from forebay.testing.gateway import TEST_KEY, GatewayProcess
from forebay.testing.openai import chat_completion, chat_stream
from forebay.testing.steps import Gate, Wait

AUTH = f"authorization: Bearer {TEST_KEY}\r\n".encode()
BODY = b'{"model":"m","messages":[]}'
LENGTH = b"content-length: %d\r\n" % len(BODY)
POST = b"POST /v1/chat/completions HTTP/1.1\r\nhost: t\r\n"
WHOLE = POST + AUTH + LENGTH + b"\r\n" + BODY
GARBAGE = b"\x00\x01\x02 no request\r\n\r\n"


def read_to_end(caller: RawCaller) -> bytes:
    parts = []
    while data := caller.socket.recv(65536):
        parts.append(data)
    return b"".join(parts)


def read_statuses(said: bytes) -> list[int]:
    return [int(part[:3]) for part in said.split(b"HTTP/1.1 ")[1:]]


def test_pipelined_requests_are_answered_in_order(gateway: GatewayProcess, upstream: Stage) -> None:
    gate = Gate()
    upstream.next.append([Wait(gate), *json_answer({"n": 1})])
    upstream.next.append(sse_answer(chat_stream(["two"], include_usage=False)))
    upstream.next.append(json_answer({"n": 3}))
    streamed = BODY[:-1] + b',"stream":true}'
    second = POST + AUTH + b"content-length: %d\r\n\r\n" % len(streamed) + streamed
    health = b"GET /healthz HTTP/1.1\r\nhost: t\r\n\r\n"
    last = WHOLE.replace(b"host: t\r\n", b"host: t\r\nconnection: close\r\n")
    with RawCaller(gateway.port) as caller:
        caller.send(WHOLE + second + health + last)
        upstream.wait_request()
        gate.open()
        said = read_to_end(caller)
    assert said.count(b"HTTP/1.1 200 OK") == 4
    order = [said.index(part) for part in (b'{"n":1}', b"two", b"data: [DONE]", b"\r\n\r\nok\n", b'{"n":3}')]
    assert order == sorted(order)


def test_more_pipelined_requests_than_are_read_ahead_are_all_answered(
    gateway: GatewayProcess, upstream: Stage
) -> None:
    with RawCaller(gateway.port) as caller, ThreadPoolExecutor(1) as pool:
        last = WHOLE.replace(b"host: t\r\n", b"host: t\r\nconnection: close\r\n")
        sending = pool.submit(caller.send, WHOLE * 99 + last)
        assert read_to_end(caller).count(b"HTTP/1.1 200 OK") == 100
        sending.result()


@pytest.mark.parametrize("following", [b"", AUTH, AUTH.replace(TEST_KEY.encode(), b"fb-wrong")])
def test_thousands_of_requests_behind_one_that_takes_long(
    gateway: GatewayProcess, upstream: Stage, following: bytes
) -> None:
    """Each is refused at once when its turn comes; a turn is not taken from within the one before."""
    gate = Gate()
    upstream.next.append([Wait(gate), *json_answer(chat_completion())])
    refused = POST + following + b"content-length: 0\r\n\r\n"
    with RawCaller(gateway.port) as caller, ThreadPoolExecutor(1) as pool:
        caller.send(WHOLE)
        upstream.wait_request()
        last = b"GET /healthz HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n"
        sending = pool.submit(caller.send, refused * 3000 + last)
        time.sleep(0.2)
        gate.open()
        said = read_to_end(caller)
        sending.result()
    assert said.count(b"HTTP/1.1 200 OK") == 2
    assert said.count(b"HTTP/1.1 4") == 3000


@pytest.mark.parametrize("request_", [POST + b"content-length: 0\r\n\r\n", b"GET /healthz HTTP/1.1\r\n\r\n"])
def test_a_caller_that_only_asks_and_never_reads_fills_no_memory(
    gateway: GatewayProcess, client: httpx.Client, upstream: Stage, request_: bytes
) -> None:
    before = gateway.rss_bytes
    with RawCaller(gateway.port, receive_buffer=4096) as caller:
        caller.socket.settimeout(0.7)
        with pytest.raises(TimeoutError):
            caller.send(request_ * (100_000_000 // len(request_)))
        assert gateway.rss_bytes < before + (12 << 20)
        assert client.post("/chat/completions", content=BODY).status_code == 200
        caller.socket.settimeout(60)
        said = caller.read(1 << 20)
        assert said.startswith(b"HTTP/1.1 ")
    gateway.wait_idle()


def test_what_stands_behind_the_last_request_of_a_connection_is_not_served(
    gateway: GatewayProcess, upstream: Stage
) -> None:
    gate = Gate()
    upstream.next.append([Wait(gate), *json_answer(chat_completion())])
    last = WHOLE.replace(b"host: t\r\n", b"host: t\r\nconnection: close\r\n")
    with RawCaller(gateway.port) as caller:
        caller.send(WHOLE + last + WHOLE * 3)
        upstream.wait_request()
        gate.open()
        assert read_to_end(caller).count(b"HTTP/1.1 200 OK") == 2
    assert len(upstream.requests) == 2


def test_a_caller_that_leaves_a_pipeline_ends_all_of_it(gateway: GatewayProcess, upstream: Stage) -> None:
    upstream.answer = [*sse_head(), Wait(Gate())]
    with RawCaller(gateway.port) as caller:
        caller.send(WHOLE * 3)
        request = upstream.wait_request()
    upstream.wait_closed(request)
    gateway.wait_idle()
    assert len(upstream.requests) == 1


STREAM = BODY[:-1] + b',"stream":true}'
STREAMED = POST + AUTH + b"content-length: %d\r\n\r\n" % len(STREAM) + STREAM


def make_old(request_: bytes, connection: bytes = b"keep-alive") -> bytes:
    return request_.replace(b"HTTP/1.1\r\n", b"HTTP/1.0\r\nconnection: %b\r\n" % connection)


@pytest.mark.parametrize(
    "following", [WHOLE, WHOLE[:1], b"\r\n", b""], ids=["whole", "a byte", "blank", "none"]
)
def test_an_old_request_gets_no_chunks_whatever_comes_behind_it(
    gateway: GatewayProcess, upstream: Stage, following: bytes
) -> None:
    gate = Gate()
    upstream.next.append([Wait(gate), *sse_answer(chat_stream(["Hel"], include_usage=False))])
    with RawCaller(gateway.port) as caller:
        caller.send(make_old(STREAMED) + following)
        upstream.wait_request()
        gate.open()
        head, _, body = read_to_end(caller).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head
    assert body == b"".join(chat_stream(["Hel"], include_usage=False))


@pytest.mark.parametrize(
    "before", [b"", WHOLE, make_old(WHOLE)], ids=["alone", "behind one", "behind an old one"]
)
def test_a_request_gets_its_chunks_whatever_old_one_comes_behind_it(
    gateway: GatewayProcess, upstream: Stage, before: bytes
) -> None:
    gate = Gate()
    if before:
        upstream.next.append([Wait(gate), *json_answer(chat_completion())])
    upstream.next.append([Wait(gate), *sse_answer(chat_stream(["Hel"], include_usage=False))])
    with RawCaller(gateway.port) as caller:
        caller.send(before + STREAMED + make_old(WHOLE, b"close"))
        upstream.wait_request()
        gate.open()
        said = read_to_end(caller)
    assert said.count(b"transfer-encoding: chunked") == 1
    assert read_statuses(said) == [200, 200, *([200] if before else [])]


def test_an_old_request_that_offers_to_switch_protocols_gets_no_chunks(
    gateway: GatewayProcess, upstream: Stage
) -> None:
    offer = make_old(STREAMED, b"keep-alive, upgrade\r\nupgrade: h2c")
    with RawCaller(gateway.port) as caller:
        caller.send(offer)
        assert b"transfer-encoding" not in read_to_end(caller)


# --- an end before the end ----------------------------------------------------------------------------------


def test_garbage_behind_a_request_does_not_cost_its_answer(gateway: GatewayProcess, upstream: Stage) -> None:
    gate = Gate()
    upstream.answer = [Wait(gate), *json_answer(chat_completion())]
    with RawCaller(gateway.port) as caller:
        caller.send(WHOLE + b"\x00\x01\x02 no request\r\n\r\n")
        upstream.wait_request()
        gate.open()
        said = read_to_end(caller)
    assert read_statuses(said) == [200, 400]
    assert said.count(b"connection: close") == 1
    request_id = said.split(b"x-request-id: ")[1].split(b"\r\n")[0]
    assert gateway.wait_record(request_id.decode()).outcome is Outcome.OK


def test_whole_requests_before_garbage_are_answered_also_to_a_caller_that_is_behind(
    gateway: GatewayProcess, upstream: Stage
) -> None:
    gateway.wait_idle()
    before = len(gateway.records())
    upstream.next.append(json_answer(chat_completion("x" * 8_000_000)))
    with RawCaller(gateway.port, receive_buffer=4096) as caller:
        caller.send(WHOLE * 3 + GARBAGE)
        gateway.until(lambda: len(gateway.records()) > before)
        said = read_to_end(caller)
    assert read_statuses(said) == [200, 200, 200, 400]
    assert len(said) > 8_000_000
    assert len(upstream.requests) == 3


def test_garbage_is_answered_behind_the_requests_before_it() -> None:
    """Where all came in one read, and the answers outgrew what the caller takes in the middle of it."""

    async def test() -> None:
        side = Side(at_once=True)
        await side.feed(request(b""))
        side.connection.pause_writing()
        side.connection.data_received(request(b"") * 5 + GARBAGE)
        side.connection.data_received(request(b""))  # no more is read
        await asyncio.sleep(0)
        assert side.wire.statuses == [200]
        side.connection.resume_writing()
        await asyncio.sleep(0)  # the turn's end
        assert side.wire.statuses == [200] * 6 + [400]
        assert len(side.bodies) == 6

    asyncio.run(test())


@pytest.mark.parametrize("part", [HEAD, HEAD + b"transfer-encoding: chunked\r\n\r\n"])
def test_a_request_that_breaks_off_is_answered_behind_those_before_it(part: bytes) -> None:
    async def test() -> None:
        side = Side(at_once=False)
        await side.feed(request(b"") * 3 + part)
        await side.feed(GARBAGE)
        for _ in range(3):
            side.waiting.pop(0).respond(200, "", b"")
        await asyncio.sleep(0)
        assert not side.waiting
        assert side.wire.statuses == [200, 200, 200, 400]
        assert side.memory.held == 0

    asyncio.run(test())


def test_a_caller_that_still_takes_its_answers_may_read_why_it_is_refused() -> None:
    """Time to notice the end begins once it has come."""

    async def test() -> None:
        side = Side(at_once=True)
        await side.feed(request(b"") + GARBAGE)
        assert side.wire.statuses == [200, 400]
        now = side.server.time
        for unsent in (3_000_000, 2_000_000, 1_000_000):
            side.wire.unsent = unsent
            now += 2 * LINGER_MAX_S
            side.connection.check_deadline(now)
            assert not side.wire.closed
        side.wire.unsent = 0
        side.connection.check_deadline(now + LINGER_MAX_S - 1)
        assert not side.wire.closed
        side.connection.check_deadline(now + LINGER_MAX_S + 1)
        assert side.wire.closed

    asyncio.run(test())


def test_a_refused_caller_that_takes_nothing_is_not_kept_for_ever() -> None:
    async def test() -> None:
        side = Side(at_once=True)
        await side.feed(request(b"") + GARBAGE)
        side.wire.unsent = 3_000_000
        now = side.server.time + LINGER_MAX_S + 1
        side.connection.check_deadline(now)
        assert not side.wire.closed
        side.connection.check_deadline(now + IDLE_MAX_S + 1)
        assert side.wire.closed

    asyncio.run(test())


@pytest.mark.parametrize("end", ["drain", "close", "abort"])
def test_no_request_is_begun_behind_a_connections_last_answer(end: str) -> None:
    """Also where it came in the same read."""

    async def test() -> None:
        side = Side(at_once=True)
        side.aborts = end == "abort"
        side.server.closing = end == "drain"
        first = request(b"")
        if end == "close":
            first = first.replace(b"host: t", b"connection: close")
        await side.feed(first + request(b"x") * 3)
        assert side.bodies == [b""]
        assert side.wire.statuses == ([] if end == "abort" else [200])

    asyncio.run(test())
