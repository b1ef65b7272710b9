"""The authority over all limits of this machine: lends units to the workers over a socket.

The decisions are `policy.lending`'s; this is the shell that carries them out.  What is left of each limit
lies in a file that outlives the process (`quota_state`), written before a loan is told; so after `kill -9`
nothing that was lent is lent again.  It must never let one worker wait for another that does not answer.
"""

import asyncio
import logging
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from forebay.app.quota_state import QuotaState
from forebay.core.clock import Clock
from forebay.core.limits import Limit
from forebay.gateway.policy.lending import Lender, Shortage, Standing
from forebay.gateway.policy.meter import Now
from forebay.gateway.quota_client import HELD_MAX, short_path
from forebay.gateway.quota_wire import (
    Ask,
    Changed,
    FrameSplitter,
    FromAuthority,
    Hello,
    Lent,
    Noted,
    Recall,
    Refused,
    Return,
    Welcome,
    decode_from_worker,
    encode_frame,
)

logger = logging.getLogger("forebay.quota")

GRACE_S = 0.5  #: after a start, for workers to say what they hold
LINGER_S = 0.5  #: after a line broke, for its worker to come back before its places are free
RECALL_MAX_S = 0.05  #: for workers to return what others need
RECALL_AGAIN_S = 0.02  #: after a recall that brought nothing, before the same limit is recalled again


