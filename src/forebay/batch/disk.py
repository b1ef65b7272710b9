"""The contents of files on this machine's disk, each under its file's id.

By id and not by hash: no deletion then has to count who else has the same bytes, and nobody can learn whether
another project has them.  A content appears under its name whole or not at all; whatever was begun and not
ended goes at the next start.
"""

import hashlib
import os
import secrets
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from forebay.batch.model import DiskRefuses

WRITE_BYTES: Final = 1024 * 1024  #: that are gathered before the disk gets them
ORPHAN_S: Final = 3600.0  #: a content without a file is that old before it goes


class Disk:
    """See the module.

    Args:
        folder: in which it keeps folders of its own; made if there is none.
    """

    def __init__(self, folder: Path) -> None:
        self._files = folder / "files"
        self._uploads = folder / "uploads"
        for each in (self._files, self._uploads):
            each.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.store = _load_name(folder / "store.id")

    def path(self, file_id: str) -> Path:
        return self._files / file_id

    def begin(self, file_id: str) -> "Upload":
        """Raises OSError."""
        return Upload(self._uploads / f"{file_id}.part", self.path(file_id))

    def remove(self, file_ids: Iterable[str]) -> None:
        for file_id in file_ids:
            self.path(file_id).unlink(missing_ok=True)

    def clear_uploads(self) -> None:
        """Those that no process is writing any more; to be called before any is begun."""
        for path in self._uploads.iterdir():
            path.unlink(missing_ok=True)

    def remove_orphans(self, known: set[str]) -> int:
        """Contents of which no file tells, and none will: their process was killed before it could."""
        removed = 0
        before = time.time() - ORPHAN_S
        for entry in os.scandir(self._files):
            with suppress(FileNotFoundError):
                if entry.name not in known and entry.stat().st_mtime < before:
                    os.unlink(entry.path)
                    removed += 1
        return removed


class Upload:
    """One content that is being written.  Each of its calls may wait for the disk: not for an event loop.

    Raises DiskRefuses where the disk does, and leaves nothing then.
    """

    def __init__(self, part: Path, path: Path) -> None:
        self._part = part
        self._path = path
        self._digest = hashlib.sha256()
        self.size = 0
        try:
            self._file = part.open("xb", buffering=0)
        except OSError as error:
            raise refuse(error) from error

    def write(self, data: bytes) -> None:
        try:
            view = memoryview(data)
            while view:
                view = view[self._file.write(view) :]
        except OSError as error:
            self.drop()
            raise refuse(error) from error
        self._digest.update(data)
        self.size += len(data)

    def keep(self) -> str:
        """Puts the content under its name, safe from a power cut; returns its SHA-256 in hex."""
        try:
            os.fsync(self._file.fileno())
            self._file.close()
            os.replace(self._part, self._path)
        except OSError as error:
            self.drop()
            raise refuse(error) from error
        return self._digest.hexdigest()

    def drop(self) -> None:
        self._file.close()
        self._part.unlink(missing_ok=True)


def measure_file(path: Path) -> tuple[int, str]:
    """Size and SHA-256 of a content, made safe from a power cut.  Raises DiskRefuses."""
    digest = hashlib.sha256()
    size = 0
    try:
        with path.open("rb", buffering=0) as file:
            os.fsync(file.fileno())
            while data := file.read(WRITE_BYTES):
                digest.update(data)
                size += len(data)
    except OSError as error:
        raise refuse(error) from error
    return size, digest.hexdigest()


def refuse(error: OSError) -> DiskRefuses:
    """In words for whoever asked."""
    return DiskRefuses(
        f"the disk refuses: {error.strerror}. Make room in the data folder's `batch`, or send it again later",
        retry_after_s=30,
    )


def _load_name(path: Path) -> str:
    """Tells contents of this folder from those of other machines that share the database."""
    with suppress(FileNotFoundError):
        if name := path.read_text().strip():
            return name
    name = secrets.token_hex(8)
    path.write_text(f"{name}\n")
    return name
