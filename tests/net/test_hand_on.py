"""What `hand_on` hands on from where it arrives, and what it leaves to whoever waits."""

import asyncio

import pytest
from upstream_rig import CHUNKED, both_loops, rig, run, start, turn, until

from forebay.core.errors import UpstreamReset

END = b"0\r\n\r\n"


def frame(piece: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(piece), piece)


@both_loops
def test_pieces_are_handed_on_as_they_come_and_the_end_is_left(loop_name: str) -> None:
    async def scenario() -> None:
        async with rig() as r:
            connection, wire = await r.connect()
            start(r.origin, connection)
            await wire.read_request()
            wire.send(CHUNKED + frame(b"first"))
            assert await connection.some() == b"first"
            taken: list[bytes] = []

            def take(data: bytes) -> bool:
                taken.append(data)
                return True

            handing = asyncio.ensure_future(connection.hand_on(take))
            await turn()  # else the first piece may come before it waits
            for number in range(1, 6):
                wire.send(frame(b"%d" % number))
                await until(lambda number=number: len(taken) == number)  # type: ignore[misc]
                assert not handing.done()
            wire.send(frame(b"last") + END)
            await handing
            assert taken == [b"1", b"2", b"3", b"4", b"5"]
            assert await connection.some() == b"last"
            assert await connection.some() == b""
            await connection.hand_on(take)  # there is nothing to wait for
            connection.release()
            assert len(taken) == 5

    run(scenario, loop_name)


@both_loops
def test_what_a_taker_gives_back_comes_first_and_nothing_is_lost(loop_name: str) -> None:
    async def scenario() -> None:
        async with rig() as r:
            connection, wire = await r.connect()
            start(r.origin, connection)
            await wire.read_request()
            wire.send(CHUNKED)
            taken: list[bytes] = []

            def take(data: bytes) -> bool:
                if len(taken) == 2:
                    connection.put_back(data)
                    return False
                taken.append(data)
                return True

            handing = asyncio.ensure_future(connection.hand_on(take))
            await turn()
            for number in range(2):
                wire.send(frame(b"%d" % number))
                await until(lambda number=number: len(taken) == number + 1)  # type: ignore[misc]
            wire.send(frame(b"2"))
            await handing
            wire.send(frame(b"3") + END)
            rest = b""
            while data := await connection.some():
                rest += data
            assert (taken, rest) == ([b"0", b"1"], b"23")

    run(scenario, loop_name)


@both_loops
def test_a_target_that_goes_in_the_middle_is_told_behind_what_came(loop_name: str) -> None:
    async def scenario() -> None:
        async with rig() as r:
            connection, wire = await r.connect()
            start(r.origin, connection)
            await wire.read_request()
            wire.send(CHUNKED)
            taken: list[bytes] = []
            handing = asyncio.ensure_future(connection.hand_on(lambda data: not taken.append(data)))
            await turn()
            wire.send(frame(b"half"))
            await until(lambda: taken == [b"half"])
            wire.close()
            await handing
            with pytest.raises(UpstreamReset):
                await connection.some()
            connection.abort()

    run(scenario, loop_name)
