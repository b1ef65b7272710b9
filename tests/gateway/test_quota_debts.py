"""What a worker owes is told until it is written down, and counts once, whatever fails meanwhile."""

import asyncio
import errno
import os

import pytest
from test_quota import DAY, REQUESTS, end, key, make_request, pause, run, world

from forebay.core.events import Tokens
from forebay.core.limits import Limit, Measure
from forebay.gateway.frames import FRAME_MAX_BYTES
from forebay.gateway.quota import Quota
from forebay.gateway.quota_wire import Held, Hello, Return, cut, encode_frame

TOKENS = Limit(id="tokens", owner="team a", measure=Measure.TOTAL_TOKENS, amount=100_000, **DAY)


class Full:
    """A disk that takes nothing."""

    def __init__(self) -> None:
        self.tries = 0

    def __call__(self, fd: int, data: bytes, at: int) -> int:
        self.tries += 1
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def make_many(count: int) -> tuple[Limit, ...]:
    return tuple(
        Limit(id=f"t{number:04}", owner="k", measure=Measure.TOTAL_TOKENS, amount=1000, **DAY)
        for number in range(count)
    )


async def sweep(quota: Quota, seconds: float) -> None:
    for _ in range(round(seconds / 0.05)):
        quota.sweep()
        await pause(0.05)


def test_a_debt_that_the_disk_refuses_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with world(TOKENS) as made:
            quota = await made.add_worker(workers=1)
            request = make_request(size=40, body=b'{"max_tokens":990}')
            await quota.acquire(request, quota.find_plan(key(made), "m"))
            full = Full()
            with monkeypatch.context() as patch:
                patch.setattr(os, "pwrite", full)
                end(quota, request, Tokens(input=10, output=1990))
                await sweep(quota, 2.5)
            assert full.tries in range(1, 5), "a worker is not welcomed all the time to tell what is refused"
            await made.wait_for_lines()
            await sweep(quota, 0.2)
            assert made.server.list_left()[0][1] + max(0, quota._leases["tokens"].left) == 98_000
            assert not quota._untold

    run(test)


def test_what_the_disk_refused_to_lend_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with world(REQUESTS) as made:
            quota = await made.add_worker(workers=1)
            with monkeypatch.context() as patch:
                patch.setattr(os, "pwrite", Full())
                request = make_request()
                await quota.acquire(request, quota.find_plan(key(made), "m"))  # by the worker's share
                await pause(0.05)
                assert made.server.list_left()[0][1] == 100
            await made.wait_for_lines()
            await sweep(quota, 0.2)
            assert made.server.list_left()[0][1] + max(0, quota._leases["requests"].left) == 99

    run(test)


def test_debts_of_very_many_limits_are_told_again_each_by_its_own_number() -> None:
    """The line breaks when the first frame has arrived, and none of the second."""

    async def test() -> None:
        async with world(*make_many(1500)) as made:
            quota = await made.add_worker(workers=1)
            await made.wait_for_lines()
            for lease in quota._leases.values():
                lease.left = -5
            send, sent = quota._client.send, 0

            def send_first(message: object) -> None:
                nonlocal sent
                sent += isinstance(message, Return)
                if sent < 2 or not isinstance(message, Return):
                    send(message)  # type: ignore[arg-type]

            quota._client.send = send_first  # type: ignore[method-assign]
            quota._return(quota._leases.values())
            assert sorted(map(len, quota._untold.values())) == [500, 1000]
            while len(quota._untold) == 2:
                await asyncio.sleep(0.01)
            quota._client.send = send  # type: ignore[method-assign]
            quota._client._line.drop()
            await made.reconnect()
            await made.wait_for_lines()
            while quota._untold:
                await asyncio.sleep(0.01)
            assert {left for _, left in made.server.list_left()} == {995}

    run(test)


def test_a_debt_whose_note_was_lost_is_told_again_and_counts_once() -> None:
    async def test() -> None:
        async with world(TOKENS, REQUESTS) as made:
            quota = await made.add_worker(workers=1)
            quota._leases["tokens"].left = -5
            quota.note = lambda number: None  # type: ignore[method-assign]
            quota._return([quota._leases["tokens"]])
            await pause(0.05)
            assert list(quota._untold) == [1]
            del quota.note  # type: ignore[method-assign]
            for _ in range(2):
                quota._client._line.drop()
                await made.reconnect()
                await made.wait_for_lines()
            quota._leases["tokens"].left = -7
            quota._return([quota._leases["tokens"]])
            while quota._untold:
                await asyncio.sleep(0.01)
            assert {limit.id: left for limit, left in made.server.list_left()}["tokens"] == 99_988

    run(test)


@pytest.mark.parametrize(("length", "parts"), [(10, 3), (4000, 32), (300_000, 2500)])
def test_what_is_said_of_many_limits_fits_into_frames_however_long_their_ids(length: int, parts: int) -> None:
    held = [Held("é" * (length - 4) + f"{number:04}", 2**62, -(2**62)) for number in range(2500)]
    found = tuple(cut(held, lambda each: each.limit_id))
    assert len(found) in range(parts, parts * 2)
    assert [each for part in found for each in part] == held
    for part in found[:5]:
        assert len(encode_frame(Hello("w", part))) < FRAME_MAX_BYTES


def test_a_worker_that_holds_of_limits_with_long_ids_is_back_after_its_line_broke() -> None:
    async def test() -> None:
        models = ",".join(f"vendor-name/some-quite-long-model-name-{number:03}" for number in range(100))
        limits = tuple(
            Limit(id=f"{number}:{models}", owner="k", measure=Measure.REQUESTS, amount=1000, **DAY)
            for number in range(1000)
        )
        async with world(*limits) as made:
            quota = await made.add_worker(workers=1)
            for lease in quota._leases.values():
                lease.left = 5
            quota._client._line.drop()
            await made.reconnect()
            await made.wait_for_lines()
            quota.sweep()
            assert quota._client.is_connected

    run(test)
