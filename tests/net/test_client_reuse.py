"""When a connection serves again, and that a request is never sent twice nor answered by another's answer."""

import asyncio
from dataclasses import replace

import pytest
from upstream_rig import (
    HEAD,
    OK,
    Rig,
    ask,
    both_loops,
    origin_at,
    rig,
    run,
    start,
    turn,
    until,
)

from forebay.core.errors import StaleConnection, UpstreamReset
from forebay.net.client import IDLE_CONNECTIONS_MAX, IDLE_MAX_S, SWEEP_S, read_keep_alive
from forebay.net.connection import POOLED
from forebay.testing.answers import answer, echo, json_answer
from forebay.testing.recorded import RecordedRequest
from forebay.testing.steps import Close, Reset, Script, Send
from forebay.testing.upstream import ScriptedUpstream


@both_loops
def test_requests_one_after_another_share_a_connection(loop_name: str) -> None:
    async def scenario() -> None:
        async with ScriptedUpstream(echo) as upstream:
            with origin_at(upstream.url) as (_, origin):
                for number in range(5):
                    status, body = await ask(origin, f"r{number}")
                    assert status == 200
                    assert f"/v1/r{number}".encode() in body
                assert (origin.open_connections, origin.idle_connections) == (1, 1)
            assert [request.connection for request in upstream.requests] == [0] * 5

    run(scenario, loop_name)


def test_requests_at_once_take_a_connection_each_and_the_hottest_serves_next() -> None:
    async def scenario() -> None:
        async with rig() as r:
            first, _ = await r.pool_one()
            second = await r.origin.connect(5)
            third = r.origin.pop_idle()
            assert third is first
            assert r.origin.pop_idle() is None
            assert (r.origin.open_connections, r.origin.idle_connections) == (2, 0)
            wires = [r.peer.wires[0], r.peer.accept_waiting()[0]]
            for connection, wire in zip((first, second), wires, strict=True):
                start(r.origin, connection)
                wire.send(OK)
                await connection.all()
                connection.release()
            assert r.origin.pop_idle() is second

    run(scenario)


def test_a_connection_that_was_acquired_and_not_used_is_not_lost() -> None:
    async def scenario() -> None:
        async with rig() as r:
            fresh, wire = await r.connect()
            fresh.release()
            assert r.origin.open_connections == 0
            await wire.read_end()
            await r.pool_one()
            pooled = r.origin.pop_idle()
            assert pooled is not None
            pooled.release()
            pooled.release()
            assert (r.origin.open_connections, r.origin.idle_connections) == (0, 0)

    run(scenario)


@pytest.mark.parametrize(
    "wire",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nConnection: Keep-Alive, Close\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nkeep-alive: timeout=0\r\n\r\nok",
    ],
)
def test_an_answer_that_says_it_is_the_last_is(wire: bytes) -> None:
    async def scenario() -> None:
        async with rig() as r:
            connection, peer = await r.pool_one(wire)
            assert connection.status == 200
            assert (r.origin.open_connections, r.origin.idle_connections) == (0, 0)
            await peer.read_end()

    run(scenario)


def test_idle_connections_are_closed_when_their_time_is_up() -> None:
    async def scenario() -> None:
        async with rig() as r:
            _, wire = await r.pool_one()
            now = asyncio.get_running_loop().time()
            r.client.sweep(now + IDLE_MAX_S - 2 * SWEEP_S)
            assert r.origin.idle_connections == 1
            r.client.sweep(now + IDLE_MAX_S)
            assert (r.origin.open_connections, r.origin.idle_connections) == (0, 0)
            await wire.read_end()

    run(scenario)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (b"", IDLE_MAX_S),
        (b"timeout=60", IDLE_MAX_S),
        (b"timeout=5, max=100", 4.0),
        (b"max=100, Timeout = 3", 2.0),
        (b'timeout="2"', 1.0),
        (b"timeout=1", 0.0),
        (b"timeout=0", -1.0),
        (b"timeout=-1", IDLE_MAX_S),
        (b"notimeout=1", IDLE_MAX_S),
        (b"max=100", IDLE_MAX_S),
        (b"timeout=" + b"9" * 400, IDLE_MAX_S),
        (b"timeout=1x", 0.0),
    ],
)
def test_a_servers_own_idle_time_shortens_ours_and_never_lengthens_it(header: bytes, seconds: float) -> None:
    assert read_keep_alive(header) == seconds


