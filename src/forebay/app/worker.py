"""One gateway worker: wires the data plane together, serves, swaps snapshots, drains.

Started as `python -m forebay.app.worker --run-dir DIR --index N --listen-fd FD`.  It reads the snapshot and
nothing else of the control plane, so it starts and goes on without one.  It must never import what the data
plane does not need (pydantic, SQLAlchemy, FastAPI).
"""

import argparse
import asyncio
import gc
import logging
import os
import secrets
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import uvloop

from forebay.app.applied import Applied, save_applied
from forebay.app.batch_place import BATCH_SOCKET, read_batch_secret
from forebay.app.clock import SystemClock
from forebay.app.machine_id import read_machine_id
from forebay.app.redaction import log_to_stderr, redactor
from forebay.app.secret_refs import read_secret
from forebay.app.supervisor_policy import RETIRE_SIGNAL
from forebay.app.worker_files import SecretFiles, SnapshotFile
from forebay.core.prices import PriceBook
from forebay.core.routes import Endpoint, Snapshot
from forebay.gateway.batch_door import BatchDoor
from forebay.gateway.board import Board
from forebay.gateway.compiling import build_state, list_problems
from forebay.gateway.dialect import Dialect
from forebay.gateway.http import App
from forebay.gateway.loads import Loads
from forebay.gateway.metrics import Cells, fold_dead_files
from forebay.gateway.metrics_layout import compute_layout
from forebay.gateway.model import State
from forebay.gateway.place_names import PlaceNames
from forebay.gateway.quota import Quota
from forebay.gateway.records import Recorder
from forebay.gateway.server import Server
from forebay.gateway.service import SWEEP_S, Service
from forebay.ledger.segment import SegmentWriter
from forebay.net.client import Client
from forebay.net.turn import Turn
from forebay.providers import openai, translators

logger = logging.getLogger("forebay.worker")

SNAPSHOT_EVERY = 2  #: sweeps between two looks at the snapshot file: 0.2 s
SECRETS_EVERY = 10  #: sweeps between two looks at the files that targets name: 1 s
RETRY_S = 2.0  #: between two tries to take a snapshot that the system refused (no memory, no disk)
LAST_WORDS_S = 1.0  #: after the drain deadline: time to send the last error events


