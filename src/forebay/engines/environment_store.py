"""The folder of engine environments: what is there, who uses it, and what holds others off while it changes.

`DIGEST/` is an environment that was built and seen to work: it appears by one rename, so whatever has such
a name is whole.  What begins with a dot does not count: `.building-DIGEST-*` (under way, or left by a
builder that was killed), `.removing-DIGEST-*`, `.failed-DIGEST` (built, and its smoke inference failed;
kept to be looked at). `locks/`, `uses/` and `logs/` lie beside them.  An environment is changed, made or
removed only under its lock.

The folder's structure is this module's alone; nothing here builds anything.
"""

import fcntl
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from forebay.engines.environment import (
    BuiltEnvironment,
    EnvironmentEntry,
    EnvironmentInvalid,
    EnvironmentUse,
    find_digest,
)

FOLDER: Final = "environments"  #: in the data folder
LOCK_POLL_S: Final = 0.2
LOGS_MAX: Final = 5  #: of one environment
_DIGEST: Final = re.compile(r"(?P<digest>[0-9a-f]{16})")
_LEFTOVER: Final = re.compile(r"\.(building|removing)-(?P<digest>[0-9a-f]{16})-.*")
_FAILED: Final = re.compile(r"\.failed-(?P<digest>[0-9a-f]{16})")


class EnvironmentBusy(EnvironmentInvalid):
    """Somebody else builds, takes or removes the environment."""

    code = "environment_busy"


