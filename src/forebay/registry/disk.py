"""The contents of versions on this machine's disk, by their digests.

    models/blobs/AB/AB…           each file once, under its SHA-256
    models/versions/DIGEST/model  a content: the file, or the folder with its files, linked to the blobs
    models/versions/DIGEST/manifest.json
    models/staging/               what is being made, and what is being removed

A content appears under its digest whole or not at all: everything is written and synced in `staging`, then
renamed.  Nothing there is ever written again.  Whoever adds a content holds the lock with others until a
version counts on it; whoever collects holds it alone, and so knows that all in `staging` is left over.  What
a version is called is not known here.
"""

import errno
import fcntl
import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from forebay.registry.files import (
    Report,
    create_new,
    finish,
    hash_file,
    is_content,
    read_bytes,
    sync_folder,
    take,
    write_new,
)
from forebay.registry.model import (
    ENTRY,
    ContentKind,
    ContentManifest,
    DiskRefuses,
    FileEntry,
    RegistryConflict,
)
from forebay.registry.scan import Scan

FOLDER_MODE: Final = 0o755  #: the data folder around it lets nobody else in; a shared volume is to be read
LOCK_WAIT_S: Final = 60.0
LOCK_LOOK_S: Final = 0.05
MANIFEST: Final = "manifest.json"
#: What a file system says that gives a file no further names, or no more of them.
_NO_LINKS: Final = frozenset({errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS})


class Garbage(msgspec.Struct, frozen=True, kw_only=True):
    """Something that may go."""

    path: str
    size_bytes: int
    why: str


class Damage(msgspec.Struct, frozen=True, kw_only=True):
    """How a content differs from its manifest."""

    changed: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        return not (self.changed or self.missing or self.extra)


def locate_content(models: Path | str, digest: str) -> str:
    """Where a content lies below a folder of models, here or on another machine.  Looks at nothing."""
    return f"{models}/versions/{digest}/{ENTRY}"


