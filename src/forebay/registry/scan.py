"""Which files at a path make a content: looks, and copies nothing.

A file is a content by itself.  Of a folder all files count, however deep, but those whose names or folders
begin with a dot: what tools keep beside a model (`.git`, `.cache`) is no part of it.  A link to a file stands
for that file, since caches of models are made of them.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from forebay.registry.model import ENTRY, ContentKind, ContentRefused

FILES_MAX: Final = 10_000
PATH_MAX: Final = 400  #: bytes of a path below the folder
DEPTH_MAX: Final = 32


class Found(msgspec.Struct, frozen=True, kw_only=True):
    path: str  #: in the content
    place: str  #: on the disk
    size_bytes: int


class Scan(msgspec.Struct, frozen=True, kw_only=True):
    kind: ContentKind
    files: tuple[Found, ...]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


def scan(path: Path) -> Scan:
    """The files in the order of their paths, as bytes.  Raises ContentRefused."""
    try:
        status = path.stat()
        if stat.S_ISREG(status.st_mode):
            file = Found(path=ENTRY, place=os.fspath(path), size_bytes=status.st_size)
            _check_file(file)
            return Scan(kind=ContentKind.FILE, files=(file,))
        if not stat.S_ISDIR(status.st_mode):
            raise ContentRefused(f"{path} is neither a file nor a folder")
        files = sorted(_walk(path, "", 0), key=lambda file: os.fsencode(file.path))
    except FileNotFoundError:
        raise ContentRefused(f"there is nothing at {path}: mend the path") from None
    except OSError as error:
        raise ContentRefused(f"{error.filename or path} can't be read: {error.strerror}") from None
    if not any(file.size_bytes for file in files):
        raise ContentRefused(f"the folder {path} holds nothing to register")
    return Scan(kind=ContentKind.FOLDER, files=tuple(files))


def _walk(folder: Path, above: str, depth: int) -> Iterator[Found]:
    if depth > DEPTH_MAX:
        raise ContentRefused(f"{folder} lies deeper than {DEPTH_MAX} folders")
    count = 0
    for entry in os.scandir(folder):
        if entry.name.startswith("."):
            continue
        path = f"{above}{entry.name}"
        _check_path(path, folder)
        if entry.is_dir(follow_symlinks=False):
            yield from _count(_walk(Path(entry.path), f"{path}/", depth + 1), folder)
            continue
        try:
            status = entry.stat()
        except FileNotFoundError:
            raise ContentRefused(f"{entry.path} is a link to something that is not there") from None
        if stat.S_ISDIR(status.st_mode):
            raise ContentRefused(f"{entry.path} is a link to a folder: register a folder without such links")
        if not stat.S_ISREG(status.st_mode):
            raise ContentRefused(f"{entry.path} is neither a file nor a folder")
        count += 1
        if count > FILES_MAX:
            raise ContentRefused(f"{folder} holds more than {FILES_MAX} files")
        yield Found(path=path, place=entry.path, size_bytes=status.st_size)


def _count(files: Iterator[Found], folder: Path) -> Iterator[Found]:
    for index, file in enumerate(files):
        if index >= FILES_MAX:
            raise ContentRefused(f"{folder} holds more than {FILES_MAX} files")
        yield file


def _check_file(file: Found) -> None:
    if not file.size_bytes:
        raise ContentRefused(f"{file.place} is empty")


def _check_path(path: str, folder: Path) -> None:
    shown = path.encode(errors="backslashreplace").decode()
    try:
        length = len(path.encode())
    except UnicodeEncodeError:
        raise ContentRefused(f"{folder} holds a name that is not UTF-8: {shown!r}. Rename it") from None
    if not path.isprintable():
        raise ContentRefused(f"{folder} holds a name with a character that can't be shown: {shown!r}")
    if length > PATH_MAX:
        raise ContentRefused(f"a path in {folder} is longer than {PATH_MAX} bytes: {shown[:100]!r}…")
