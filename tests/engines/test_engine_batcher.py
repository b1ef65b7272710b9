"""Batches: every text once, within the limits, and nobody waits for ever behind somebody else's pile."""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.core.errors import Overloaded
from forebay.engines.batcher import WASTE_MAX, Batcher, BatchLimits, Job, choose_batch

piles = st.lists(st.lists(st.integers(1, 256), min_size=1, max_size=40), min_size=1, max_size=6)
limits = st.builds(BatchLimits, batch_max=st.integers(1, 40), padded_tokens_max=st.integers(1, 2000))


def in_a_loop(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    @functools.wraps(test)
    def run() -> None:
        asyncio.run(test())

    return run


def make_jobs(pile: list[list[int]]) -> list[Job]:
    loop = asyncio.new_event_loop()
    try:
        return [Job([range(length) for length in lengths], loop.create_future()) for lengths in pile]
    finally:
        loop.close()


@given(piles, limits)
def test_every_text_is_chosen_once_within_the_limits(pile: list[list[int]], bounds: BatchLimits) -> None:
    jobs = make_jobs(pile)
    seen: list[tuple[int, int]] = []
    while waiting := [job for job in jobs if job.waiting]:
        batch = choose_batch(waiting, bounds)
        assert 1 <= len(batch) <= bounds.batch_max
        lengths = [len(job.texts[index]) for job, index in batch]
        padded = max(lengths) * len(lengths)
        assert len(batch) == 1 or padded <= bounds.padded_tokens_max
        assert padded - sum(lengths) <= WASTE_MAX * padded
        seen += [(jobs.index(job), index) for job, index in batch]
    assert sorted(seen) == [(j, i) for j, lengths in enumerate(pile) for i in range(len(lengths))]


@given(piles, limits)
def test_the_first_job_always_gets_on(pile: list[list[int]], bounds: BatchLimits) -> None:
    jobs = make_jobs(pile)
    assert choose_batch(jobs, bounds)[0][0] is jobs[0]


def double(batch: Sequence[Sequence[int]]) -> list[int]:
    return [2 * ids[0] for ids in batch]


@in_a_loop
async def test_concurrent_requests_get_their_own_rows_in_order() -> None:
    sizes: list[int] = []
    bounds = BatchLimits(batch_max=8)
    batcher = Batcher(double, bounds, lambda texts, padded_tokens: sizes.append(texts))
    async with asyncio.TaskGroup() as tasks:
        worker = tasks.create_task(batcher.run())
        asked = [[[10 * r + i] * (1 + (7 * i) % 5) for i in range(r + 1)] for r in range(12)]
        answers = await asyncio.gather(*(batcher.submit(texts) for texts in asked))
        worker.cancel()
    assert answers == [[2 * ids[0] for ids in texts] for texts in asked]
    assert sum(sizes) == sum(map(len, asked))
    assert len(sizes) < sum(sizes), "nothing was batched"


@in_a_loop
async def test_a_failing_batch_fails_its_requests_and_no_other() -> None:
    def fail_at_zero(batch: Sequence[Sequence[int]]) -> list[int]:
        if any(ids[0] == 0 for ids in batch):
            raise ValueError("zero")
        return double(batch)

    batcher = Batcher(fail_at_zero, BatchLimits(batch_max=1))
    async with asyncio.TaskGroup() as tasks:
        worker = tasks.create_task(batcher.run())
        answers = await asyncio.gather(batcher.submit([[0]]), batcher.submit([[1]]), return_exceptions=True)
        assert await batcher.submit([[2]]) == [4]
        worker.cancel()
    assert [type(answer) for answer in answers] == [ValueError, list]


@in_a_loop
async def test_a_request_that_was_given_up_is_not_worked_off() -> None:
    ran: list[int] = []

    def record(batch: Sequence[Sequence[int]]) -> list[int]:
        ran.extend(ids[0] for ids in batch)
        return double(batch)

    batcher = Batcher(record, BatchLimits(batch_max=1))
    given_up = asyncio.ensure_future(batcher.submit([[7]] * 50))
    await asyncio.sleep(0)
    given_up.cancel()
    async with asyncio.TaskGroup() as tasks:
        worker = tasks.create_task(batcher.run())
        assert await batcher.submit([[1]]) == [2]
        worker.cancel()
    assert ran == [1]
    assert batcher.waiting == 0


@in_a_loop
async def test_more_than_may_wait_is_refused_but_one_large_request_is_not() -> None:
    batcher = Batcher(double, BatchLimits(waiting_max=10))
    first = asyncio.ensure_future(batcher.submit([[1]] * 20))
    await asyncio.sleep(0)
    with pytest.raises(Overloaded) as refused:
        await batcher.submit([[1]])
    assert refused.value.retry_after_s == 1
    async with asyncio.TaskGroup() as tasks:
        worker = tasks.create_task(batcher.run())
        assert await first == [2] * 20
        worker.cancel()