def test_a_connection_is_let_go_before_the_server_does() -> None:
    async def scenario() -> None:
        async with rig() as r:
            answers = OK.replace(b"\r\n\r\n", b"\r\nKeep-Alive: timeout=3\r\n\r\n")
            short, _ = await r.connect()
            await r.pool_one()  # lies before the short one, and longer
            start(r.origin, short)
            r.peer.wires[0].send(answers)
            await short.all()
            short.release()
            assert r.origin.idle_connections == 2
            r.client.sweep(asyncio.get_running_loop().time() + 2.1)
            taken = r.origin.pop_idle()
            assert taken is not None
            assert taken is not short
            assert r.origin.open_connections == 1

    run(scenario)


def test_the_pool_keeps_no_more_than_it_may() -> None:
    async def scenario() -> None:
        async with ScriptedUpstream(answer(b"x")) as upstream:
            with origin_at(upstream.url, IDLE_CONNECTIONS_MAX + 5) as (_, origin):
                connections = [await origin.connect(5) for _ in range(IDLE_CONNECTIONS_MAX + 5)]
                for connection in connections:
                    start(origin, connection)
                for connection in connections:
                    await connection.all()
                    connection.release()
                assert origin.idle_connections == origin.open_connections == IDLE_CONNECTIONS_MAX

    run(scenario)


# --- the peer closes ----------------------------------------------------------------------------------------


@both_loops
@pytest.mark.parametrize("how", ["fin", "reset", "bytes"])
@pytest.mark.parametrize("noticed", [True, False], ids=["noticed", "waiting in the kernel"])
def test_a_pooled_connection_that_the_peer_spoiled_is_replaced_and_nothing_is_sent_on_it(
    how: str, noticed: bool, loop_name: str
) -> None:
    async def scenario() -> None:
        async with rig() as r:
            _, old = await r.pool_one()
            await turn()
            if how == "bytes":
                old.send(OK)
            else:
                old.close() if how == "fin" else old.reset()
            if noticed:
                await turn()
                assert (r.origin.open_connections, r.origin.idle_connections) == (0, 0)
            asking = asyncio.ensure_future(ask(r.origin, "again"))
            fresh = await r.peer.accept()
            assert (await fresh.read_request()).startswith(b"POST /v1/again ")
            fresh.send(OK)
            assert await asking == (200, b"ok")
            assert fresh.peek() == b""
            if how == "bytes":
                assert await old.read_all() == b""
            assert (r.origin.open_connections, r.origin.idle_connections) == (1, 1)

    run(scenario, loop_name)


def test_a_restarted_upstream_sees_each_request_once() -> None:
    async def scenario() -> None:
        def close_each_second(request: RecordedRequest) -> Script:
            return [*json_answer({}), *([Close()] if request.number_on_connection else [])]

        async with ScriptedUpstream(close_each_second) as upstream:
            with origin_at(upstream.url) as (_, origin):
                for number in range(6):
                    await ask(origin, f"r{number}")
                    if number % 2:
                        await upstream.wait_until(lambda: upstream.connections_open == 0)
            assert [request.path for request in upstream.requests] == [f"/v1/r{n}" for n in range(6)]
            assert len(upstream.connections) == 3

    run(scenario)


async def race(r: Rig, body: bytes, deed: str) -> Exception:
    """The peer acts after the connection was looked at and before the request is written."""
    _, wire = await r.pool_one()
    connection = r.origin.pop_idle()
    assert connection is not None
    getattr(wire, deed)()
    start(r.origin, connection, body)
    try:
        await connection.all()
    except Exception as error:
        return error
    finally:
        connection.release()
        assert r.origin.open_connections == 0
    raise AssertionError("there was an answer")


@both_loops
@pytest.mark.parametrize("size", [2, 20_000, 8_000_000])
def test_an_end_that_crosses_the_request_means_that_nobody_saw_it(size: int, loop_name: str) -> None:
    async def scenario() -> None:
        async with rig() as r:
            assert isinstance(await race(r, b"x" * size, "close"), StaleConnection)

    run(scenario, loop_name)


@both_loops
def test_a_reset_that_crosses_the_request_proves_nothing(loop_name: str) -> None:
    """A reset carries no word on what had arrived, so the request may have been seen."""

    async def scenario() -> None:
        async with rig() as r:
            assert isinstance(await race(r, b"{}", "reset"), UpstreamReset)

    run(scenario, loop_name)


