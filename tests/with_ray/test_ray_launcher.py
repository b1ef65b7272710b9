"""Ray holds to the contract of launchers, on a cluster of two nodes; and it alone has nodes that go."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
import test_launcher_contract as contract
from launcher_contract import LIMIT_S, LauncherScene, ask, await_status, replica
from launcher_scenes import FAST

from forebay.app.launcher_ray import RayAccess, RayLauncher
from forebay.app.ray_actor import NodeSettings
from forebay.engines.deployment import ReplicaState, Resources
from forebay.engines.model import LauncherError

pytestmark = pytest.mark.ray
CHECKS = [
    contract.check_start,
    contract.check_outlives,
    contract.check_crash,
    contract.check_refused,
    contract.check_drain,
    contract.check_logs,
    contract.check_memory,
    contract.check_strange,
]


class RayScene:
    """Each scene has a namespace of its own on the one cluster."""

    def __init__(self, address: str, namespace: str, folder: Path) -> None:
        self.access = RayAccess(address=address, namespace=namespace, python=sys.executable)
        self.folder = folder
        self.launchers: list[RayLauncher] = []

    def connect(self) -> RayLauncher:
        settings = NodeSettings(planner="launcher_contract:plan_stand_in", restart=FAST)
        environment = {"RAY_AUTH_MODE": "disabled"}
        launcher = RayLauncher(self.access, self.folder / "bridge.log", settings, environment)
        self.launchers.append(launcher)
        return launcher

    async def close(self) -> None:
        """The cluster has its room again: an actor holds it until somebody asks and is told of the end."""
        launcher = self.connect()
        try:
            async with asyncio.timeout(LIMIT_S):
                while found := await launcher.list():
                    for status in found:
                        await launcher.stop(status.id)
                    await asyncio.sleep(0.05)
        finally:
            for each in self.launchers:
                await each.close()


def run_in_scene(
    cluster: subprocess.Popen[str], folder: Path, check: Callable[[LauncherScene], Awaitable[None]]
) -> None:
    async def run() -> None:
        scene = RayScene(str(cluster.args[-1]), folder.name, folder)  # type: ignore[index]
        try:
            await check(scene)
        finally:
            await scene.close()

    asyncio.run(run())


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_contract_of_launchers_holds(
    ray_cluster: subprocess.Popen[str],
    tmp_path: Path,
    check: Callable[[LauncherScene], Awaitable[None]],
) -> None:
    run_in_scene(ray_cluster, tmp_path, check)


def test_what_finds_no_room_waits_and_says_so(ray_cluster: subprocess.Popen[str], tmp_path: Path) -> None:
    async def check(scene: LauncherScene) -> None:
        launcher = scene.connect()
        large = msgspec.structs.replace(replica(), resources=Resources(cpus=1000.0))
        await launcher.start(large)
        status = await await_status(launcher, large.id, lambda each: each.state is ReplicaState.PENDING)
        assert "room" in status.message
        await launcher.stop(large.id)
        assert [each.id for each in await launcher.list()] == []

    run_in_scene(ray_cluster, tmp_path, check)


def test_a_bridge_that_is_killed_is_built_again(ray_cluster: subprocess.Popen[str], tmp_path: Path) -> None:
    async def check(scene: LauncherScene) -> None:
        launcher, one = scene.connect(), replica()
        assert isinstance(launcher, RayLauncher)
        await launcher.start(one)
        status = await await_status(launcher, one.id, lambda each: each.state is ReplicaState.READY)
        pid = await ask(status, "/health")
        killed = launcher.bridge_pid
        assert killed is not None
        os.kill(killed, signal.SIGKILL)
        with suppress(LauncherError):  # the first may be asked of the one that is gone
            await launcher.list()
        again = await await_status(launcher, one.id, lambda each: each.state is ReplicaState.READY)
        assert await ask(again, "/health") == pid, "what runs on the cluster goes on"
        assert launcher.bridge_pid != killed

    run_in_scene(ray_cluster, tmp_path, check)


def test_a_cluster_that_is_not_there_is_told(tmp_path: Path) -> None:
    async def run() -> None:
        launcher = RayLauncher(RayAccess(address="127.0.0.1:9"), tmp_path / "bridge.log")
        with pytest.raises(LauncherError, match="can't be reached"):
            await launcher.list()
        await launcher.close()

    asyncio.run(run())


def test_a_replica_of_a_node_that_is_gone_starts_elsewhere(
    ray_cluster: subprocess.Popen[str], tmp_path: Path
) -> None:
    """The last test of the cluster: one of its nodes ends."""

    async def check(scene: LauncherScene) -> None:
        launcher = scene.connect()
        both = [replica(index=index) for index in range(2)]
        for each in both:
            await launcher.start(each)
        nodes = {}
        for each in both:
            status = await await_status(launcher, each.id, lambda each: each.state is ReplicaState.READY)
            nodes[each.id] = status.node
        assert len(set(nodes.values())) == 2, "they are spread over the nodes"
        assert ray_cluster.stdin is not None
        assert ray_cluster.stdout is not None
        ray_cluster.stdin.write("kill\n")
        ray_cluster.stdin.flush()
        assert ray_cluster.stdout.readline() == "killed\n"
        async with asyncio.timeout(LIMIT_S):
            while True:
                found = {each.id: each for each in await launcher.list() if each.state is ReplicaState.READY}
                moved = [id for id, node in nodes.items() if id in found and found[id].node != node]
                if moved:
                    break
                await asyncio.sleep(0.1)
        assert await ask(found[moved[0]], "/health")

    run_in_scene(ray_cluster, tmp_path, check)
