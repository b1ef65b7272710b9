"""The contract of all launchers, over real processes: see `launcher_contract`."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from http.client import HTTPException
from pathlib import Path

import pytest
from launcher_contract import (
    LauncherScene,
    ask,
    await_gone,
    await_line,
    await_status,
    find,
    read_stream,
    replica,
    show,
)
from launcher_scenes import SCENES, OpenScene

from forebay.engines.deployment import ExitReason, ReplicaState
from forebay.engines.model import LauncherError

Check = Callable[[LauncherScene], Awaitable[None]]


@pytest.fixture(params=sorted(SCENES))
def open_scene(request: pytest.FixtureRequest) -> OpenScene:
    return SCENES[request.param]


def hold(open_scene: OpenScene, folder: Path, check: Check) -> None:
    async def run() -> None:
        async with open_scene(folder) as scene:
            await check(scene)

    asyncio.run(run())


async def check_start(scene: LauncherScene) -> None:
    launcher, one = scene.connect(), replica()
    await asyncio.gather(launcher.start(one), launcher.start(one), scene.connect().start(one))
    status = await await_status(launcher, one.id, lambda each: each.state is ReplicaState.READY)
    assert (status.deployment, status.revision, status.index) == ("chat", "r1", 0)
    assert (status.restarts, status.failures, status.reason) == (0, 0, ExitReason.NONE)
    assert status.url.endswith("/v1")
    assert status.node
    assert status.since_s > 0
    pid = await ask(status, "/health")
    await launcher.start(one)
    # A second replica tells that the first look at what was asked again is over.
    other = replica(index=1)
    await launcher.start(other)
    await await_status(launcher, other.id, lambda each: each.state is ReplicaState.READY)
    assert [each.id for each in await launcher.list()].count(one.id) == 1, show(await launcher.list())
    again = await await_status(launcher, one.id, lambda each: each.state is ReplicaState.READY)
    assert await ask(again, "/health") == pid, "it goes on as it was"


def test_to_start_what_runs_changes_nothing(open_scene: OpenScene, tmp_path: Path) -> None:
    hold(open_scene, tmp_path, check_start)


async def check_outlives(scene: LauncherScene) -> None:
    first, one = scene.connect(), replica()
    await first.start(one)
    await first.close()
    second = scene.connect()
    status = await await_status(second, one.id, lambda each: each.state is ReplicaState.READY)
    pid = await ask(status, "/health")
    await second.close()
    third = scene.connect()
    status = await await_status(third, one.id, lambda each: each.state is ReplicaState.READY)
    assert await ask(status, "/health") == pid
    await third.stop(one.id)
    await await_gone(scene.connect(), one.id)


def test_replicas_outlive_who_started_them_and_are_known_to_the_next(
    open_scene: OpenScene, tmp_path: Path
) -> None:
    hold(open_scene, tmp_path, check_outlives)


async def check_crash(scene: LauncherScene) -> None:
    launcher = scene.connect()
    good, bad = replica(), replica("loop", exit=7, say="no model here")
    await launcher.start(good)
    await launcher.start(bad)
    status = await await_status(launcher, good.id, lambda each: each.state is ReplicaState.READY)
    pid = await ask(status, "/health")
    with pytest.raises((ConnectionError, HTTPException)):  # it ends before it answers
        await ask(status, "/exit?code=9")
    again = await await_status(
        launcher, good.id, lambda each: each.restarts == 1 and each.state is ReplicaState.READY
    )
    assert await ask(again, "/health") != pid
    assert again.reason is ExitReason.CRASHED
    loops = await await_status(launcher, bad.id, lambda each: each.failures >= 3)
    assert loops.reason is ExitReason.CRASHED
    backing = await await_status(launcher, bad.id, lambda each: each.state is ReplicaState.BACKOFF)
    assert "no model here" in backing.message
    assert (await find(launcher, good.id) or again).restarts == 1, "the other is left in peace"


def test_what_crashes_is_started_again_after_a_pause(open_scene: OpenScene, tmp_path: Path) -> None:
    hold(open_scene, tmp_path, check_crash)


async def check_refused(scene: LauncherScene) -> None:
    launcher, bad = scene.connect(), replica(exit=2, say="the weights are not there")
    await launcher.start(bad)
    status = await await_status(launcher, bad.id, lambda each: each.state is ReplicaState.REFUSED)
    assert (status.reason, status.restarts, status.failures) == (ExitReason.REFUSED, 0, 1)
    assert "the weights are not there" in status.message
    # By the time another has crashed and come back twice, one that were tried again would have been.
    await launcher.start(replica("loop", exit=7))
    await await_status(launcher, "loop-r1-0", lambda each: each.restarts >= 2)
    assert (await await_status(launcher, bad.id, lambda each: True)).restarts == 0
    await launcher.stop(bad.id)
    await await_gone(launcher, bad.id)
    mended = replica(revision="r2")
    await launcher.start(mended)
    await await_status(launcher, mended.id, lambda each: each.state is ReplicaState.READY)


def test_what_refuses_stays_down_until_it_is_changed(open_scene: OpenScene, tmp_path: Path) -> None:
    hold(open_scene, tmp_path, check_refused)


async def check_drain(scene: LauncherScene) -> None:
    launcher, one = scene.connect(), replica()
    await launcher.start(one)
    status = await await_status(launcher, one.id, lambda each: each.state is ReplicaState.READY)
    begun = asyncio.Event()
    stream = asyncio.create_task(read_stream(status, 15, begun))
    await begun.wait()
    await launcher.stop(one.id)
    await await_status(launcher, one.id, lambda each: each.state is ReplicaState.STOPPING)
    lines = await stream
    assert lines[:15] == [str(number) for number in range(15)]
    await await_gone(launcher, one.id)
    assert (await launcher.logs(one.id))[-1] == "drained", "the log of one that is gone is still there"
    await launcher.start(one)
    again = await await_status(launcher, one.id, lambda each: each.state is ReplicaState.READY)
    assert await ask(again, "/health") != lines[-1]


def test_a_stop_lets_a_stream_end_and_a_start_brings_it_back(open_scene: OpenScene, tmp_path: Path) -> None:
    hold(open_scene, tmp_path, check_drain)


async def check_logs(scene: LauncherScene) -> None:
    launcher, one = scene.connect(), replica(say="hello from the engine")
    await launcher.start(one)
    lines = await await_line(launcher, one.id, "hello from the engine")
    assert len(await launcher.logs(one.id, 1)) == 1
    await launcher.stop(one.id)
    await await_gone(launcher, one.id)
    assert (await scene.connect().logs(one.id))[: len(lines)] == lines
    for unknown in ("nobody-r1-0", "../../etc/passwd", "", "A b"):
        assert list(await launcher.logs(unknown)) == []


def test_logs_of_the_living_and_the_dead(open_scene: OpenScene, tmp_path: Path) -> None:
    hold(open_scene, tmp_path, check_logs)


async def check_memory(scene: LauncherScene) -> None:
    launcher = scene.connect()
    greedy, modest = replica(memory_mib=120), replica("modest", memory_mib=400)
    await launcher.start(greedy)
    await launcher.start(modest)
    for each in (greedy, modest):
        status = await await_status(launcher, each.id, lambda each: each.state is ReplicaState.READY)
        try:
            await ask(status, "/hold?mib=200")
        except (OSError, HTTPException):
            assert each is greedy
    ended = await await_status(launcher, greedy.id, lambda each: each.reason is not ExitReason.NONE)
    assert ended.reason is ExitReason.OUT_OF_MEMORY
    back = await await_status(
        launcher, greedy.id, lambda each: each.restarts == 1 and each.state is ReplicaState.READY
    )
    assert back.reason is ExitReason.OUT_OF_MEMORY, "it is told why it ended the last time"
    assert (await await_status(launcher, modest.id, lambda each: True)).reason is ExitReason.NONE
    os.kill(int(await ask(back, "/health")), 9)
    killed = await await_status(launcher, greedy.id, lambda each: each.restarts == 2)
    assert killed.reason is ExitReason.CRASHED, "killed by a person is not killed for memory"


def test_out_of_memory_is_told_from_a_crash(open_scene: OpenScene, tmp_path: Path) -> None:
    hold(open_scene, tmp_path, check_memory)


async def check_strange(scene: LauncherScene) -> None:
    launcher = scene.connect()
    await launcher.stop("nobody-r1-0")
    await launcher.stop("../x")
    assert list(await launcher.list()) == []
    with pytest.raises(LauncherError, match="shorter name"):
        await launcher.start(replica("../../evil"))
    with pytest.raises(LauncherError, match="shorter name"):
        await launcher.start(replica("x" * 80))
    assert list(await launcher.list()) == []


def test_unknown_ids_are_fine_and_bad_names_are_refused(open_scene: OpenScene, tmp_path: Path) -> None:
    hold(open_scene, tmp_path, check_strange)
