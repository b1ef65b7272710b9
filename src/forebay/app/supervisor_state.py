"""What a supervisor leaves for others to see: its lock, its state, and the mark on its children.

One supervisor at a time works in a data folder; the lock goes with its process, however that ends.  Only the
holder of the lock may clear away what an earlier supervisor left running.
"""

import fcntl
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Final, Self

import msgspec

from forebay.app.atomic_file import write_atomically
from forebay.app.supervisor_policy import SERVING, ChildState
from forebay.app.supervisor_process import SUPERVISED_MARK
from forebay.core.errors import Fault, ForebayError

LEFTOVERS_DEADLINE_S: Final = 5.0
ROLL_SIGNAL: Final = signal.SIGUSR2  #: asks a supervisor for a rolling restart of its workers
ROLL_RUNS, ROLL_DONE = "running", "done"


class ChildStatus(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    state: ChildState
    pid: int | None
    since_s: float  #: Unix time of the last change of state
    restarts: int
    failures: int  #: in a row
    was_ready: bool
    last_exit: str  #: how its last process ended; empty if none has


class RunState(msgspec.Struct, frozen=True, kw_only=True):
    """`run/state.json`."""

    pid: int  #: of the supervisor
    started_at_s: float
    gateway_url: str
    control_url: str
    children: tuple[ChildStatus, ...]
    stopping: bool = False
    config_file: str | None = None  #: that all was started with; None where the defaults apply
    rolls: int = 0  #: rolling restarts that have ended
    roll: str = ""  #: what became of the last one: `running`, `done`, or why it was given up
    #: when the last one that has ended had begun, 0 if none has; None of a version that does not say
    roll_began_s: float | None = None
    roll_ended: str = ""  #: what became of that one
    version: int = 1

    @property
    def ready(self) -> bool:
        return all(child.state in SERVING for child in self.children)


def save_run_state(path: Path, state: RunState) -> None:
    """Raises OSError when the disk refuses; the old state stays then."""
    write_atomically(path, msgspec.json.format(msgspec.json.encode(state)) + b"\n", durable=False)


def load_run_state(path: Path) -> RunState | None:
    """The last state written; None when there is none that can be read.  Its supervisor may be gone."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=RunState)
    except (OSError, msgspec.DecodeError):
        return None


class AlreadyRunning(ForebayError):
    fault: ClassVar[Fault] = Fault.CALLER
    code: ClassVar[str] = "already_running"


class SupervisorLock:
    """The right to supervise in one data folder.

    Raises:
        AlreadyRunning: another process has it.
        OSError: the file can't be made.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._descriptor, 32, 0).decode(errors="replace").strip()
            os.close(self._descriptor)
            raise AlreadyRunning(
                f"Forebay is already running in {path.parent}, pid {holder or 'unknown'}. "
                f"Stop it first, or set another data.dir."
            ) from None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)


def find_supervisor(path: Path) -> int | None:
    """The process that holds the lock; None where nobody does, whatever an old file says."""
    with suppress(OSError, ValueError):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return int(os.pread(descriptor, 32, 0))
        finally:
            os.close(descriptor)
    return None


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal: most signals end a process that has none."""
    with suppress(OSError, ValueError):
        for line in Path("/proc", str(pid), "status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def compute_mark(data: Path) -> str:
    """Names a data folder in its workers' environment: one path in two containers is two."""
    status = data.stat()
    return f"{status.st_dev}:{status.st_ino}:{data.resolve()}"


def find_leftovers(mark: str) -> Iterator[int]:
    """Processes that an earlier supervisor of the same data folder started, and what those started."""
    wanted = f"{SUPERVISED_MARK}={mark}".encode()
    for entry in os.scandir("/proc"):
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        with suppress(OSError):
            if wanted in Path(entry.path, "environ").read_bytes().split(b"\0"):
                yield int(entry.name)


def clear_leftovers(mark: str) -> tuple[int, ...]:
    """Kills them and waits until they are gone.  Only for the holder of the lock.

    Raises:
        TimeoutError: one of them did not go.
    """
    found: set[int] = set()
    deadline = time.monotonic() + LEFTOVERS_DEADLINE_S
    while left := set(find_leftovers(mark)) - _own_ancestors():
        found |= left
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes of an earlier run can't be ended: {sorted(left)}")
        time.sleep(0.01)
    return tuple(sorted(found))


def _own_ancestors() -> set[int]:
    """Whoever started this process is spared, even when it was supervised itself."""
    ancestors: set[int] = set()
    pid = os.getppid()
    while pid > 1 and pid not in ancestors:
        ancestors.add(pid)
        try:
            stat = Path("/proc", str(pid), "stat").read_bytes()
        except OSError:
            break
        pid = int(stat[stat.rindex(b")") + 2 :].split()[1])
    return ancestors
