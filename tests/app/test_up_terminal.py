"""Ctrl-C in the terminal of `forebay up` and of `make run`: what is said, and where the cursor is left."""

import os
import pty
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from up_scene import write_config

from forebay.testing.openai import chat_chunk, event, well_behaved
from forebay.testing.steps import Gate, Send, Wait
from forebay.testing.threaded import ThreadedUpstream

ROOT = Path(__file__).parents[2]
LIMIT_S = 90.0
DRAIN_S = 500  #: so long that nobody waits for it
OWN_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execvp(sys.argv[1], sys.argv[1:])
"""
MAKE_RUN = [
    *("make", "--no-print-directory", "-C", str(ROOT)),
    *("-o", ".venv/ready", f"PY={sys.executable}", "run"),
]


class Foreground:
    """A command in a terminal that it owns, as a shell would start it: Ctrl-C reaches all of its group."""

    def __init__(self, argv: list[str], folder: Path) -> None:
        self.written = ""
        self.descriptor, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", OWN_TERMINAL, *argv],
            cwd=folder,
            env={name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
            | {"TERM": "xterm-256color", "COLUMNS": "100"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with suppress(OSError):  # that is how a terminal without programs ends
            while block := os.read(self.descriptor, 65_536):
                self.written += block.decode(errors="replace")

    def press_ctrl_c(self) -> None:
        os.write(self.descriptor, b"\x03")

    def wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < deadline, self.written
            time.sleep(0.02)

    def wait_said(self, text: str) -> None:
        self.wait_for(lambda: text in self.written)

    def wait_end(self) -> int:
        status = self.process.wait(LIMIT_S)
        self._reader.join(LIMIT_S)
        return status

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.descriptor)


@pytest.fixture
def upstream() -> Iterator[ThreadedUpstream]:
    with ThreadedUpstream(well_behaved("Par", "is.")) as upstream:
        yield upstream


@pytest.fixture(params=["forebay up", "make run"])
def foreground(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    upstream: ThreadedUpstream,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Foreground]:
    path = write_config(tmp_path, upstream.url)
    path.write_text(path.read_text().replace("deadline_s: 10", f"deadline_s: {DRAIN_S}"))
    monkeypatch.setenv("FOREBAY_CONFIG", str(path))
    is_make = request.param == "make run"
    running = Foreground(MAKE_RUN if is_make else [sys.executable, "-m", "forebay", "up"], tmp_path)
    try:
        running.wait_said("Ctrl-C ends it")
        yield running
    finally:
        running.close()


def test_ctrl_c_says_how_long_it_may_take_and_how_to_end_at_once(foreground: Foreground) -> None:
    foreground.press_ctrl_c()
    foreground.wait_end()
    assert foreground.written.endswith(
        "^C\r\nStopping: requests in flight get up to "
        f"{DRAIN_S} s. Ctrl-C again ends at once.\r\nStopped.\r\n"
    )


def test_ctrl_c_during_the_start_leaves_no_table_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine takes seconds to load, and a worker needs the control plane: no request is in flight yet."""
    (tmp_path / "forebay.yaml").write_text("gateway: {port: 0, workers: 1}\ncontrol: {port: 0}\n")
    monkeypatch.delenv("FOREBAY_CONFIG", raising=False)
    running = Foreground([sys.executable, "-m", "forebay", "up"], tmp_path)
    try:
        running.wait_said("worker-0")
        running.press_ctrl_c()
        assert running.wait_end() == 130
    finally:
        running.close()
    before, _, said = running.written.rpartition("\x1b[2K")
    assert said == "Stopping. Ctrl-C again ends at once.\r\nStopped.\r\n"
    erased = before[before.rindex("^C") :]
    assert erased.endswith("\x1b[1A\x1b[2K" * 3 + "\x1b[1A"), "each of the four lines of the table"


def test_a_second_ctrl_c_ends_at_once_on_a_line_of_its_own(
    foreground: Foreground, upstream: ThreadedUpstream, tmp_path: Path
) -> None:
    gate = Gate()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    asked = len(upstream.requests)
    upstream.enqueue([Send(head + event(chat_chunk({"content": "a"}))), Wait(gate)])
    caller = subprocess.Popen(
        [sys.executable, "-m", "forebay", "chat", "Hi"], cwd=tmp_path, stdout=-1, stderr=-1
    )
    try:
        upstream.wait_requests(asked + 1, LIMIT_S)
        foreground.press_ctrl_c()
        foreground.wait_said("Ctrl-C again ends at once")
        foreground.press_ctrl_c()
        foreground.wait_end()  # the drain's deadline is not waited for
    finally:
        gate.open()
        caller.communicate(timeout=LIMIT_S)
    assert foreground.written.endswith("^C\r\nEnding at once: requests in flight are cut off.\r\n")
    assert "***" not in foreground.written, "make reports no failure"
