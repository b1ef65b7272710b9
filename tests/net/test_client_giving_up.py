"""Whoever gives up: the target learns of it at once, nobody waits for ever, no connection stays behind."""

import asyncio

import pytest
from upstream_rig import CHUNKED, OK, ask, both_loops, origin_at, rig, run, start, turn

from forebay.core.errors import CallerLeft, Draining, UpstreamReset
from forebay.testing.answers import answer
from forebay.testing.steps import Send, Stall
from forebay.testing.threaded import Blackhole
from forebay.testing.upstream import ScriptedUpstream


@both_loops
@pytest.mark.parametrize(
    "script", [[Stall()], [Send(CHUNKED + b"1\r\na\r\n"), Stall()]], ids=["head", "body"]
)
@pytest.mark.parametrize("whole", [True, False])
def test_a_cancelled_exchange_closes_its_connection(script: list, whole: bool, loop_name: str) -> None:
    async def use(origin: object) -> None:
        connection = await origin.acquire(5)  # type: ignore[attr-defined]
        try:
            start(origin, connection)  # type: ignore[arg-type]
            while True:
                await (connection.all() if whole else connection.some())
        finally:
            connection.release()

    async def scenario() -> None:
        async with ScriptedUpstream(script) as upstream:
            with origin_at(upstream.url) as (client, origin):
                tasks = [asyncio.ensure_future(use(origin)) for _ in range(5)]
                await upstream.wait_requests(5)
                await turn()
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                assert (origin.open_connections, origin.idle_connections, len(client.active)) == (0, 0, 0)
                await upstream.wait_until(lambda: upstream.connections_open == 0)
                assert all(connection.closed_by_peer_at_s for connection in upstream.connections)

    run(scenario, loop_name)


@both_loops
def test_a_cancelled_connect_gives_its_place_back(loop_name: str) -> None:
    async def scenario() -> None:
        with Blackhole() as hole, origin_at(f"http://127.0.0.1:{hole.port}/v1", 1) as (_, origin):
            for _ in range(3):
                connecting = asyncio.ensure_future(origin.acquire(5))
                await turn()
                connecting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await connecting
            assert origin.open_connections == 0

    run(scenario, loop_name)


@both_loops
def test_a_connect_that_is_cancelled_at_any_moment_leaves_nothing_open(loop_name: str) -> None:
    async def scenario() -> None:
        async with ScriptedUpstream(answer(b"x")) as upstream:
            with origin_at(upstream.url, 1) as (_, origin):
                for turns in range(12):
                    connecting = asyncio.ensure_future(origin.acquire(5))
                    await turn(turns)
                    if connecting.done():
                        connecting.result().release()
                    else:
                        connecting.cancel()
                        await asyncio.gather(connecting, return_exceptions=True)
                    assert origin.open_connections == 0
                assert await ask(origin) == (200, b"x")
                await upstream.wait_until(lambda: upstream.connections_open == 1)

    run(scenario, loop_name)


@both_loops
def test_an_aborted_exchange_wakes_whoever_waits_for_it(loop_name: str) -> None:
    async def scenario() -> None:
        async with rig() as r:
            connection, wire = await r.connect()
            start(r.origin, connection)
            waiting = asyncio.ensure_future(connection.some())
            await wire.read_request()
            connection.abort()
            with pytest.raises(UpstreamReset):
                await asyncio.wait_for(waiting, 30)
            with pytest.raises(UpstreamReset):
                await connection.all()
            await wire.read_end()
            connection.release()
            connection.abort()
            assert (r.origin.open_connections, len(r.client.active)) == (0, 0)

    run(scenario, loop_name)


def test_whoever_fails_an_exchange_chooses_the_error_and_the_connection_is_not_reused() -> None:
    async def scenario() -> None:
        async with rig() as r:
            connection, wire = await r.connect()
            start(r.origin, connection)
            wire.send(CHUNKED + b"1\r\na\r\n")
            waiting = asyncio.ensure_future(connection.all())
            await turn()
            connection.fail(CallerLeft("the caller left"))
            connection.fail(Draining("too late to matter"))
            with pytest.raises(CallerLeft):
                await waiting
            assert await connection.some() == b"a", "what had come is there for whoever wants it"
            with pytest.raises(CallerLeft):
                await connection.some()
            connection.release()
            assert r.origin.open_connections == 0
            await wire.read_end()

    run(scenario)


def test_a_failure_that_comes_after_the_answer_does_not_take_it_away() -> None:
    async def scenario() -> None:
        async with rig() as r:
            connection, wire = await r.connect()
            start(r.origin, connection)
            wire.send(OK)
            await turn()
            connection.fail(CallerLeft("the caller left"))
            assert await connection.all() == b"ok"
            connection.release()
            assert r.origin.open_connections == 0

    run(scenario)


@both_loops
def test_a_closed_client_lets_nobody_wait_and_opens_nothing(loop_name: str) -> None:
    async def scenario() -> None:
        async with rig() as r:
            await r.pool_one()
            connection, wire = await r.connect()
            start(r.origin, connection)
            unused, _ = await r.connect()
            waiting = asyncio.ensure_future(connection.all())
            await turn()
            r.client.close()
            with pytest.raises(Draining):
                await asyncio.wait_for(waiting, 30)
            connection.release()
            unused.release()
            assert (r.origin.open_connections, r.origin.idle_connections) == (0, 0)
            with pytest.raises(Draining):
                await r.origin.acquire(5)
            for one in r.peer.wires:
                await one.read_end()
            r.client.close()
            assert wire is r.peer.wires[1]

    run(scenario, loop_name)


@both_loops
def test_a_client_may_be_closed_from_where_an_answer_is_being_handled(loop_name: str) -> None:
    async def scenario() -> None:
        async with ScriptedUpstream(answer(b"x")) as upstream:
            with origin_at(upstream.url) as (client, origin):
                connection = await origin.acquire(5)
                start(origin, connection)
                assert await connection.all() == b"x"
                client.close()
                connection.release()
                assert (origin.open_connections, origin.idle_connections) == (0, 0)

    run(scenario, loop_name)
