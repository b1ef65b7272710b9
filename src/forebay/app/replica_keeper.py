"""Keeps the replicas of this machine as they are wanted: started, restarted, ended.

Lives in the supervisor's process, beside the supervisor of Forebay's own processes and after it: replicas go
when the workers have drained.  Level-triggered: it compares what is written in `run/replicas.json` with what
runs, again and again, and tells what it sees in `run/replica-states.json`.  It never decides what is to run.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from forebay.app.machine_memory import MIB, count_oom_kills, measure_tree
from forebay.app.replica_environments import FOREIGN_PYTHON, ReplicaEnvironments
from forebay.app.replica_exits import Circumstances, is_final, judge_exit
from forebay.app.replica_files import (
    REPLICA_ID,
    REPORT_FILE,
    WANTED_FILE,
    ReplicaReport,
    WantedReplicas,
    load_report,
    load_wanted,
    look_at,
    restore_wanted,
    save_report,
)
from forebay.app.replica_room import Grant, Machine, NoRoom, find_room
from forebay.app.supervisor import Supervisor
from forebay.app.supervisor_policy import ChildState, RestartPolicy
from forebay.app.supervisor_probe import HttpProbe
from forebay.app.supervisor_process import ChildEnd, ChildSpec, read_log_tail
from forebay.app.supervisor_socket import AddressUnavailable, reserve_engine_port
from forebay.app.supervisor_state import ChildStatus
from forebay.core.clock import Clock
from forebay.engines.deployment import ExitReason, Replica, ReplicaState, ReplicaStatus
from forebay.engines.environment import EnvironmentInvalid
from forebay.engines.model import EngineKindUnknown, EngineSpec, LaunchPlan
from forebay.engines.plan import Place, plan_engine

LOOK_S: Final = 0.2
MEMORY_LOOK_S: Final = 0.25
ENDED_LOGS_MAX: Final = 50  #: logs of replicas that are gone; the oldest goes first
MESSAGE_MAX: Final = 300
RESTART: Final = RestartPolicy(first_s=0.5, longest_s=120.0, stable_s=60.0)

#: What a child's state is to whoever looks at replicas.
STATES: Final[Mapping[ChildState, ReplicaState]] = {
    ChildState.WAITING: ReplicaState.STARTING,
    ChildState.STARTING: ReplicaState.STARTING,
    ChildState.READY: ReplicaState.READY,
    ChildState.ROLLING: ReplicaState.READY,
    ChildState.BACKOFF: ReplicaState.BACKOFF,
    ChildState.HUNG: ReplicaState.BACKOFF,
    ChildState.STOPPING: ReplicaState.STOPPING,
    ChildState.KILLING: ReplicaState.STOPPING,
    ChildState.STOPPED: ReplicaState.STOPPED,
    ChildState.REFUSED: ReplicaState.REFUSED,
}

logger = logging.getLogger("forebay.up")


@dataclass(slots=True, kw_only=True)
class _Place:
    """What a replica that was started holds, until it is gone."""

    replica: Replica
    grant: Grant
    port: socket.socket  #: keeps it
    url: str
    reason: ExitReason = ExitReason.NONE
    message: str = ""
    is_over_memory: bool = False
    log_seen: int = 0  #: bytes of its log that an earlier process of it wrote
    oom_kills: int | None = field(default_factory=count_oom_kills)


class ReplicaKeeper:
    """See the module.

    Args:
        run: the folder `run` of the data folder.
        logs: a folder of its own, for `ID.log`; it is made when there is a replica.
        environments: where engines' environments are, one folder for each digest.
        mark: as of `Supervisor`.
        clock: for the times that are told.
        machine: what there is to be given.
        host: the address at which engines listen.
        plan: says how an engine is launched.
        restart: how long a replica that ended by itself stays down.
        withheld: variables of this process that engines do not get.
    """

    def __init__(
        self,
        *,
        run: Path,
        logs: Path,
        environments: Path,
        mark: str,
        clock: Clock,
        machine: Machine,
        host: str = "127.0.0.1",
        plan: Callable[[EngineSpec, Place], LaunchPlan] = plan_engine,
        restart: RestartPolicy = RESTART,
        withheld: frozenset[str] = frozenset(),
    ) -> None:
        self._run, self._logs = run, logs
        self._environments = ReplicaEnvironments(environments)
        self._clock, self._machine, self._plan, self._restart = clock, machine, plan, restart
        self._host, self._withheld = host, withheld
        self._supervisor = Supervisor((), logs=logs, mark=mark, clock=clock, is_final=self._absorb_exit)
        self._places: dict[str, _Place] = {}
        self._held: dict[str, ReplicaStatus] = {}  # wanted, and not to be started now
        self._wanted: Mapping[str, Replica] = {}
        self._stamp: tuple[int, int, int] | None = None
        self._told: ReplicaReport | None = None
        self._told_stamp: tuple[int, int, int] | None = None
        self._ports = self._load_last_ports()

    def stop(self) -> None:
        """Has all end; `run` returns when they are gone.  What is wanted stays written for the next time."""
        self._supervisor.stop()

    def kill(self) -> None:
        self._supervisor.kill()

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                looks = group.create_task(self._look_forever())
                memory = group.create_task(self._watch_memory())
                notes = group.create_task(self._note_uses())
                await self._supervisor.run()
                for task in (looks, memory, notes):
                    task.cancel()
        finally:
            for place in self._places.values():
                place.port.close()
            self._places.clear()
            self._held.clear()
            self._tell()

    # --- what is wanted, and what runs ----------------------------------------------------------------------

    async def _look_forever(self) -> None:
        while True:
            try:
                self._read_wanted()
                self._compare()
                self._tell()
            except Exception:  # the loop's outer edge: its end would be that of all that runs here
                logger.exception("a look at replicas failed")
            await asyncio.sleep(LOOK_S)

    def _read_wanted(self) -> None:
        stamp = look_at(self._run / WANTED_FILE)
        if stamp == self._stamp:
            return
        try:
            if stamp is None:
                if self._wanted:
                    self._restore("it was removed")
                return
            wanted = load_wanted(self._run).replicas
        except msgspec.MsgspecError as error:
            self._restore(str(error))
            return
        except OSError as error:
            logger.error("what replicas are to run can't be read, and what runs goes on: %s", error)
            self._stamp = stamp
            return
        self._stamp = stamp
        self._wanted = {replica.id: replica for replica in wanted if REPLICA_ID.fullmatch(replica.id)}

    def _restore(self, why: str) -> None:
        """What runs goes on: else whoever adds to an empty list would end all the others."""
        try:
            restore_wanted(self._run, WantedReplicas(replicas=tuple(self._wanted.values())))
        except OSError as error:
            logger.error("%s is damaged (%s), and can't be mended yet: %s", WANTED_FILE, why, error)
            return
        logger.error("%s was damaged (%s), and holds again what was known", WANTED_FILE, why)

    def _compare(self) -> None:
        alive = {status.name for status in self._supervisor.statuses}
        for name in self._places.keys() - alive:
            self._places.pop(name).port.close()
            self._drop_old_logs()
        for name in alive - self._wanted.keys():
            self._supervisor.remove(name)
        for name in self._held.keys() - self._wanted.keys():
            del self._held[name]
        if self._supervisor.stopping:
            return
        for name, replica in self._wanted.items():
            if name not in self._places:
                self._start(replica)

    def _start(self, replica: Replica) -> None:
        room = find_room(self._machine, [place.grant for place in self._places.values()], replica.resources)
        if isinstance(room, NoRoom):
            self._hold(replica, ReplicaState.PENDING, room.reason)
            return
        try:
            self._logs.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            self._hold(replica, ReplicaState.PENDING, f"waits for a folder for its log: {error}")
            return
        try:
            port = reserve_engine_port(self._ports.get(replica.id), self._host)
        except AddressUnavailable as error:
            self._hold(replica, ReplicaState.PENDING, error.message)
            return
        try:
            spec, url = self._plan_child(replica, port.getsockname()[1], room)
        except (EngineKindUnknown, EnvironmentInvalid, OSError) as error:
            port.close()
            self._hold(replica, ReplicaState.REFUSED, str(error))
            return
        self._held.pop(replica.id, None)
        self._places[replica.id] = _Place(
            replica=replica, grant=room, port=port, url=url, log_seen=self._measure_log(replica.id)
        )
        self._supervisor.add(spec)

    def _plan_child(self, replica: Replica, port: int, grant: Grant) -> tuple[ChildSpec, str]:
        """Raises EngineKindUnknown, EnvironmentInvalid, OSError: its environment is of no use."""
        place = Place(port=port, host=self._host)
        variables: Mapping[str, str] = {}
        withheld = self._withheld
        if replica.environment:
            withheld |= FOREIGN_PYTHON
            python, variables = self._environments.enter(replica.environment)
            place = msgspec.structs.replace(place, python=str(python))
        plan = self._plan(replica.spec, place)
        gpus = {"CUDA_VISIBLE_DEVICES": ",".join(grant.gpus)} if self._machine.gpus else {}
        spec = ChildSpec(
            name=replica.id,
            argv=plan.argv,
            env={**gpus, **variables, **plan.env},
            withheld=withheld,
            probe=HttpProbe(plan.health_url),
            start_deadline_s=plan.ready_timeout_s,
            stop_deadline_s=plan.stop_timeout_s,
            restart=self._restart,
        )
        return spec, f"http://{place.host}:{port}/v1"

    def _hold(self, replica: Replica, state: ReplicaState, message: str) -> None:
        before = self._held.get(replica.id)
        if before is not None and (before.state, before.message) == (state, message):
            return
        logger.warning("%s is not started: %s", replica.id, message)
        self._held[replica.id] = ReplicaStatus(
            id=replica.id,
            deployment=replica.deployment,
            revision=replica.revision,
            index=replica.index,
            state=state,
            node=os.uname().nodename,
            since_s=self._clock.wall_ns() / 1e9,
            reason=ExitReason.REFUSED if state is ReplicaState.REFUSED else ExitReason.NONE,
            message=message[:MESSAGE_MAX],
        )

    # --- how they end ---------------------------------------------------------------------------------------

    def _absorb_exit(self, name: str, end: ChildEnd) -> bool:
        """Whether it is to stay down."""
        place = self._places.get(name)
        if place is None:
            return True
        kills, before = count_oom_kills(), place.oom_kills
        words = self._read_last_words(name, place.log_seen)
        seen = Circumstances(
            is_over_memory=place.is_over_memory,
            has_kernel_killed=kills is not None and before is not None and kills > before,
            last_words=words,
        )
        place.reason = judge_exit(end, seen)
        place.message = self._describe_end(place, words)
        place.is_over_memory, place.oom_kills = False, kills
        place.log_seen = self._measure_log(name)
        return is_final(place.reason, was_ready=end.was_ready)

    def _describe_end(self, place: _Place, words: tuple[str, ...]) -> str:
        if place.is_over_memory:
            limit = place.replica.resources.memory_mib
            return f"it used more than its {limit} MiB of memory (resources.memory_mib)"
        return next((line.strip() for line in reversed(words) if line.strip()), "")[:MESSAGE_MAX]

    def _read_last_words(self, name: str, log_seen: int) -> tuple[str, ...]:
        path = self._logs / f"{name}.log"
        size = self._measure_log(name)
        # A log that was begun anew is shorter than what had been seen of it.
        fresh = size - log_seen if size >= log_seen else size
        return read_log_tail(path, max_bytes=min(fresh, 16 * 1024)) if fresh else ()

    def _measure_log(self, name: str) -> int:
        with suppress(OSError):
            return (self._logs / f"{name}.log").stat().st_size
        return 0

    async def _watch_memory(self) -> None:
        while True:
            await asyncio.sleep(MEMORY_LOOK_S)
            for status in self._supervisor.statuses:
                place = self._places.get(status.name)
                limit = None if place is None else place.replica.resources.memory_mib
                if place is None or limit is None or status.pid is None or place.is_over_memory:
                    continue
                held = measure_tree(status.pid)
                if held is not None and held > limit * MIB:
                    logger.error("%s holds %d MiB of memory, more than %d", status.name, held // MIB, limit)
                    place.is_over_memory = True
                    self._supervisor.kill_child(status.name)

    async def _note_uses(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            await self._environments.note(
                (status.name, place.replica.environment, status.pid)
                for status in self._supervisor.statuses
                if (place := self._places.get(status.name)) is not None
                and place.replica.environment
                and status.pid is not None
            )

    def _drop_old_logs(self) -> None:
        """Keeps a bounded number of logs of those that are gone."""
        ended = []
        for path in self._logs.glob("*.log"):
            with suppress(OSError):
                if path.stem not in self._places and path.stem not in self._wanted:
                    ended.append((path.stat().st_mtime, path))
        for _, path in sorted(ended)[:-ENDED_LOGS_MAX]:
            path.unlink(missing_ok=True)
            path.with_name(f"{path.name}.1").unlink(missing_ok=True)

    # --- what is told ---------------------------------------------------------------------------------------

    def _tell(self) -> None:
        running = (
            self._describe(status, self._places[status.name])
            for status in self._supervisor.statuses
            if status.name in self._places
        )
        report = ReplicaReport(pid=os.getpid(), replicas=(*running, *self._held.values()))
        path = self._run / REPORT_FILE
        if report == self._told and look_at(path) == self._told_stamp:
            return
        try:
            save_report(self._run, report)
        except OSError as error:
            logger.error("what has become of the replicas can't be told: %s", error)
            return
        self._told, self._told_stamp = report, look_at(path)

    def _describe(self, status: ChildStatus, place: _Place) -> ReplicaStatus:
        replica = place.replica
        return ReplicaStatus(
            id=replica.id,
            deployment=replica.deployment,
            revision=replica.revision,
            index=replica.index,
            state=STATES[status.state],
            url=place.url,
            node=os.uname().nodename,
            restarts=status.restarts,
            failures=status.failures,
            since_s=status.since_s,
            reason=place.reason,
            message="" if status.state is ChildState.READY else place.message or status.last_exit,
        )

    def _load_last_ports(self) -> Mapping[str, int]:
        """Of the last run, so that addresses stay the same where they can."""
        report = load_report(self._run)
        urls = {} if report is None else {status.id: status.url for status in report.replicas}
        return {id: port for id, url in urls.items() if (port := urlsplit(url).port)}
