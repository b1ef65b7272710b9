"""Gathers texts of concurrent requests into batches for a model that runs in a thread.

`choose_batch` decides and is pure; `Batcher` carries it out.  Knows nothing of HTTP, and of the model only
that a batch costs as many tokens as its longest text times its texts.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import msgspec

from forebay.core.errors import Overloaded

TokenIds = Sequence[int]
Row = Any  #: one text's vector
WASTE_MAX: Final = 0.25  #: share of a batch that may be padding


class BatchLimits(msgspec.Struct, frozen=True, kw_only=True):
    batch_max: int = 32  #: texts in one run
    #: Tokens in one run, padding included.  More make a run no cheaper, but everybody else wait longer.
    padded_tokens_max: int = 512
    waiting_max: int = 8192  #: texts of all requests that wait; beyond that a request is refused
    gather_s: float = 0.001  #: an idle model waits so long for company of the first text


class Job:
    """The texts of one request, the short ones first, and the vectors that have come."""

    def __init__(self, texts: Sequence[TokenIds], done: asyncio.Future[list[Row]]) -> None:
        self.texts = texts
        self.waiting = deque(sorted(range(len(texts)), key=lambda index: len(texts[index])))
        self.rows: list[Row] = [None] * len(texts)
        self.missing = len(texts)
        self.done = done

    @property
    def next_length(self) -> int:
        return len(self.texts[self.waiting[0]])

    def absorb(self, index: int, row: Row) -> None:
        self.rows[index] = row
        self.missing -= 1
        if self.missing == 0 and not self.done.done():
            self.done.set_result(self.rows)


def choose_batch(jobs: Sequence[Job], limits: BatchLimits) -> list[tuple[Job, int]]:
    """The texts of the next run, taken out of their jobs: the first job's shortest, and whatever fits it.

    Every job gives one text in turn, so a long job delays a short one by a fraction.  A text longer than a
    whole run's tokens runs alone.
    """
    chosen: list[tuple[Job, int]] = []
    longest = tokens = 0
    given = True
    while given:
        given = False
        for job in jobs:
            if not job.waiting or len(chosen) == limits.batch_max:
                continue
            length = job.next_length
            padded = max(longest, length) * (len(chosen) + 1)
            waste = padded - tokens - length
            if chosen and (padded > limits.padded_tokens_max or waste > WASTE_MAX * padded):
                continue
            chosen.append((job, job.waiting.popleft()))
            longest, tokens, given = max(longest, length), tokens + length, True
    return chosen


class Batcher:
    """Runs `embed` in a thread of its own, one batch at a time.  `submit` ends only while `run` runs."""

    def __init__(
        self,
        embed: Callable[[Sequence[TokenIds]], Sequence[Row]],
        limits: BatchLimits,
        observe: Callable[[int, int], None] = lambda texts, padded_tokens: None,
    ) -> None:
        """`observe` is told each batch's texts and tokens, padding included."""
        self._embed = embed
        self._observe = observe
        self._limits = limits
        self._jobs: deque[Job] = deque()
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="embed")

    @property
    def waiting(self) -> int:
        return sum(len(job.waiting) for job in self._jobs)

    async def submit(self, texts: Sequence[TokenIds]) -> list[Row]:
        """One vector for each text, in order.  Cancelling takes back what has not begun.

        Raises:
            Overloaded: too many texts wait already.
        """
        if self._jobs and self.waiting + len(texts) > self._limits.waiting_max:
            raise Overloaded(
                f"{self.waiting} texts wait already. Try again later, or run more of this engine.",
                retry_after_s=1,
            )
        job = Job(texts, asyncio.get_running_loop().create_future())
        self._jobs.append(job)
        self._arrived.set()
        return await job.done

    async def run(self) -> None:
        """Works off the jobs until it is cancelled."""
        while True:
            if not self._jobs:
                self._arrived.clear()
                await self._arrived.wait()
                await asyncio.sleep(self._limits.gather_s)
            self._jobs = deque(job for job in self._jobs if job.waiting and not job.done.done())
            if not self._jobs:
                continue
            batch = choose_batch(self._jobs, self._limits)
            self._jobs.rotate(-1)  # another job is first the next time
            await self._run_batch(batch)

    async def _run_batch(self, batch: Sequence[tuple[Job, int]]) -> None:
        sequences = [job.texts[index] for job, index in batch]
        loop = asyncio.get_running_loop()
        try:
            rows = await loop.run_in_executor(self._thread, self._embed, sequences)
        except Exception as error:  # noqa: BLE001  whatever the model does, the others must go on
            for job, _ in batch:
                if not job.done.done():
                    job.done.set_exception(error)
            return
        self._observe(len(batch), len(batch) * max(map(len, sequences)))
        for (job, index), row in zip(batch, rows, strict=True):
            job.absorb(index, row)