@both_loops
@pytest.mark.parametrize("end", [Close(), Reset()])
@pytest.mark.parametrize("reused", [True, False])
def test_a_request_that_was_read_is_never_sent_again(
    end: Close | Reset, reused: bool, loop_name: str
) -> None:
    async def scenario() -> None:
        async with ScriptedUpstream() as upstream:
            with origin_at(upstream.url) as (_, origin):
                if reused:
                    upstream.enqueue(answer(b"x"))
                    await ask(origin, "first")
                upstream.enqueue([end])
                with pytest.raises(UpstreamReset, match="without an answer"):
                    await ask(origin, "once")
                await turn(10)
                assert [request.path for request in upstream.requests].count("/v1/once") == 1
                assert origin.open_connections == 0

    run(scenario, loop_name)


@both_loops
def test_a_request_that_arrived_in_part_was_seen(loop_name: str) -> None:
    async def scenario() -> None:
        async with rig() as r:
            _, wire = await r.pool_one()
            connection = r.origin.pop_idle()
            assert connection is not None
            start(r.origin, connection, b"x" * 20_000_000)
            waiting = asyncio.ensure_future(connection.all())
            await until(lambda: len(wire.peek()) > 100)
            while True:  # all that came is read, so that the end is no reset
                try:
                    wire.sock.recv(1 << 20)
                except BlockingIOError:
                    break
            wire.close()
            with pytest.raises(UpstreamReset):
                await waiting
            connection.release()

    run(scenario, loop_name)


def test_a_fresh_connection_that_ends_without_an_answer_is_not_stale() -> None:
    """Whoever closes every new connection would do it again, so it is time to go elsewhere."""

    async def scenario() -> None:
        async with rig() as r:
            connection, wire = await r.connect()
            wire.close()
            start(r.origin, connection)
            with pytest.raises(UpstreamReset):
                await connection.all()
            connection.release()

    run(scenario)


def test_a_peer_that_closes_right_after_its_answer_has_answered() -> None:
    async def scenario() -> None:
        async with ScriptedUpstream([Send(OK), Close()]) as upstream:
            with origin_at(upstream.url) as (_, origin):
                for _ in range(3):
                    assert await ask(origin) == (200, b"ok")
                    await until(lambda: origin.open_connections == 0)
                    assert origin.idle_connections == 0
            assert len(upstream.requests) == 3

    run(scenario)


# --- answers and their requests -----------------------------------------------------------------------------


@both_loops
def test_a_second_answer_never_answers_the_next_request(loop_name: str) -> None:
    """However late it comes, as long as it is there before the next request is written."""

    async def scenario() -> None:
        other = HEAD + b"content-length: 6\r\n\r\nsecret"
        for cut in (len(OK), len(OK) + 5, len(OK) + len(other)):
            async with rig() as r:
                connection, wire = await r.connect()
                start(r.origin, connection, name="first")
                await wire.read_request()
                wire.send((OK + other)[:cut])
                assert await connection.all() == b"ok"
                connection.release()
                if cut < len(OK + other):
                    wire.send((OK + other)[cut:])  # the event loop has not seen it
                asking = asyncio.ensure_future(ask(r.origin, "next"))
                fresh = await r.peer.accept()
                await fresh.read_request()
                fresh.send(OK)
                assert await asking == (200, b"ok")

    run(scenario, loop_name)


def test_a_connection_in_the_pool_is_marked_so() -> None:
    async def scenario() -> None:
        async with rig() as r:
            connection, wire = await r.pool_one()
            assert connection.place == POOLED
            connection.release()
            assert (r.origin.open_connections, r.origin.idle_connections) == (1, 1)
            connection.abort()
            assert (r.origin.open_connections, r.origin.idle_connections) == (0, 0)
            await wire.read_end()

    run(scenario)


def test_an_address_that_no_table_names_is_forgotten_once_it_has_no_connection() -> None:
    async def scenario() -> None:
        async with ScriptedUpstream(echo) as upstream:
            with origin_at(upstream.url) as (client, origin):
                assert (await ask(origin, "one"))[0] == 200
                other = client.origin(replace(origin.address, port=1), 5)
                client.keep_only([])
                assert client.origin(origin.address, 100) is origin, "its connection may serve again"
                assert client.origin(other.address, 5) is not other
                for connection in tuple(origin._open):
                    connection.abort()
                await until(lambda: not origin.open_connections)
                client.keep_only([origin])
                assert client.origin(origin.address, 100) is origin
                client.keep_only([])
                assert client.origin(origin.address, 100) is not origin

    run(scenario, "uvloop")
