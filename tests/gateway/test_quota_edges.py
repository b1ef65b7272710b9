"""Workers and the authority at the edges: a disk that refuses, frames too long, limits that come and go."""

import asyncio
import os
import struct

import msgspec
import pytest
from test_quota import (
    LONG_GRACE_S,
    PLACES,
    REQUESTS,
    TOKENS,
    end,
    key,
    make_request,
    pause,
    run,
    try_many,
    world,
)

from forebay.core.errors import QuotaUnavailable
from forebay.core.events import Tokens
from forebay.core.limits import Limit, Measure, Period, WhenAway
from forebay.gateway.frames import FRAME_MAX_BYTES, FrameSplitter
from forebay.gateway.quota_wire import HELD_MAX


@pytest.mark.parametrize("late", [False, True], ids=["at once", "late"])
def test_a_disk_that_refuses_ends_the_line_and_no_request_waits_for_ever(late: bool) -> None:
    """What can't be written down is not lent, also in an answer that had to wait."""

    async def test() -> None:
        async with world(REQUESTS) as made:
            if late:
                made.stop_server()
                await made.start_server(grace=True)
            quota = await made.add_worker(WhenAway.CLOSED)
            file = made.folder / "state"
            full = os.open("/dev/full", os.O_RDWR)
            descriptor = find_descriptor(file)
            kept = os.dup(descriptor)
            os.dup2(full, descriptor)  # from here on the disk is full
            begun = asyncio.get_running_loop().time()
            with pytest.raises(QuotaUnavailable):
                await quota.acquire(make_request(), quota.find_plan(key(made), "m"))
            assert asyncio.get_running_loop().time() - begun < LONG_GRACE_S + 10
            assert quota._leases["requests"].left <= 0
            os.dup2(kept, descriptor)  # and there is room again
            os.close(kept)
            os.close(full)
            await pause(0.01)  # until the worker has seen that its line is gone
            await made.wait_for_lines()
            assert len(await try_many(made, 150, [quota])) == 100

    run(test)


def find_descriptor(path: object) -> int:
    """Of this process, by which a file is open."""
    wanted = os.stat(str(path))
    for name in os.listdir("/proc/self/fd"):
        try:
            found = os.fstat(int(name))
        except OSError:
            continue
        if (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino):
            return int(name)
    raise LookupError(f"{path} is not open")


def test_a_frame_that_is_too_long_ends_its_line_alone() -> None:
    async def test() -> None:
        async with world(REQUESTS) as made:
            quota = await made.add_worker()
            reader, writer = await asyncio.open_unix_connection(str(made.folder / "s"))
            writer.write(struct.pack("<I", FRAME_MAX_BYTES + 1) + b"x" * 1000)
            assert await asyncio.wait_for(reader.read(), 5) == b"", "it is closed, and not waited for"
            writer.close()
            assert len(await try_many(made, 100, [quota])) == 100

    run(test)


def test_a_frame_may_be_as_long_as_it_may_be_in_whatever_pieces() -> None:
    frame = struct.pack("<I", FRAME_MAX_BYTES) + bytes(FRAME_MAX_BYTES)
    splitter = FrameSplitter()
    found = [
        payload for at in range(0, len(frame), 300_000) for payload in splitter.feed(frame[at : at + 300_000])
    ]
    assert [len(payload) for payload in found] == [FRAME_MAX_BYTES]


def test_whoever_holds_of_very_many_limits_says_so_in_several_frames() -> None:
    count = 2 * HELD_MAX + 7
    limits = tuple(
        Limit(id=f"{'l' * 200}{number}", owner="team a", measure=Measure.CONCURRENT, amount=2)
        for number in range(count)
    )

    async def test() -> None:
        async with world(*limits) as made:
            quota = await made.add_worker()
            request = make_request()
            request.key = key(made)
            await quota.acquire(request, quota.find_plan(request.key, "m"))
            assert {left for _, left in made.server.list_left()} == {1}
            made.stop_server()
            await made.start_server()
            await made.reconnect()
            async with asyncio.timeout(60):
                while {left for _, left in made.server.list_left()} != {1}:
                    await asyncio.sleep(0.01)  # until each place that is in use was told
            quota.settle(request)
            quota._return(quota._leases.values())
            async with asyncio.timeout(60):
                while {left for _, left in made.server.list_left()} != {2}:
                    await asyncio.sleep(0.01)

    run(test)


@pytest.mark.parametrize("when_away", list(WhenAway))
def test_the_first_limits_of_a_running_gateway_hold_from_the_first_request_on(when_away: WhenAway) -> None:
    """It has no line yet when they come: no request is refused, or let in for nothing, for that."""

    async def test() -> None:
        async with world(REQUESTS) as made:
            made.limits = ()
            quotas = [await made.add_worker(when_away) for _ in range(3)]
            await pause(0.1)
            made.limits = (REQUESTS,)
            for quota in quotas:
                quota.set_limits(made.limits, when_away, 3)
            assert len(await try_many(made, 150, quotas)) == 100
            assert made.server.list_left()[0][1] == 0

    run(test)


@pytest.mark.parametrize("told", ["workers", "authority", "both"])
def test_places_of_a_limit_that_goes_and_comes_again_are_those_of_requests_that_go_on(told: str) -> None:
    async def test() -> None:
        async with world(PLACES) as made:
            quotas = [await made.add_worker() for _ in range(2)]
            held = await try_many(made, 4, [quotas[0]])
            assert len(held) == 4
            for limits in ((), made.limits):
                if told != "workers":
                    made.server.set_limits(limits)
                if told != "authority":
                    for quota in quotas:
                        quota.set_limits(limits, WhenAway.SHARE, 2)
                await pause(0.05)
            for quota in quotas:
                quota.sweep()
            await pause(0.05)
            more = await try_many(made, 5, [quotas[1]])
            assert len(more) <= 1, "four are in use"
            for request in held:
                quotas[0].settle(request)
            for request in more:
                quotas[1].settle(request)
            for quota in quotas:
                quota._return(quota._leases.values())
            await pause(0.05)
            assert made.server.list_left()[0][1] == 5, "and none is lost"

    run(test)


@pytest.mark.parametrize("told", ["workers", "authority", "both"])
def test_an_overspend_is_charged_to_a_limit_that_went_and_came_again(
    told: str,
) -> None:
    async def test() -> None:
        async with world(TOKENS) as made:
            quota = await made.add_worker()
            (request,) = await try_many(made, 1, [quota], size=4, body=b'{"max_tokens":9}')
            for limits in ((), made.limits):
                if told != "workers":
                    made.server.set_limits(limits)
                if told != "authority":
                    quota.set_limits(limits, WhenAway.SHARE, 4)
                await pause(0.05)
            end(quota, request, Tokens(input=1, output=4999))
            quota.sweep()
            quota._return(quota._leases.values())
            await pause(0.05)
            assert made.server.list_left()[0][1] == 5000
            assert len(await try_many(made, 100, [quota], size=4, body=b'{"max_tokens":99}')) == 50

    run(test)


def test_a_bucket_that_went_and_came_again_has_not_filled_by_that() -> None:
    async def test() -> None:
        hourly = Limit(id="x", owner="team a", measure=Measure.REQUESTS, amount=50, period=Period.HOUR)
        async with world(hourly) as made:
            quota = await made.add_worker()
            assert len(await try_many(made, 50, [quota])) == 50
            for limits in ((), (msgspec.structs.replace(hourly, amount=60),)):
                made.server.set_limits(limits)
                quota.set_limits(limits, WhenAway.SHARE, 4)
            assert not await try_many(made, 20, [quota])

    run(test)
