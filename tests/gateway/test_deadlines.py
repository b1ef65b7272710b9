"""Callers that keep the gateway waiting: deadlines of a minute, on clocks that a test moves.

The service and its server run here on a real socket; only their clocks are ours.
"""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from forebay.core.errors import StaleConnection
from forebay.core.events import Finished, Outcome, Tokens, UsageSource, decode_event
from forebay.core.routes import Endpoint, RouteTable, Snapshot
from forebay.gateway.call import Call
from forebay.gateway.caller import HEAD_MAX_S, IDLE_MAX_S, LINGER_MAX_S
from forebay.gateway.compiling import build_state
from forebay.gateway.http import App
from forebay.gateway.metrics import Cells
from forebay.gateway.metrics_layout import compute_layout
from forebay.gateway.policy.progress import BODY_MAX_NS, WINDOW_MIN_BYTES, WINDOW_NS
from forebay.gateway.quota import Quota
from forebay.gateway.records import Recorder
from forebay.gateway.server import Server
from forebay.gateway.service import Service
from forebay.ledger.segment import SegmentWriter, list_segments, read_frames
from forebay.net.client import Client
from forebay.net.turn import Turn
from forebay.providers import openai
from forebay.providers.translators import find_way
from forebay.testing.answers import json_answer
from forebay.testing.clock import VirtualClock
from forebay.testing.gateway import TEST_KEY, make_key, make_route
from forebay.testing.openai import well_behaved
from forebay.testing.steps import Gate, Send, Wait
from forebay.testing.upstream import ScriptedUpstream

HEAD = f"POST /v1/completions HTTP/1.1\r\nhost: t\r\nauthorization: Bearer {TEST_KEY}\r\n".encode()
WHOLE = HEAD + b'content-length: 13\r\n\r\n{"model":"m"}'


class BrittleDialect:
    """The dialect, and an error of our own in it as long as a test wants one."""

    def __init__(self) -> None:
        self.is_broken = False

    def __getattr__(self, name: str) -> Any:
        return getattr(openai, name)

    def read_answer(self, body: bytes) -> Tokens | None:
        if self.is_broken:
            raise ZeroDivisionError("deep inside")
        return openai.read_answer(body)


class BrokenPipe:
    """A transport that takes nothing."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        raise ZeroDivisionError("deep inside")


class World:
    """A worker's parts in this process."""

    def __init__(self, folder: Path, upstream: ScriptedUpstream) -> None:
        self.folder = folder
        self.clock = VirtualClock()
        self.upstream = upstream
        snapshot = Snapshot(table=RouteTable(routes=(make_route("m", upstream.url),)), keys=(make_key(),))
        loop = asyncio.get_running_loop()
        turn = Turn(loop, time.monotonic_ns)
        self.client = Client(loop, turn)
        self.cells = Cells(folder / "metrics", "w0", compute_layout(snapshot.table))
        self.dialect = BrittleDialect()
        state = build_state(
            snapshot,
            client=self.client,
            cells=self.cells,
            read_secret=str,
            dialect=self.dialect,
            find_way=find_way,
        )
        self.recorder = Recorder(SegmentWriter(folder, "w0", 1 << 20, clock=self.clock), 100, turn)
        self.service = Service(
            state,
            recorder=self.recorder,
            quota=Quota(loop, folder / "quota.sock", "w0", self.dialect, self.clock),
            clock=self.clock,
            worker=0,
            id_prefix="0",
        )
        app = App(self.service, self.dialect, dict.fromkeys(Endpoint, self.dialect), folder / "metrics")
        self.server = Server(app.handle, 100, self.service.memory, turn)
        self.port = 0

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 25)

    def let_pass(self, seconds: float) -> None:
        """Time passes for the callers' connections: the sweep looks at them as if so much later."""
        for connection in tuple(self.server._connections):
            connection.check_deadline(self.server.time + seconds)

    def records(self) -> list[Finished]:
        return [
            decode_event(payload) for path in list_segments(self.folder) for payload, _ in read_frames(path)
        ]


