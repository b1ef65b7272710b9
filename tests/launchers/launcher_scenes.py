"""The launchers that hold to the contract, each over stand-ins: what `launcher_contract` runs on."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from launcher_contract import LauncherScene, plan_stand_in

from forebay.app.clock import SystemClock
from forebay.app.launcher_local import LocalLauncher
from forebay.app.replica_files import LOGS_FOLDER
from forebay.app.replica_keeper import ReplicaKeeper
from forebay.app.replica_room import Machine
from forebay.app.supervisor_policy import RestartPolicy
from forebay.app.supervisor_state import find_leftovers

ANY = Machine()
FAST = RestartPolicy(first_s=0.1, longest_s=1.0, stable_s=60.0)


class LocalScene:
    """The keeper that `forebay up` has, in this process, and launchers that know its folders alone."""

    def __init__(self, folder: Path, machine: Machine = ANY) -> None:
        self.run, self.logs, self.mark = folder / "run", folder / "logs", str(folder)
        self.run.mkdir(exist_ok=True)
        self.keeper = ReplicaKeeper(
            run=self.run,
            logs=self.logs / LOGS_FOLDER,
            environments=folder / "environments",
            mark=self.mark,
            clock=SystemClock(),
            machine=machine,
            plan=plan_stand_in,
            restart=FAST,
        )

    def connect(self) -> LocalLauncher:
        return LocalLauncher(self.run, self.logs)


@asynccontextmanager
async def open_local(folder: Path, machine: Machine = ANY) -> AsyncIterator[LocalScene]:
    scene = LocalScene(folder, machine)
    keeping = asyncio.create_task(scene.keeper.run())
    try:
        yield scene
    finally:
        scene.keeper.kill()
        async with asyncio.timeout(20):
            await keeping
    deadline = time.monotonic() + 5
    while left := list(find_leftovers(scene.mark)):
        assert time.monotonic() < deadline, f"replicas were left running: {left}"
        await asyncio.sleep(0.02)


OpenScene = Callable[[Path], AbstractAsyncContextManager[LauncherScene]]
SCENES: dict[str, OpenScene] = {"local": open_local}
