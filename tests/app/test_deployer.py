"""The deployer over a launcher in memory: what it remembers, in which order it acts, what it never does."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from forebay.app.deployer import Deployer
from forebay.app.deployer_state import STATE_FILE, Attempts, Move, load_state
from forebay.app.replica_metrics import DeploymentCollector
from forebay.engines.deployment import (
    Deployment,
    DeploymentPhase,
    ExitReason,
    LauncherKind,
    Replica,
    ReplicaState,
    ReplicaStatus,
    Rollout,
)
from forebay.engines.judging import Figures
from forebay.engines.model import EngineSpec, LauncherError
from forebay.engines.rollout_state import Turn
from forebay.engines.scaling import Demand
from forebay.testing.clock import VirtualClock

FAST = Rollout(steps=(0.5,), step_s=5.0, requests_min=1, ready_timeout_s=60.0)


def deploy(version: str, **changes: object) -> Deployment:
    spec = EngineSpec(name="m", kind="llamacpp")
    return msgspec.structs.replace(
        Deployment(name="chat", model="m", version=version, spec=spec, rollout=FAST), **changes
    )


@dataclass
class MemoryLauncher:
    """Replicas that are ready at once."""

    kind: LauncherKind = LauncherKind.LOCAL
    replicas: dict[str, ReplicaStatus] = field(default_factory=dict)
    deeds: list[str] = field(default_factory=list)
    is_away: bool = False
    refuses: str = ""  #: the revision that does not start

    async def start(self, replica: Replica) -> None:
        self._check()
        self.deeds.append(f"start {replica.id}")
        is_bad = replica.revision == self.refuses
        self.replicas[replica.id] = ReplicaStatus(
            id=replica.id,
            deployment=replica.deployment,
            revision=replica.revision,
            index=replica.index,
            state=ReplicaState.REFUSED if is_bad else ReplicaState.READY,
            reason=ExitReason.REFUSED if is_bad else ExitReason.NONE,
            url=f"http://{replica.id}/v1",
        )

    async def stop(self, replica_id: str) -> None:
        self._check()
        self.deeds.append(f"stop {replica_id}")
        self.replicas.pop(replica_id, None)

    async def list(self) -> Sequence[ReplicaStatus]:
        self._check()
        return tuple(self.replicas.values())

    async def logs(self, replica_id: str, lines: int = 100) -> Sequence[str]:
        return [f"of {replica_id}"] if replica_id in self.replicas else []

    async def close(self) -> None:
        pass

    def _check(self) -> None:
        if self.is_away:
            raise LauncherError("the launcher is away. Wait.")


class Scene:
    """A deployer that can be killed and begun anew."""

    def __init__(self, run: Path) -> None:
        self.run, self.clock, self.launcher = run, VirtualClock(), MemoryLauncher()
        self.wanted: list[Deployment] = []
        self.is_known = True
        self.free = True
        self.demand: Demand | None = None
        self.can_tell = True
        self.moves: list[Move] = []
        self.told: list[tuple[str, Turn]] = []
        self.published: list[Mapping[str, object]] = []
        self.deployer = self.begin()

    def begin(self) -> Deployer:
        self.deployer = Deployer(
            self, {self.launcher.kind: self.launcher}, self, run=self.run, clock=self.clock,
            publish=self._publish, tell=self._tell,
        )  # fmt: skip
        return self.deployer

    async def _publish(self) -> None:
        self.published.append(self.deployer.serving)
        for each in self.deployer.serving.get("chat", ()):
            self.launcher.deeds.append(f"serve {each.id}")

    async def _tell(self, move: Move) -> bool:
        if self.can_tell and move not in self.moves:  # as the audit: once, however often it is asked to
            self.moves.append(move)
            self.told.append((move.name, move.told.turn))
        return self.can_tell

    def list_current(self) -> Sequence[Deployment]:
        return self.wanted

    def observe(self) -> None:
        pass

    async def find_free(self, leaving: Sequence[ReplicaStatus]) -> frozenset[str]:
        return frozenset(each.id for each in leaving) if self.free else frozenset()

    def measure_demand(self, deployment: Deployment, *, has_replicas: bool) -> Demand | None:
        return self.demand

    async def was_refused(self, deployment: Deployment) -> bool:
        return False

    async def count_attempts(self) -> Mapping[str, Attempts]:
        return {}

    async def measure(
        self,
        pool: str,
        revisions: Mapping[str, str],
        new: str,
        since_s: float,
        counted: Mapping[str, Attempts],
    ) -> Mapping[str, Figures]:
        return {revision: Figures(requests=10) for revision in revisions.values()}

    def serving(self) -> dict[str, float | None]:
        return {each.version: each.weight for each in self.deployer.serving.get("chat", ())}

    async def look(self, times: int = 1) -> None:
        for _ in range(times):
            self.clock.advance(1.0)
            await self.deployer.look()


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


async def check_change(scene: Scene) -> None:
    first, second = deploy("1"), deploy("2")
    scene.wanted = [first]
    await scene.look(2)
    assert scene.serving() == {"1": None}
    scene.wanted = [second]
    await scene.look(2)
    assert scene.serving() == {"1": 0.5, "2": 0.5}
    # Killed in the middle: the next one begins where this one ended, before it has looked at all.
    scene.begin()
    assert scene.serving() == {"1": 0.5, "2": 0.5}
    scene.launcher.is_away = True
    await scene.look(3)
    assert scene.serving() == {"1": 0.5, "2": 0.5}, "what nobody can tell changes nothing"
    scene.launcher.is_away = False
    scene.free = False
    await scene.look(10)
    assert scene.serving() == {"2": None}
    assert len(scene.launcher.replicas) == 2, "the old one has requests still"
    scene.free = True
    await scene.look()
    assert [each.revision for each in scene.launcher.replicas.values()] == [second.revision]
    turns = [turn for _, turn in scene.told]
    assert turns == [Turn.ASKED, Turn.PREPARED, Turn.PROVEN, Turn.DONE]
    stop = f"stop {first.name}-{first.revision}-0"
    deeds = scene.launcher.deeds
    assert deeds.index(stop) > max(at for at, deed in enumerate(deeds) if deed.startswith("serve"))
    assert deeds.count(stop) == 1


def test_a_change_goes_on_after_a_kill_and_nothing_ends_that_serves(scene: Scene) -> None:
    asyncio.run(check_change(scene))


async def check_unknown(scene: Scene) -> None:
    scene.wanted = [deploy("1")]
    await scene.look(2)
    scene.begin()
    scene.is_known, scene.wanted = False, []
    await scene.look(5)
    assert scene.serving() == {"1": None}
    assert len(scene.launcher.replicas) == 1
    scene.is_known = True
    await scene.look(4)
    assert not scene.launcher.replicas
    assert load_state(scene.run).kept == {}
    assert scene.deployer.statuses() == {}


def test_nothing_is_ended_before_it_is_known_what_is_to_run(scene: Scene) -> None:
    asyncio.run(check_unknown(scene))


async def check_lost_state(scene: Scene) -> None:
    scene.wanted = [deploy("1")]
    await scene.look(2)
    (scene.run / STATE_FILE).write_bytes(b"{")
    scene.begin()
    await scene.look(2)
    assert scene.serving() == {"1": None}
    assert [deed for deed in scene.launcher.deeds if deed.startswith("st")] == [
        f"start chat-{deploy('1').revision}-0"
    ], "what runs is taken up again"


def test_a_damaged_state_costs_no_replica(scene: Scene) -> None:
    asyncio.run(check_lost_state(scene))


async def check_disk_full(scene: Scene) -> None:
    scene.wanted = [deploy("1")]
    await scene.look(2)
    deeds = list(scene.launcher.deeds)
    scene.run.joinpath(STATE_FILE).unlink()
    scene.run.joinpath(STATE_FILE).mkdir()  # nothing can be written in its place
    scene.wanted = [deploy("2")]
    await scene.look(3)
    assert scene.launcher.deeds == deeds
    scene.run.joinpath(STATE_FILE).rmdir()
    await scene.look(12)
    assert scene.serving() == {"2": None}


def test_what_can_not_be_written_down_is_not_done(scene: Scene) -> None:
    asyncio.run(check_disk_full(scene))


async def check_bad(scene: Scene) -> None:
    first, second = deploy("1"), deploy("2")
    scene.wanted = [first]
    await scene.look(2)
    scene.launcher.refuses = second.revision
    scene.wanted = [second]
    await scene.look(6)
    assert scene.serving() == {"1": None}
    status = scene.deployer.statuses()["chat"]
    assert status.phase is DeploymentPhase.STOPPED
    assert "refuses to start" in status.message
    assert (status.revision, status.serving_revision) == (second.revision, first.revision)
    assert [each.revision for each in scene.launcher.replicas.values()] == [first.revision]
    assert scene.told[-1] == ("chat", Turn.FAILED)
    assert scene.deployer.exits == {("chat", ExitReason.REFUSED): 1}
    page = "".join(
        f"{sample.name}{sorted(sample.labels.values())} {sample.value}\n"
        for metric in DeploymentCollector(scene.deployer.statuses, lambda: scene.deployer.exits).collect()
        for sample in metric.samples
    )
    assert "forebay_replica_exits_total['chat', 'refused'] 1" in page
    assert "forebay_deployment_phase['chat', 'stopped'] 1.0" in page
    assert "forebay_replicas['chat', 'ready'] 1" in page


def test_a_bad_revision_is_stopped_and_told(scene: Scene) -> None:
    asyncio.run(check_bad(scene))


async def check_scaling(scene: Scene) -> None:
    scene.wanted = [deploy("1", replicas_min=0, replicas_max=2)]
    scene.demand = Demand(busy=0, slots=4)
    await scene.look(5)
    assert not scene.launcher.replicas
    assert scene.deployer.statuses()["chat"].phase is DeploymentPhase.READY
    scene.demand = Demand(busy=0, slots=4, is_missed=True)
    await scene.look(6)
    assert len(scene.launcher.replicas) == 1
    scene.demand = Demand(busy=8, slots=4)
    await scene.look(6)
    assert len(scene.launcher.replicas) == 2
    scene.demand = None
    await scene.look(100)
    assert len(scene.launcher.replicas) == 2, "where nobody can say, nothing changes"
    scene.demand = Demand(busy=0, slots=4)
    await scene.look(130)
    assert not scene.launcher.replicas
    assert scene.serving() == {}


def test_replicas_follow_load(scene: Scene) -> None:
    asyncio.run(check_scaling(scene))


async def check_no_launcher(scene: Scene) -> None:
    scene.wanted = [deploy("1", launcher=LauncherKind.RAY)]
    await scene.look(3)
    assert not scene.launcher.deeds
    assert "ray" in scene.deployer.statuses()["chat"].message


def test_a_launcher_that_is_not_there_is_told(scene: Scene) -> None:
    asyncio.run(check_no_launcher(scene))
