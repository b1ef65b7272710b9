"""The two small files between control plane and supervisor: what is to run, and what has become of it.

Each has one writer: the control plane writes what is wanted, the supervisor what is.  Either may be killed at
any time; the other goes on with what lies there.  Nothing is decided here.
"""

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from forebay.app.atomic_file import create_private_folder, write_atomically
from forebay.engines.deployment import Replica, ReplicaStatus

WANTED_FILE: Final = "replicas.json"
REPORT_FILE: Final = "replica-states.json"
LOCK_FILE: Final = "replicas.lock"
LOGS_FOLDER: Final = "replicas"  #: within the folder of logs
REPLICA_ID: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")  #: also the name of its log


class WantedReplicas(msgspec.Struct, frozen=True, kw_only=True):
    """`run/replicas.json`."""

    replicas: tuple[Replica, ...] = ()
    version: int = 1


class ReplicaReport(msgspec.Struct, frozen=True, kw_only=True):
    """`run/replica-states.json`."""

    pid: int  #: of the supervisor
    replicas: tuple[ReplicaStatus, ...] = ()
    version: int = 1


def load_wanted(run: Path) -> WantedReplicas:
    """Nothing where there is no file yet.  Raises OSError, msgspec.MsgspecError."""
    try:
        data = (run / WANTED_FILE).read_bytes()
    except FileNotFoundError:
        return WantedReplicas()
    return msgspec.json.decode(data, type=WantedReplicas)


def save_wanted(run: Path, wanted: WantedReplicas) -> None:
    """Raises OSError; the old file stays then."""
    create_private_folder(run)
    write_atomically(run / WANTED_FILE, msgspec.json.format(msgspec.json.encode(wanted)))


def look_at(path: Path) -> tuple[int, int, int] | None:
    """Tells one content of a file from the next; None where it is not there."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def load_report(run: Path) -> ReplicaReport | None:
    """The last report; None where there is none that can be read.  Its supervisor may be gone."""
    try:
        return msgspec.json.decode((run / REPORT_FILE).read_bytes(), type=ReplicaReport)
    except (OSError, msgspec.MsgspecError):
        return None


def save_report(run: Path, report: ReplicaReport) -> None:
    """Raises OSError; the old file stays then."""
    write_atomically(
        run / REPORT_FILE, msgspec.json.format(msgspec.json.encode(report)) + b"\n", durable=False
    )


def restore_wanted(run: Path, wanted: WantedReplicas) -> None:
    """Puts what is known to be wanted in the place of a file that is gone or damaged.

    What is damaged where nothing is known is set aside, and whoever wants something says so anew.

    Raises:
        OSError: it can't be written, or somebody is just changing it.
    """
    with changing(run, is_patient=False):
        try:
            if wanted.replicas and not (run / WANTED_FILE).exists():
                raise FileNotFoundError
            load_wanted(run)
        except (FileNotFoundError, msgspec.MsgspecError):
            if wanted.replicas:
                save_wanted(run, wanted)
            else:
                os.replace(run / WANTED_FILE, run / f"{WANTED_FILE}.damaged")


@contextmanager
def changing(run: Path, *, is_patient: bool = True) -> Iterator[None]:
    """One change of what is wanted at a time, over all processes.

    Raises:
        OSError: the folder refuses; without patience also while somebody else changes it.
    """
    create_private_folder(run)
    descriptor = os.open(run / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # Held for one small write.
        fcntl.flock(descriptor, fcntl.LOCK_EX if is_patient else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)
