"""The callers' side of HTTP/1.1: what is served, what is refused, and that nobody can smuggle a request."""

import asyncio
import contextlib
import json
import shutil
import subprocess
import time

import httpx
import pytest
from caller_side import Side, request
from gateway_stage import Stage
from raw_caller import RawCaller

from forebay.core.events import Outcome
from forebay.testing.answers import chunk, sse_head
from forebay.testing.gateway import TEST_KEY, GatewayProcess
from forebay.testing.openai import chat_stream
from forebay.testing.steps import Gate, Wait

AUTH = f"authorization: Bearer {TEST_KEY}\r\n".encode()
BODY = b'{"model":"m","messages":[]}'
LENGTH = b"content-length: %d\r\n" % len(BODY)
POST = b"POST /v1/chat/completions HTTP/1.1\r\nhost: t\r\n"
WHOLE = POST + AUTH + LENGTH + b"\r\n" + BODY


def exchange(gateway: GatewayProcess, data: bytes) -> RawCaller:
    caller = RawCaller(gateway.port)
    caller.send(data)
    caller.read_all()
    caller.close()
    return caller


def read_to_end(caller: RawCaller) -> bytes:
    parts = []
    while data := caller.socket.recv(65536):
        parts.append(data)
    return b"".join(parts)


# --- framing ------------------------------------------------------------------------------------------------

SERVED = {
    "plain": WHOLE,
    "upper case": POST + b"AUTHORIZATION: BEARER %b\r\n" % TEST_KEY.encode()
    + LENGTH.upper() + b"\r\n" + BODY,
    "leading blank lines": b"\r\n\r\n" + WHOLE,
    "query": WHOLE.replace(b"/completions HTTP", b"/completions?timeout=60&a=b HTTP"),
    "absolute form": WHOLE.replace(b"/v1/", b"http://forebay.example/v1/"),
    "no host": WHOLE.replace(b"host: t\r\n", b""),
    "chunked": POST + AUTH + b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY),
    "chunks of one byte": POST + AUTH + b"transfer-encoding: chunked\r\n\r\n"
    + b"".join(b"1\r\n%c\r\n" % byte for byte in BODY) + b"0\r\n\r\n",
    "chunk extensions and trailers": POST + AUTH + b"transfer-encoding: chunked\r\n\r\n%x;a=b\r\n%b\r\n0\r\n"
    b"authorization: Bearer wrong\r\n\r\n" % (len(BODY), BODY),
    "expectation": POST + AUTH + LENGTH + b"expect: 100-continue\r\n\r\n" + BODY,
    "unknown expectation": POST + AUTH + LENGTH + b"expect: the-unexpected\r\n\r\n" + BODY,
    "offer to upgrade": POST + AUTH + LENGTH + b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\n"
    b"http2-settings: AAMAAABkAAQAAP__\r\n\r\n" + BODY,
    "offer to upgrade, and chunks": POST + AUTH + b"connection: upgrade\r\nupgrade: h2c\r\n"
    b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY),
    "many headers": POST + b"".join(b"x-%d: %d\r\n" % (n, n) for n in range(500))
    + AUTH + LENGTH + b"\r\n" + BODY,
}  # fmt: skip


@pytest.mark.parametrize("name", SERVED)
def test_a_request_in_any_spelling_is_served_once(
    gateway: GatewayProcess, upstream: Stage, name: str
) -> None:
    gateway.wait_idle()
    before = len(gateway.records())
    caller = exchange(gateway, SERVED[name])
    assert caller.reply.status == 200, caller.reply.body
    assert bytes(upstream.request.body) == BODY
    gateway.wait_record(caller.reply.id)
    assert len(gateway.records()) == before + 1


@pytest.mark.parametrize("every", [1, 7])
@pytest.mark.parametrize("name", ["plain", "chunked", "offer to upgrade", "offer to upgrade, and chunks"])
def test_a_request_may_come_in_pieces(
    gateway: GatewayProcess, upstream: Stage, every: int, name: str
) -> None:
    whole = SERVED[name]
    with RawCaller(gateway.port) as caller:
        for at in range(0, len(whole), every):
            caller.send(whole[at : at + every])
        assert caller.read_all().status == 200
    assert bytes(upstream.request.body) == BODY


