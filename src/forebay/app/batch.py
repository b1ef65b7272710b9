"""The process of files and batches: wires its parts together, and serves the workers.

Started as `python -m forebay.app.batch --data DIR --started-json FILE --gateway-url URL --listen-fd FD`, by
`batch_waiter` once it is wanted.  It may be killed at any time: calls meanwhile wait in the socket's queue,
and batches go on where their files say.
"""

import argparse
import asyncio
import fcntl
import logging
import os
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from sqlalchemy import Connection

from forebay.app.atomic_file import create_private_folder
from forebay.app.batch_keeper import BatchKeeper
from forebay.app.batch_metrics import BatchMetrics
from forebay.app.batch_place import read_batch_secret
from forebay.app.batch_rights import SnapshotRights
from forebay.app.clock import SystemClock
from forebay.app.config import Config
from forebay.app.control_watch import load_saved_config
from forebay.app.database import open_database
from forebay.app.redaction import log_to_stderr, redactor
from forebay.batch.asker import Asker
from forebay.batch.disk import Disk
from forebay.batch.http import Routes
from forebay.batch.repo_batches import BatchRepo
from forebay.batch.repo_files import FileRepo
from forebay.batch.run import Load, Parts
from forebay.batch.runner import Runner
from forebay.batch.service_batches import Batches
from forebay.batch.service_files import Files
from forebay.core.clock import Clock
from forebay.core.errors import ForebayError
from forebay.gateway.repo_audit import Change, append_audit
from forebay.gateway.tenancy import Actor
from forebay.net.client import Client
from forebay.net.frame_stream import PIECE_MAX_BYTES
from forebay.net.turn import Turn

logger = logging.getLogger("forebay.batch")

LOCK_WAIT_S: Final = 0.1  #: between two tries to take the folder's lock


class Auditor:
    """Tells of changes by callers, in their transactions."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def __call__(
        self,
        connection: Connection,
        key: str,
        action: str,
        subject: str,
        before: Mapping[str, object] | None,
        after: Mapping[str, object] | None,
    ) -> None:
        change = Change(action=action, subject=subject, before=before, after=after)
        append_audit(connection, Actor(id=key, name="a caller's key"), change, self._clock.wall_ns())


class BatchProcess:
    """The parts and their common life."""

    def __init__(self, config: Config, gateway_url: str, listen_fd: int) -> None:
        clock = SystemClock()
        settings = config.batch.compile()
        self._database = open_database(config, create=False)
        self._disk = Disk(config.batch_path)
        loop = asyncio.get_running_loop()
        self._client = Client(loop, Turn(loop, clock.monotonic_ns))
        secret = read_batch_secret(config.run_path)
        files = FileRepo(self._database, clock, Auditor(clock))
        batches = BatchRepo(self._database, clock, Auditor(clock))
        parts = Parts(
            batches=batches,
            disk=self._disk,
            asker=Asker(self._client, gateway_url, secret, settings.requests_max),
            rights=SnapshotRights(config.snapshot_path, clock),
            settings=settings,
            clock=clock,
            slots=asyncio.Semaphore(settings.requests_max),
            load=Load(),
        )
        self._runner = Runner(parts)
        self._routes = Routes(
            Files(files, self._disk, settings, clock),
            Batches(batches, self._runner, self._disk, settings, clock),
        )
        self._metrics = BatchMetrics(self._runner, config.metrics_path, clock)
        self._keeper = BatchKeeper(files, batches, self._disk, settings)
        self._listener = socket.socket(fileno=listen_fd)
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Until SIGTERM."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        self._listener.setblocking(False)
        await asyncio.to_thread(self._disk.clear_uploads)
        server = await asyncio.start_unix_server(
            self._routes.serve, sock=self._listener, limit=PIECE_MAX_BYTES
        )
        async with asyncio.TaskGroup() as group:
            keeping = group.create_task(self._keeper.run())
            telling = group.create_task(self._metrics.run())
            running = group.create_task(self._runner.run())
            await self._stopping.wait()
            server.close()
            self._runner.end()
            keeping.cancel()
            telling.cancel()
            await running
        self._client.close()
        self._database.close()


async def take_lock(folder: Path) -> int:
    """Waits until no other process works in the folder: one that was left behind may be ending still."""
    create_private_folder(folder)
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            await asyncio.sleep(LOCK_WAIT_S)


async def _main(config: Config, gateway_url: str, listen_fd: int) -> None:
    await take_lock(config.batch_path)
    await BatchProcess(config, gateway_url, listen_fd).run()


def main() -> int:
    parser = argparse.ArgumentParser(prog="forebay.app.batch", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the data folder, which exists")
    parser.add_argument("--started-json", type=Path, required=True, help="what all was started with")
    parser.add_argument("--gateway-url", required=True, help="where lines are asked")
    parser.add_argument("--listen-fd", type=int, required=True, help="a listening Unix socket")
    args = parser.parse_args()
    log_to_stderr()
    os.umask(0o077)
    config = load_saved_config(args.started_json, None)
    if config is None:
        print(f"batches can't start: {args.started_json} can't be read", file=sys.stderr)
        return 1
    data = config.data.model_copy(update={"dir": args.data.absolute()})
    try:
        asyncio.run(_main(config.model_copy(update={"data": data}), args.gateway_url, args.listen_fd))
    except (OSError, ForebayError) as error:
        print(redactor.redact(f"batches can't start: {error}"), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
