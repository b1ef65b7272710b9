"""One process of a child: how it is started, logged, signalled and cleared away.

Every child leads a session of its own, so that Ctrl-C reaches the supervisor alone and a signal to the group
reaches whatever the child started.  Decides nothing: `supervisor` says when.
"""

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from forebay.app.supervisor_policy import RestartPolicy
from forebay.app.supervisor_probe import AliveProbe, Probe

SUPERVISED_MARK: Final = "FOREBAY_SUPERVISED"  #: in every child's environment: the data folder it works for
LOG_MAX_BYTES: Final = 16 * 1024 * 1024
EXEC: Final = Path(__file__).with_name("supervisor_exec.py")


class ChildSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What to run, and how to treat it."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = {}  #: added to the supervisor's own
    withheld: frozenset[str] = (
        frozenset()
    )  #: variables of the supervisor's own that are not the child's business
    pass_fds: tuple[int, ...] = ()  #: file descriptors that keep their number in the child
    probe: Probe = msgspec.field(default_factory=AliveProbe)
    needs: tuple[str, ...] = ()  #: children that must have been ready once before this one is started
    start_deadline_s: float = 120.0  #: for the probe to succeed
    restart: RestartPolicy = RestartPolicy()
    stop_signal: int = signal.SIGTERM
    retire_signal: int = signal.SIGTERM  #: in its place where a successor serves already
    stop_deadline_s: float = 10.0  #: then SIGKILL
    stop_stage: int = 0  #: children of a lower stage are gone before those of a higher one are asked to end


class ChildEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How a process of a child ended without having been asked to."""

    pid: int | None  #: None where it could not be started
    code: int | None  #: as of `ChildProcess.wait`; None where it could not be started
    is_overdue: bool  #: it was killed, for it was not ready in time
    was_ready: bool  #: it, or one before it


class ChildProcess:
    """A started process, until it has been reaped."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait(self) -> int:
        """The return code, negative where a signal ended it.  What the child left running is killed."""
        code = await self._process.wait()
        self.kill_group()
        return code

    def send_signal(self, number: int) -> None:
        """To the child alone: it knows how to end what it has started."""
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    def kill_group(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)


async def start_process(spec: ChildSpec, log: Path, mark: str) -> ChildProcess:
    """Starts the child, its output appended to `log`.

    Raises:
        OSError: the log can't be opened, or the system has no room for another process.
    """
    descriptor = open_log(log)
    own = {name: value for name, value in os.environ.items() if name not in spec.withheld}
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-S", str(EXEC), str(os.getpid()), *spec.argv,
            stdin=asyncio.subprocess.DEVNULL, stdout=descriptor, stderr=descriptor,
            pass_fds=spec.pass_fds, start_new_session=True,
            env={**own, "PYTHONUNBUFFERED": "1", **spec.env, SUPERVISED_MARK: mark},
        )  # fmt: skip
    finally:
        os.close(descriptor)
    return ChildProcess(process)


# --- logs ---------------------------------------------------------------------------------------------------


def open_log(path: Path) -> int:
    """A descriptor to append with; a log that is full already becomes `NAME.log.1` first."""
    with suppress(FileNotFoundError):
        if path.stat().st_size >= LOG_MAX_BYTES:
            os.replace(path, _name_older(path))
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def trim_log(path: Path, max_bytes: int = LOG_MAX_BYTES) -> None:
    """Bounds a log that a child is writing: its content moves to `NAME.log.1`, and the child, which appends,
    goes on at the start.  Lines written between the copy and the cut are lost.

    Raises:
        OSError: the disk is full; the log is as it was.
    """
    with suppress(FileNotFoundError):
        if path.stat().st_size >= max_bytes:
            shutil.copyfile(path, _name_older(path))
            os.truncate(path, 0)


def read_log_tail(path: Path, lines: int = 20, max_bytes: int = 16 * 1024) -> tuple[str, ...]:
    """The last lines of a log; empty when there is none."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - max_bytes))
            text = file.read(max_bytes).decode(errors="replace")
    except OSError:
        return ()
    return tuple(text.splitlines()[-lines:])


def _name_older(path: Path) -> Path:
    return path.with_name(f"{path.name}.1")
