"""The socket at which the workers of this machine borrow units of limits.

What is lent an authority decides (`quota_authority`); this carries asks and returns to it, its answers back,
and asks workers to return what others need.  It must never let one worker wait for another that does not
answer.
"""

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from forebay.app.quota_authority import Authority, Found
from forebay.app.quota_local import GRACE_S, LocalAuthority
from forebay.app.quota_state import QuotaState
from forebay.app.worker_lines import WorkerLine, WorkerLines
from forebay.core.clock import Clock
from forebay.core.limits import Limit
from forebay.gateway.policy.lending import Shortage, Standing
from forebay.gateway.quota_wire import (
    Ask,
    Changed,
    FromWorker,
    Hello,
    Lent,
    Noted,
    Recall,
    Refused,
    Return,
    Welcome,
    cut,
    decode_from_worker,
    encode_frame,
)

__all__ = ["GRACE_S", "LINGER_S", "QuotaServer"]

logger = logging.getLogger("forebay.quota")

LINGER_S = 0.5  #: after a line broke, for its worker to come back before its places are free
DISK_RETRY_S = 1.0  #: after the disk refused the state, before workers are welcome again
RECALL_AGAIN_S = 0.02  #: after a recall that brought nothing, before the same limit is recalled again

Line = WorkerLine[FromWorker]


