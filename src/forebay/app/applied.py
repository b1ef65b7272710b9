"""What each worker tells of the snapshot that it runs: a small file each, for the admin API's status.

A worker goes on with what it has when the newest snapshot is of no use to it; this is where that shows.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from forebay.app.atomic_file import write_atomically


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker runs."""

    pid: int
    snapshot_hash: str
    refused: str = ""  #: why the newest snapshot is not in force; empty if it is
    problems: tuple[str, ...] = ()  #: targets that can't be sent to


def save_applied(run_dir: Path, name: str, applied: Applied) -> None:
    """Raises OSError."""
    folder = run_dir / "applied"
    folder.mkdir(exist_ok=True)
    write_atomically(folder / f"{name}.json", msgspec.json.encode(applied), durable=False)


def load_applied(run_dir: Path) -> Mapping[str, Applied]:
    """By the worker's name; also of workers that are gone, and without those that can't be read."""
    found = {}
    for path in sorted((run_dir / "applied").glob("*.json")):
        try:
            found[path.stem] = msgspec.json.decode(path.read_bytes(), type=Applied)
        except (OSError, msgspec.DecodeError):
            continue
    return found