@asynccontextmanager
async def world(folder: Path) -> AsyncIterator[World]:
    async with ScriptedUpstream(well_behaved("Hello")) as upstream:
        made = World(folder, upstream)
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        await made.server.start(listener)
        made.port = listener.getsockname()[1]
        try:
            yield made
        finally:
            made.server.close()
            made.client.close()
            made.recorder.close()
            made.cells.close()


def run(test: Callable[[World], Awaitable[None]], folder: Path) -> None:
    async def inside() -> None:
        async with asyncio.timeout(60), world(folder) as made:
            await test(made)

    asyncio.run(inside())


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
    return int(head.split()[1]), await reader.readexactly(int(length.split(b":")[1]))


async def until(is_true: Callable[[], bool]) -> None:
    while not is_true():
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("sent", [HEAD, HEAD[:30]], ids=["part of the headers", "part of a line"])
def test_a_head_that_never_ends_is_told_so(tmp_path: Path, sent: bytes) -> None:
    async def test(made: World) -> None:
        reader, writer = await made.connect()
        writer.write(sent)
        await until(lambda: not all(connection.is_idle for connection in made.server._connections))
        made.let_pass(HEAD_MAX_S - 2)
        assert made.server.connections == 1
        made.let_pass(HEAD_MAX_S + 1)
        status, body = await read_answer(reader)
        assert (status, b"request_timeout" in body) == (408, True)
        assert await reader.read() == b""
        writer.close()

    run(test, tmp_path)


@pytest.mark.parametrize(
    "framing", [b"content-length: 100", b"content-length: 1000000", b"transfer-encoding: chunked"]
)
def test_a_body_that_never_ends_is_told_so_and_recorded(tmp_path: Path, framing: bytes) -> None:
    async def test(made: World) -> None:
        reader, writer = await made.connect()
        part = b'5\r\n{"mod\r\n' if b"chunked" in framing else b'{"mod'
        writer.write(HEAD + framing + b"\r\n\r\n" + part)
        await until(lambda: bool(made.service.active))
        made.clock.advance_ns(WINDOW_NS - 1_000_000_000)
        made.service.sweep()
        await asyncio.sleep(0.02)
        assert made.service.active
        made.clock.advance(2)
        made.service.sweep()
        status, body = await read_answer(reader)
        assert (status, b"request_timeout" in body) == (408, True)
        (record,) = made.records()
        assert (record.status, record.outcome, record.error) == (408, Outcome.FAILED, "request_timeout")
        assert not made.upstream.requests
        made.service.sweep()
        assert made.cells.cells[made.cells.in_flight] == 0
        writer.close()

    run(test, tmp_path)


def test_a_body_may_be_slow_but_not_for_ever(tmp_path: Path) -> None:
    """At least so much in each window, and all of it in a minute."""

    async def test(made: World) -> None:
        reader, writer = await made.connect()
        writer.write(HEAD + b"content-length: 1000000\r\n\r\n")
        await until(lambda: bool(made.service.active))
        (exchange,) = made.service.active
        windows = BODY_MAX_NS // WINDOW_NS
        for number in range(1, windows + 1):
            writer.write(b" " * WINDOW_MIN_BYTES)
            await until(lambda: exchange.call.received == number * WINDOW_MIN_BYTES)  # noqa: B023
            made.clock.advance_ns(WINDOW_NS)
            made.service.sweep()
            await asyncio.sleep(0)
        assert made.service.active
        assert made.service.memory.held == windows * WINDOW_MIN_BYTES
        made.clock.advance_ns(1)
        made.service.sweep()
        status, body = await read_answer(reader)
        assert (status, b"request_timeout" in body) == (408, True)
        assert made.service.memory.held == 0
        writer.close()

    run(test, tmp_path)


@pytest.mark.parametrize("sent", [0, 500_000])
def test_a_body_that_comes_to_a_halt_is_given_up(tmp_path: Path, sent: int) -> None:
    async def test(made: World) -> None:
        reader, writer = await made.connect()
        writer.write(HEAD + b"content-length: 1000000\r\n\r\n" + b" " * sent)
        await until(lambda: any(exchange.call.received == sent for exchange in made.service.active))
        for _ in range(2):
            made.clock.advance_ns(WINDOW_NS)
            made.service.sweep()
        assert (await read_answer(reader))[0] == 408
        writer.close()

    run(test, tmp_path)