class ContentStore:
    """See the module.

    Args:
        folder: `models` of the data folder; made when it is needed.
        lock_wait_s: how long another's work is waited for.
    """

    def __init__(self, folder: Path, *, lock_wait_s: float = LOCK_WAIT_S) -> None:
        self.folder = folder
        self._lock_wait_s = lock_wait_s
        self._blobs = folder / "blobs"
        self._versions = folder / "versions"
        self._staging = folder / "staging"

    def locate(self, digest: str) -> Path:
        return Path(locate_content(self.folder, digest))

    def has(self, digest: str) -> bool:
        return (self._versions / digest / MANIFEST).is_file() and self.locate(digest).exists()

    @contextmanager
    def hold(self, *, alone: bool = False) -> Iterator[None]:
        """Keeps what is there from being collected; alone: keeps others from adding.

        Raises RegistryConflict where others don't let go in time, DiskRefuses.
        """
        with _told(self.folder):
            for each in (self.folder, self._blobs, self._versions, self._staging):
                each.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
            descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._wait_for_lock(descriptor, alone)
            yield
        finally:
            os.close(descriptor)  # with which the lock is free, as it is when the process is killed

    def _wait_for_lock(self, descriptor: int, alone: bool) -> None:
        kind = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
        deadline = time.monotonic() + self._lock_wait_s
        while True:
            with suppress(BlockingIOError), _told(self.folder):
                fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
                return
            if time.monotonic() >= deadline:
                what = "a version is being registered" if alone else "contents are being collected"
                raise RegistryConflict(f"{what} in {self.folder} at present: try again when that has ended")
            time.sleep(LOCK_LOOK_S)

    # --- adding ---------------------------------------------------------------------------------------------

    def add(self, found: Scan, report: Report, *, link: bool = False) -> ContentManifest:
        """Puts what was found under its digest, unless it is there; to be called within `hold()`.

        What is there already and is damaged is mended by it.

        Args:
            link: whether to make further names of the files themselves instead of copies; they must lie on
                the same file system, and may never be written again.

        Raises ContentRefused, DiskRefuses; nothing that counts is left then.
        """
        staged = self._staging / secrets.token_hex(8)
        with _told(self.folder), _removed_after(staged):
            staged.mkdir(mode=FOLDER_MODE)
            entries = []
            for index, file in enumerate(found.files):
                entries.append(take(file, staged / f"file{index}", report, link=link))
            manifest = ContentManifest(kind=found.kind, files=tuple(entries))
            for index, entry in enumerate(entries):
                self._publish_blob(staged / f"file{index}", entry)
            self._publish(staged, manifest)
        return manifest

    def _publish_blob(self, staged: Path, entry: FileEntry) -> None:
        blob = self._locate_blob(entry.sha256)
        blob.parent.mkdir(mode=FOLDER_MODE, exist_ok=True)
        if not is_content(blob, entry):
            os.replace(staged, blob)
            sync_folder(blob.parent)
            sync_folder(self._blobs)

    def _publish(self, staged: Path, manifest: ContentManifest) -> None:
        tree, place = staged / "tree", self._versions / manifest.digest
        tree.mkdir(mode=FOLDER_MODE)
        for entry in manifest.files:
            self._link_entry(tree, manifest.kind, entry)
        write_new(tree / MANIFEST, manifest.encode())
        for folder, _, _ in os.walk(tree):
            sync_folder(Path(folder))
        try:
            os.rename(tree, place)
        except OSError:
            if not place.exists():
                raise
            self._mend(staged, place, manifest)
        sync_folder(self._versions)

    def _mend(self, staged: Path, place: Path, manifest: ContentManifest) -> None:
        """Has a content that is there be what its manifest says: mostly it is."""
        for entry in manifest.files:
            path = _locate_entry(place, manifest.kind, entry)
            if path.exists() and path.samefile(self._locate_blob(entry.sha256)):
                continue
            if is_content(path, entry):
                continue
            path.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
            os.replace(_locate_entry(staged / "tree", manifest.kind, entry), path)
            sync_folder(path.parent)
        if read_bytes(place / MANIFEST) != manifest.encode():
            os.replace(staged / "tree" / MANIFEST, place / MANIFEST)
            sync_folder(place)

    def _link_entry(self, tree: Path, kind: ContentKind, entry: FileEntry) -> None:
        path, blob = _locate_entry(tree, kind, entry), self._locate_blob(entry.sha256)
        path.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        try:
            os.link(blob, path)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            with blob.open("rb") as source, create_new(path) as target:
                shutil.copyfileobj(source, target)
                finish(target)

    def _locate_blob(self, sha256: str) -> Path:
        return self._blobs / sha256[:2] / sha256

    # --- looking --------------------------------------------------------------------------------------------

    def load_manifest(self, digest: str) -> ContentManifest | None:
        """None where it is not there, or is not what the digest is of."""
        data = read_bytes(self._versions / digest / MANIFEST)
        if data is None or hashlib.sha256(data).hexdigest() != digest:
            return None
        with suppress(msgspec.MsgspecError):
            return msgspec.json.decode(data, type=ContentManifest)
        return None

    def verify(self, digest: str, report: Report) -> Damage:
        """Reads all files of a content and compares them.  Raises DiskRefuses."""
        manifest = self.load_manifest(digest)
        if manifest is None:
            return (
                Damage(missing=(MANIFEST,))
                if not self.locate(digest).exists()
                else Damage(changed=(MANIFEST,))
            )
        place = self._versions / digest
        changed, missing = [], []
        for entry in manifest.files:
            path = _locate_entry(place, manifest.kind, entry)
            with _told(self.folder):
                if not path.is_file():
                    missing.append(entry.path)
                elif hash_file(path, entry.path, report) != (entry.size_bytes, entry.sha256):
                    changed.append(entry.path)
        extra: tuple[str, ...] = ()
        if manifest.kind is ContentKind.FOLDER:
            known = {entry.path for entry in manifest.files}
            root = place / ENTRY
            there = (path.relative_to(root).as_posix() for path in root.rglob("*") if not path.is_dir())
            extra = tuple(sorted(path for path in there if path not in known))
        return Damage(changed=tuple(changed), missing=tuple(missing), extra=extra)

    # --- collecting -----------------------------------------------------------------------------------------

    def plan_collection(self, keep: Iterable[str]) -> tuple[Garbage, ...]:
        """What nobody needs; to be called within `hold(alone=True)`.  Raises RegistryConflict, DiskRefuses.

        Args:
            keep: digests of the contents that are needed.
        """
        with _told(self.folder):
            return tuple(self._find_garbage(frozenset(keep)))

    def _find_garbage(self, keep: frozenset[str]) -> Iterator[Garbage]:
        for path in sorted(self._staging.iterdir()):
            yield _describe(path, "was begun and never ended")
        for path in sorted(self._versions.iterdir()):
            if path.name not in keep:
                yield Garbage(path=str(path), size_bytes=0, why="no version has this content")
        needed = set()
        for digest in keep:
            manifest = self.load_manifest(digest)
            if manifest is None and (self._versions / digest).exists():
                raise RegistryConflict(
                    f"{self._versions / digest} has lost its manifest, so nobody knows what it needs: "
                    "register its content anew first"
                )
            needed |= {entry.sha256 for entry in manifest.files} if manifest else set()
        for path in sorted(self._blobs.glob("*/*")):
            if path.name not in needed:
                yield _describe(path, "no content has this file")

    def remove(self, garbage: Iterable[Garbage]) -> None:
        """To be called within the same `hold` as `plan_collection`.  Raises DiskRefuses."""
        with _told(self.folder):
            for each in garbage:
                path = Path(each.path)
                if path.is_dir() and path.parent != self._staging:
                    gone = self._staging / secrets.token_hex(8)
                    os.rename(path, gone)  # out of sight at once, and not in parts
                    path = gone
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)


@contextmanager
def _told(folder: Path) -> Iterator[None]:
    try:
        yield
    except BlockingIOError:
        raise
    except OSError as error:
        raise DiskRefuses(
            f"{error.filename or folder}: {error.strerror or error}. Nothing was changed: make room, or mend "
            "what it says, and do it again"
        ) from error


@contextmanager
def _removed_after(folder: Path) -> Iterator[None]:
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _locate_entry(place: Path, kind: ContentKind, entry: FileEntry) -> Path:
    return place / ENTRY if kind is ContentKind.FILE else place / ENTRY / entry.path


def _describe(path: Path, why: str) -> Garbage:
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
    size = sum(each.stat().st_size for each in files if each.stat().st_nlink == 1 or each == path)
    return Garbage(path=str(path), size_bytes=size, why=why)
