"""A worker starts fast and carries nothing that the data plane does not use."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

FORBIDDEN = {
    "pydantic", "pydantic_core", "fastapi", "starlette", "sqlalchemy", "alembic", "yaml", "typer", "click",
    "rich", "anyio", "granian", "httpx", "openai", "numpy", "onnxruntime", "tokenizers", "xllamacpp",
    "jwt", "cryptography",
}  # fmt: skip
OTHER_ROOMS = ("cli", "engines", "store", "testing", "app.config", "app.control", "app.up", "ledger.repo")
TELL = """
import json, pathlib, resource, sys
used = resource.getrusage(resource.RUSAGE_SELF)
peak = next(line for line in pathlib.Path("/proc/self/status").open() if line.startswith("VmHWM"))
cpu_s = used.ru_utime + used.ru_stime
print(json.dumps({"modules": sorted(sys.modules), "cpu_s": cpu_s, "rss_kib": int(peak.split()[1])}))
"""


class Told(NamedTuple):
    modules: list[str]
    cpu_s: float
    rss_kib: int


def load(module: str) -> Told:
    code = f"import {module}\n{TELL}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return Told(**json.loads(done.stdout))


def best(module: str, rounds: int = 3) -> Told:
    """The round that was disturbed least."""
    return min((load(module) for _ in range(rounds)), key=lambda told: told.cpu_s)


def packages(told: Told) -> set[str]:
    return {name.partition(".")[0] for name in told.modules}


def test_a_worker_loads_only_what_the_data_plane_uses() -> None:
    told = load("forebay.app.worker")
    assert packages(told) & FORBIDDEN == set()
    rooms = tuple(f"forebay.{room}" for room in OTHER_ROOMS)
    assert [name for name in told.modules if name.startswith(rooms)] == []


def test_importing_the_package_is_light() -> None:
    bare, told = best("sys"), best("forebay")
    assert told.cpu_s - bare.cpu_s < 0.15
    assert packages(told) & FORBIDDEN == set()


def test_a_worker_is_small_and_ready_soon() -> None:
    told = best("forebay.app.worker")
    assert told.rss_kib < 60 * 1024
    assert told.cpu_s < 1.0


def test_a_worker_that_cannot_start_says_why_in_one_line(tmp_path: Path) -> None:
    begun = time.monotonic()
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "forebay.app.worker",
            "--run-dir",
            tmp_path,
            "--index",
            "3",
            "--listen-fd",
            "0",
        ],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONWARNINGS": "default"},
    )
    assert done.returncode == 2
    assert done.stderr.startswith("worker 3 can't start: ")
    assert done.stderr.count("\n") == 1
    assert time.monotonic() - begun < 30
