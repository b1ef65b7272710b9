"""Every timeout fires in its time, none fires early, and none where the delay is ours."""

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from upstream_rig import (
    CHUNKED,
    HEAD,
    OK,
    both_loops,
    origin_at,
    read_some,
    rig,
    run,
    start,
    stop_sweeping,
    turn,
    until,
)

from forebay.core.errors import FirstTokenTimeout, IdleTimeout, TargetError, TotalTimeout
from forebay.net.client import SWEEP_S
from forebay.net.connection import READ_HIGH_WATER
from forebay.testing.answers import head
from forebay.testing.steps import Send, Sleep, Stall
from forebay.testing.upstream import ScriptedUpstream

CHUNK = b"1\r\na\r\n"
FIRST_CHUNK = CHUNKED + CHUNK


@both_loops
@pytest.mark.parametrize(
    ("error", "script", "limits", "seconds"),
    [
        (FirstTokenTimeout, [Stall()], {"first_s": 0.15}, 0.15),
        (FirstTokenTimeout, [Send(head()), Stall()], {"first_s": 0.15, "idle_s": 9}, 0.15),
        (TotalTimeout, [Stall()], {"total_s": 0.15, "idle_s": 0.01}, 0.15),
        (IdleTimeout, [Send(FIRST_CHUNK), Stall()], {"idle_s": 0.15, "total_s": 9}, 0.15),
        (TotalTimeout, [Send(head()), Stall()], {"idle_s": 0.01, "total_s": 0.15}, 0.15),
        (TotalTimeout, [Send(b"HTTP/1."), Stall()], {"idle_s": 0.01, "total_s": 0.15}, 0.15),
        (
            TotalTimeout,
            [Send(FIRST_CHUNK), *[Sleep(0.02), Send(CHUNK)] * 50],
            {"total_s": 0.15},
            0.15,
        ),
    ],
)
def test_a_silent_target_is_left_in_time_and_learns_of_it(
    error: type[TargetError], script: list, limits: dict[str, float], seconds: float, loop_name: str
) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with ScriptedUpstream(script) as upstream:
            with origin_at(upstream.url) as (_, origin):
                connection = await origin.acquire(5)
                begun = loop.time()
                start(origin, connection, **limits)
                with pytest.raises(error):
                    await connection.all()
                took = loop.time() - begun
                assert seconds <= took < seconds + 2 * SWEEP_S + 5, "5 s for a busy machine"
                connection.release()
                assert origin.open_connections == 0
                await upstream.wait_until(lambda: upstream.connections_open == 0)
                assert upstream.connections[0].closed_by_peer_at_s is not None

    run(scenario, loop_name)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(["first_s", "idle_s", "total_s"]), st.floats(0.001, 1e5), st.floats(0, SWEEP_S * 0.9))
def test_no_timeout_is_early_and_none_later_than_two_sweeps(which: str, seconds: float, lag: float) -> None:
    """Whenever between two sweeps the request begins."""
    errors = {"first_s": FirstTokenTimeout, "idle_s": IdleTimeout, "total_s": TotalTimeout}

    async def scenario() -> None:
        async with rig() as r:
            stop_sweeping(r.client)
            connection, wire = await r.connect()
            loop = asyncio.get_running_loop()
            limits = {"idle_s": 1e9, "total_s": 1e9} | {which: seconds}
            r.client.sweep(loop.time() - lag)
            begun = loop.time()
            start(r.origin, connection, **limits)
            wire.send(FIRST_CHUNK)
            await turn()
            assert await connection.some() == b"a"
            r.client.sweep(begun + seconds)
            assert connection._error is None
            r.client.sweep(loop.time() + seconds + 2 * SWEEP_S)
            with pytest.raises(errors[which]):
                await connection.some()
            connection.release()

    run(scenario)


def test_each_read_puts_the_idle_timeout_off_and_nothing_puts_off_the_total() -> None:
    async def scenario() -> None:
        async with rig() as r:
            stop_sweeping(r.client)
            connection, wire = await r.connect()
            now = begun = asyncio.get_running_loop().time()
            start(r.origin, connection, idle_s=10, total_s=60)
            wire.send(FIRST_CHUNK)
            while now < begun + 60 - 9:
                await turn()
                assert await connection.some() == b"a"
                now += 9
                r.client.sweep(now)
                wire.send(CHUNK)
            assert await connection.some() == b"a"
            r.client.sweep(begun + 61)
            with pytest.raises(TotalTimeout, match="total_s"):
                await connection.some()
            connection.release()

    run(scenario)


def test_before_the_first_byte_the_idle_timeout_does_not_count() -> None:
    """A whole answer of a thousand tokens comes in one piece, after minutes."""

    async def scenario() -> None:
        async with rig() as r:
            stop_sweeping(r.client)
            connection, wire = await r.connect()
            begun = asyncio.get_running_loop().time()
            start(r.origin, connection, idle_s=1, total_s=600)
            r.client.sweep(begun + 500)
            wire.send(OK)
            assert await connection.all() == b"ok"
            connection.release()
            assert r.origin.idle_connections == 1

    run(scenario)


