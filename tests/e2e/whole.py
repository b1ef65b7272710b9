"""Starts a whole Forebay as `forebay up` does, in a folder of its own, and ends it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from forebay.app.applied import load_applied
from forebay.app.supervisor_state import RunState, load_run_state
from forebay.core.routes import decode_snapshot

START_S = 120.0


def wait_until(is_true: Callable[[], bool], limit_s: float, what: str) -> None:
    deadline = time.monotonic() + limit_s
    while not is_true():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {limit_s} s: {what}")
        time.sleep(0.02)


def await_period(left_s: float = 300.0) -> None:
    """So that the day, and maybe the month, does not end in the middle of a test of limits."""
    left = 86_400 - time.time() % 86_400
    if left < left_s:
        time.sleep(left + 1)


@dataclass(slots=True, kw_only=True)
class Whole:
    """A running `forebay up`."""

    folder: Path
    process: subprocess.Popen[bytes]

    @property
    def data(self) -> Path:
        return self.folder / ".forebay"

    @property
    def state(self) -> RunState:
        state = load_run_state(self.data / "run" / "state.json")
        assert state is not None
        return state

    @property
    def url(self) -> str:
        return self.state.gateway_url + "/v1"

    @property
    def key(self) -> str:
        return (self.data / "local.key").read_text().strip()

    def is_in_force(self) -> bool:
        """Whether all workers have the newest snapshot."""
        newest = decode_snapshot((self.data / "run" / "snapshot.msgpack").read_bytes()).compute_hash()
        applied = load_applied(self.data / "run")
        workers = [child for child in self.state.children if child.name.startswith("worker-")]
        told = [applied.get(worker.name) for worker in workers]
        return all(each is not None and each.snapshot_hash == newest for each in told)

    def output(self) -> str:
        return (self.folder / "up.out").read_text()

    def is_ready(self) -> bool:
        state = load_run_state(self.data / "run" / "state.json")
        return state is not None and state.pid == self.process.pid and state.ready

    def wait_ready(self) -> None:
        wait_until(lambda: self.is_ready() or self.process.poll() is not None, START_S, "ready")
        assert self.process.poll() is None, self.output()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0, self.output()

    def command(self, *args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "forebay", *args],
            cwd=self.folder,
            env=clean_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


def clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("FOREBAY_", "COV_"))}


def launch(folder: Path, *args: str) -> Whole:
    with (folder / "up.out").open("ab") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "forebay", "up", *args],
            cwd=folder,
            env=clean_environment(),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
        )
    return Whole(folder=folder, process=process)


@contextmanager
def running(folder: Path, config: str, *args: str) -> Iterator[Whole]:
    """A Forebay that is ready; it must end well."""
    (folder / "forebay.yaml").write_text(config)
    whole = launch(folder, *args)
    try:
        whole.wait_ready()
        yield whole
        whole.stop()
    finally:
        if whole.process.poll() is None:
            whole.process.kill()
            whole.process.wait()
