"""What a connection will hold: heads and framing are bounded, and so is an answer nobody has read yet."""

import asyncio
import tracemalloc

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from upstream_rig import (
    CHUNKED,
    HEAD,
    LIMIT,
    build_head,
    exchange,
    origin_at,
    rig,
    run,
    start,
    turn,
    watch,
)

from forebay.core.errors import AnswerTooLarge, UpstreamProtocol
from forebay.gateway.memory import Memory
from forebay.net.answer import FRAMING_MAX_BYTES
from forebay.net.connection import ALL, NOTHING, READ_HIGH_WATER
from forebay.testing.answers import answer
from forebay.testing.upstream import ScriptedUpstream


@pytest.mark.parametrize("size", [FRAMING_MAX_BYTES // 2, FRAMING_MAX_BYTES - 1000])
def test_a_long_header_is_kept_whole(size: int) -> None:
    async def scenario() -> None:
        wire = HEAD + b"x-long: " + b"y" * size + b"\r\ncontent-length: 0\r\n\r\n"
        seen = await exchange([wire[:9000], wire[9000:30000], wire[30000:]])
        assert seen.headers[0] == (b"x-long", b"y" * size)

    run(scenario)


@pytest.mark.parametrize(
    ("begin", "flood"),
    [
        (HEAD, b"x-a: " + b"b" * 1000 + b"\r\n"),
        (HEAD + b"x-endless: ", b"y" * 1000),
        (HEAD, b"y" * 1000),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 40),
        (b"HTTP/1.1 200 ", b"endless reason " * 60),
        (CHUNKED + b"1;", b"extension" * 100),
        (CHUNKED + b"1\r\na\r\n0\r\n", b"x-trailer: " + b"b" * 1000 + b"\r\n"),
        (CHUNKED + b"1\r\na\r\n0\r\nx-trailer: ", b"b" * 1000),
    ],
)
def test_headers_and_framing_without_end_are_cut_off(begin: bytes, flood: bytes) -> None:
    """Else one target could fill the memory with a header that never ends."""

    async def scenario() -> None:
        async with rig() as r:
            connection, wire = await r.connect()
            start(r.origin, connection)
            reading = asyncio.ensure_future(connection.all())
            await wire.read_request()
            wire.send(begin)
            sent = 0
            while not reading.done():
                try:
                    sent += wire.sock.send(flood)
                except (BlockingIOError, ConnectionError):
                    pass
                await turn(1)
                assert sent < 4 * FRAMING_MAX_BYTES
            with pytest.raises(UpstreamProtocol, match="bytes of headers"):
                await reading
            connection.release()

    run(scenario)


def test_framing_between_pieces_of_a_long_stream_does_not_add_up() -> None:
    async def scenario() -> None:
        pieces = [CHUNKED]
        for _ in range(FRAMING_MAX_BYTES // 64):
            pieces += [b"1;" + b"x" * 128 + b"\r\n", b"a", b"\r\n"]
        for whole in (True, False):
            seen = await exchange([*pieces, b"0\r\n\r\n"], whole=whole)
            assert seen.body == b"a" * (FRAMING_MAX_BYTES // 64)

    run(scenario)


@pytest.mark.parametrize("framing", [b"content-length: 3001", b"x-no: length"])
def test_an_answer_over_the_limit_is_refused_even_if_all_of_it_is_there(framing: bytes) -> None:
    async def scenario() -> None:
        async with rig() as r:
            connection, wire = await r.connect()
            start(r.origin, connection, limit=3000)
            await wire.read_request()
            wire.send(HEAD + framing + b"\r\n\r\n" + b"x" * 3001)
            with pytest.raises(AnswerTooLarge, match="3000 bytes"):
                await connection.all()
            connection.release()
            assert r.origin.open_connections == 0
            await wire.read_end()

    run(scenario)


@pytest.mark.parametrize("account", [False, True])
def test_a_stream_is_not_held_against_the_limit_of_whole_answers(account: bool) -> None:
    """Also where it comes faster than it is taken."""

    async def scenario() -> None:
        async with rig() as r:
            connection, wire = await r.connect()
            memory = Memory(1 << 30) if account else None
            watch(r.origin, connection)
            connection.send(build_head(2), b"{}", 1000, memory)
            total = 0
            await wire.read_request()
            wire.send(HEAD + b"content-length: 240000\r\n\r\n")
            for _ in range(3):
                wire.send(b"x" * 80_000)
                while connection.received < total + 80_000:
                    await turn()
                total += 80_000
            assert memory is None or memory.held >= 240_000
            seen = 0
            while seen < total:
                seen += len(await connection.some())
            assert connection.complete
            connection.release()
            assert memory is None or memory.held == 0
            assert r.origin.idle_connections == 1

    run(scenario)


@pytest.mark.parametrize("more", [0, 1, 200_000])
def test_what_came_of_a_stream_counts_once_it_is_wanted_whole(more: int) -> None:
    """As where it turns out to be none."""

    async def scenario() -> None:
        async with rig() as r:
            connection, wire = await r.connect()
            start(r.origin, connection, limit=100_000)
            await wire.read_request()
            wire.send(HEAD + b"content-length: %d\r\n\r\n" % (100_000 + more) + b"x" * 100_000)
            seen = b""
            while len(seen) < 100_000:
                seen += await connection.some()
            connection.put_back(seen)
            wire.send(b"x" * more)
            if more:
                with pytest.raises(AnswerTooLarge, match="100000 bytes"):
                    await connection.all()
            else:
                assert len(await connection.all()) == 100_000
            connection.release()

    run(scenario)


@pytest.mark.parametrize("wanted", [NOTHING, ALL])
@pytest.mark.parametrize("read", [READ_HIGH_WATER, 30])
def test_an_answer_in_tiny_chunks_takes_no_more_than_it_holds(read: int, wanted: int) -> None:
    """Whether it is wanted whole, or a stream that nobody takes at the moment."""

    async def scenario() -> None:
        async with rig() as r:
            connection, _ = await r.connect()
            start(r.origin, connection)
            if wanted:
                connection.call_when(wanted, lambda _: None, None)
            size = 1 << 20 if wanted and read > 30 else 60_000
            data = CHUNKED + b"2\r\nab\r\n" * (size // 2)
            tracemalloc.start()
            try:
                for at in range(0, len(data), read):
                    connection.data_received(data[at : at + read])
                held, _ = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert held < 1.5 * size + 150_000
            connection.data_received(b"0\r\n\r\n")
            assert await connection.all() == b"ab" * (size // 2)
            connection.release()

    run(scenario)


def test_the_limit_bounds_what_is_held_and_not_what_passes() -> None:
    async def scenario() -> None:
        async with rig() as r:
            connection, wire = await r.connect()
            start(r.origin, connection, limit=1000)
            await wire.read_request()
            wire.send(HEAD + b"content-length: 10000\r\n\r\n")
            for _ in range(10):
                wire.send(b"x" * 1000)
                assert await connection.some() == b"x" * 1000
            assert connection.complete
            assert connection.received == 10_000
            connection.release()
            assert r.origin.idle_connections == 1

    run(scenario)


@example(size=LIMIT)
@given(st.integers(0, 300_000))
@settings(max_examples=10, deadline=None)
def test_an_answer_of_exactly_the_limit_is_whole(size: int) -> None:
    async def scenario() -> None:
        async with ScriptedUpstream() as upstream:
            upstream.enqueue(answer(b"x" * size))
            with origin_at(upstream.url) as (_, origin):
                connection = await origin.acquire(5)
                start(origin, connection, limit=size)
                assert len(await connection.all()) == size
                connection.release()

    run(scenario)
