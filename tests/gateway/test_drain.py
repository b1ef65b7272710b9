"""What a drain owes connections in use: each whole request is answered, within the time that there is."""

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from gateway_stage import Stage
from raw_caller import RawCaller, Reply

from forebay.core.events import Outcome
from forebay.core.routes import GatewayLimits
from forebay.gateway.server import LAST_REQUEST_S
from forebay.testing.answers import chunk, json_answer, last_chunk, sse_head
from forebay.testing.gateway import TEST_KEY, GatewayProcess, make_route
from forebay.testing.openai import chat_completion, chat_stream
from forebay.testing.steps import Gate, Sleep, Wait

BODY = b'{"model":"m","messages":[]}'
REQUEST = (
    f"POST /v1/chat/completions HTTP/1.1\r\nhost: t\r\nauthorization: Bearer {TEST_KEY}\r\n"
    f"content-length: {len(BODY)}\r\n\r\n"
).encode() + BODY
STREAM: dict[str, Any] = {"model": "m", "messages": [], "stream": True}
Drain = Callable[[], None]


def start(folder: Path, upstream: Stage) -> GatewayProcess:
    limits = GatewayLimits(drain_deadline_s=20)
    return GatewayProcess([make_route("m", upstream.url)], folder=folder, limits=limits)


@pytest.fixture
def worker(tmp_path: Path, upstream: Stage) -> Iterator[GatewayProcess]:
    with start(tmp_path / "data", upstream) as process:
        yield process


@pytest.fixture
def drain(worker: GatewayProcess) -> Iterator[Drain]:
    """Tells the worker to end, and returns once its answers say so."""
    with RawCaller(worker.port) as watcher:
        ask_health(watcher)  # so that it is accepted
        yield lambda: begin_drain(worker, watcher)


def begin_drain(worker: GatewayProcess, watcher: RawCaller) -> None:
    worker.terminate()
    worker.until(lambda: ask_health(watcher).header("connection") == "close")


def ask_health(caller: RawCaller) -> Reply:
    caller.reply = Reply()
    caller.send(b"GET /healthz HTTP/1.1\r\nhost: t\r\n\r\n")
    return caller.read_all()


def test_a_connection_whose_stream_began_before_takes_one_more_request(
    tmp_path: Path, upstream: Stage
) -> None:
    """Nobody told its caller that it would end, and a request that is under way would be lost with it.

    It is waited for for half a second; where this process had stood still for as long, it is tried again.
    """
    for number in range(5):
        with start(tmp_path / str(number), upstream) as worker, RawCaller(worker.port) as watcher:
            ask_health(watcher)
            if ask_behind_a_stream(worker, upstream, watcher) < LAST_REQUEST_S * 0.8:
                break
    else:
        raise AssertionError("this machine never went on for half a second")


def ask_behind_a_stream(worker: GatewayProcess, upstream: Stage, watcher: RawCaller) -> float:
    """Seconds from before the end of the stream until the next request was sent; how that went is asserted
    if it came in time."""
    gate = Gate()
    role, content, *rest = chat_stream(["Hel", "lo"], include_usage=False)
    begin, end = chunk(role + content), [chunk(b"".join(rest)), last_chunk()]
    upstream.next.append([*sse_head(), begin, Wait(gate), *end])
    upstream.answer = json_answer(chat_completion())
    with RawCaller(worker.port) as caller:
        caller.post("chat/completions", STREAM)
        caller.read_until(b"Hel")
        begin_drain(worker, watcher)
        opened_s = time.monotonic()
        gate.open()
        caller.read_until(b"[DONE]")
        assert caller.read_all().header("connection") is None
        caller.reply = Reply()
        with contextlib.suppress(ConnectionError):
            caller.send(REQUEST)
        late_s = time.monotonic() - opened_s
        if late_s < LAST_REQUEST_S * 0.8:
            assert caller.read_all().status == 200
            assert caller.reply.header("connection") == "close"
            assert caller.socket.recv(1) == b""
    assert worker.wait() == 0
    return late_s


def test_pipelined_requests_that_came_whole_are_answered_and_the_last_says_close(
    worker: GatewayProcess, upstream: Stage, drain: Drain
) -> None:
    gate = Gate()
    upstream.answer = [Wait(gate), *json_answer(chat_completion())]
    with RawCaller(worker.port) as caller:
        caller.send(REQUEST * 5)
        upstream.wait_request()
        drain()
        gate.open()
        said = b"".join(iter(lambda: caller.socket.recv(65536), b""))
    answers = said.split(b"HTTP/1.1 ")[1:]
    assert [answer[:3] for answer in answers] == [b"200"] * 5
    assert [b"connection: close" in answer for answer in answers] == [False] * 4 + [True]
    assert worker.wait() == 0
    assert [record.outcome for record in worker.records()] == [Outcome.OK] * 5


def test_a_caller_that_never_stops_to_ask_cannot_keep_a_worker(tmp_path: Path, upstream: Stage) -> None:
    upstream.answer = [Sleep(0.02), *json_answer(chat_completion())]
    limits = GatewayLimits(drain_deadline_s=3)
    routes = [make_route("m", upstream.url)]
    with (
        GatewayProcess(routes, folder=tmp_path / "data", limits=limits) as worker,
        RawCaller(worker.port) as caller,
        ThreadPoolExecutor(1) as pool,
    ):
        times: list[float] = []
        asking = pool.submit(ask_without_end, caller, times)
        worker.until(lambda: len(times) > 5)
        begun = time.monotonic()
        worker.terminate()
        assert worker.wait() == 0
        assert 2.9 < time.monotonic() - begun < 3 + 20
        asking.result()
        assert times[-1] - begun > 1.5, "it is served on, though the deadline alone ends it"
        ids = {record.request_id for record in worker.records()}
        assert len(ids) >= len(times)


def ask_without_end(caller: RawCaller, times: list[float]) -> None:
    """Has four requests under way at any time; notes when each answer came, until the connection ends."""
    with contextlib.suppress(ConnectionError):
        caller.send(REQUEST * 4)
        rest = b""
        while data := caller.socket.recv(65536):
            *whole, rest = (rest + data).split(b"HTTP/1.1 ")
            times += [time.monotonic()] * len(whole)
            caller.send(REQUEST * len(whole))