def test_a_kept_connection_is_closed_after_a_while_without_requests(tmp_path: Path) -> None:
    async def test(made: World) -> None:
        reader, writer = await made.connect()
        writer.write(WHOLE)
        assert (await read_answer(reader))[0] == 200
        made.let_pass(IDLE_MAX_S - 2)
        writer.write(WHOLE)
        assert (await read_answer(reader))[0] == 200
        made.let_pass(IDLE_MAX_S + 1)
        assert await reader.read() == b""
        writer.close()

    run(test, tmp_path)


def test_a_request_that_is_being_served_has_no_such_deadline(tmp_path: Path) -> None:
    async def test(made: World) -> None:
        gate = Gate()
        made.upstream.enqueue([Wait(gate), *json_answer({})])
        reader, writer = await made.connect()
        writer.write(WHOLE)
        await made.upstream.wait_requests(1)
        made.let_pass(10_000)
        gate.open()
        assert (await read_answer(reader))[0] == 200
        writer.close()

    run(test, tmp_path)


def test_an_answer_that_nobody_takes_is_not_kept_for_ever(tmp_path: Path) -> None:
    """A caller may take its time, as long as it takes something."""

    async def test(made: World) -> None:
        body = b"x" * (24 << 20)
        made.upstream.enqueue(
            [Send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body)), Send(body)]
        )
        reader, writer = await made.connect()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(WHOLE)
        await until(lambda: bool(made.records()))
        (connection,) = made.server._connections
        await until(lambda: connection.unsent_bytes > 0)
        assert made.service.memory.held > 16 << 20, "the worker holds it, whoever is to blame"
        made.let_pass(IDLE_MAX_S + 1)
        assert made.server.connections == 1, "the first look only notes how far the caller is"
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        before = connection.unsent_bytes
        await until(lambda: connection.unsent_bytes < before)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.sleep(0.05)
        made.let_pass(2 * IDLE_MAX_S + 10)
        assert made.server.connections == 1
        made.let_pass(4 * IDLE_MAX_S + 10)
        await until(lambda: made.server.connections == 0)
        assert made.service.memory.held == 0
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await reader.readexactly(len(body))
        writer.close()

    run(test, tmp_path)


def test_a_refused_caller_that_sends_on_for_ever_is_cut(tmp_path: Path) -> None:
    async def test(made: World) -> None:
        reader, writer = await made.connect()
        writer.write(HEAD.replace(b"Bearer", b"Basic") + b"content-length: 1000000\r\n\r\n{")
        assert (await read_answer(reader))[0] == 401
        made.let_pass(LINGER_MAX_S - 2)
        writer.write(b" " * 1000)
        await writer.drain()
        assert made.server.connections == 1
        made.let_pass(LINGER_MAX_S + 2)
        await until(lambda: made.server.connections == 0)
        writer.close()

    run(test, tmp_path)


def test_a_request_that_comes_after_all_were_cut_is_told_to_come_again(tmp_path: Path) -> None:
    """Nobody is left to end it: it would lose its connection without an answer."""

    async def test(made: World) -> None:
        reader, writer = await made.connect()
        made.server.stop_accepting()
        made.service.cut_all()
        writer.write(WHOLE)
        status, body = await read_answer(reader)
        assert (status, b"gateway_draining" in body) == (503, True)
        assert await reader.read() == b""
        (record,) = made.records()
        assert (record.status, record.error, record.key) == (503, "gateway_draining", "k1")
        assert not made.upstream.requests
        assert not made.service.active
        writer.close()

    run(test, tmp_path)


