"""Neither side makes us hold more than is documented, and a request that is being written can still end."""

import asyncio
import os
import socket
import tracemalloc
from collections.abc import AsyncIterator

import pytest
from upstream_rig import (
    CHUNKED,
    HEAD,
    LIMIT,
    OK,
    ask,
    both_loops,
    build_head,
    origin_at,
    rig,
    run,
    start,
    stop_sweeping,
    turn,
    until,
    watch,
)

from forebay.core.errors import TotalTimeout, UpstreamReset
from forebay.net.connection import READ_HIGH_WATER, Connection
from forebay.testing.answers import answer
from forebay.testing.steps import AwaitBody, Close, Gate, PauseReading, ResumeReading, Send, Stall, Wait
from forebay.testing.upstream import ScriptedUpstream, UpstreamSettings

ONE_READ = 256 * 1024  #: the most that either event loop reads at once
TOO_LARGE = b"HTTP/1.1 413 Content Too Large\r\ncontent-length: 3\r\n\r\nbig"
AT_HEAD = UpstreamSettings(answer_at_head=True)


class Pieces:
    """A body that counts what was asked of it."""

    def __init__(self, count: int, size: int = 65536, gate: asyncio.Event | None = None) -> None:
        self.given = 0
        self._count, self._size, self._gate = count, size, gate

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for number in range(self._count):
            self.given = number + 1
            yield number.to_bytes(4, "big") * (self._size // 4)
            if self._gate is not None:
                await self._gate.wait()


async def flood(wire: object, total: int) -> None:
    await asyncio.get_running_loop().sock_sendall(wire.sock, bytes(range(256)) * (total // 256))  # type: ignore


# --- answers ------------------------------------------------------------------------------------------------


@both_loops
def test_a_fast_target_and_a_slow_reader_hold_little_and_lose_nothing(loop_name: str) -> None:
    total = 24 * 1024 * 1024

    async def scenario() -> None:
        async with rig() as r:
            connection, wire = await r.connect()
            start(r.origin, connection)
            await wire.read_request()
            wire.send(HEAD + b"content-length: %d\r\n\r\n" % total)
            flooding = asyncio.ensure_future(flood(wire, total))
            data, most = bytearray(), 0
            while len(data) < total:
                for _ in range(20):
                    await asyncio.sleep(0)
                    most = max(most, connection.received - len(data))
                data += await connection.some()
            await flooding
            assert READ_HIGH_WATER < most <= READ_HIGH_WATER + ONE_READ
            assert data == bytes(range(256)) * (total // 256)
            connection.release()
            assert r.origin.idle_connections == 1

    run(scenario, loop_name)


@both_loops
def test_a_burst_into_a_waiting_reader_is_held_within_the_same_bound(loop_name: str) -> None:
    """The loop may read again and again before the reader that it woke has its turn."""

    async def scenario() -> None:
        async with rig() as r:
            connection, wire = await r.connect()
            fd = os.dup(connection._transport.get_extra_info("socket").fileno())
            with socket.socket(fileno=fd) as same:
                same.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_000_000)
            start(r.origin, connection)
            wire.send(HEAD + b"\r\n")
            await wire.read_request()
            seen = most = 0
            for _ in range(30):
                waiting = asyncio.ensure_future(connection.some())
                await turn()
                assert not waiting.done()
                total = seen + wire.sock.send(b"x" * 3_000_000)
                while seen < total:
                    seen += len(await waiting)
                    most = max(most, connection.received - seen, len(waiting.result()))
                    if seen < total:
                        waiting = asyncio.ensure_future(connection.some())
            assert READ_HIGH_WATER < most <= READ_HIGH_WATER + ONE_READ
            connection.release()

    run(scenario, loop_name)


@both_loops
def test_a_target_that_is_not_read_stands_still(loop_name: str) -> None:
    async def scenario() -> None:
        async with ScriptedUpstream(answer([b"x" * 65536] * 1000)) as upstream:
            with origin_at(upstream.url) as (_, origin):
                connection = await origin.acquire(5)
                start(origin, connection, limit=LIMIT * 4)
                await connection.some()
                tracemalloc.start()
                await asyncio.sleep(0.1)
                held = tracemalloc.get_traced_memory()[0]
                tracemalloc.stop()
                assert upstream.requests[0].answered_at_s is None
                assert held < 8 * (READ_HIGH_WATER + ONE_READ), "both ends are in this process"
                assert len(await connection.all()) + 65536 >= 65536 * 1000 - ONE_READ
                connection.release()
                assert origin.idle_connections == 1

    run(scenario, loop_name)


def test_a_close_behind_unread_bytes_is_seen_after_them() -> None:
    async def scenario() -> None:
        async with rig() as r:
            connection, wire = await r.connect()
            start(r.origin, connection)
            await wire.read_request()
            wire.send(HEAD + b"\r\n")
            total = 2 * 1024 * 1024
            await flood(wire, total)
            wire.close()
            await turn(20)
            assert connection.paused
            seen = 0
            while not connection.complete:
                seen += len(await connection.some())
            assert seen == total
            connection.release()
            assert r.origin.open_connections == 0

    run(scenario)


# --- requests -----------------------------------------------------------------------------------------------


@both_loops
def test_a_big_request_reaches_a_target_that_reads_late(loop_name: str) -> None:
    body = bytes(range(256)) * (12 * 4096)

    async def scenario() -> None:
        gate = Gate()
        script = [PauseReading(), Wait(gate), ResumeReading(), AwaitBody(), Send(OK)]
        async with ScriptedUpstream(script, AT_HEAD) as upstream:
            with origin_at(upstream.url) as (_, origin):
                asking = asyncio.ensure_future(ask(origin, body=body))
                await asyncio.sleep(0.05)
                assert not asking.done()
                gate.open()
                assert await asking == (200, b"ok")
                assert upstream.requests[0].body == body
                assert origin.idle_connections == 1

    run(scenario, loop_name)


@both_loops
def test_a_streamed_request_waits_for_the_target(loop_name: str) -> None:
    async def scenario() -> None:
        gate = Gate()
        script = [PauseReading(), Wait(gate), ResumeReading(), AwaitBody(), Send(OK)]
        async with ScriptedUpstream(script, AT_HEAD) as upstream:
            with origin_at(upstream.url) as (_, origin):
                connection = await origin.acquire(5)
                watch(origin, connection)
                pieces = Pieces(400)
                sending = asyncio.ensure_future(connection.send_stream(build_head(None), pieces, LIMIT))  # type: ignore
                await upstream.wait_until(lambda: len(upstream.requests) == 1)
                before = -1
                while pieces.given != before:  # until it stands still
                    before = pieces.given
                    await asyncio.sleep(0.05)
                    await turn(20)
                assert 0 < pieces.given < 300, "it wrote more than a kernel's buffers hold"
                gate.open()
                await sending
                assert await connection.all() == b"ok"
                connection.release()
                assert (pieces.given, origin.idle_connections) == (400, 1)
                assert upstream.requests[0].body == b"".join([p async for p in Pieces(400)])

    run(scenario, loop_name)


async def send_stream(connection: Connection, body: AsyncIterator[bytes]) -> None:
    await connection.send_stream(build_head(None), body, LIMIT)


def test_an_empty_piece_does_not_end_a_streamed_request() -> None:
    async def body() -> AsyncIterator[bytes]:
        for piece in (b"a", b"", b"b" * 300, b""):
            yield piece

    async def scenario() -> None:
        async with ScriptedUpstream(answer(b"x")) as upstream:
            with origin_at(upstream.url) as (_, origin):
                connection = await origin.acquire(5)
                watch(origin, connection)
                await send_stream(connection, body())
                assert await connection.all() == b"x"
                connection.release()
                assert upstream.requests[0].body == b"a" + b"b" * 300
                assert await ask(origin) == (200, b"x")
                assert len(upstream.connections) == 1

    run(scenario)


@both_loops
@pytest.mark.parametrize("end", [[], [Close()], [Stall()]], ids=["kept", "closed", "stalled"])
@pytest.mark.parametrize("streamed", [True, False])
def test_an_answer_before_the_request_is_written_is_an_answer(
    streamed: bool, end: list, loop_name: str
) -> None:
    """And half a request spoils the connection, whatever the target says of it."""

    async def scenario() -> None:
        script = [PauseReading(), Send(TOO_LARGE), *end]
        async with ScriptedUpstream(script, AT_HEAD) as upstream:
            with origin_at(upstream.url) as (_, origin):
                connection = await origin.acquire(5)
                watch(origin, connection)
                pieces = Pieces(1000)
                if streamed:
                    await send_stream(connection, pieces)  # type: ignore[arg-type]
                    assert pieces.given < 1000
                else:
                    connection.send(build_head(40_000_000), bytes(40_000_000), LIMIT)
                assert await connection.all() == b"big"
                assert connection.status == 413
                connection.release()
                assert (origin.open_connections, origin.idle_connections) == (0, 0)
                assert len(upstream.requests) == 1

    run(scenario, loop_name)


def test_half_a_streamed_request_spoils_the_connection_although_nothing_waits_to_be_written() -> None:
    async def scenario() -> None:
        async with ScriptedUpstream([Send(OK)], AT_HEAD) as upstream:
            with origin_at(upstream.url) as (_, origin):
                connection = await origin.acquire(5)
                watch(origin, connection)
                gate = asyncio.Event()
                pieces = Pieces(3, 64, gate)
                sending = asyncio.ensure_future(send_stream(connection, pieces))  # type: ignore[arg-type]
                await turn()
                assert await connection.all() == b"ok"
                gate.set()
                await sending
                connection.release()
                assert (pieces.given, origin.open_connections) == (2, 0)

    run(scenario)


@both_loops
@pytest.mark.parametrize("deed", ["time", "close", "reset", "abort"])
@pytest.mark.parametrize("stuck", ["on the target", "on the body"])
def test_a_streamed_request_that_is_stuck_can_end(stuck: str, deed: str, loop_name: str) -> None:
    async def scenario() -> None:
        async with rig() as r:
            stop_sweeping(r.client)
            connection, wire = await r.connect()
            watch(r.origin, connection, total_s=60)
            gate = asyncio.Event()
            pieces = Pieces(1000) if stuck == "on the target" else Pieces(2, 64, gate)
            sending = asyncio.ensure_future(send_stream(connection, pieces))  # type: ignore[arg-type]
            reading = asyncio.ensure_future(connection.all())
            await asyncio.sleep(0.05)
            assert not sending.done()
            match deed:
                case "time":
                    r.client.sweep(asyncio.get_running_loop().time() + 61)
                case "abort":
                    connection.abort()
                case _:
                    getattr(wire, deed)()
            with pytest.raises(TotalTimeout if deed == "time" else UpstreamReset):
                await reading
            gate.set()
            await sending
            connection.release()
            assert r.origin.open_connections == 0

    run(scenario, loop_name)


def test_a_body_that_fails_fails_the_request_and_the_connection() -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b"half"
        raise LookupError("the caller left")

    async def scenario() -> None:
        async with ScriptedUpstream(answer(b"x")) as upstream:
            with origin_at(upstream.url) as (_, origin):
                connection = await origin.acquire(5)
                watch(origin, connection)
                with pytest.raises(LookupError):
                    await send_stream(connection, body())
                connection.release()
                assert origin.open_connections == 0
                await upstream.wait_until(lambda: upstream.connections_open == 0)
                assert not any(request.complete for request in upstream.requests)

    run(scenario)


@both_loops
def test_an_answer_is_read_although_writing_has_failed(loop_name: str) -> None:
    """A server that refuses a big request answers, and closes with bytes unread, which is a reset."""

    async def scenario() -> None:
        async with rig() as r:
            connection, wire = await r.connect()
            start(r.origin, connection, bytes(30_000_000))
            await until(lambda: len(wire.peek()) > 1000)
            wire.send(TOO_LARGE)
            wire.close()
            assert await connection.all() == b"big"
            assert connection.status == 413
            connection.release()
            assert r.origin.open_connections == 0

    run(scenario, loop_name)


def test_a_chunked_answer_may_be_read_piece_by_piece_and_then_whole() -> None:
    async def scenario() -> None:
        async with rig() as r:
            connection, wire = await r.connect()
            start(r.origin, connection)
            wire.send(CHUNKED + b"1\r\na\r\n")
            assert await connection.some() == b"a"
            wire.send(b"1\r\nb\r\n")
            await turn()
            wire.send(b"1\r\nc\r\n0\r\n\r\n")
            assert await connection.all() == b"bc"
            connection.release()
            assert r.origin.idle_connections == 1

    run(scenario)
