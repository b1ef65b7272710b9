"""Runs the batches of this machine: begins each, tells it when to stop, and begins those anew that failed.

It looks at the database once a second, and at once when it is told to, so a batch needs nobody to hand it
over: what is unfinished there is run.
"""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from forebay.batch.model import BatchNotThere, BatchRecord, Counts, Status
from forebay.batch.policy import Stop
from forebay.batch.run import Parts, Run
from forebay.core.errors import ForebayError

LOOK_S: Final = 1.0
RUNS_MAX: Final = 256  #: batches that are run at once; more wait in their state
AGAIN_S: Final = 5.0  #: before a batch whose run failed is begun anew

logger = logging.getLogger("forebay.batch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What all batches are doing, for metrics."""

    batches: int
    waiting: int
    in_flight: int
    unwritten: int  #: of those, that wait for the disk
    oldest_ns: int | None  #: when the oldest unfinished batch was created
    completed: int  #: lines that were written since the start of this process
    failed: int


class Runner:
    """See the module."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._runs: dict[str, Run] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._not_before: dict[str, float] = {}
        self._saved: dict[str, Counts] = {}
        self._written = Counts()  # of runs that have ended
        self._base: dict[str, Counts] = {}
        self._woken = asyncio.Event()
        self._is_ending = False
        self._unfinished: list[BatchRecord] = []
        self._loop = asyncio.get_running_loop()

    def wake(self) -> None:
        """There may be something new."""
        self._woken.set()

    def find_counts(self, record: BatchRecord) -> Counts:
        """How far a batch is: as its run knows, where it is running."""
        run = self._runs.get(record.id)
        return record.counts if run is None else run.counts

    def measure(self) -> Standing:
        completed, failed = self._written.completed, self._written.failed
        for id, run in self._runs.items():
            base = self._base.get(id, Counts())
            completed += max(0, run.counts.completed - base.completed)
            failed += max(0, run.counts.failed - base.failed)
        return Standing(
            batches=len(self._unfinished),
            waiting=sum(run.waiting for run in self._runs.values()),
            in_flight=sum(run.in_flight for run in self._runs.values()),
            unwritten=sum(run.unwritten for run in self._runs.values()),
            oldest_ns=min((record.created_ns for record in self._unfinished), default=None),
            completed=completed,
            failed=failed,
        )

    async def run(self) -> None:
        """Until `end`."""
        is_told = False
        while not self._is_ending:
            self._woken.clear()
            try:
                await self._look()
                is_told = False
            except ForebayError as error:
                if not is_told:
                    logger.error("batches can't be looked at: %s", error)
                is_told = True
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._woken.wait()
        for run in self._runs.values():
            run.end()
        if self._tasks:
            await asyncio.wait(self._tasks.values())
        with suppress(ForebayError):
            await self._save_counts()

    def end(self) -> None:
        """Lets what is in flight finish for a moment; all else is left as it is, for the next start."""
        self._is_ending = True
        self._woken.set()

    async def _look(self) -> None:
        found = await asyncio.to_thread(self._parts.batches.list_unfinished, self._parts.disk.store)
        self._unfinished = found
        await self._save_counts()
        for record in found:
            run = self._runs.get(record.id)
            if run is None:
                run = self._begin(record)
            if run is not None:
                self._stop_if_due(record, run)

    def _begin(self, record: BatchRecord) -> Run | None:
        if len(self._runs) >= RUNS_MAX or self._loop.time() < self._not_before.get(record.id, 0.0):
            return None
        run = self._runs[record.id] = Run(record, self._parts)
        self._base[record.id] = record.counts
        self._tasks[record.id] = self._loop.create_task(self._carry(run))
        return run

    def _stop_if_due(self, record: BatchRecord, run: Run) -> None:
        if record.status is Status.CANCELLING:
            run.stop(Stop.CANCELLED)
        elif record.status is Status.FINALIZING:
            return
        elif self._parts.clock.wall_ns() >= record.expires_ns:
            run.stop(Stop.EXPIRED)
        elif not self._parts.rights.is_live(record.key):
            run.stop(Stop.KEY_ENDED)

    async def _carry(self, run: Run) -> None:
        id = run.record.id
        try:
            await run.go()
            self._not_before.pop(id, None)
        except BatchNotThere:
            pass
        except Exception as error:  # the outer edge of one batch: the others go on, and it is begun anew
            known = isinstance(error, ForebayError)
            logger.error("the batch %s waits: %s", id, error, exc_info=None if known else error)
            self._not_before[id] = self._loop.time() + AGAIN_S
        finally:
            base, counts = self._base.pop(id, Counts()), run.counts
            self._written = Counts(
                completed=self._written.completed + max(0, counts.completed - base.completed),
                failed=self._written.failed + max(0, counts.failed - base.failed),
            )
            del self._runs[id], self._tasks[id]
            self._saved.pop(id, None)
            self.wake()

    async def _save_counts(self) -> None:
        """So that the database is a second behind at most: the journal knows exactly."""
        for id, counts in tuple(self._list_changed()):
            await asyncio.to_thread(self._parts.batches.save_counts, id, counts)
            self._saved[id] = counts

    def _list_changed(self) -> Iterator[tuple[str, Counts]]:
        for id, run in self._runs.items():
            if run.record.status is Status.IN_PROGRESS and self._saved.get(id) != run.counts:
                yield id, run.counts
