"""Files of contents: read, hashed, copied and synced, each once.

A file that is made here is new, and nobody may write to it when it is finished.
"""

import fcntl
import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

from forebay.registry.model import ContentRefused, FileEntry
from forebay.registry.scan import Found

CHUNK_BYTES: Final = 4 << 20
FILE_MODE: Final = 0o444
SMALL_MAX_BYTES: Final = 16 << 20  #: of a manifest
_CLONE: Final = 0x40049409  # FICLONE: a copy that shares its blocks, where the file system can

Report = Callable[[int, str], None]  #: bytes more, and of which file


def take(file: Found, staged: Path, report: Report, *, link: bool) -> FileEntry:
    """Makes a file of ours out of one that was found, and reads it once."""
    before = _look(file.place)
    if link:
        _link(file.place, staged)
        _make_read_only(staged, file.place)
        size, sha256 = hash_file(staged, file.path, report)
        _sync_file(staged)
    else:
        with open(file.place, "rb", buffering=0) as source, create_new(staged) as target:
            size, sha256 = _copy(source, target, file.path, report)
            finish(target)
    if _look(file.place) != before:
        raise ContentRefused(f"{file.place} changed while it was read: register it when nobody writes to it")
    return FileEntry(path=file.path, size_bytes=size, sha256=sha256)


def _look(place: str) -> tuple[int, int, int]:
    try:
        status = os.stat(place)
    except FileNotFoundError:
        raise ContentRefused(f"{place} vanished while it was read") from None
    return status.st_ino, status.st_size, status.st_mtime_ns


def _link(place: str, staged: Path) -> None:
    try:
        os.link(os.path.realpath(place), staged)
    except OSError as error:
        raise ContentRefused(
            f"{place} can't get a further name in {staged.parent.parent}: {error.strerror}. Leave out "
            "--link, so that it is copied"
        ) from None


def _make_read_only(staged: Path, place: str) -> None:
    try:
        staged.chmod(FILE_MODE)
    except PermissionError:
        raise ContentRefused(
            f"{place} belongs to another user, who may change it: leave out --link, so that it is copied"
        ) from None


def _sync_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _copy(source: IO[bytes], target: IO[bytes], name: str, report: Report) -> tuple[int, str]:
    """Size and digest of what was written."""
    with suppress(OSError):
        fcntl.ioctl(target.fileno(), _CLONE, source.fileno())
        return _hash(target, name, report)
    digest, size = hashlib.sha256(), 0
    buffer = memoryview(bytearray(CHUNK_BYTES))
    while count := source.readinto(buffer):  # type: ignore[attr-defined]
        part = buffer[:count]
        digest.update(part)
        written = 0
        while written < count:
            written += target.write(part[written:])
        size += count
        report(count, name)
    return size, digest.hexdigest()


def hash_file(path: Path, name: str, report: Report) -> tuple[int, str]:
    with path.open("rb", buffering=0) as file:
        return _hash(file, name, report)


def _hash(file: IO[bytes], name: str, report: Report) -> tuple[int, str]:
    digest, size = hashlib.sha256(), 0
    buffer = memoryview(bytearray(CHUNK_BYTES))
    while count := file.readinto(buffer):  # type: ignore[attr-defined]
        digest.update(buffer[:count])
        size += count
        report(count, name)
    return size, digest.hexdigest()


def is_content(path: Path, entry: FileEntry) -> bool:
    try:
        if path.stat().st_size != entry.size_bytes:
            return False
    except FileNotFoundError:
        return False
    return hash_file(path, entry.path, lambda _count, _name: None)[1] == entry.sha256


def create_new(path: Path) -> IO[bytes]:
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    return open(os.open(path, flags, 0o600), "r+b", buffering=0)


def finish(file: IO[bytes]) -> None:
    os.fchmod(file.fileno(), FILE_MODE)
    os.fsync(file.fileno())


def write_new(path: Path, data: bytes) -> None:
    with create_new(path) as file:
        written = 0
        while written < len(data):
            written += file.write(data[written:])
        finish(file)


def read_bytes(path: Path) -> bytes | None:
    try:
        with path.open("rb") as file:
            data = file.read(SMALL_MAX_BYTES + 1)
    except OSError:
        return None
    return data if len(data) <= SMALL_MAX_BYTES else None


def sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
