"""What a connection will hold: heads and framing are bounded, and so is an answer nobody has read yet."""

import asyncio

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from upstream_rig import CHUNKED, HEAD, LIMIT, exchange, origin_at, rig, run, start, turn

from forebay.core.errors import AnswerTooLarge, UpstreamProtocol
from forebay.net.answer import FRAMING_MAX_BYTES
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


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("framing", [b"content-length: 3001", b"x-no: length"])
def test_an_answer_over_the_limit_is_refused_even_if_all_of_it_is_there(whole: bool, framing: bytes) -> None:
    async def scenario() -> None:
        async with rig() as r:
            connection, wire = await r.connect()
            start(r.origin, connection, limit=3000)
            await wire.read_request()
            wire.send(HEAD + framing + b"\r\n\r\n" + b"x" * 3001)
            with pytest.raises(AnswerTooLarge, match="3000 bytes"):
                await (connection.all() if whole else connection.some())
            connection.release()
            assert r.origin.open_connections == 0
            await wire.read_end()

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
