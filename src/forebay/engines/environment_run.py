"""Runs one step of a build: a process that writes to the log, and ends with this one at the latest.

Never keeps more of what it says than its last lines, but in the log.
"""

import collections
import contextlib
import ctypes
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

TAIL_LINES: Final = 40
LINE_MAX: Final = 500  #: characters of a line that is told
NICENESS: Final = 10
READ_BYTES: Final = 65536
_ERRORS: Final = ("error", "×", "memoryerror", "oserror")
PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None)


class StepFailed(Exception):
    """A process ended otherwise than it should, or not in time."""

    def __init__(self, what: str, lines: Sequence[str]) -> None:
        super().__init__(what)
        self.what = what
        self.tail = "\n".join(lines)
        self.reason = find_reason(lines)


def find_reason(lines: Sequence[str]) -> str:
    """The last error among lines, to the end of what is told of it; the last line where none says that it
    is one.
    """
    told = [line.strip() for line in lines if line.strip()]
    starts = [index for index, line in enumerate(told) if line.casefold().startswith(_ERRORS)]
    return " ".join(told[starts[-1] if starts else -1 :])[:LINE_MAX]


def tie_to_parent() -> None:
    """In a child, before it becomes another program: the kernel kills it when its parent ends."""
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _prepare_child() -> None:
    tie_to_parent()
    os.nice(NICENESS)


def run_step(
    argv: Sequence[str],
    *,
    log: Path,
    env: Mapping[str, str],
    timeout_s: float,
    report: Callable[[str], None],
    accepted: tuple[int, ...] = (0,),
) -> None:
    """Runs a process to its end; each line it writes is logged and reported.

    Raises:
        StepFailed, OSError
    """
    what = " ".join((Path(argv[0]).name, *argv[1:3]))
    tail: collections.deque[str] = collections.deque(maxlen=TAIL_LINES)
    with log.open("ab") as file:
        file.write(f"$ {' '.join(argv)}\n".encode())
        file.flush()
        process = subprocess.Popen(
            argv,
            cwd="/",  # no project's settings may have a say
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            preexec_fn=_prepare_child,  # noqa: PLW1509 - two system calls, and no lock is taken in them
        )
        try:
            is_done = _follow(process, file.write, tail, report, time.monotonic() + timeout_s)
        finally:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
    if not is_done:
        raise StepFailed(what, [*tail, f"it was ended after {timeout_s:.0f} s"])
    if process.returncode not in accepted:
        raise StepFailed(what, tuple(tail))


def _follow(
    process: "subprocess.Popen[bytes]",
    write: Callable[[bytes], object],
    tail: "collections.deque[str]",
    report: Callable[[str], None],
    deadline: float,
) -> bool:
    """Until the process has closed its output and ended; False where the deadline came first."""
    assert process.stdout is not None
    pipe, rest = process.stdout.fileno(), b""
    while True:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return False
        if not select.select([pipe], [], [], min(left_s, 1.0))[0]:
            continue
        data = os.read(pipe, READ_BYTES)
        write(data)
        *lines, rest = (rest + data).split(b"\n")
        for line in lines if data else [rest]:
            text = line.decode(errors="replace").rstrip()
            if text:
                tail.append(text)
                report(text[:LINE_MAX])
        if not data:
            process.wait(max(1.0, left_s))
            return True
