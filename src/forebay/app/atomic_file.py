"""Small files that are replaced in one step: a reader finds the old content or the new, never half of one.

Owns the way of writing, not what is written.  Never logs, and never swallows the disk's refusal.
"""

import os
from pathlib import Path

PRIVATE_FOLDER = 0o700
PRIVATE_FILE = 0o600


def write_atomically(path: Path, data: bytes, *, mode: int = PRIVATE_FILE, durable: bool = True) -> None:
    """Writes beside `path`, syncs, and renames.

    Args:
        path: the file to replace; its folder exists.
        data: the whole new content.
        mode: permission bits of the new file.
        durable: whether the content must outlive a power cut.

    Raises:
        OSError: while the new content could not be written; the old file is untouched then, and nothing is
            left beside it.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
    if durable:
        _sync_folder(path.parent)


def create_private_folder(path: Path) -> None:
    """Makes a folder, and its parents, that only this user can enter; one that is there stays as it is."""
    path.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
