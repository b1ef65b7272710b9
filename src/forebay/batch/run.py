"""One batch on its way from its input file to its output file.

What it has done lies in its journal, so it may be ended at any time and begun anew: a line that has an answer
there is never asked again.  The decisions are `policy`'s.
"""

import asyncio
import heapq
import logging
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

from forebay.batch.asker import Asker
from forebay.batch.disk import Disk, measure_file
from forebay.batch.journal import Input, Journal, validate
from forebay.batch.lines import Checker, Explain, read_body, write_reply, write_stop
from forebay.batch.model import (
    PURPOSE_OUTPUT,
    BatchRecord,
    Counts,
    DiskRefuses,
    FileRecord,
    LineError,
    Status,
)
from forebay.batch.policy import (
    FINAL,
    STOP_WORDS,
    Again,
    Answered,
    Happening,
    KeyUnknown,
    Refused,
    Stop,
    Window,
    judge,
)
from forebay.batch.repo_batches import BatchRepo
from forebay.batch.settings import BatchSettings
from forebay.core.clock import Clock

DISK_PAUSE_S: Final = 1.0  #: between two tries to write what the disk refuses
KEY_PAUSE_S: Final = 1.0  #: before a line is asked again whose key a worker does not know yet
STOPS_AT_ONCE: Final = 1000  #: lines that get an error before others have a turn

logger = logging.getLogger("forebay.batch")


