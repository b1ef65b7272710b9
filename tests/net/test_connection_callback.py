"""An exchange without a task: it is called back once, from where the bytes arrive, whatever it does there."""

import asyncio
import weakref

import pytest
from upstream_rig import (
    CHUNKED,
    HEAD,
    OK,
    Rig,
    both_loops,
    rig,
    run,
    start,
    stop_sweeping,
    turn,
)

from forebay.core.errors import AnswerTooLarge, CallerLeft, UpstreamProtocol, UpstreamReset
from forebay.net.connection import ALL, READ_HIGH_WATER, SOME, Connection


class Caller:
    """Counts its calls, and does what it is told in each."""

    def __init__(self, connection: Connection, *, releases: bool = True) -> None:
        self.connection = connection
        self.calls = 0
        self.complete = self.failed = False
        self.body = b""
        self._releases = releases

    def wait(self, what: int) -> None:
        self.connection.call_when(what, Caller.on_answer, self)

    def on_answer(self) -> None:
        self.calls += 1
        self.failed = self.connection.has_failed
        self.complete = self.connection.complete and not self.failed
        if self.complete:
            self.body = self.connection.take()
        if self._releases:
            self.connection.release()


async def begin(r: Rig, what: int, *, limit: int = 1 << 20, releases: bool = True) -> tuple[Caller, object]:
    connection, wire = await r.connect()
    start(r.origin, connection, limit=limit, total_s=60)
    caller = Caller(connection, releases=releases)
    caller.wait(what)
    await wire.read_request()
    return caller, wire


@both_loops
def test_a_whole_answer_calls_back_once_however_it_comes(loop_name: str) -> None:
    async def scenario() -> None:
        async with rig() as r:
            for size in (1, 7, len(OK)):
                connection = r.origin.pop_idle()
                if connection is None:
                    connection, wire = await r.connect()
                start(r.origin, connection)
                caller = Caller(connection)
                caller.wait(ALL)
                for at in range(0, len(OK), size):
                    assert caller.calls == 0
                    wire.send(OK[at : at + size])
                    await turn()
                assert (caller.calls, caller.complete, caller.body) == (1, True, b"ok")
                assert (r.origin.open_connections, r.origin.idle_connections) == (1, 1)

    run(scenario, loop_name)


@both_loops
def test_the_first_bytes_call_back_and_the_rest_can_be_waited_for(loop_name: str) -> None:
    async def scenario() -> None:
        async with rig() as r:
            caller, wire = await begin(r, SOME, releases=False)
            wire.send(CHUNKED)
            await turn()
            assert caller.calls == 0
            wire.send(b"1\r\na\r\n")
            await turn()
            assert (caller.calls, caller.complete) == (1, False)
            wire.send(b"1\r\nb\r\n0\r\n\r\n")
            assert await caller.connection.all() == b"ab"
            caller.connection.release()
            assert (caller.calls, r.origin.idle_connections) == (1, 1)

    run(scenario, loop_name)


def test_what_is_put_back_is_there_again_before_the_rest() -> None:
    async def scenario() -> None:
        async with rig() as r:
            for whole in (True, False):
                connection, wire = await r.connect()
                start(r.origin, connection)
                wire.send(CHUNKED + b"2\r\nab\r\n")
                await turn()
                data = connection.take()
                wire.send(b"1\r\nc\r\n0\r\n\r\n")
                await turn()
                connection.put_back(data)
                assert await (connection.all() if whole else connection.some()) == b"abc"
                connection.release()

    run(scenario)


def test_nothing_put_back_is_no_end_and_what_is_put_back_is_held() -> None:
    async def scenario() -> None:
        async with rig() as r:
            connection, wire = await r.connect()
            start(r.origin, connection, limit=1000)
            wire.send(CHUNKED + b"200\r\n" + b"x" * 512 + b"\r\n")
            await turn()
            connection.put_back(connection.take())
            assert len(await connection.some()) == 512
            connection.put_back(b"")
            waiting = asyncio.ensure_future(connection.some())
            await turn()
            assert not waiting.done()
            wire.send(b"200\r\n" + b"x" * 512 + b"\r\n")
            connection.put_back(await waiting)
            wire.send(b"200\r\n" + b"x" * 512 + b"\r\n")
            with pytest.raises(AnswerTooLarge):
                await connection.all()
            connection.release()

    run(scenario)