class EnvironmentStore:
    """See the module.

    Args:
        data_folder: Forebay's; the folder of environments is made in it when it is needed.
    """

    def __init__(self, data_folder: Path) -> None:
        self.root = data_folder.absolute() / FOLDER

    def locate(self, digest: str) -> Path:
        return self.root / digest

    def locate_python(self, digest: str) -> Path:
        return self.root / digest / "bin" / "python"

    def find(self, digest: str) -> BuiltEnvironment | None:
        """The environment with just this digest, where it is built."""
        try:
            data = (self.locate(digest) / BuiltEnvironment.FILE).read_bytes()
            return msgspec.json.decode(data, type=BuiltEnvironment)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except msgspec.DecodeError as error:
            raise EnvironmentInvalid(
                f"{self.locate(digest) / BuiltEnvironment.FILE} can't be read ({error}): remove that "
                "environment's folder, and build it anew"
            ) from None

    def get(self, name: str) -> EnvironmentEntry:
        """By a digest or its beginning.  Raises EnvironmentInvalid."""
        digest = find_digest(name, self.list_digests())
        built = self.find(digest)
        if built is None:
            raise EnvironmentInvalid(f"the environment {digest} lacks its file {BuiltEnvironment.FILE}")
        return self._describe(built)

    def list_digests(self) -> list[str]:
        if not self.root.is_dir():
            return []
        return sorted(each.name for each in self.root.iterdir() if _DIGEST.fullmatch(each.name))

    def list_entries(self) -> list[EnvironmentEntry]:
        """The newest use first."""
        found = (self.find(digest) for digest in self.list_digests())
        entries = [self._describe(built) for built in found if built is not None]
        return sorted(entries, key=lambda entry: -entry.used_at_s)

    def list_leftovers(self) -> list[Path]:
        """What builders and removers left that were killed.  What is under way is among them."""
        if not self.root.is_dir():
            return []
        return sorted(each for each in self.root.iterdir() if _LEFTOVER.fullmatch(each.name))

    def list_failed(self) -> list[Path]:
        """Environments whose smoke inference failed."""
        return sorted(self.root.glob(".failed-*")) if self.root.is_dir() else []

    def _describe(self, built: BuiltEnvironment) -> EnvironmentEntry:
        uses = self.root / "uses" / built.digest
        try:
            used_at_s = max(uses.stat().st_mtime, built.built_at_s)
        except FileNotFoundError:
            used_at_s = built.built_at_s
        return EnvironmentEntry(built=built, used_at_s=used_at_s, users=self.list_users(built.digest))

    # --- locks ---------------------------------------------------------------------

    @contextmanager
    def lock(self, digest: str, *, timeout_s: float | None = None) -> Iterator[None]:
        """Holds all others off this environment; the kernel lets go when the process ends, however it does.

        Args:
            timeout_s: how long to wait for whoever holds it; None waits for as long as it takes.

        Raises:
            EnvironmentBusy: it was not to be had in time.
        """
        self.make_folders()
        path = self.root / "locks" / digest
        with path.open("ab") as file:
            started = time.monotonic()
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if timeout_s is not None and time.monotonic() - started >= timeout_s:
                        raise EnvironmentBusy(
                            f"the environment {digest} is being built, taken or removed by another process: "
                            "try again when that has ended"
                        ) from None
                time.sleep(LOCK_POLL_S)
            yield

    def is_locked(self, digest: str) -> bool:
        """Whether somebody works on it right now."""
        try:
            with self.lock(digest, timeout_s=0.0):
                return False
        except EnvironmentBusy:
            return True

    def make_folders(self) -> None:
        for folder in (self.root, self.root / "locks", self.root / "uses", self.root / "logs"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    # --- uses ---------------------------------------------------------------------

    def acquire(
        self, digest: str, user: str, *, pid: int | None = None, timeout_s: float = 60.0
    ) -> EnvironmentUse:
        """Says that a process uses the environment, so that it stays.  It ends with that process at the
        latest.

        Raises:
            EnvironmentBusy: another process held it for as long as the timeout.
            EnvironmentInvalid: there is no such environment, or the process is gone already.
        """
        pid = os.getpid() if pid is None else pid
        started = read_start(pid)
        if started is None:
            raise EnvironmentInvalid(f"the process {pid}, which is to use the environment {digest}, is gone")
        use = EnvironmentUse(pid=pid, started=started, user=user)
        # Whoever removes it holds the lock and has looked for users: afterwards it is gone, or it has this
        # one.
        with self.lock(digest, timeout_s=timeout_s):
            if self.find(digest) is None:
                raise EnvironmentInvalid(
                    f"there is no environment {digest}: build it with `forebay env build`"
                )
            folder = self.root / "uses" / digest
            folder.mkdir(mode=0o700, exist_ok=True)
            self.forget_ended(digest)  # one that is started over and over leaves one note, not many
            _write(folder / f"{pid}-{started}", msgspec.json.encode(use))
        return use

    def release(self, digest: str, use: EnvironmentUse) -> None:
        (self.root / "uses" / digest / f"{use.pid}-{use.started}").unlink(missing_ok=True)

    def list_users(self, digest: str) -> tuple[EnvironmentUse, ...]:
        """Of processes that still run."""
        folder = self.root / "uses" / digest
        users = []
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            try:
                use = msgspec.json.decode(path.read_bytes(), type=EnvironmentUse)
            except (FileNotFoundError, msgspec.DecodeError):
                continue
            if read_start(use.pid) == use.started:
                users.append(use)
        return tuple(users)

    def forget_ended(self, digest: str) -> None:
        """Removes what processes left that are gone.  Under the lock."""
        alive = {f"{use.pid}-{use.started}" for use in self.list_users(digest)}
        folder = self.root / "uses" / digest
        for path in folder.iterdir() if folder.is_dir() else ():
            if path.name not in alive:
                path.unlink(missing_ok=True)

    # --- logs, and what goes ---------------------------------------------------------------------

    def make_log(self, digest: str) -> Path:
        """The path of a new log of this environment; the oldest go beyond `LOGS_MAX`."""
        logs = sorted((self.root / "logs").glob(f"{digest}-*.log"))
        for old in logs[: max(0, len(logs) - LOGS_MAX + 1)]:
            old.unlink(missing_ok=True)
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        return self.root / "logs" / f"{digest}-{stamp}-{secrets.token_hex(2)}.log"

    def make_place(self, digest: str) -> Path:
        """The folder in which an environment is built, beside its place: a rename puts it there."""
        return self.root / f".building-{digest}-{os.getpid()}-{secrets.token_hex(4)}"

    def clear(self, digest: str) -> None:
        """Removes what builders of this environment left.  Under the lock, so none of it is under way."""
        for path in (*self.list_leftovers(), *self.list_failed()):
            if read_digest(path.name) == digest:
                shutil.rmtree(path, ignore_errors=True)

    def remove(self, digest: str) -> None:
        """Removes an environment.  Under the lock; after the first step it does not count any more."""
        beside = self.root / f".removing-{digest}-{secrets.token_hex(4)}"
        os.rename(self.locate(digest), beside)
        shutil.rmtree(beside)
        shutil.rmtree(self.root / "uses" / digest, ignore_errors=True)


def read_digest(name: str) -> str:
    """Of a name in the folder; empty where it has none."""
    found = _LEFTOVER.fullmatch(name) or _FAILED.fullmatch(name) or _DIGEST.fullmatch(name)
    return "" if found is None else found["digest"]


def read_start(pid: int) -> int | None:
    """When a process was started, in clock ticks since the machine was; None where there is none."""
    try:
        line = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    fields = line.rpartition(")")[2].split()  # a name may hold anything
    return None if fields[0] in ("Z", "X") else int(fields[19])


def measure_size(folder: Path) -> int:
    """Bytes that a folder takes on the disk, a file with several names once."""
    seen, total = set(), 0
    for place, _, names in os.walk(folder):
        for name in names:
            found = os.lstat(os.path.join(place, name))
            if (key := (found.st_dev, found.st_ino)) not in seen:
                seen.add(key)
                total += found.st_blocks * 512
    return total


def _write(path: Path, data: bytes) -> None:
    """In one step: a reader finds all of it or nothing."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    beside.write_bytes(data)
    os.replace(beside, path)
