"""Runs the command line: in this process for its words, in its own for streams, signals and terminals."""

import os
import pty
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from typer.testing import CliRunner, Result

from forebay.cli.main import app

ESCAPE = "\x1b"
LIMIT_S = 120.0


def forebay(*args: str | Path, input: str | bytes | None = None) -> Result:
    """In this process, without a terminal.  Anything but an exit is raised."""
    result = CliRunner().invoke(app, [str(arg) for arg in args], input=input, catch_exceptions=False)
    assert ESCAPE not in result.output
    return result


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return {**kept, "TERM": "xterm-256color", "COLUMNS": "120", **(extra or {})}


def command(*args: str | Path) -> list[str]:
    return [sys.executable, "-m", "forebay", *(str(arg) for arg in args)]


def run_process(
    *args: str | Path, cwd: Path, env: Mapping[str, str] | None = None, input: bytes | None = None
) -> subprocess.CompletedProcess[bytes]:
    """In a process of its own, without a terminal."""
    given: dict[str, object] = {"input": input} if input is not None else {"stdin": subprocess.DEVNULL}
    return subprocess.run(
        command(*args), cwd=cwd, env=environment(env), capture_output=True, timeout=LIMIT_S, **given
    )  # type: ignore[call-overload,no-any-return]


@dataclass(slots=True)
class Terminal:
    """A process in a terminal, and all that it has written there."""

    process: subprocess.Popen[bytes]
    descriptor: int
    written: str = ""
    reader: threading.Thread = field(default_factory=threading.Thread)

    @classmethod
    def start(cls, *args: str | Path, cwd: Path, env: Mapping[str, str] | None = None) -> Self:
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            command(*args), cwd=cwd, env=environment(env), stdin=theirs, stdout=theirs, stderr=theirs,
            start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        terminal = cls(process, ours)
        terminal.reader = threading.Thread(target=terminal._read, daemon=True)
        terminal.reader.start()
        return terminal

    def _read(self) -> None:
        with suppress(OSError):  # that is how a terminal without programs ends
            while block := os.read(self.descriptor, 65_536):
                self.written += block.decode(errors="replace")

    def wait_for(self, text: str, count: int = 1) -> None:
        """Until the text stands there so many times."""
        deadline = time.monotonic() + LIMIT_S
        while self.written.count(text) < count:
            if time.monotonic() > deadline:
                raise TimeoutError(f"no {text!r} in {self.written!r}")
            time.sleep(0.01)

    def say(self, text: str) -> None:
        os.write(self.descriptor, text.encode())

    def wait(self) -> int:
        return self.process.wait(LIMIT_S)

    def drain(self) -> None:
        """Until all that the program has written is here; it has ended."""
        self.reader.join(LIMIT_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.descriptor)


@contextmanager
def in_terminal(*args: str | Path, cwd: Path, env: Mapping[str, str] | None = None) -> Iterator[Terminal]:
    terminal = Terminal.start(*args, cwd=cwd, env=env)
    try:
        yield terminal
    finally:
        terminal.close()