class QuotaServer:
    """See the module.

    Args:
        path: of the socket.
        authority: whoever lends; of a machine alone the state of its limits is enough.
    """

    def __init__(self, path: Path, authority: Authority | QuotaState, clock: Clock) -> None:
        if isinstance(authority, QuotaState):
            authority = LocalAuthority(authority, clock)
        self._lines = WorkerLines(path, "limits", decode_from_worker, self)
        self._authority: Authority = authority
        self._limits: tuple[Limit, ...] | None = None
        self._leaving: dict[str, asyncio.TimerHandle] = {}  # workers whose line broke a moment ago
        self._recalls: dict[str, asyncio.Future[None]] = {}
        self._recalled_at: dict[str, float] = {}
        self._awaited: dict[str, set[str]] = {}  # workers whose answer to a recall is due, by limit
        self._ready_at = 0.0
        self._welcome_at = 0.0
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Raises OSError."""
        await self._lines.start()
        self._ready_at = asyncio.get_running_loop().time() + self._authority.grace_s
        self._authority.start(self)

    def close(self) -> None:
        self._lines.close()
        for timer in self._leaving.values():
            timer.cancel()
        self._authority.close()

    # --- what holds -----------------------------------------------------------------------------------------

    def set_limits(self, limits: Iterable[Limit], amounts: Mapping[str, int] | None = None) -> None:
        """From now on these hold; one that comes again goes on where it was.  Raises OSError.

        Args:
            amounts: that limits with an expression have now, in place of their own, by id.
        """
        limits, amounts = tuple(limits), amounts or {}
        if limits == self._limits:
            self.set_amounts(amounts)
            return
        self._authority.set_limits(tuple(_apply(limit, amounts.get(limit.id)) for limit in limits))
        self._limits = limits
        held = self._authority.limits
        self._recalled_at = {key: at for key, at in self._recalled_at.items() if key in held}
        for line in self._lines.by_worker.values():
            self._tell_amounts(line, self._list_live())

    def set_amounts(self, amounts: Mapping[str, int]) -> None:
        """Limits have these amounts from now on, by id; others stay as they are.  Raises OSError."""
        held = self._authority.limits
        changed = {
            limit_id: amount
            for limit_id, amount in amounts.items()
            if limit_id in held and held[limit_id].amount != amount
        }
        for line in self._lines.by_worker.values():
            self._tell_amounts(line, tuple(changed.items()))
        self._authority.set_amounts(changed)

    def _list_live(self) -> tuple[tuple[str, int], ...]:
        held = self._authority.limits.values()
        return tuple((limit.id, limit.amount) for limit in held if limit.expression)

    def _tell_amounts(self, line: Line, amounts: tuple[tuple[str, int], ...]) -> None:
        for part in cut(amounts, lambda pair: pair[0]):
            line.send(encode_frame(Changed(part)))

    @property
    def limits(self) -> tuple[Limit, ...]:
        """Those that hold, as they were set; the same object until others are."""
        return self._limits or ()

    @property
    def members(self) -> int | None:
        """Workers on all machines that share the limits; None for a machine alone."""
        return self._authority.members

    def list_standings(self, limit_ids: Iterable[str] | None = None) -> list[Standing]:
        """All limits, or those of some ids, in the order of their ids, as far as is known here."""
        return self._authority.list_standings(limit_ids)

    async def fetch_standings(self) -> list[Standing]:
        """All limits in the order of their ids, as they are now.  Raises AuthorityAway."""
        return await self._authority.fetch_standings()

    async def call_in(self, limit_ids: Iterable[str]) -> None:
        """Has workers return what they have not spent of some limits, so that it is known what was used."""
        holders = await self._authority.fetch_holders(limit_ids)
        await asyncio.gather(*(self._recall(limit_id, names) for limit_id, names in holders.items() if names))

    def list_left(self) -> list[tuple[Limit, int]]:
        """Each limit, and what neither was used nor is lent."""
        return [(standing.limit, standing.left) for standing in self.list_standings()]

    # --- workers --------------------------------------------------------------------------------------------

    def list_workers(self) -> Sequence[str]:
        return tuple(self._lines.by_worker)

    def close_lines(self, workers: Iterable[str] | None = None) -> None:
        self._lines.close_some(workers)

    def hear(self, line: Line, message: FromWorker) -> None:
        try:
            match message:
                case Hello():
                    self.join(line, message)
                case Ask():
                    self.answer(line, message)
                case Return():
                    self.take_back(line, message)
        except OSError as error:
            self._give_up(line, error)

    def _give_up(self, line: Line, error: OSError) -> None:
        """The disk does not take the state: the worker falls back on its share, and for a moment none that
        comes again is welcome."""
        logger.error("the state of the limits can't be written: %s", error)
        self._welcome_at = asyncio.get_running_loop().time() + DISK_RETRY_S
        line.close()

    def join(self, line: Line, hello: Hello) -> None:
        if self._limits is None:  # what it holds could not be counted; it comes again soon
            self._ready_at = asyncio.get_running_loop().time() + self._authority.grace_s
        is_early = asyncio.get_running_loop().time() < self._welcome_at
        if self._limits is None or not self._authority.is_there or is_early:
            line.close()
            return
        leaving = self._leaving.pop(hello.worker, None)
        if leaving is not None:
            leaving.cancel()
        is_first = self._lines.take(line, hello.worker)
        then = partial(self._welcome, line, is_first=is_first)
        self._authority.join(hello.worker, hello.held, is_first=is_first, then=then)

    def _welcome(self, line: Line, *, is_first: bool) -> None:
        if is_first:
            self._tell_amounts(line, self._list_live())
        line.send(encode_frame(Welcome()))

    def leave(self, worker: str) -> None:
        for limit_id in tuple(self._awaited):
            self.note_answer(worker, limit_id)
        # A line may break whose worker goes on: its requests still hold their places.
        loop = asyncio.get_running_loop()
        self._leaving[worker] = loop.call_later(LINGER_S, self._end_worker, worker)

    def _end_worker(self, worker: str) -> None:
        del self._leaving[worker]
        self._authority.leave(worker)

    def take_back(self, line: Line, message: Return) -> None:
        then = partial(self._note, line, message)
        returned, recalled, number = message.returned, message.recalled, message.number
        self._authority.give_back(line.worker, returned, recalled, number, then)

    def _note(self, line: Line, message: Return) -> None:
        if message.number:
            line.send(encode_frame(Noted(message.number)))
        if message.recalled:
            self.note_answer(line.worker, message.recalled)

    def answer(self, line: Line, ask: Ask) -> None:
        """Answers as soon as it can; what needs a recall, or comes too early, is answered by a task."""
        if asyncio.get_running_loop().time() < self._ready_at:
            self._ask_after(self._wait_ready(), line, ask)
        else:
            self._ask(line, ask)

    def _ask(self, line: Line, ask: Ask, *, final: bool = False) -> None:
        then = partial(self._absorb, line, ask, final)
        self._authority.ask(line.worker, ask.wants, final=final, then=then)

    def _absorb(self, line: Line, ask: Ask, is_final: bool, found: Found, holders: Sequence[str]) -> None:
        if is_final or not isinstance(found, Shortage):
            line.send(encode_frame(_tell(ask, found)))
        elif holders and self._may_recall(found.limit_id):
            self._ask_after(self._recall(found.limit_id, holders), line, ask)
        else:
            self._ask(line, ask, final=True)

    def _ask_after(self, waiting: Coroutine[Any, Any, None], line: Line, ask: Ask) -> None:
        task = asyncio.get_running_loop().create_task(self._ask_late(waiting, line, ask))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _ask_late(self, waiting: Coroutine[Any, Any, None], line: Line, ask: Ask) -> None:
        await waiting
        if not self._lines.is_current(line):
            return  # it would be lent to nobody
        try:
            self._ask(line, ask)
        except OSError as error:
            self._give_up(line, error)

    async def _wait_ready(self) -> None:
        await asyncio.sleep(max(0.0, self._ready_at - asyncio.get_running_loop().time()))

    # --- recalls --------------------------------------------------------------------------------------------

    def _may_recall(self, limit_id: str) -> bool:
        now = asyncio.get_running_loop().time()
        return limit_id in self._recalls or now >= self._recalled_at.get(limit_id, 0.0) + RECALL_AGAIN_S

    async def _recall(self, limit_id: str, holders: Sequence[str]) -> None:
        """Asks all who hold something of a limit to return it, and waits a moment for their answers."""
        loop = asyncio.get_running_loop()
        running = self._recalls.get(limit_id)
        if running is None:
            running = self._recalls[limit_id] = loop.create_future()
            awaited = {name for name in holders if name in self._lines.by_worker}
            elsewhere = [name for name in holders if name not in awaited]
            self._awaited[limit_id] = set(awaited)
            if elsewhere and self._authority.recall_elsewhere(limit_id, elsewhere):
                self._awaited[limit_id].update(elsewhere)
            self.recall(limit_id, awaited)
            loop.call_later(self._authority.recall_max_s, self._end_recall, limit_id, running)
            if not self._awaited[limit_id]:
                self._end_recall(limit_id, running)
        await asyncio.shield(running)

    def recall(self, limit_id: str, workers: Iterable[str]) -> None:
        frame = encode_frame(Recall(limit_id))
        for name in workers:
            if name in self._lines.by_worker:
                self._lines.by_worker[name].send(frame)

    def note_answer(self, worker: str, limit_id: str) -> None:
        awaited = self._awaited.get(limit_id)
        if awaited is None:
            return
        awaited.discard(worker)
        if not awaited:
            self._end_recall(limit_id, self._recalls[limit_id])

    def _end_recall(self, limit_id: str, recall: asyncio.Future[None]) -> None:
        if self._recalls.get(limit_id) is not recall:
            return
        del self._recalls[limit_id]
        self._awaited.pop(limit_id, None)
        self._recalled_at[limit_id] = asyncio.get_running_loop().time()
        recall.set_result(None)


def _apply(limit: Limit, amount: int | None) -> Limit:
    return limit if amount is None else msgspec.structs.replace(limit, amount=amount)


def _tell(ask: Ask, found: Found) -> Lent | Refused:
    if isinstance(found, Shortage):
        wait_ns = -1 if found.wait_ns is None else found.wait_ns
        return Refused(ask.number, found.limit_id, max(0, found.left), wait_ns)
    return Lent(ask.number, found)