class Worker:
    """The parts of one worker and their common life."""

    def __init__(self, run_dir: Path, index: int, listen_fd: int) -> None:
        self._run_dir = run_dir
        self._metrics = run_dir / "metrics"
        self._file = SnapshotFile(run_dir / "snapshot.msgpack")
        self._secrets = SecretFiles()
        self._index = index
        self._cells_made = 0
        self._refused = ""  # why the last snapshot was
        self._retry_at = 0.0
        self._token = secrets.token_hex(5)  # in names that must be unique; process ids come again
        self._clock = SystemClock()
        loop = asyncio.get_running_loop()
        turn = Turn(loop, self._clock.monotonic_ns)
        self._client = Client(loop, turn)
        self._loads = Loads(PlaceNames(read_machine_id()))
        fold_dead_files(self._metrics)
        snapshot = self._file.read()
        limits = snapshot.limits
        writer = SegmentWriter(
            run_dir.parent / "ledger", f"w{index}", limits.segment_max_bytes, clock=self._clock
        )
        self._recorder = Recorder(writer, limits.record_backlog_max, turn)
        self._quota = Quota(
            loop, run_dir / "quota.sock", f"w{index}-{os.getpid()}-{self._token}", openai, self._clock
        )
        self._set_quotas(snapshot)
        self._service = Service(
            self._build(snapshot, None),
            recorder=self._recorder,
            quota=self._quota,
            clock=self._clock,
            worker=index,
            id_prefix=f"{index}{self._token}",
        )
        self._board = Board(
            loop,
            run_dir / "board.sock",
            f"w{index}-{os.getpid()}-{self._token}",
            self._loads,
            self._service.crowd,
        )
        spoken: dict[Endpoint, Dialect] = dict.fromkeys(Endpoint, openai)
        spoken.update(translators.SPOKEN)
        door = BatchDoor(self._service, run_dir / BATCH_SOCKET)
        self._service.intake.batch_secret = read_batch_secret(run_dir)
        self._app = App(self._service, openai, spoken, self._metrics, door)
        self._server = Server(self._app.handle, limits.connections_max, self._service.memory, turn)
        self._listener = socket.socket(fileno=listen_fd)
        self._stopping = asyncio.Event()
        self._has_successor = False

    def _build(self, snapshot: Snapshot, before: State | None) -> State:
        layout = compute_layout(snapshot.table)
        if before is not None and before.cells.layout == layout:
            cells = before.cells
        else:
            self._cells_made += 1
            cells = Cells(
                self._metrics, f"w{self._index}-{os.getpid()}-{self._token}-{self._cells_made}", layout
            )
        self._secrets.follow(snapshot)
        state = build_state(
            snapshot,
            client=self._client,
            cells=cells,
            read_secret=read_secret,
            dialect=openai,
            find_way=translators.find_way,
            find_forced_way=translators.find_forced_way,
            loads=self._loads,
            now=asyncio.get_running_loop().time(),
        )
        for problem in list_problems(state):
            logger.error("%s", problem)
        return state

    def _set_quotas(self, snapshot: Snapshot) -> None:
        self._quota.set_prices(
            PriceBook(snapshot.prices), snapshot.price_book, allow_unpriced=snapshot.quota_allow_unpriced
        )
        self._quota.waits.set_rules(snapshot.quota_queue)
        self._quota.set_limits(snapshot.quotas, snapshot.quota_when_away, snapshot.quota_workers)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        loop.add_signal_handler(RETIRE_SIGNAL, self._retire)
        self._listener.setblocking(False)
        self._board.begin()
        await self._server.start(self._listener)
        self._tell_applied()
        async with asyncio.TaskGroup() as group:
            sweeps = group.create_task(self._sweep_forever())
            await self._stopping.wait()
            await self._drain()
            sweeps.cancel()
        lost = self._recorder.close()
        if lost:
            logger.error("%d records could not be written before the end", lost)

    async def _sweep_forever(self) -> None:
        loop = asyncio.get_running_loop()
        rounds = 0
        while True:
            await asyncio.sleep(SWEEP_S)
            rounds += 1
            self._service.sweep()
            self._board.sweep(self._service.state.cells)
            if rounds % SECRETS_EVERY == 0 and self._secrets.have_changed():
                logger.info("a file with a secret or authorities has changed: all are read again")
                self._swap(lambda: self._service.state.snapshot)
            if rounds % SNAPSHOT_EVERY == 0 and loop.time() >= self._retry_at and self._file.has_changed():
                self._swap(self._file.read)

    def _swap(self, read: Callable[[], Snapshot]) -> None:
        """Takes the snapshot that `read` gives; one that is of no use leaves the old one in force."""
        before = self._service.state
        try:
            snapshot = read()
            self._service.state = self._build(snapshot, before)
        except (OSError, MemoryError) as error:
            self._refuse(error, again=True)
        except msgspec.MsgspecError as error:
            self._refuse(error)
        except Exception as error:  # noqa: BLE001 - the outer edge: a worker never dies of a snapshot
            self._refuse(error, trace=error)
        else:
            self._service.crowd.follow(self._service.state, asyncio.get_running_loop().time())
            self._set_quotas(snapshot)
            self._recorder.set_backlog_max(snapshot.limits.record_backlog_max)
            self._service.memory.max_bytes = snapshot.limits.memory_max_bytes
            if before.cells is not self._service.state.cells:
                before.cells.retire()
            if read == self._file.read:
                self._refused = ""
            self._tell_applied()

    def _refuse(self, error: Exception, *, again: bool = False, trace: Exception | None = None) -> None:
        """Counts and logs why a snapshot is not taken.

        Args:
            again: the snapshot may be good and the system was not, so it is tried again, and told once.
        """
        if again:
            self._file.forget()
            self._retry_at = asyncio.get_running_loop().time() + RETRY_S
            if self._refused == str(error):
                return
        self._refused = str(error)
        self._service.state.cells.count_snapshot_refused()
        logger.error("the new snapshot is of no use, the old one stays: %s", error, exc_info=trace)
        self._tell_applied()

    def _tell_applied(self) -> None:
        """For the status of the admin API alone, so a disk that refuses it is no reason to stop."""
        if self._stopping.is_set():
            return  # another process may have its number already
        state = self._service.state
        applied = Applied(
            pid=os.getpid(),
            snapshot_hash=state.snapshot.compute_hash(),
            refused=self._refused,
            problems=tuple(list_problems(state)),
        )
        try:
            save_applied(self._run_dir, f"worker-{self._index}", applied)
        except OSError as error:
            logger.error("the status can't be written: %s", error)

    @property
    def is_resolving(self) -> bool:
        return self._client.is_resolving

    def _retire(self) -> None:
        if not self._stopping.is_set():
            self._has_successor = True
            self._stopping.set()

    async def _drain(self) -> None:
        """Readiness off, no new callers, streams finish, and what is left at the deadline is told so."""
        limits = self._service.state.snapshot.limits
        # With a successor the port is as ready as before, and a load balancer has nothing to look away from.
        self._app.ready = self._has_successor
        await self._service.mirrors.close()
        await asyncio.sleep(0 if self._has_successor else limits.drain_grace_s)
        self._server.stop_accepting()
        self._quota.waits.close()
        self._service.crowd.close()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + limits.drain_deadline_s
        while loop.time() < deadline:  # an event instead would cost each request
            if self._server.settle() and not self._service.active:
                break
            await asyncio.sleep(SWEEP_S / 2)
        if self._service.cut_all():
            await asyncio.sleep(LAST_WORDS_S)
        self._server.close()
        self._client.close()
        self._quota.close()
        self._board.close()


async def _main(make: Callable[[], Worker]) -> None:
    worker = make()
    # Everything made so far stays: the collector need not look at it again and again.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    await worker.run()
    if worker.is_resolving:
        os._exit(0)  # all is written; the loop would wait for the resolver, and a supervisor for the loop


def main() -> int:
    parser = argparse.ArgumentParser(prog="forebay.app.worker", description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--index", type=int, required=True)
    parser.add_argument("--listen-fd", type=int, required=True)
    args = parser.parse_args()
    log_to_stderr()
    try:
        uvloop.run(_main(lambda: Worker(args.run_dir, args.index, args.listen_fd)))
    except (OSError, msgspec.MsgspecError) as error:
        print(redactor.redact(f"worker {args.index} can't start: {error}"), file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
