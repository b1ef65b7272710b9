"""The launchers that hold to the contract, each over stand-ins: what `launcher_contract` runs on."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import kubernetes_validate
from launcher_contract import LauncherScene, plan_stand_in

from forebay.app.clock import SystemClock
from forebay.app.launcher_local import LocalLauncher
from forebay.app.replica_files import LOGS_FOLDER
from forebay.app.replica_keeper import ReplicaKeeper
from forebay.app.replica_room import Machine
from forebay.app.supervisor_policy import RestartPolicy
from forebay.app.supervisor_state import find_leftovers
from forebay.engines.kube_client import ClusterAccess
from forebay.engines.kube_launcher import KubernetesLauncher
from forebay.engines.kube_objects import ClusterPlace
from forebay.testing.cluster import FakeCluster

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
        async with asyncio.timeout(60):
            await keeping
    deadline = time.monotonic() + 60
    while left := list(find_leftovers(scene.mark)):
        assert time.monotonic() < deadline, f"replicas were left running: {left}"
        await asyncio.sleep(0.02)


class KubernetesScene:
    """A cluster's API, and a kubelet that runs stand-ins as pods, each at an address of its own."""

    def __init__(self, cluster: FakeCluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder

    def connect(self) -> KubernetesLauncher:
        place = ClusterPlace(images={"stand-in": "registry.example/stand-in:1"})
        access = ClusterAccess(url=self.cluster.url)
        return KubernetesLauncher(place, access, self.folder / "logs", plan_stand_in)


@asynccontextmanager
async def open_kubernetes(folder: Path) -> AsyncIterator[KubernetesScene]:
    with FakeCluster(folder / "cluster", validate=validate_object, page=2) as cluster:
        yield KubernetesScene(cluster, folder)


def validate_object(found: dict[str, Any]) -> None:
    """By the schemas that Kubernetes publishes.  Raises ValueError with what is wrong."""
    try:
        kubernetes_validate.validate(found, "1.34", strict=True)
    except kubernetes_validate.ValidationError as error:
        raise ValueError(error.message) from None


OpenScene = Callable[[Path], AbstractAsyncContextManager[LauncherScene]]
SCENES: dict[str, OpenScene] = {"kubernetes": open_kubernetes, "local": open_local}