def test_the_next_exchange_may_begin_where_the_last_one_ended() -> None:
    async def scenario() -> None:
        async with rig() as r:
            first, wire = await r.connect()
            start(r.origin, first, name="first")
            bodies: list[bytes] = []

            def again(count: int) -> None:
                bodies.append(first.take())
                first.release()
                if count < 3:
                    assert r.origin.pop_idle() is first
                    start(r.origin, first, name=f"r{count}")
                    first.call_when(ALL, again, count + 1)

            first.call_when(ALL, again, 0)
            for number in range(4):
                await wire.read_request()
                wire.send(OK.replace(b"ok", b"%02d" % number))
                await turn()
            assert bodies == [b"00", b"01", b"02", b"03"]
            assert (r.origin.open_connections, r.origin.idle_connections) == (1, 1)

    run(scenario)


@both_loops
@pytest.mark.parametrize("extra", [b"x", OK, b"HTTP/1.1 200"])
def test_an_answer_with_more_behind_it_counts_and_its_connection_does_not(
    extra: bytes, loop_name: str
) -> None:
    async def scenario() -> None:
        async with rig() as r:
            caller, wire = await begin(r, ALL)
            wire.send(OK + extra)
            await turn()
            assert (caller.calls, caller.complete, caller.body) == (1, True, b"ok")
            assert (r.origin.open_connections, r.origin.idle_connections) == (0, 0)

    run(scenario, loop_name)


TOO_LARGE = HEAD + b"content-length: 2000\r\n\r\n" + b"x" * 2000


@both_loops
@pytest.mark.parametrize(
    ("wire_bytes", "error", "what"),
    [
        (b"\x00\r\n\r\n", UpstreamProtocol, ALL),
        (b"\x00\r\n\r\n", UpstreamProtocol, SOME),
        (TOO_LARGE, AnswerTooLarge, ALL),
        (HEAD + b"content-length: 2000\r\n\r\n", UpstreamReset, ALL),
        (HEAD + b"content-length: 2000\r\n\r\n", UpstreamReset, SOME),
        (b"", UpstreamReset, ALL),
        (b"", UpstreamReset, SOME),
    ],
)
@pytest.mark.parametrize("releases", [True, False])
def test_every_failure_calls_back_once(
    wire_bytes: bytes, error: type[Exception], what: int, releases: bool, loop_name: str
) -> None:
    async def scenario() -> None:
        async with rig() as r:
            caller, wire = await begin(r, what, limit=1000, releases=releases)
            wire.send(wire_bytes)
            await turn()
            if error is UpstreamReset:
                assert caller.calls == 0
                wire.close()
                await turn()
            assert (caller.calls, caller.complete) == (1, False)
            assert caller.failed
            with pytest.raises(UpstreamReset if releases else error):
                await caller.connection.all()
            caller.connection.release()
            await turn()
            assert (caller.calls, r.origin.open_connections) == (1, 0)

    run(scenario, loop_name)


@pytest.mark.parametrize("deed", ["time", "fail", "abort", "close"])
def test_whatever_else_ends_an_exchange_calls_back_once(deed: str) -> None:
    async def scenario() -> None:
        async with rig() as r:
            stop_sweeping(r.client)
            caller, _ = await begin(r, ALL)
            match deed:
                case "time":
                    r.client.sweep(asyncio.get_running_loop().time() + 100)
                case "fail":
                    caller.connection.fail(CallerLeft("gone"))
                case "abort":
                    caller.connection.abort()
                case _:
                    r.client.close()
            assert (caller.calls, caller.complete, caller.failed) == (1, False, True)
            await turn()
            assert (caller.calls, r.origin.open_connections) == (1, 0)
            with pytest.raises(UpstreamReset, match="over"):
                await caller.connection.some()

    run(scenario)


def test_nobody_is_kept_alive_by_a_connection_that_has_called_back() -> None:
    async def scenario() -> None:
        async with rig() as r:
            caller, wire = await begin(r, ALL)
            gone = weakref.ref(caller)
            wire.send(OK)
            await turn()
            assert caller.calls == 1
            del caller
            assert gone() is None
            assert r.origin.idle_connections == 1

    run(scenario)


@both_loops
def test_a_burst_after_the_call_is_held_within_the_bound(loop_name: str) -> None:
    async def scenario() -> None:
        async with rig() as r:
            caller, wire = await begin(r, SOME, limit=1 << 30, releases=False)
            wire.send(HEAD + b"\r\n")
            for _ in range(50):
                try:
                    wire.sock.send(b"x" * 1_000_000)
                except BlockingIOError:
                    break
                await turn()
            assert caller.calls == 1
            assert READ_HIGH_WATER < caller.connection.received <= READ_HIGH_WATER + 256 * 1024
            caller.connection.release()

    run(scenario, loop_name)