def test_once_content_is_seen_the_first_token_is_there() -> None:
    async def scenario() -> None:
        async with rig() as r:
            stop_sweeping(r.client)
            connection, wire = await r.connect()
            begun = asyncio.get_running_loop().time()
            start(r.origin, connection, first_s=1, idle_s=100, total_s=600)
            wire.send(FIRST_CHUNK)
            assert await connection.some() == b"a"
            connection.content_seen = True
            r.client.sweep(begun + 90)
            wire.send(b"0\r\n\r\n")
            assert await connection.some() == b""
            connection.release()
            # the next exchange on the connection starts anew
            again = r.origin.pop_idle() or pytest.fail("not reused")
            start(r.origin, again, first_s=1, idle_s=100, total_s=600)
            r.client.sweep(begun + 90 + 2)
            with pytest.raises(FirstTokenTimeout):
                await again.some()
            again.release()

    run(scenario)


@both_loops
def test_no_silence_is_counted_while_we_do_not_read(loop_name: str) -> None:
    async def scenario() -> None:
        async with rig() as r:
            stop_sweeping(r.client)
            connection, wire = await r.connect()
            begun = asyncio.get_running_loop().time()
            start(r.origin, connection, idle_s=10, total_s=1e6)
            total = READ_HIGH_WATER * 4
            wire.send(HEAD + b"content-length: %d\r\n\r\n" % total)
            sent = 0
            while sent < total and not connection.paused:
                sent += wire.sock.send(b"x" * min(65536, total - sent))
                await turn()
            assert connection.paused
            r.client.sweep(begun + 5000)
            seen = len(await connection.some())
            r.client.sweep(begun + 5009)  # counted from our reading on
            while seen < sent:
                seen += len(await connection.some())
            r.client.sweep(begun + 5009 + 11)
            with pytest.raises(IdleTimeout):
                await connection.some()
            connection.release()

    run(scenario, loop_name)


def test_waiting_for_all_of_it_after_a_pause_counts_from_then() -> None:
    async def scenario() -> None:
        async with rig() as r:
            stop_sweeping(r.client)
            connection, wire = await r.connect()
            begun = asyncio.get_running_loop().time()
            start(r.origin, connection, idle_s=10, total_s=1e6)
            total = READ_HIGH_WATER * 4
            wire.send(HEAD + b"content-length: %d\r\n\r\n" % total)
            sent = 0
            while not connection.paused:
                sent += wire.sock.send(b"x" * 65536)
                await turn()
            r.client.sweep(begun + 5000)
            reading = asyncio.ensure_future(connection.all())
            await asyncio.sleep(0)
            r.client.sweep(begun + 5009)
            while sent < total:
                sent += wire.sock.send(b"x" * min(65536, total - sent))
                await turn()
            assert len(await reading) == total
            connection.release()

    run(scenario)


def test_the_total_counts_also_while_we_do_not_read() -> None:
    async def scenario() -> None:
        async with rig() as r:
            stop_sweeping(r.client)
            connection, wire = await r.connect()
            begun = asyncio.get_running_loop().time()
            start(r.origin, connection, idle_s=10, total_s=60)
            wire.send(HEAD + b"\r\n")
            while not connection.paused:
                wire.sock.send(b"x" * 65536)
                await turn()
            r.client.sweep(begun + 61)
            assert len(await connection.some()) > READ_HIGH_WATER, "what came before is given out first"
            with pytest.raises(TotalTimeout):
                await read_some(connection)
            connection.release()

    run(scenario)


def test_an_answer_that_is_there_can_not_be_late_any_more() -> None:
    async def scenario() -> None:
        async with rig() as r:
            stop_sweeping(r.client)
            connection, wire = await r.connect()
            begun = asyncio.get_running_loop().time()
            start(r.origin, connection, first_s=1, idle_s=1, total_s=1)
            wire.send(OK)
            await turn()
            r.client.sweep(begun + 100)
            assert await connection.all() == b"ok"
            connection.release()
            r.client.sweep(begun + 101)
            assert r.origin.idle_connections == 1

    run(scenario)


def test_the_first_error_stays_and_later_ones_change_nothing() -> None:
    async def scenario() -> None:
        async with rig() as r:
            stop_sweeping(r.client)
            connection, wire = await r.connect()
            begun = asyncio.get_running_loop().time()
            start(r.origin, connection, first_s=1, total_s=10)
            waiting = asyncio.ensure_future(connection.some())
            await turn()
            r.client.sweep(begun + 2)
            r.client.sweep(begun + 20)
            wire.close()
            await turn()
            with pytest.raises(FirstTokenTimeout):
                await waiting
            connection.release()

    run(scenario)


def test_deadlines_outlive_a_sweep_that_failed() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        complaints: list[object] = []
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        async with rig() as r:
            broken: Any = object()
            r.client.active.add(broken)
            await until(lambda: bool(complaints))
            r.client.active.discard(broken)
            connection, _ = await r.connect()
            start(r.origin, connection, total_s=0.01)
            with pytest.raises(TotalTimeout):
                await connection.all()
            connection.release()

    run(scenario)
