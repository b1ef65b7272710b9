"""The deployer over two launchers: one that hangs holds up nothing elsewhere, and nothing is left behind."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from forebay.app import deployer, deployer_replicas
from forebay.app.deployer import Deployer
from forebay.app.deployer_state import Attempts, Move, load_state
from forebay.engines.deployment import (
    Deployment,
    LauncherKind,
    Replica,
    ReplicaState,
    ReplicaStatus,
    Rollout,
)
from forebay.engines.judging import Figures
from forebay.engines.model import EngineSpec, LauncherError
from forebay.engines.rollout_state import Phase
from forebay.engines.scaling import Demand
from forebay.testing.clock import VirtualClock

LOCAL, RAY = LauncherKind.LOCAL, LauncherKind.RAY
FAST = Rollout(steps=(0.5,), step_s=1.0, requests_min=1, ready_timeout_s=60.0)


def deploy(version: str, launcher: LauncherKind, name: str = "chat") -> Deployment:
    spec = EngineSpec(name="m", kind="llamacpp")
    return Deployment(name=name, model="m", version=version, spec=spec, rollout=FAST, launcher=launcher)


@dataclass
class Elsewhere:
    """A launcher whose replicas are ready at once, unless it is away or hangs."""

    kind: LauncherKind
    replicas: dict[str, ReplicaStatus] = field(default_factory=dict)
    is_away: bool = False
    goes_on: asyncio.Event = field(default_factory=asyncio.Event)
    is_hanging_at: str = ""
    lists: int = 0

    async def start(self, replica: Replica) -> None:
        await self._answer("start")
        self.replicas[replica.id] = ReplicaStatus(
            id=replica.id,
            deployment=replica.deployment,
            revision=replica.revision,
            index=replica.index,
            state=ReplicaState.READY,
            url=f"http://{replica.id}/v1",
        )

    async def stop(self, replica_id: str) -> None:
        await self._answer("stop")
        self.replicas.pop(replica_id, None)

    async def list(self) -> Sequence[ReplicaStatus]:
        self.lists += 1
        await self._answer("list")
        return tuple(self.replicas.values())

    async def logs(self, replica_id: str, lines: int = 100) -> Sequence[str]:
        return ()

    async def close(self) -> None:
        pass

    async def _answer(self, to: str) -> None:
        if self.is_hanging_at == to:
            await self.goes_on.wait()
        if self.is_away:
            raise LauncherError("it is away. Wait.")


class Fleet:
    """What the deployer asks, and a deployer that can be begun anew."""

    is_known = True

    def __init__(self, run: Path) -> None:
        self.run, self.clock = run, VirtualClock()
        self.local, self.ray = Elsewhere(LOCAL), Elsewhere(RAY)
        self.wanted: list[Deployment] = []
        self.is_busy = False  #: those that leave answer somebody still
        self.deployer = self.begin()

    def begin(self) -> Deployer:
        launchers = {LOCAL: self.local, RAY: self.ray}
        self.deployer = Deployer(
            self, launchers, self, run=self.run, clock=self.clock, publish=self._publish, tell=self._tell
        )
        return self.deployer

    async def look_until(self, condition: Callable[[], bool]) -> None:
        for _ in range(50):
            if condition():
                return
            self.clock.advance(1.0)
            await self.deployer.look()
        raise AssertionError(self.deployer.statuses())

    async def _publish(self) -> None: ...

    async def _tell(self, move: Move) -> bool:
        return True

    def list_current(self) -> Sequence[Deployment]:
        return self.wanted

    def observe(self) -> None: ...

    async def find_free(self, leaving: Sequence[ReplicaStatus]) -> frozenset[str]:
        return frozenset() if self.is_busy else frozenset(each.id for each in leaving)

    def measure_demand(self, deployment: Deployment, *, has_replicas: bool) -> Demand | None:
        return None

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


def test_a_move_to_another_launcher_leaves_nothing_on_the_first(tmp_path: Path) -> None:
    async def check() -> None:
        fleet = Fleet(tmp_path)
        fleet.wanted = [deploy("1", RAY)]
        await fleet.look_until(lambda: "chat" in fleet.deployer.serving and len(fleet.ray.replicas) == 1)
        fleet.is_busy, fleet.wanted = True, [deploy("1", LOCAL)]
        await fleet.look_until(lambda: load_state(tmp_path).kept["chat"].track.candidate is not None)
        await fleet.look_until(lambda: load_state(tmp_path).kept["chat"].track.candidate is None)
        assert fleet.ray.replicas, "answers in flight leave first"
        fleet.begin()
        fleet.is_busy = False
        await fleet.look_until(lambda: not fleet.ray.replicas)
        await fleet.look_until(lambda: load_state(tmp_path).kept["chat"].launchers == (LOCAL,))
        before = fleet.ray.lists
        for _ in range(3):
            await fleet.deployer.look()
        assert fleet.ray.lists == before, "where nothing is left, nobody asks any more"

    asyncio.run(check())


@pytest.mark.parametrize("is_restarted", [False, True])
def test_what_was_deleted_while_its_launcher_was_away_ends_when_it_is_back(
    tmp_path: Path, is_restarted: bool
) -> None:
    async def check() -> None:
        fleet = Fleet(tmp_path)
        fleet.wanted = [deploy("1", RAY)]
        await fleet.look_until(lambda: len(fleet.ray.replicas) == 1)
        fleet.ray.is_away, fleet.wanted = True, []
        for _ in range(3):
            await fleet.deployer.look()
        if is_restarted:
            fleet.begin()
            await fleet.deployer.look()
        fleet.ray.is_away = False
        await fleet.look_until(lambda: not fleet.ray.replicas)
        await fleet.look_until(lambda: not load_state(tmp_path).kept)

    asyncio.run(check())


@pytest.mark.parametrize("at", ["list", "start"])
def test_a_launcher_that_hangs_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """It is waited for once; what it says at last is taken."""
    monkeypatch.setattr(deployer_replicas, "LIST_S", 0.1)
    monkeypatch.setattr(deployer, "ACT_S", 0.1)

    async def check() -> None:
        fleet = Fleet(tmp_path)
        fleet.ray.is_hanging_at = at
        fleet.wanted = [deploy("1", RAY, "away"), deploy("1", LOCAL)]
        async with asyncio.timeout(60):
            await fleet.look_until(lambda: len(fleet.local.replicas) == 1)
            fleet.wanted = [deploy("1", RAY, "away"), deploy("2", LOCAL)]
            wanted = fleet.wanted[1].revision
            await fleet.look_until(
                lambda: {each.revision for each in fleet.local.replicas.values()} == {wanted}
            )
        if at == "list":
            assert fleet.ray.lists == 1, "one question at a time"
            assert "no answer" in fleet.deployer.statuses()["away"].message
        fleet.ray.is_hanging_at = ""
        fleet.ray.goes_on.set()
        await asyncio.sleep(0)
        await fleet.look_until(lambda: len(fleet.ray.replicas) == 1)

    asyncio.run(check())


@pytest.mark.parametrize("at", ["preparing", "watching", "replacing"])
def test_a_candidate_on_a_launcher_that_is_gone_does_not_block_the_way_back(tmp_path: Path, at: str) -> None:
    async def check() -> None:
        fleet = Fleet(tmp_path)
        old, new = deploy("1", LOCAL), deploy("2", RAY)
        fleet.wanted = [old]
        await fleet.look_until(lambda: bool(fleet.deployer.serving.get("chat")))
        fleet.is_busy, fleet.wanted = True, [new]

        def is_there() -> bool:
            return load_state(tmp_path).kept["chat"].track.phase is Phase(at)

        await fleet.look_until(is_there)
        fleet.ray.is_away = True
        for _ in range(3):
            await fleet.deployer.look()
        assert is_there(), "what nobody can tell changes nothing while it is what is wanted"
        assert "it is away" in fleet.deployer.statuses()["chat"].message
        fleet.wanted, fleet.is_busy = [old], False
        await fleet.look_until(
            lambda: (
                [each.version for each in fleet.deployer.serving["chat"]] == ["1"]
                and load_state(tmp_path).kept["chat"].track.candidate is None
            )
        )
        assert len(fleet.local.replicas) == 1
        fleet.ray.is_away = False
        await fleet.look_until(lambda: not fleet.ray.replicas)

    asyncio.run(check())


def test_a_serving_launcher_that_is_gone_does_not_block_the_way_to_another(tmp_path: Path) -> None:
    async def check() -> None:
        fleet = Fleet(tmp_path)
        fleet.wanted = [deploy("1", RAY)]
        await fleet.look_until(lambda: bool(fleet.deployer.serving.get("chat")))
        fleet.ray.is_away, fleet.wanted = True, [deploy("1", LOCAL)]
        await fleet.look_until(lambda: load_state(tmp_path).kept["chat"].track.candidate is not None)
        await fleet.look_until(lambda: load_state(tmp_path).kept["chat"].track.candidate is None)
        assert fleet.deployer.serving["chat"]
        fleet.begin()
        fleet.ray.is_away = False
        await fleet.look_until(lambda: not fleet.ray.replicas)
        assert len(fleet.local.replicas) == 1

    asyncio.run(check())
