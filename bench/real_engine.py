"""A real engine as a process of a benchmark: started as the supervisor starts one, on one core if need be.

It knows no load and no figure.
"""

import http.client
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from forebay.app import supervisor_exec
from forebay.engines.model import EngineSpec
from forebay.engines.plan import Place, plan_engine
from forebay.testing.threaded import find_closed_port
from measure import BenchError, find_tree


@dataclass(frozen=True, kw_only=True)
class Engine:
    """One that answered its health address.

    Attributes:
        url: up to and including `/v1`.
        start_s: from its start to that answer.
    """

    url: str
    start_s: float
    pid: int


@contextmanager
def start_engine(
    spec: EngineSpec, folder: Path, *, python: str = sys.executable, core: int | None = None
) -> Iterator[Engine]:
    """Raises `BenchError` where it does not come up; its log lies in the folder then."""
    plan = plan_engine(spec, Place(port=find_closed_port(), python=python))
    pin = [] if core is None else ["taskset", "-c", str(core)]
    began = time.monotonic()
    with (folder / f"{spec.name}.log").open("ab") as log:
        command = [*pin, sys.executable, "-m", supervisor_exec.__name__, str(os.getpid()), *plan.argv]
        process = subprocess.Popen(
            command, stdout=log, stderr=log, env=os.environ | plan.env, start_new_session=True
        )
    try:
        while not is_healthy(plan.health_url):
            if process.poll() is not None or time.monotonic() - began > plan.ready_timeout_s:
                raise BenchError(f"the engine {spec.name} did not come up; see {folder / spec.name}.log")
            time.sleep(0.02)
        url = plan.health_url.removesuffix("/health") + "/v1"
        yield Engine(url=url, start_s=time.monotonic() - began, pid=process.pid)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # all of it: vLLM's engine is a process beside its server
        process.wait()


@contextmanager
def run_engine(spec: EngineSpec, folder: Path, python: str = sys.executable) -> Iterator[tuple[str, float]]:
    """Its base URL, and the seconds until it answered its health address."""
    with start_engine(spec, folder, python=python) as engine:
        yield engine.url, engine.start_s


def is_healthy(url: str) -> bool:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=5)
    try:
        connection.request("GET", parts.path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def pin_tree(pid: int, core: int) -> None:
    """Has a process, its children and all their threads run on one core."""
    for process in find_tree(pid):
        for thread in os.listdir(f"/proc/{process}/task"):
            os.sched_setaffinity(int(thread), {core})
