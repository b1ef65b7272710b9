"""One replica on a node of a Ray cluster: what the actor of the replica does there.

The same keeper that `forebay up` has starts the engine, restarts it and ends it, for this one replica.  Ray
finds the node, gives the GPUs, and starts the actor elsewhere when the node is gone.  Runs in a process of
Ray's and imports Ray only where it is called; nothing of the control plane is known here.
"""

import asyncio
import importlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

import msgspec

from forebay.app.clock import SystemClock
from forebay.app.launcher_local import LocalLauncher
from forebay.app.replica_files import LOGS_FOLDER, load_report, load_wanted
from forebay.app.replica_keeper import RESTART, ReplicaKeeper
from forebay.app.replica_room import Machine
from forebay.app.supervisor_policy import RestartPolicy
from forebay.engines.deployment import Replica, ReplicaStatus

PLANNER: Final = "forebay.engines.plan:plan_engine"
LOG_LINES: Final = 2000  #: that are kept of a replica that is gone
BOOK_MAX: Final = 200  #: logs in the book; the oldest goes first


class NodeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What holds on all nodes."""

    environments: str = ""  #: folder with the engines' environments, one for each digest
    planner: str = PLANNER  #: what says how an engine is launched, as `module:function`
    restart: RestartPolicy = RESTART


class ReplicaActor:
    """See the module.  Its methods are called by Ray, each as a task of one event loop.

    Args:
        replica: of `Replica`, as MessagePack.
        settings: of `NodeSettings`, likewise.
    """

    def __init__(self, replica: bytes, settings: bytes) -> None:
        self._replica = msgspec.msgpack.decode(replica, type=Replica)
        self._folder = Path(tempfile.mkdtemp(prefix="forebay-replica-"))
        self._node = ""
        given = msgspec.msgpack.decode(settings, type=NodeSettings)
        module, _, function = given.planner.partition(":")
        run, logs = self._folder / "run", self._folder / "logs"
        run.mkdir()
        self._run = run
        self._local = LocalLauncher(run, logs)
        self._keeper = ReplicaKeeper(
            run=run,
            logs=logs / LOGS_FOLDER,
            environments=Path(given.environments),
            mark=str(self._folder),
            clock=SystemClock(),
            machine=Machine(gpus=_find_gpus()),
            host=_find_address(),
            plan=getattr(importlib.import_module(module), function),
            restart=given.restart,
        )
        self._keeping: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Has it run, also where it was asked to end a moment ago."""
        await self._local.start(self._replica)
        if self._keeping is None:
            self._node = _find_node()
            self._keeping = asyncio.create_task(self._keeper.run())

    async def stop(self) -> None:
        """Has it end; `status` says when it has."""
        await self._local.stop(self._replica.id)

    async def status(self) -> bytes | None:
        """Of `ReplicaStatus`, as MessagePack; None where it was asked to end, and has."""
        if self._keeping is None:
            await self.start()  # Ray has started this actor anew, on another node perhaps
        report = load_report(self._run)
        if report is not None and report.replicas:
            return msgspec.msgpack.encode(msgspec.structs.replace(report.replicas[0], node=self._node))
        if load_wanted(self._run).replicas:
            (found,) = await self._local.list()
            return msgspec.msgpack.encode(msgspec.structs.replace(found, node=self._node))
        return None

    async def logs(self, lines: int) -> list[str]:
        return list(await self._local.logs(self._replica.id, lines))

    async def clear(self) -> None:
        """Before it is ended for good."""
        self._keeper.kill()
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)


class LogBook:
    """What replicas that are gone have said; an actor of its own, since theirs are gone too."""

    def __init__(self) -> None:
        self._logs: dict[str, list[str]] = {}

    def put(self, replica_id: str, lines: list[str]) -> None:
        self._logs.pop(replica_id, None)
        self._logs[replica_id] = lines
        while len(self._logs) > BOOK_MAX:
            del self._logs[next(iter(self._logs))]

    def get(self, replica_id: str, lines: int) -> list[str]:
        return self._logs.get(replica_id, [])[-lines:]


def decode_status(data: bytes) -> ReplicaStatus:
    return msgspec.msgpack.decode(data, type=ReplicaStatus)


def _find_gpus() -> tuple[str, ...]:
    """Those that Ray gives this actor."""
    return tuple(gpu for gpu in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu)


def _load_ray() -> Any:
    import ray

    return ray


def _find_address() -> str:
    return str(_load_ray().util.get_node_ip_address())


def _find_node() -> str:
    return str(_load_ray().get_runtime_context().get_node_id())
