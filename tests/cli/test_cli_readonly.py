"""Commands over a data folder that can't be written say which one it is, and what to do."""

import ctypes
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import LIMIT_S, command, environment, run_process

CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 1, 2
PR_CAPBSET_DROP = 24


def hold_to_modes() -> None:
    """In a child before its program: root too is held to the modes of files from then on."""
    for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
        ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A data folder with a database, in which nothing can be written."""
    made = run_process("keys", "create", "n", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    data = tmp_path / ".forebay"
    kept = {path: path.stat().st_mode for path in (data / "forebay.db", data)}
    for path in kept:
        path.chmod(0o500 if path.is_dir() else 0o400)
    yield data
    for path, mode in reversed(kept.items()):
        path.chmod(mode)


@pytest.mark.parametrize("words", ["keys list", "teams list", "audit", "bill", "usage", "keys create x"])
def test_the_path_and_the_remedy_are_said(folder: Path, words: str) -> None:
    done = subprocess.run(
        command(*words.split()),
        cwd=folder.parent,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        preexec_fn=hold_to_modes,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert str(folder / "forebay.db") in done.stderr
    assert "as the user who runs `forebay up`" in done.stderr
    assert "Traceback" not in done.stderr
