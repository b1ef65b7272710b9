"""What became of the last edit of `forebay.yaml`, told by the control plane to whoever started it.

A small file in the run folder, replaced at each edit.  Only `forebay up` reads it, to say so in its terminal;
nothing is decided by it.
"""

from pathlib import Path
from typing import Final

import msgspec

from forebay.app.atomic_file import write_atomically

EDIT: Final = "edit.json"  #: in the run folder

Stamp = tuple[int, int]


class ConfigEdit(msgspec.Struct, frozen=True, kw_only=True):
    """One edit: refused where there are problems, in force otherwise."""

    problems: tuple[str, ...] = ()
    restart_settings: tuple[str, ...] = ()  #: all that wait for the next start, by their names in the file

    def describe(self) -> str:
        """One line for a person."""
        if self.problems:
            first, *others = self.problems
            more = f", and {len(others)} more (see `forebay config check`)" if others else ""
            return f"edit refused, the last valid configuration stays: {first}{more}"
        waiting = ", ".join(self.restart_settings)
        return f"edit applied; after a restart only: {waiting}" if waiting else "edit applied"


def load_edit(run_path: Path) -> ConfigEdit | None:
    """None where nothing was edited since the start."""
    try:
        return msgspec.json.decode((run_path / EDIT).read_bytes(), type=ConfigEdit)
    except (OSError, msgspec.DecodeError):
        return None


def save_edit(run_path: Path, edit: ConfigEdit) -> None:
    """Raises OSError."""
    write_atomically(run_path / EDIT, msgspec.json.encode(edit), durable=False)


class EditNews:
    """Sees each new edit once.  What an earlier run has left is not news, and is removed.

    Raises:
        OSError: it can't be removed.
    """

    def __init__(self, run_path: Path) -> None:
        self._run_path = run_path
        self._path = run_path / EDIT
        self._path.unlink(missing_ok=True)
        self._seen: Stamp | None = None

    def poll(self) -> ConfigEdit | None:
        """The newest edit, if there is one since the last look."""
        try:
            status = self._path.stat()
        except OSError:
            return None
        stamp = (status.st_ino, status.st_mtime_ns)
        if stamp == self._seen:
            return None
        self._seen = stamp
        return load_edit(self._run_path)
