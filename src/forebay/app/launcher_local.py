"""The launcher of this machine: replicas are children of the supervisor of `forebay up`.

It writes down what is to run and reads what has become of it (`replica_files`); `replica_keeper`, in the
supervisor's process, does the rest.  So replicas outlive whoever started them, the control plane as well.
"""

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from forebay.app.replica_files import (
    LOGS_FOLDER,
    REPLICA_ID,
    REPORT_FILE,
    WANTED_FILE,
    WantedReplicas,
    changing,
    load_report,
    load_wanted,
    save_wanted,
)
from forebay.app.supervisor_process import read_log_tail
from forebay.engines.deployment import LauncherKind, Replica, ReplicaState, ReplicaStatus
from forebay.engines.model import LauncherError

LINE_BYTES: Final = 512  #: of a log that are read for each line asked for
LOG_BYTES_MAX: Final = 4 * 1024 * 1024


class LocalLauncher:
    """See the module.

    Args:
        run: the folder `run` of the data folder.
        logs: the folder `logs` of the data folder.
    """

    kind = LauncherKind.LOCAL

    def __init__(self, run: Path, logs: Path) -> None:
        self._run = run
        self._logs = logs / LOGS_FOLDER

    async def start(self, replica: Replica) -> None:
        if not REPLICA_ID.fullmatch(replica.id):
            raise LauncherError(
                f"{replica.id!r} can't be started: a replica's name has at most 63 lower-case letters, "
                "digits and dashes. Give the deployment a shorter name of such letters."
            )

        def add(replicas: dict[str, Replica]) -> None:
            replicas.setdefault(replica.id, replica)

        await asyncio.to_thread(self._change, add)

    async def stop(self, replica_id: str) -> None:
        def drop(replicas: dict[str, Replica]) -> None:
            replicas.pop(replica_id, None)

        await asyncio.to_thread(self._change, drop)

    async def list(self) -> Sequence[ReplicaStatus]:
        return await asyncio.to_thread(self._list)

    async def logs(self, replica_id: str, lines: int = 100) -> Sequence[str]:
        if not REPLICA_ID.fullmatch(replica_id) or lines < 1:
            return ()
        return await asyncio.to_thread(read_replica_log, self._logs / f"{replica_id}.log", lines)

    async def close(self) -> None:
        """Nothing is held."""

    def _change(self, change: Callable[[dict[str, Replica]], None]) -> None:
        try:
            with changing(self._run):
                self._check_there()
                wanted = load_wanted(self._run)
                replicas = {replica.id: replica for replica in wanted.replicas}
                change(replicas)
                after = WantedReplicas(replicas=tuple(replicas.values()))
                if after != wanted:
                    save_wanted(self._run, after)
        except (OSError, msgspec.MsgspecError) as error:
            raise LauncherError(
                f"what is to run can't be written down in {self._run}: {error}. "
                "Make room on the disk. A damaged replicas.json is mended by `forebay up`."
            ) from error

    def _check_there(self) -> None:
        """Whoever began a new list beside replicas that run would have them ended."""
        if (self._run / WANTED_FILE).exists():
            return
        report = load_report(self._run)
        if report is not None and report.replicas and _is_running(report.pid):
            raise LauncherError(
                f"{self._run / WANTED_FILE} is gone. `forebay up` writes what it knows anew within a second."
            )

    def _list(self) -> tuple[ReplicaStatus, ...]:
        try:
            wanted = load_wanted(self._run)
        except (OSError, msgspec.MsgspecError) as error:
            raise LauncherError(f"what is to run can't be read in {self._run}: {error}.") from error
        report = load_report(self._run)
        if report is None and (self._run / REPORT_FILE).exists():
            raise LauncherError(
                f"what has become of replicas can't be read in {self._run / REPORT_FILE}. `forebay up` "
                "writes it anew within a second; remove it if none runs."
            )
        is_supervised = report is not None and _is_running(report.pid)
        told = {status.id: status for status in report.replicas} if report and is_supervised else {}
        what = "is being started" if is_supervised else "waits for `forebay up`, which is not running"
        untold = (
            ReplicaStatus(
                id=replica.id,
                deployment=replica.deployment,
                revision=replica.revision,
                index=replica.index,
                state=ReplicaState.PENDING,
                node=os.uname().nodename,
                message=what,
            )
            for replica in wanted.replicas
            if replica.id not in told
        )
        return (*told.values(), *untold)


def read_replica_log(path: Path, lines: int) -> tuple[str, ...]:
    """The last lines of a log, from the part before it where it has been begun anew."""
    room = min(LOG_BYTES_MAX, lines * LINE_BYTES)
    found = read_log_tail(path, lines, room)
    if len(found) < lines:
        older = read_log_tail(path.with_name(f"{path.name}.1"), lines - len(found), room)
        found = (*older, *found)
    return found


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