def test_a_clock_that_is_set_back_harms_no_record(tmp_path: Path) -> None:
    async def test(made: World) -> None:
        reader, writer = await made.connect()
        for wall_ns in (2_000_000_000_000_000_000, 1_000_000_000_000_000_000, 1_500_000_000_000_000_000):
            made.clock.set_wall(wall_ns)
            writer.write(WHOLE)
            assert (await read_answer(reader))[0] == 200
        assert [record.at_ns for record in made.records()] == [2 * 10**18, 10**18, 15 * 10**17]
        assert all(record.duration_ns >= 0 for record in made.records())
        writer.close()

    run(test, tmp_path)


def test_an_error_in_the_gateway_itself_is_answered_counted_and_recorded(tmp_path: Path) -> None:
    async def test(made: World) -> None:
        made.dialect.is_broken = True
        made.upstream.enqueue(json_answer({}))
        reader, writer = await made.connect()
        writer.write(WHOLE)
        status, body = await read_answer(reader)
        assert (status, b"internal_error" in body, b"deep" in body) == (500, True, False)
        assert made.cells.cells[made.cells.internal_errors] == 1
        (record,) = made.records()
        assert (record.status, record.error) == (500, "internal_error")
        made.service.sweep()
        assert made.cells.cells[made.cells.in_flight] == 0
        writer.write(WHOLE)
        made.dialect.is_broken = False
        assert (await read_answer(reader))[0] == 200
        writer.close()

    run(test, tmp_path)


@pytest.mark.parametrize("kind", ["whole", "stream", "error"])
def test_an_answer_that_cannot_be_given_ends_the_connection(tmp_path: Path, kind: str) -> None:
    """It is on record as it was to be, so no other may follow it; and nobody waits for it for ever."""

    async def test(made: World) -> None:
        reader, writer = await made.connect()
        await until(lambda: made.server.connections == 1)
        (connection,) = made.server._connections
        connection._transport = BrokenPipe(connection._transport)
        model = b"x" if kind == "error" else b"m"
        body = b'{"model":"%b"%b}' % (model, b',"stream":true' if kind == "stream" else b"")
        writer.write(HEAD + b"content-length: %d\r\n\r\n" % len(body) + body)
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        (record,) = made.records()
        assert record.status == (404 if kind == "error" else 200)
        assert made.server.connections == 0
        assert not made.service.active
        made.service.sweep()
        assert made.cells.cells[made.cells.in_flight] == 0
        writer.close()

    run(test, tmp_path)


def test_a_request_that_begins_in_the_turn_of_the_cut_is_cut_as_well(tmp_path: Path) -> None:
    """Its task has not run yet, so there is nothing to cancel."""

    async def test(made: World) -> None:
        serve = made.server.handler

        def serve_and_cut(call: Call) -> Any:
            rest = serve(call)
            assert rest is not None, "a first request needs a connection to its target, so a task"
            made.service.cut_all()
            return rest

        made.server.handler = serve_and_cut
        reader, writer = await made.connect()
        body = b'{"model":"m"}'
        writer.write(HEAD + b"content-length: %d\r\n\r\n" % len(body) + body)
        status, answer = await read_answer(reader)
        assert (status, b"gateway_draining" in answer) == (503, True)
        assert not made.upstream.requests
        assert not made.service.active
        writer.close()

    run(test, tmp_path)


def test_what_no_target_has_seen_is_not_counted(tmp_path: Path) -> None:
    """A pooled connection ends before the request went out, and there is no other to be had."""

    async def test(made: World) -> None:
        reader, writer = await made.connect()
        body = b'{"model":"m"}'
        request = HEAD + b"content-length: %d\r\n\r\n" % len(body) + body
        writer.write(request)
        assert (await read_answer(reader))[0] == 200
        serve = made.server.handler

        def serve_and_lose(call: Call) -> Any:
            assert serve(call) is None, "it was sent over the pooled connection"
            (exchange,) = made.service.active
            assert exchange.connection is not None
            exchange.connection.fail(StaleConnection("gone before it was asked"))

        made.server.handler = serve_and_lose
        made.upstream.stop_listening()
        writer.write(request)
        assert (await read_answer(reader))[0] == 503
        record = made.records()[-1]
        assert (record.usage_source, record.tokens) == (UsageSource.NONE, Tokens())
        writer.close()

    run(test, tmp_path)