class Rights(Protocol):
    """What keys may do, as the gateway's snapshot says."""

    def explain(self, key: str, endpoint: str) -> Explain: ...
    def is_live(self, key: str) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What all runs share."""

    batches: BatchRepo
    disk: Disk
    asker: Asker
    rights: Rights
    settings: BatchSettings
    clock: Clock
    slots: asyncio.Semaphore  #: of lines that are asked at once; whoever waits longest is next
    load: "Load"


@dataclass(slots=True)
class Load:
    """What all runs hold together."""

    in_flight: int = 0
    bytes: int = 0


class Run:
    """See the module."""

    def __init__(self, record: BatchRecord, parts: Parts) -> None:
        self.record = record
        self.counts = record.counts
        self._parts = parts
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._stopping = asyncio.Event()
        self._ending = asyncio.Event()
        self._stop: Stop | None = None
        self._window = Window(parts.settings.requests_max_per_batch)
        self._pause_until = 0.0
        self._pending: deque[int] = deque()
        self._later: list[tuple[float, int]] = []
        self._tries: dict[int, tuple[int, int]] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self.unwritten = 0  #: lines that wait for the disk

    # --- from outside ---------------------------------------------------------------------------------------

    def stop(self, reason: Stop) -> None:
        """Asks no other line; the first reason holds."""
        if self._stop is None:
            self._stop = reason
        self._stopping.set()
        self._changed.set()

    def end(self) -> None:
        """The process ends: asks no other line, and leaves the batch as it is."""
        self._ending.set()
        self._stopping.set()
        self._changed.set()

    @property
    def waiting(self) -> int:
        return len(self._pending) + len(self._later)

    @property
    def in_flight(self) -> int:
        return len(self._tasks)

    # --- its way --------------------------------------------------------------------------------------------

    async def go(self) -> None:
        """Until it has ended, or `end`.  Raises StoreError, DiskRefuses: it is to be begun anew then."""
        while self.record.status not in FINAL and not self._ending.is_set():
            match self.record.status:
                case Status.VALIDATING:
                    await self._validate()
                case Status.FINALIZING:
                    await self._finish(Happening.WRITTEN)
                case Status.CANCELLING if Status.IN_PROGRESS not in self.record.times:
                    await self._move(Happening.WRITTEN)  # it was never begun
                case _:
                    await self._work()

    async def _validate(self) -> None:
        record, parts = self.record, self._parts
        if not parts.rights.is_live(record.key):
            self.stop(Stop.KEY_ENDED)
        if self._stop is not None:
            await self._move(_HAPPENINGS[self._stop])
            return
        checker = Checker(record.endpoint, parts.rights.explain(record.key, record.endpoint))
        count, errors = await asyncio.to_thread(
            validate, parts.disk.path(record.input_file), checker, parts.settings
        )
        if errors:
            await self._move(Happening.INVALID, errors=errors)
        else:
            self.counts = Counts(total=count)
            await self._move(Happening.VALID)

    async def _work(self) -> None:
        record, parts = self.record, self._parts
        if record.status is Status.CANCELLING:
            self.stop(Stop.CANCELLED)
        disk = parts.disk
        try:
            lines = await asyncio.to_thread(Input, disk.path(record.input_file))
        except DiskRefuses:
            if self._stop is None:
                raise
            await self._finish(_HAPPENINGS[self._stop])  # without its input it can still end
            return
        try:
            journal = await asyncio.to_thread(
                Journal, disk.path(record.output_file), disk.path(record.error_file)
            )
        except BaseException:
            lines.close()
            raise
        try:
            self._count(lines, journal)
            self._pending = deque(number for number in lines.numbers if number not in journal.done)
            try:
                await self._ask_all(lines, journal)
            finally:
                await self._end_tasks()
            if self._ending.is_set():
                return
            if self._stop is not None and not await self._write_stops(lines, journal, self._stop):
                return
        finally:
            self._pending.clear()
            self._later.clear()
            lines.close()
            journal.close()
        if self._stop is None:
            await self._move(Happening.ALL_DONE)
        else:
            await self._finish(_HAPPENINGS[self._stop])

    def _count(self, lines: Input, journal: Journal) -> None:
        self.counts = Counts(total=len(lines.numbers), completed=journal.completed, failed=journal.failed)

    # --- its lines ------------------------------------------------------------------------------------------

    async def _ask_all(self, lines: Input, journal: Journal) -> None:
        """Until all are written, or it is stopped."""
        while self._stop is None and not self._ending.is_set():
            self._changed.clear()
            now = self._loop.time()
            while self._later and self._later[0][0] <= now:
                self._pending.appendleft(heapq.heappop(self._later)[1])
            if not (self._pending or self._later or self._tasks):
                return
            pause_s = self._find_pause(lines, now)
            if pause_s is None:
                await self._start_next(lines, journal)
                continue
            try:
                async with asyncio.timeout(pause_s if pause_s > 0 else None):
                    await self._changed.wait()
            except TimeoutError:
                pass

    def _find_pause(self, lines: Input, now: float) -> float | None:
        """Seconds until something may be begun, 0 until something changes; None: now."""
        load, settings = self._parts.load, self._parts.settings
        if len(self._tasks) >= self._window.size:
            return 0
        if not self._pending:
            return max(0.01, self._later[0][0] - now) if self._later else 0
        if now < self._pause_until:
            return self._pause_until - now
        is_too_much = load.bytes + lines.measure(self._pending[0]) > settings.in_flight_max_bytes
        return 0.1 if is_too_much and load.in_flight else None

    async def _start_next(self, lines: Input, journal: Journal) -> None:
        load = self._parts.load
        slots = self._parts.slots
        stopping = asyncio.ensure_future(self._stopping.wait())
        taking = asyncio.ensure_future(slots.acquire())
        try:
            await asyncio.wait({stopping, taking}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            if not taking.done():
                taking.cancel()
            await asyncio.gather(stopping, taking, return_exceptions=True)
        if taking.cancelled():
            return
        if self._stopping.is_set() or not self._pending or len(self._tasks) >= self._window.size:
            slots.release()  # a line that came back meanwhile may have made the window smaller
            return
        number = self._pending.popleft()
        size = lines.measure(number)
        load.in_flight += 1
        load.bytes += size
        task = self._loop.create_task(self._ask(number, lines, journal))
        self._tasks[number] = task

        def settle(_: "asyncio.Task[None]") -> None:
            del self._tasks[number]
            load.in_flight -= 1
            load.bytes -= size
            slots.release()
            self._changed.set()

        task.add_done_callback(settle)

    async def _ask(self, number: int, lines: Input, journal: Journal) -> None:
        record, parts = self.record, self._parts
        try:
            custom_id, body = read_body(lines.read(number))
            mark = f"{record.id}/{number}"
            reply = await parts.asker.ask(record.key, record.endpoint, body, mark)
            tries, waits = self._tries.get(number, (0, 0))
            match judge(reply, tries, waits, parts.settings.attempts_max):
                case Answered() | Refused() as verdict:
                    self._window.succeed()
                    line = write_reply(record.id, number, custom_id, reply)
                    await self._write(journal, number, line, is_error=isinstance(verdict, Refused))
                    self._tries.pop(number, None)
                    self._count(lines, journal)
                case Again(after_s, is_full=is_full, counts=counts):
                    self._tries[number] = (tries + counts, waits + 1)
                    self._ask_later(number, after_s)
                    if is_full:
                        self._window.shrink()
                        self._pause_until = max(self._pause_until, self._loop.time() + after_s)
                case KeyUnknown():
                    self._ask_later(number, KEY_PAUSE_S)
                    if not parts.rights.is_live(record.key):
                        self.stop(Stop.KEY_ENDED)
        except Exception:  # the outer edge of one line: the others go on
            logger.exception("line %d of %s failed", number, record.id)
            self._ask_later(number, 10.0)

    def _ask_later(self, number: int, after_s: float) -> None:
        heapq.heappush(self._later, (self._loop.time() + after_s, number))

    async def _write(self, journal: Journal, number: int, line: bytes, *, is_error: bool) -> None:
        """Waits while the disk refuses, until the process ends: the answer is kept, and its place too."""
        is_told = False
        self.unwritten += 1
        try:
            while True:
                try:
                    journal.write(number, line, is_error=is_error)
                    return
                except DiskRefuses as error:
                    if not is_told:
                        logger.error("%s waits: %s", self.record.id, error.message)
                        is_told = True
                    if self._ending.is_set():
                        return  # the next process asks again
                    with suppress(TimeoutError):
                        async with asyncio.timeout(DISK_PAUSE_S):
                            await self._ending.wait()
        finally:
            self.unwritten -= 1

    async def _end_tasks(self) -> None:
        """Lets what is in flight finish within its time, then cuts it."""
        grace_s = (
            min(5.0, self._parts.settings.grace_s) if self._ending.is_set() else self._parts.settings.grace_s
        )
        tasks = tuple(self._tasks.values())
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=grace_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
            await asyncio.sleep(0)  # for what a task that is done has to say

    async def _write_stops(self, lines: Input, journal: Journal, stop: Stop) -> bool:
        """Each line that has no answer has an error: none is lost.  Whether all have: not where it ends."""
        for count, number in enumerate(lines.numbers, 1):
            if self._ending.is_set():
                return False
            if number in journal.done:
                continue
            custom_id, _ = read_body(lines.read(number))
            line = write_stop(self.record.id, number, custom_id, stop)
            await self._write(journal, number, line, is_error=True)
            if count % STOPS_AT_ONCE == 0:
                await asyncio.sleep(0)
        self._count(lines, journal)
        return True

    # --- its end --------------------------------------------------------------------------------------------

    async def _finish(self, happening: Happening) -> None:
        """Hands the files over and moves on, in one transaction."""
        record = self.record
        files = []
        for file_id, what in ((record.output_file, "output"), (record.error_file, "error")):
            made = await asyncio.to_thread(self._make_file, file_id, f"{record.id}_{what}.jsonl")
            if made is not None:
                files.append(made)
        await self._move(happening, files=tuple(files))

    def _make_file(self, file_id: str, name: str) -> FileRecord | None:
        record, parts = self.record, self._parts
        path = parts.disk.path(file_id)
        size, digest = measure_file(path) if path.is_file() else (0, "")
        if not size:
            path.unlink(missing_ok=True)
            return None
        now_ns = parts.clock.wall_ns()
        return FileRecord(
            id=file_id,
            owner=record.owner,
            key=record.key,
            filename=name,
            purpose=PURPOSE_OUTPUT,
            size=size,
            sha256=digest,
            store=parts.disk.store,
            created_ns=now_ns,
            expires_ns=now_ns + round(parts.settings.keep_files_s * 1e9),
        )

    async def _move(
        self,
        happening: Happening,
        *,
        errors: tuple[LineError, ...] = (),
        files: tuple[FileRecord, ...] = (),
    ) -> None:
        """One that was cancelled meanwhile comes back as such, and goes on from there."""
        if happening is Happening.KEY_ENDED:
            errors = (LineError(Stop.KEY_ENDED.value, STOP_WORDS[Stop.KEY_ENDED]),)
        before = self.record
        self.record = await asyncio.to_thread(
            self._parts.batches.move, before, happening, counts=self.counts, errors=errors, files=files
        )
        if self.record.status is before.status:
            raise RuntimeError(f"{before.id} is {before.status} and can't be moved by {happening}")
        if self.record.status is Status.CANCELLING and self._stop is not None:
            self._stop = Stop.CANCELLED


_HAPPENINGS: Final = {
    Stop.CANCELLED: Happening.WRITTEN,
    Stop.EXPIRED: Happening.EXPIRE,
    Stop.KEY_ENDED: Happening.KEY_ENDED,
}
