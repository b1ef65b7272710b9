"""What holds for every launcher: one suite.  A launcher joins by a `LauncherScene` in `launcher_scenes`.

Engines are stand-ins (`stand_in`): a scene has its launcher run those in place of a real one.
"""

import asyncio
import json
import sys
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from forebay.engines.deployment import Launcher, Replica, ReplicaStatus, Resources
from forebay.engines.model import EngineSpec, LaunchPlan
from forebay.engines.plan import Place

STAND_IN = Path(__file__).with_name("stand_in.py")
LIMIT_S = 60.0  #: for anything that is waited for; the machine may be busy


class LauncherScene(Protocol):
    """A launcher over stand-ins, from its beginning to its end."""

    def connect(self) -> Launcher:
        """A client of its own: nothing that an earlier one knew is known to it."""


def plan_stand_in(spec: EngineSpec, place: Place) -> LaunchPlan:
    """Takes the place of `plan_engine`: the specification's arguments are the stand-in's options."""
    options = {"host": place.host, "port": place.port, **spec.arguments}
    url = f"http://{place.host}:{place.port}"
    return LaunchPlan(
        argv=(sys.executable, "-S", str(STAND_IN), *(f"--{name}={value}" for name, value in options.items())),
        env={},
        health_url=f"{url}/health",
        probe_url=f"{url}/health",
        probe_body=b"",
        ready_timeout_s=30.0,
        stop_timeout_s=20.0,
    )


def replica(
    deployment: str = "chat",
    revision: str = "r1",
    index: int = 0,
    memory_mib: int | None = None,
    **options: str | int,
) -> Replica:
    """One of a stand-in; a dash in an option's name is written as an underscore."""
    arguments = {name.replace("_", "-"): value for name, value in options.items()}
    return Replica(
        deployment=deployment,
        revision=revision,
        index=index,
        spec=EngineSpec(name="m", kind="stand-in", arguments=arguments),
        resources=Resources(memory_mib=memory_mib),
    )


async def find(launcher: Launcher, id: str) -> ReplicaStatus | None:
    return next((status for status in await launcher.list() if status.id == id), None)


async def await_status(
    launcher: Launcher, id: str, is_right: Callable[[ReplicaStatus], bool]
) -> ReplicaStatus:
    last: ReplicaStatus | None = None
    try:
        async with asyncio.timeout(LIMIT_S):
            while True:
                last = await find(launcher, id)
                if last is not None and is_right(last):
                    return last
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"{id} did not become what it should; the last: {last}") from None


async def await_gone(launcher: Launcher, id: str) -> None:
    async with asyncio.timeout(LIMIT_S):
        while await find(launcher, id) is not None:
            await asyncio.sleep(0.05)


async def await_line(launcher: Launcher, id: str, line: str) -> Sequence[str]:
    async with asyncio.timeout(LIMIT_S):
        while line not in (lines := await launcher.logs(id)):
            await asyncio.sleep(0.05)
        return lines


async def ask(status: ReplicaStatus, path: str) -> str:
    """The answer of a stand-in; raises OSError where it ends instead."""
    url = f"{status.url.removesuffix('/v1')}{path}"

    def read() -> str:
        with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
            return str(answer.read().decode())

    return await asyncio.to_thread(read)


async def read_stream(status: ReplicaStatus, lines: int, begun: asyncio.Event) -> list[str]:
    """All that is streamed; `begun` is set as soon as the first line is there."""
    url, loop = f"{status.url.removesuffix('/v1')}/stream?n={lines}", asyncio.get_running_loop()

    def read() -> list[str]:
        with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
            first = answer.readline()
            loop.call_soon_threadsafe(begun.set)
            return [line.decode().strip() for line in (first, *answer)]

    return await asyncio.to_thread(read)


def show(statuses: Sequence[ReplicaStatus]) -> str:
    return json.dumps([{"id": each.id, "state": each.state} for each in statuses])
