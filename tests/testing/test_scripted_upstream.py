"""The scriptable upstream does to the wire exactly what its script says, and records what the peer did."""

import asyncio
import contextlib
import itertools
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx
import pytest

from forebay.testing.answers import (
    chunk,
    head,
    sse_head,
)
from forebay.testing.recorded import RecordedRequest
from forebay.testing.steps import (
    AwaitBody,
    Close,
    Gate,
    PauseReading,
    Reset,
    ResumeReading,
    Script,
    Send,
    Sleep,
    Stall,
    Wait,
)
from forebay.testing.threaded import find_closed_port
from forebay.testing.upstream import ScriptedUpstream, UpstreamSettings

GET = b"GET /x HTTP/1.1\r\nhost: a\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class Wire:
    """A raw connection to an upstream."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def read(self, size: int) -> bytes:
        return await asyncio.wait_for(self.reader.readexactly(size), 5)

    async def read_all(self) -> bytes:
        return await asyncio.wait_for(self.reader.read(), 5)

    def is_silent(self) -> bool:
        return not self.reader._buffer and not self.reader.at_eof()  # type: ignore[attr-defined]


@contextlib.asynccontextmanager
async def connect(upstream: ScriptedUpstream) -> AsyncIterator[Wire]:
    reader, writer = await asyncio.open_connection("127.0.0.1", upstream.port)
    try:
        yield Wire(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    """Run a scenario, but not for ever."""

    async def bounded() -> None:
        async with asyncio.timeout(60):
            await scenario()

    asyncio.run(bounded())


async def turn(times: int = 20) -> None:
    """Let everything that is ready happen."""
    for _ in range(times):
        await asyncio.sleep(0)


def settings(**values: object) -> UpstreamSettings:
    return UpstreamSettings(**values)  # type: ignore[arg-type]


# --- steps --------------------------------------------------------------------------------------------------


def test_bytes_are_sent_as_they_are_and_a_gate_holds_the_rest() -> None:
    async def scenario() -> None:
        gate = Gate()
        async with ScriptedUpstream([Send(OK[:-1]), Wait(gate), Send(OK[-1:])]) as upstream:
            async with connect(upstream) as wire:
                await wire.send(GET)
                assert await wire.read(len(OK) - 1) == OK[:-1]
                await turn()
                assert wire.is_silent()
                gate.open()
                assert await wire.read(1) == OK[-1:]

    run(scenario)


def test_a_gate_that_is_open_lets_every_script_pass() -> None:
    async def scenario() -> None:
        gate = Gate()
        gate.open()
        gate.open()
        async with ScriptedUpstream([Wait(gate), Send(OK)]) as upstream, connect(upstream) as wire:
            for _ in range(2):
                await wire.send(GET)
                assert await wire.read(len(OK)) == OK

    run(scenario)


@pytest.mark.parametrize("size", [10, 3_000_000])
def test_a_reset_comes_after_what_was_sent_and_is_a_reset(size: int) -> None:
    async def scenario() -> None:
        async with ScriptedUpstream([Send(b"x" * size), Reset()]) as upstream, connect(upstream) as wire:
            await wire.send(GET)
            assert await wire.read(size) == b"x" * size
            with pytest.raises(ConnectionResetError):
                await wire.read(1)
            assert upstream.connections[0].closed_by_peer_at_s is None

    run(scenario)


@pytest.mark.parametrize("size", [0, 10, 3_000_000])
def test_a_close_comes_after_what_was_sent_and_is_clean(size: int) -> None:
    async def scenario() -> None:
        async with ScriptedUpstream([Send(b"x" * size), Close()]) as upstream, connect(upstream) as wire:
            await wire.send(GET)
            assert await wire.read_all() == b"x" * size
            await upstream.wait_until(lambda: upstream.connections_open == 0)
            assert upstream.connections[0].closed_by_peer_at_s is None

    run(scenario)


@pytest.mark.parametrize("abruptly", [False, True])
def test_a_stall_ends_when_the_peer_leaves_and_the_time_is_on_record(abruptly: bool) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with ScriptedUpstream([Send(head()), Stall(), Send(b"never")]) as upstream:
            async with connect(upstream) as wire:
                await wire.send(GET)
                await wire.read(len(head()))
                assert upstream.connections_open == 1
                left_at_s = loop.time()
                if abruptly:
                    sock = wire.writer.get_extra_info("socket")
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    wire.writer.transport.abort()
            await upstream.wait_until(lambda: upstream.connections_open == 0)
            connection = upstream.connections[0]
            assert connection.closed_by_peer_at_s is not None
            assert left_at_s <= connection.closed_by_peer_at_s <= loop.time()
            assert connection.reset_by_peer is abruptly
            assert upstream.requests[0].answered_at_s is None

    run(scenario)


def test_an_endless_script_ends_when_the_peer_leaves() -> None:
    async def scenario() -> None:
        def endless(_: RecordedRequest) -> Script:
            return itertools.chain(sse_head(), itertools.repeat(chunk(b": ping\n\n")))

        async with ScriptedUpstream(endless) as upstream:
            async with connect(upstream) as wire:
                await wire.send(GET)
                await wire.read(100_000)
            await upstream.wait_until(lambda: upstream.connections_open == 0)

    run(scenario)


def test_sleep_takes_its_time() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with ScriptedUpstream([Sleep(0.05), Send(OK)]) as upstream, connect(upstream) as wire:
            started_s = loop.time()
            await wire.send(GET)
            await wire.read(len(OK))
            assert loop.time() - started_s >= 0.045

    run(scenario)


def test_an_upstream_that_does_not_read_stops_the_sender_until_it_reads_again() -> None:
    async def scenario() -> None:
        gate = Gate()
        size = 20_000_000
        script = [PauseReading(), Wait(gate), ResumeReading(), AwaitBody(), Send(OK)]
        async with ScriptedUpstream(script, settings(answer_at_head=True)) as upstream:
            async with connect(upstream) as wire:
                await wire.send(b"POST / HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % size)
                await upstream.wait_until(lambda: len(upstream.requests) == 1)
                await turn()
                sending = asyncio.create_task(wire.send(b"x" * size))
                done, _ = await asyncio.wait([sending], timeout=0.1)
                assert not done
                assert len(upstream.requests[0].body) < size
                gate.open()
                await sending
                assert await wire.read(len(OK)) == OK
                assert len(upstream.requests[0].body) == size

    run(scenario)


# --- requests -----------------------------------------------------------------------------------------------


def test_requests_are_recorded_on_connections_that_stay_open() -> None:
    async def scenario() -> None:
        async with ScriptedUpstream() as upstream:
            upstream.enqueue(*[[Send(OK)]] * 3)
            async with connect(upstream) as first, connect(upstream) as second:
                await first.send(
                    b"POST /a?q=1 HTTP/1.1\r\nX-Two: 1\r\nx-two: 2\r\nContent-Length: 3\r\n\r\nabc"
                )
                await first.read(len(OK))
                await second.send(
                    b"POST /b HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2;e=1\r\nde\r\n"
                )
                await second.send(b"0\r\nx-trailer: 1\r\n\r\n")
                await second.read(len(OK))
                await first.send(GET)
                await first.read(len(OK))
            one, two, three = upstream.requests
            assert (one.method, one.target, one.path, one.body) == ("POST", "/a?q=1", "/a", b"abc")
            assert [pair for pair in one.headers if pair[0].lower() == "x-two"] == [
                ("X-Two", "1"),
                ("x-two", "2"),
            ]
            assert one.header("X-TWO") == "1"
            assert one.header("absent") is None
            assert (two.body, two.header("x-trailer")) == (b"abcde", None)
            assert [request.number for request in upstream.requests] == [0, 1, 2]
            assert (one.connection, two.connection, three.connection) == (0, 1, 0)
            assert (one.number_on_connection, three.number_on_connection) == (0, 1)
            assert all(request.answered_at_s is not None for request in upstream.requests)

    run(scenario)


def test_pipelined_requests_are_answered_in_order() -> None:
    async def scenario() -> None:
        async with ScriptedUpstream() as upstream, connect(upstream) as wire:
            upstream.enqueue([Sleep(0.01), Send(b"first")], [Send(b"second")])
            await wire.send(GET + GET)
            assert await wire.read(11) == b"firstsecond"

    run(scenario)


def test_a_script_may_start_at_the_head() -> None:
    async def scenario() -> None:
        async with ScriptedUpstream([Send(OK)], settings(answer_at_head=True)) as upstream:
            async with connect(upstream) as wire:
                await wire.send(b"POST / HTTP/1.1\r\ncontent-length: 3\r\n\r\na")
                assert await wire.read(len(OK)) == OK
                assert not upstream.requests[0].complete
                await wire.send(b"bc")
                await upstream.wait_requests(1)
                assert upstream.requests[0].body == b"abc"

    run(scenario)


@pytest.mark.parametrize("answer_continue", [True, False])
def test_expect_100_continue(answer_continue: bool) -> None:
    async def scenario() -> None:
        async with ScriptedUpstream([Send(OK)], settings(answer_continue=answer_continue)) as upstream:
            async with connect(upstream) as wire:
                await wire.send(b"POST / HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: 1\r\n\r\n")
                if answer_continue:
                    assert await wire.read(25) == b"HTTP/1.1 100 Continue\r\n\r\n"
                await wire.send(b"a")
                assert await wire.read(len(OK)) == OK

    run(scenario)


@pytest.mark.parametrize(
    "request_head", [b"GET / HTTP/1.0\r\n\r\n", b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n"]
)
def test_a_peer_that_asks_for_it_gets_the_connection_closed(request_head: bytes) -> None:
    async def scenario() -> None:
        async with ScriptedUpstream([Send(OK)]) as upstream, connect(upstream) as wire:
            await wire.send(request_head)
            assert await wire.read_all() == OK

    run(scenario)


@pytest.mark.parametrize(
    "wrong",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: x\r\n\r\n",
    ],
)
def test_a_peer_that_breaks_http_gets_400_and_is_on_record(wrong: bytes) -> None:
    async def scenario() -> None:
        async with ScriptedUpstream([Send(OK)]) as upstream, connect(upstream) as wire:
            await wire.send(wrong)
            assert (await wire.read_all()).startswith(b"HTTP/1.1 400 ")
            assert upstream.connections[0].protocol_error
            assert upstream.requests == []

    run(scenario)


# --- connections --------------------------------------------------------------------------------------------


def test_an_idle_connection_is_closed_after_the_keep_alive_time_but_not_within_a_request() -> None:
    async def scenario() -> None:
        for keep_alive_s in (0.05, 1.0, 10.0):  # where the machine is calm, and where a send may come late
            async with ScriptedUpstream([Send(OK)], settings(keep_alive_s=keep_alive_s)) as upstream:
                async with connect(upstream) as wire:
                    await wire.send(GET[:10])
                    if not await is_received(upstream, keep_alive_s):
                        continue
                    await asyncio.sleep(2 * keep_alive_s)
                    await wire.send(GET[10:])
                    assert await wire.read(len(OK)) == OK
                    assert await wire.read_all() == b""
                assert upstream.connections[0].closed_by_peer_at_s is None
                return
        raise AssertionError("no request began in time")

    async def is_received(upstream: ScriptedUpstream, limit_s: float) -> bool:
        try:
            await upstream.wait_until(lambda: upstream.connections[0].received_bytes == 10, limit_s)
        except (TimeoutError, IndexError):
            return False
        return True

    run(scenario)


def test_a_connection_may_be_reset_or_ignored_from_the_start() -> None:
    async def scenario() -> None:
        async with ScriptedUpstream(settings=settings(on_connect=[Reset()])) as upstream:
            with pytest.raises(httpx.TransportError):
                async with httpx.AsyncClient() as client:
                    await client.get(upstream.url)
        async with ScriptedUpstream(settings=settings(on_connect=[Stall()])) as upstream:
            async with connect(upstream) as wire:
                await wire.send(GET)
                await upstream.wait_until(lambda: upstream.connections[0].received_bytes == len(GET))
                assert wire.is_silent()
            assert upstream.requests == []

    run(scenario)


def test_stopping_drops_what_is_open_and_frees_the_port() -> None:
    async def scenario() -> None:
        port = find_closed_port()  # which nobody else takes meanwhile
        async with ScriptedUpstream([Stall()], settings(port=port)) as upstream:
            async with connect(upstream) as wire:
                await wire.send(GET)
                await upstream.wait_requests(1)
                await upstream.stop()
                assert upstream.connections_open == 0
                with contextlib.suppress(ConnectionResetError):
                    assert await wire.read_all() == b""
        async with ScriptedUpstream([Send(OK)], settings(port=port)) as again:
            async with connect(again) as wire:
                await wire.send(GET)
                assert await wire.read(len(OK)) == OK

    run(scenario)


def test_one_that_stopped_listening_still_serves_open_connections() -> None:
    async def scenario() -> None:
        own = settings(port=find_closed_port())
        async with ScriptedUpstream([Send(OK)], own) as upstream, connect(upstream) as wire:
            await wire.send(GET)
            await wire.read(len(OK))
            upstream.stop_listening()
            with pytest.raises(ConnectionRefusedError):
                async with connect(upstream):
                    pass
            await wire.send(GET)
            assert await wire.read(len(OK)) == OK

    run(scenario)
