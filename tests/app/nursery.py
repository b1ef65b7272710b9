"""Small stand-ins for workers and engines, and a supervisor over them."""

import asyncio
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from forebay.app.clock import SystemClock
from forebay.app.supervisor import Supervisor
from forebay.app.supervisor_policy import ChildState, RestartPolicy
from forebay.app.supervisor_process import ChildSpec
from forebay.app.supervisor_state import ChildStatus, find_leftovers

FAST = RestartPolicy(first_s=0.02, longest_s=0.1)

READY = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid()))\n"
LIVE = READY + "time.sleep(600)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + LIVE
SLOW_END = (
    "import signal, sys, time\n"
    "def end(*_):\n time.sleep(0.2); print('ended', time.monotonic(), flush=True); sys.exit(0)\n"
    "signal.signal(signal.SIGTERM, end)\n" + LIVE
)
PARENT = "import subprocess, sys; subprocess.Popen(['sleep', '600'])\n" + LIVE


class FileProbe:
    """Ready when the child has written its own process id into a file.  One left by a predecessor says no."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def check(self, pid: int) -> bool:
        try:
            return self._path.read_bytes().strip() == str(pid).encode()
        except OSError:
            return False


class Nursery:
    """Specs of stand-ins, and one supervisor over them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = str(folder)
        self.history: list[tuple[ChildStatus, ...]] = []
        self.supervisor: Supervisor

    def spec(self, name: str, code: str = LIVE, **options: object) -> ChildSpec:
        ready = self.folder / f"{name}.ready"
        settings: dict[str, object] = {"probe": FileProbe(ready), "restart": FAST, **options}
        return ChildSpec(name=name, argv=(sys.executable, "-S", "-c", code, str(ready)), **settings)  # type: ignore[arg-type]

    def supervise(self, *specs: ChildSpec) -> Supervisor:
        self.supervisor = Supervisor(
            specs, logs=self.folder, mark=self.mark, clock=SystemClock(), on_change=self._note
        )
        return self.supervisor

    def _note(self) -> None:
        self.history.append(self.supervisor.statuses)

    async def wait_ready(self) -> None:
        """Until every child has been ready once."""
        await until(lambda: all(status.was_ready for status in self.supervisor.statuses))

    def status(self, name: str) -> ChildStatus:
        return next(each for each in self.supervisor.statuses if each.name == name)

    def pid(self, name: str) -> int:
        pid = self.status(name).pid
        assert pid is not None
        return pid

    def states(self, name: str) -> list[ChildState]:
        """All states of a child, in order, without repetition."""
        states: list[ChildState] = []
        for statuses in self.history:
            state = next(each.state for each in statuses if each.name == name)
            if not states or states[-1] is not state:
                states.append(state)
        return states


@contextmanager
def open_nursery(folder: Path) -> Iterator[Nursery]:
    """At its end nothing may be left running."""
    nursery = Nursery(folder)
    yield nursery
    deadline = time.monotonic() + 60  # the kernel takes a moment to end what was killed
    while left := list(find_leftovers(nursery.mark)):
        assert time.monotonic() < deadline, f"a test left processes running: {left}"
        time.sleep(0.01)


async def until(condition: Callable[[], bool], limit_s: float = 60.0) -> None:
    async with asyncio.timeout(limit_s):
        while not condition():
            await asyncio.sleep(0.005)


class running:
    """The supervisor runs inside the block; it is killed at the end unless it has stopped."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    async def __aenter__(self) -> "asyncio.Task[None]":
        self._task = asyncio.create_task(self._supervisor.run())
        return self._task

    async def __aexit__(self, *_: object) -> None:
        self._supervisor.kill()
        async with asyncio.timeout(60):
            await self._task


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