class QuotaServer:
    """See the module.

    Args:
        path: of the socket.
        state: what was left of each limit.
    """

    def __init__(self, path: Path, state: QuotaState, clock: Clock) -> None:
        self._path = path
        self._state = state
        self._clock = clock
        self._lender = Lender()
        self._limits: tuple[Limit, ...] | None = None
        self._connections: dict[str, _WorkerConnection] = {}
        self._leaving: dict[str, asyncio.TimerHandle] = {}  # workers whose line broke a moment ago
        self._short_of = ""
        self._recalls: dict[str, asyncio.Future[None]] = {}
        self._recalled_at: dict[str, float] = {}
        self._awaited: dict[str, set[str]] = {}  # workers whose answer to a recall is due, by limit
        self._server: asyncio.Server | None = None
        self._ready_at = 0.0
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Raises OSError."""
        with suppress(FileNotFoundError):
            self._path.unlink()
        loop = asyncio.get_running_loop()
        with short_path(self._path) as path:
            self._server = await loop.create_unix_server(lambda: _WorkerConnection(self), path)
        os.chmod(self._path, 0o600)
        self._ready_at = loop.time() + GRACE_S

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in tuple(self._connections.values()):
            connection.close()
        self._connections.clear()
        for timer in self._leaving.values():
            timer.cancel()
        self._state.close()

    def set_limits(self, limits: Iterable[Limit], amounts: Mapping[str, int] | None = None) -> None:
        """From now on these hold; one that comes again goes on where it was.  Raises OSError.

        Args:
            amounts: that limits with an expression have now, in place of their own, by id.
        """
        limits, amounts = tuple(limits), amounts or {}
        if limits == self._limits:
            self.set_amounts(amounts)
            return
        now = self._now()
        self._lender.set_limits((_apply(limit, amounts.get(limit.id)) for limit in limits), now)
        self._state.restore(self._lender.meters, now)
        self._state.save(self._lender.meters.values())
        self._state.heal()
        self._limits = limits
        for connection in self._connections.values():
            self._tell_amounts(connection, self._list_live())

    def set_amounts(self, amounts: Mapping[str, int]) -> None:
        """Limits have these amounts from now on, by id; others stay as they are.  Raises OSError."""
        meters = self._lender.meters
        changed = {
            limit_id: amount
            for limit_id, amount in amounts.items()
            if limit_id in meters and meters[limit_id].limit.amount != amount
        }
        now = self._now()
        for limit_id, amount in changed.items():
            meters[limit_id].change(_apply(meters[limit_id].limit, amount), now)
        for connection in self._connections.values():
            self._tell_amounts(connection, tuple(changed.items()))
        self._save(changed)

    def _list_live(self) -> tuple[tuple[str, int], ...]:
        meters = self._lender.meters.items()
        return tuple((limit_id, meter.limit.amount) for limit_id, meter in meters if meter.limit.expression)

    def _tell_amounts(self, connection: "_WorkerConnection", amounts: tuple[tuple[str, int], ...]) -> None:
        for at in range(0, len(amounts), HELD_MAX):
            connection.send(Changed(amounts[at : at + HELD_MAX]))

    @property
    def limits(self) -> tuple[Limit, ...]:
        """Those that hold, as they were set; the same object until others are."""
        return self._limits or ()

    def list_standings(self, limit_ids: Iterable[str] | None = None) -> list[Standing]:
        """All limits, or those of some ids, in the order of their ids."""
        return self._lender.list_standings(self._now(), limit_ids)

    async def call_in(self, limit_ids: Iterable[str]) -> None:
        """Has workers return what they have not spent of some limits, so that it is known what was used."""
        await asyncio.gather(
            *(self._recall(limit_id, "") for limit_id in limit_ids if self._lender.list_holders(limit_id, ""))
        )

    def list_left(self) -> list[tuple[Limit, int]]:
        """Each limit, and what neither was used nor is lent."""
        return [(standing.limit, standing.left) for standing in self.list_standings()]

    def _now(self) -> Now:
        return Now(self._clock.monotonic_ns(), self._clock.wall_ns())

    # --- workers --------------------------------------------------------------------------------------------

    def join(self, connection: "_WorkerConnection", hello: Hello) -> None:
        if self._limits is None:  # what it holds could not be counted; it comes again soon
            self._ready_at = asyncio.get_running_loop().time() + GRACE_S
            connection.close()
            return
        before = self._connections.get(hello.worker)
        leaving = self._leaving.pop(hello.worker, None)
        if leaving is not None:
            leaving.cancel()
        if leaving is not None or before not in (None, connection):
            self._lender.leave(hello.worker)  # what it holds it says itself
        if before is not None and before is not connection:
            before.close()
        self._connections[hello.worker] = connection
        self._lender.join(hello.worker, [(held.limit_id, held.units) for held in hello.held])
        if before is not connection:
            self._tell_amounts(connection, self._list_live())
        connection.send(Welcome())

    def leave(self, worker: str, connection: "_WorkerConnection") -> None:
        if self._connections.get(worker) is not connection:
            return  # it is back over another connection
        del self._connections[worker]
        for limit_id in tuple(self._awaited):
            self._note_answer(worker, limit_id)
        # A line may break whose worker goes on: its requests still hold their places.
        loop = asyncio.get_running_loop()
        self._leaving[worker] = loop.call_later(LINGER_S, self._end_worker, worker)

    def _end_worker(self, worker: str) -> None:
        del self._leaving[worker]
        self._lender.leave(worker)

    def take_back(self, connection: "_WorkerConnection", message: Return) -> None:
        worker = connection.worker
        now = self._now()
        for held in message.returned:
            self._lender.give_back(worker, held.limit_id, held.epoch, held.units, now)
        self._save([held.limit_id for held in message.returned])
        if message.number:
            connection.send(Noted(message.number))
        if message.recalled:
            self._note_answer(worker, message.recalled)

    def answer(self, connection: "_WorkerConnection", ask: Ask) -> None:
        """Answers at once if it can; what needs a recall is answered by a task."""
        loop = asyncio.get_running_loop()
        if loop.time() >= self._ready_at:
            found = self._try_to_lend(connection.worker, ask)
            if found is not None:
                connection.send(_tell(ask, found))
                return
        task = loop.create_task(self._answer_late(connection, ask))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer_late(self, connection: "_WorkerConnection", ask: Ask) -> None:
        await asyncio.sleep(max(0.0, self._ready_at - asyncio.get_running_loop().time()))
        try:
            while self._connections.get(connection.worker) is connection:  # else it would be lent to nobody
                found = self._try_to_lend(connection.worker, ask)
                if found is not None:
                    connection.send(_tell(ask, found))
                    return
                await self._recall(self._short_of, connection.worker)
        except OSError as error:
            connection.give_up(error)

    def _try_to_lend(self, worker: str, ask: Ask) -> tuple[Any, ...] | Shortage | None:
        """The answer; None where others may have what `_short_of` lacks."""
        now = self._now()
        found = self._lender.ask(worker, ask.wants, now)
        if isinstance(found, Shortage):
            if self._may_recall(found, worker):
                self._short_of = found.limit_id
                return None
            found = self._lender.ask(worker, ask.wants, now, final=True)
        if isinstance(found, Shortage):
            self._save([found.limit_id])  # since when it is exceeded
        else:
            self._save([loan.limit_id for loan in found])  # before anybody hears of it
        return found

    def _save(self, limit_ids: Iterable[str]) -> None:
        meters = self._lender.meters
        self._state.save(meters[limit_id] for limit_id in limit_ids if limit_id in meters)

    # --- recalls --------------------------------------------------------------------------------------------

    def _may_recall(self, shortage: Shortage, worker: str) -> bool:
        limit_id = shortage.limit_id
        if not self._lender.list_holders(limit_id, worker):
            return False
        now = asyncio.get_running_loop().time()
        return limit_id in self._recalls or now >= self._recalled_at.get(limit_id, 0.0) + RECALL_AGAIN_S

    async def _recall(self, limit_id: str, worker: str) -> None:
        """Asks all who hold something of a limit to return it, and waits a moment for their answers."""
        loop = asyncio.get_running_loop()
        running = self._recalls.get(limit_id)
        if running is None:
            running = self._recalls[limit_id] = loop.create_future()
            holders = self._lender.list_holders(limit_id, worker)
            self._awaited[limit_id] = {name for name in holders if name in self._connections}
            frame = Recall(limit_id)
            for name in tuple(self._awaited[limit_id]):
                self._connections[name].send(frame)
            loop.call_later(RECALL_MAX_S, self._end_recall, limit_id, running)
            if not self._awaited[limit_id]:
                self._end_recall(limit_id, running)
        await asyncio.shield(running)

    def _note_answer(self, worker: str, limit_id: str) -> None:
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


def _tell(ask: Ask, found: tuple[Any, ...] | Shortage) -> Lent | Refused:
    if isinstance(found, Shortage):
        wait_ns = -1 if found.wait_ns is None else found.wait_ns
        return Refused(ask.number, found.limit_id, max(0, found.left), wait_ns)
    return Lent(ask.number, found)


class _WorkerConnection(asyncio.Protocol):
    """One worker's end."""

    def __init__(self, server: QuotaServer) -> None:
        self._server = server
        self._splitter = FrameSplitter()
        self._transport: Any = None
        self.worker = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            for payload in self._splitter.feed(data):
                self._handle(decode_from_worker(payload))
        except (ValueError, msgspec.MsgspecError) as error:
            logger.error("a worker speaks another language, its connection is closed: %s", error)
            self.close()
        except OSError as error:
            self.give_up(error)

    def give_up(self, error: OSError) -> None:
        """The worker falls back on its share until the disk takes the state again."""
        logger.error("the state of the limits can't be written: %s", error)
        self.close()

    def _handle(self, message: Hello | Ask | Return) -> None:
        match message:
            case Hello():
                self.worker = message.worker
                self._server.join(self, message)
            case Ask():
                self._server.answer(self, message)
            case Return():
                self._server.take_back(self, message)

    def send(self, message: FromAuthority) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode_frame(message))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self.worker:
            self._server.leave(self.worker, self)