REFUSED = {
    "not HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
    "unknown version": b"GET /v1/models HTTP/3.7\r\n\r\n",
    "unknown method": b"BREW /v1/models HTTP/1.1\r\n\r\n",
    "two lengths": POST + AUTH + b"content-length: 5\r\ncontent-length: 6\r\n\r\n" + BODY,
    "two equal lengths": POST + AUTH + LENGTH + LENGTH + b"\r\n" + BODY,
    "a list of lengths": POST + AUTH + b"content-length: 27, 27\r\n\r\n" + BODY,
    "a negative length": POST + AUTH + b"content-length: -5\r\n\r\n" + BODY,
    "a signed length": POST + AUTH + b"content-length: +27\r\n\r\n" + BODY,
    "a hexadecimal length": POST + AUTH + b"content-length: 0x1b\r\n\r\n" + BODY,
    "an empty length": POST + AUTH + b"content-length:\r\n\r\n" + BODY,
    "a huge length": POST + AUTH + b"content-length: 99999999999999999999999\r\n\r\n" + BODY,
    "length and chunked": POST + AUTH + LENGTH + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked and length": POST + AUTH + b"transfer-encoding: chunked\r\n" + LENGTH + b"\r\n0\r\n\r\n",
    "chunked, but not last": POST + AUTH + b"transfer-encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
    "an unknown coding": POST + AUTH + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
    "an unknown coding, and an offer to upgrade": POST + AUTH + b"connection: upgrade\r\nupgrade: h2c\r\n"
    b"transfer-encoding: gzip\r\n\r\n",
    "a bad chunk size": POST + AUTH + b"transfer-encoding: chunked\r\n\r\nxyz\r\n" + BODY,
    "a chunk longer than it says": POST + AUTH + b"transfer-encoding: chunked\r\n\r\n5\r\n" + BODY,
    "space before the colon": POST + AUTH.replace(b":", b" :") + LENGTH + b"\r\n" + BODY,
    "space in a name": POST + AUTH + b"content length: 5\r\n\r\n" + BODY,
    "no colon": POST + AUTH + b"nonsense\r\n\r\n",
    "a NUL in a value": POST + AUTH + b"x-a: b\0c\r\n\r\n",
    "a bare CR in a value": POST + AUTH + b"x-a: b\rc: d\r\n\r\n",
    "a control character in the path": b"GET /v1/mod\x01els HTTP/1.1\r\n\r\n",
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_request_is_answered_with_400_and_closed(
    gateway: GatewayProcess, upstream: Stage, name: str
) -> None:
    with RawCaller(gateway.port) as caller:
        caller.send(REFUSED[name])
        reply = caller.read_all()
        assert reply.status == 400
        assert reply.header("connection") == "close"
        assert reply.header("content-type") == "application/json"
        assert reply.json()["error"]["type"] == "invalid_request_error"
        assert caller.socket.recv(1) == b""
    assert not upstream.requests


def test_a_folded_header_does_not_hide_another(gateway: GatewayProcess, upstream: Stage) -> None:
    with RawCaller(gateway.port) as caller:
        caller.send(
            POST
            + b"x-a: b\r\n authorization: Bearer "
            + TEST_KEY.encode()
            + b"\r\n"
            + LENGTH
            + b"\r\n"
            + BODY
        )
        assert caller.read_all().status in (400, 401)
    assert not upstream.requests


def test_a_body_that_breaks_off_in_its_framing_is_answered(gateway: GatewayProcess, upstream: Stage) -> None:
    gateway.wait_idle()
    before = len(gateway.records())
    with RawCaller(gateway.port) as caller:
        caller.send(POST + AUTH + b"transfer-encoding: chunked\r\n\r\n5\r\n" + BODY[:5] + b"\r\n")
        gateway.until(lambda: gateway.metric("forebay_requests_in_flight") == 1)
        caller.send(b"oops\r\n")
        assert caller.read_all().status == 400
    gateway.wait_idle()
    assert len(gateway.records()) == before + 1
    assert not upstream.requests


def test_a_head_without_end_is_refused_before_it_fills_memory(gateway: GatewayProcess) -> None:
    with RawCaller(gateway.port) as caller:
        caller.send(POST)
        line = b"x-filler: " + b"x" * 8000 + b"\r\n"
        for _ in range(40):
            caller.send(line)
        assert caller.read_all().status == 431
    with RawCaller(gateway.port) as caller:
        caller.send(b"GET /" + b"a" * 300_000)
        assert caller.read_all().status == 431


def test_trailers_without_end_are_refused_before_they_fill_memory(gateway: GatewayProcess) -> None:
    with RawCaller(gateway.port) as caller:
        caller.send(POST + AUTH + b"transfer-encoding: chunked\r\n\r\n5\r\n" + BODY[:5] + b"\r\n0\r\n")
        with contextlib.suppress(ConnectionError):
            for number in range(1000):
                caller.send(b"x-%d: " % number + b"x" * 8000 + b"\r\n")
        reply = caller.read_all()
        assert (reply.status, reply.json()["error"]["code"]) == (431, "head_too_large")


# --- connections --------------------------------------------------------------------------------------------


def test_a_connection_serves_many_requests(
    gateway: GatewayProcess, client: httpx.Client, upstream: Stage
) -> None:
    with RawCaller(gateway.port) as caller:
        ids = set()
        for _ in range(20):
            caller.send(WHOLE)
            ids.add(caller.read_all().id)
            caller.reply = type(caller.reply)()
        assert len(ids) == 20
    assert len({request.connection for request in upstream.requests}) == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("connection", [b"", b"connection: close\r\n", b"connection: keep-alive\r\n"])
def test_a_caller_of_the_old_version_gets_no_chunks(
    gateway: GatewayProcess, upstream: Stage, stream: bool, connection: bytes
) -> None:
    body = BODY[:-1] + b',"stream":true}' if stream else BODY
    head = (
        POST.replace(b"HTTP/1.1", b"HTTP/1.0") + AUTH + connection + b"content-length: %d\r\n\r\n" % len(body)
    )
    with RawCaller(gateway.port) as caller:
        caller.send(head + body)
        if b"keep-alive" in connection and not stream:
            assert caller.read_all().status == 200
            return
        head, _, said = read_to_end(caller).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head
    if stream:
        assert said == b"".join(chat_stream(["Hel", "lo"], include_usage=False))
    else:
        assert json.loads(said)["choices"]


def test_the_end_of_a_connection_that_is_the_answers_comes_behind_the_record() -> None:
    """To a caller of the old version it alone says that the answer was whole."""

    async def test() -> None:
        side = Side(at_once=False)
        was_closed: list[bool] = []
        side.server.turn.write_records = lambda: was_closed.append(side.wire.closed)
        await side.feed(request(b"").replace(b"HTTP/1.1", b"HTTP/1.0"))
        (call,) = side.waiting
        call.begin_stream(200, "")
        await call.send(b"data: [DONE]\n\n")
        was_closed.clear()
        side.server.turn.end_soon()  # as a record does
        call.end_stream(b"")
        await asyncio.sleep(0)
        assert was_closed[0] is False
        assert side.wire.closed

    asyncio.run(test())


def test_half_a_close_is_a_leave(gateway: GatewayProcess, upstream: Stage) -> None:
    """As with most servers; it is what a FIN of a client means nearly always."""
    upstream.answer = [Wait(Gate())]
    with RawCaller(gateway.port) as caller:
        caller.send(WHOLE)
        request = upstream.wait_request()
        caller.socket.shutdown(1)
        upstream.wait_closed(request)
    record = gateway.wait_record(request.header("x-request-id") or "")
    assert record.outcome is Outcome.ABANDONED


def test_the_continue_comes_only_once_the_request_is_wanted(gateway: GatewayProcess, upstream: Stage) -> None:
    expecting = b"content-length: %d\r\nexpect: 100-continue\r\n\r\n"
    with RawCaller(gateway.port) as caller:
        caller.send(POST + AUTH + expecting % len(BODY))
        assert caller.socket.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        caller.send(BODY)
        assert caller.read_all().status == 200
    with RawCaller(gateway.port) as caller:
        caller.send(POST + AUTH + expecting % (1 << 40))
        assert caller.read_all().status == 413
    with RawCaller(gateway.port) as caller:
        caller.send(POST + expecting % len(BODY))
        reply = caller.read_all()
        assert (reply.status, reply.header("connection")) == (401, "close")
    assert len(upstream.requests) == 1


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/m", "/healthz", "/readyz", "/metrics"])
def test_a_head_request_gets_the_head_alone(client: httpx.Client, gateway: GatewayProcess, path: str) -> None:
    url = gateway.origin + path
    answer = client.head(url)
    assert answer.status_code == 200
    assert answer.content == b""
    assert int(answer.headers["content-length"]) > 0
    assert client.get(url).status_code == 200, "the connection is still in step"


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize(
    "options", [["--http1.1"], ["--http1.0"], ["--http2"], ["-H", "expect: 100-continue"]]
)
def test_curl_is_served(gateway: GatewayProcess, upstream: Stage, options: list[str]) -> None:
    command = [
        "curl",
        "-sS",
        "--max-time",
        "10",
        *options,
        "-H",
        AUTH.decode().strip(),
        "--data-binary",
        BODY,
    ]
    said = subprocess.run(
        [*command, gateway.url + "/chat/completions"], capture_output=True, check=True, text=True
    )
    assert json.loads(said.stdout)["choices"][0]["message"]["content"] == "Hello"


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_a_caller_that_speaks_only_http_2_learns_so_at_once(gateway: GatewayProcess) -> None:
    begun = time.monotonic()
    done = subprocess.run(
        ["curl", "-sS", "--max-time", "10", "--http2-prior-knowledge", gateway.origin + "/healthz"],
        capture_output=True,
    )
    assert done.returncode != 0
    assert time.monotonic() - begun < 5


def test_a_slow_head_holds_nobody_up(gateway: GatewayProcess, client: httpx.Client, upstream: Stage) -> None:
    with RawCaller(gateway.port) as slow:
        slow.send(POST[:20])
        assert client.post("/chat/completions", content=BODY).status_code == 200
        slow.send(POST[20:] + AUTH + LENGTH + b"\r\n" + BODY)
        assert slow.read_all().status == 200


def test_two_streams_do_not_wait_for_each_other(gateway: GatewayProcess, upstream: Stage) -> None:
    gate = Gate()
    events = chat_stream(["a"], include_usage=False)
    upstream.next.append([*sse_head(), chunk(b"".join(events[:2])), Wait(gate), chunk(b"".join(events[2:]))])
    body = BODY[:-1] + b',"stream":true}'
    request = POST + AUTH + b"content-length: %d\r\n\r\n" % len(body) + body
    with RawCaller(gateway.port) as held, RawCaller(gateway.port) as free:
        held.send(request)
        held.read_until(b'"a"')
        free.send(request)
        assert free.read_all().status == 200
        gate.open()
        held.read_until(b"[DONE]")
