"""Sees whether the files of an environment are still those that were installed, by the hashes of their
RECORDs.

Reads everything and changes nothing.  Bytecode has no hash: it is made here, and Python makes it anew where
it does not fit its source.
"""

import base64
import csv
import hashlib
import hmac
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from forebay.engines.environment_repairs import locate_site

CHUNK_BYTES: Final = 1 << 20
#: What uv and this room write beside what RECORDs name.
_OWN_NAMES: Final = frozenset({"_virtualenv.py", "_virtualenv.pth", "RECORD", "uv_cache.json"})


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """What was found.  Paths are below the folder of packages."""

    files: int  #: whose hash was looked at
    changed: tuple[str, ...]
    missing: tuple[str, ...]
    extra: tuple[str, ...]  #: files that no package brought

    @property
    def is_whole(self) -> bool:
        return not (self.changed or self.missing or self.extra)


def verify_environment(folder: Path) -> Verification:
    """Raises EnvironmentFailed where there is no environment, OSError where it can't be read."""
    site = locate_site(folder)
    changed, missing, known, files = [], [], set(), 0
    for name, wanted in _read_records(site):
        path = site / name
        known.add(_normalise(site, name))
        if path.suffix == ".pyc":
            continue
        try:
            found = _hash_file(path)
        except FileNotFoundError:
            missing.append(name)
            continue
        if not wanted:
            continue
        files += 1
        if not hmac.compare_digest(found, wanted):
            changed.append(name)
    extra = sorted(name for name in _list_files(site) if name not in known)
    return Verification(
        files=files, changed=tuple(sorted(changed)), missing=tuple(sorted(missing)), extra=tuple(extra)
    )


def _read_records(site: Path) -> Iterator[tuple[str, str]]:
    """Each file that was installed, relative to the folder of packages, and its hash; empty where none is
    known.
    """
    for record in sorted(site.glob("*.dist-info/RECORD")):
        with record.open(encoding="utf-8", newline="") as file:
            for row in csv.reader(file):
                if row:
                    yield row[0], row[1] if len(row) > 1 else ""


def _hash_file(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return "sha256=" + base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode()


def _normalise(site: Path, name: str) -> str:
    """RECORDs name what lies outside of the folder, such as programs, by `../`."""
    path = site / name
    return str(path.relative_to(site)) if ".." not in path.parts else name


def _list_files(site: Path) -> Iterator[str]:
    for path in site.rglob("*"):
        if path.suffix != ".pyc" and path.name not in _OWN_NAMES and (path.is_file() or path.is_symlink()):
            yield str(path.relative_to(site))
