"""What the deployer remembers is lost or half told: nothing that serves ends, and nothing is told twice."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from sqlalchemy import update
from test_deployer import FAST, Scene, deploy

from forebay.app.clock import SystemClock
from forebay.app.config import Config
from forebay.app.config_values import ConfigOrigin
from forebay.app.deployer_audit import tell_move
from forebay.app.deployer_state import STATE_FILE, TWIN_FILE, Move, load_state
from forebay.app.deployment_records import WantedManifest
from forebay.app.deployment_repo import DeploymentRepo
from forebay.app.deployment_store import DeploymentStore
from forebay.app.deployment_tables import manifests
from forebay.engines.deployment import Deployment, DeploymentPhase, ReplicaState, Unseen
from forebay.engines.judging import Figures
from forebay.engines.rollout_state import Phase, Told, Turn
from forebay.gateway.repo_audit import AuditRepo
from forebay.gateway.tenancy import Actor
from forebay.store.database import Database

TESTER = Actor(id="tester", name="tester")
ALL_TURNS = [Turn.ASKED, Turn.PREPARED, Turn.PROVEN, Turn.DONE]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def set_states(scene: Scene, revision: str, state: ReplicaState) -> None:
    for id, status in scene.launcher.replicas.items():
        if status.revision == revision:
            scene.launcher.replicas[id] = msgspec.structs.replace(status, state=state)


async def come_to(scene: Scene, phase: Phase) -> None:
    scene.wanted = [deploy("1")]
    await scene.look(2)
    scene.free = False
    scene.wanted = [deploy("2")]
    for _ in range(30):
        await scene.look()
        if load_state(scene.run).kept["chat"].track.phase is phase:
            return
    raise AssertionError(scene.deployer.statuses())


def remove(path: Path) -> None:
    path.unlink()


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:40])


def garble(path: Path) -> None:
    path.write_bytes(b"\x00" * 100)


@pytest.mark.parametrize("phase", [Phase.PREPARING, Phase.WATCHING, Phase.REPLACING])
@pytest.mark.parametrize("damage", [remove, truncate, garble])
def test_a_damaged_state_in_the_middle_of_a_change_is_read_from_its_twin(
    scene: Scene, phase: Phase, damage: Callable[[Path], None]
) -> None:
    async def check() -> None:
        await come_to(scene, phase)
        before = scene.serving()
        damage(scene.run / STATE_FILE)
        scene.begin()
        assert scene.serving() == before
        scene.free = True
        await scene.look(12)
        assert scene.serving() == {"2": None}
        assert [turn for _, turn in scene.told] == ALL_TURNS

    asyncio.run(check())


@pytest.mark.parametrize("phase", [Phase.PREPARING, Phase.WATCHING])
def test_where_both_are_lost_the_old_revision_serves_until_the_new_one_is_ready(
    scene: Scene, phase: Phase
) -> None:
    async def check() -> None:
        await come_to(scene, phase)
        old, new = deploy("1").revision, deploy("2").revision
        for name in (STATE_FILE, TWIN_FILE):
            garble(scene.run / name)
        set_states(scene, new, ReplicaState.STARTING)
        scene.begin()
        await scene.look(3)
        assert {each.revision for each in scene.deployer.serving["chat"]} == {old}, "it was not ended early"
        status = scene.deployer.statuses()["chat"]
        assert status.phase is DeploymentPhase.ROLLING
        assert old in status.message
        assert "is lost" in status.message
        set_states(scene, new, ReplicaState.READY)
        scene.free = True
        await scene.look(4)
        assert {each.revision for each in scene.deployer.serving["chat"]} == {new}
        assert {each.revision for each in scene.launcher.replicas.values()} == {new}
        assert load_state(scene.run).kept["chat"].track.found == ()

    asyncio.run(check())


def test_a_move_waits_for_the_audit_over_a_kill_and_is_told_once(scene: Scene) -> None:
    async def check() -> None:
        scene.wanted = [deploy("1")]
        await scene.look(2)
        scene.can_tell = False
        scene.wanted = [deploy("2")]
        await scene.look(12)
        assert scene.serving() == {"2": None}, "the change does not wait for it"
        assert scene.told == []
        scene.begin()
        scene.can_tell = True
        await scene.look(2)
        scene.begin()
        await scene.look(2)
        assert [turn for _, turn in scene.told] == ALL_TURNS

    asyncio.run(check())


def test_a_move_that_is_told_again_stands_in_the_audit_once(tmp_path: Path) -> None:
    database = Database.open(tmp_path / "forebay.db")
    database.migrate()
    told = Told(Turn.ASKED, "r1", "it was asked for")
    for at_s in (1_700_000_000.123456, 1_700_000_000.123456, 1_700_000_009.5):
        tell_move(database, Move(name="chat", told=told, at_s=at_s))
    tell_move(database, Move(name="other", told=told, at_s=1_700_000_009.5))
    page = AuditRepo(database).load_page(limit=10)
    assert [(each.subject, each.at_ns // 10**9) for each in reversed(page)] == [
        ("chat", 1_700_000_000), ("chat", 1_700_000_009), ("other", 1_700_000_009),
    ]  # fmt: skip
    database.close()


@pytest.mark.parametrize("unseen", list(Unseen))
def test_a_step_without_traffic_is_told_or_waited_for(scene: Scene, unseen: Unseen) -> None:
    async def measure(*_: object) -> dict[str, Figures]:
        return {deploy(version).revision: Figures() for version in "12"}

    async def check() -> None:
        rollout = msgspec.structs.replace(FAST, requests_min=20, unseen=unseen)
        scene.wanted = [deploy("1", rollout=rollout)]
        await scene.look(2)
        scene.wanted = [deploy("2", rollout=rollout)]
        await scene.look(4)
        status = scene.deployer.statuses()["chat"]
        assert "is watched at 50% of the requests: for " in status.message
        assert "s more at least, 0 of 20 requests have been answered" in status.message
        await scene.look(6)
        words = scene.deployer.statuses()["chat"].message
        assert ("s fewer are enough" in words) is (unseen is Unseen.PASS), words
        assert ("waits for them (rollout.unseen)" in words) is (unseen is Unseen.WAIT), words
        await scene.look(30)
        status = scene.deployer.statuses()["chat"]
        if unseen is Unseen.WAIT:
            assert status.phase is DeploymentPhase.ROLLING
        else:
            assert status.phase is DeploymentPhase.READY
            assert status.message == "at 50% passed by time alone: 0 of 20 requests, 0 failed"

    scene.measure = measure  # type: ignore[method-assign, assignment]
    asyncio.run(check())


def test_time_in_which_nobody_looked_passes_no_step(scene: Scene) -> None:
    async def measure(*_: object) -> dict[str, Figures]:
        return {deploy(version).revision: Figures() for version in "12"}

    async def check() -> None:
        await come_to(scene, Phase.WATCHING)
        scene.clock.advance(100 * FAST.step_s)
        scene.begin()
        await scene.look()
        assert load_state(scene.run).kept["chat"].track.phase is Phase.WATCHING
        assert "is watched at 50% of the requests: for 4 s" in scene.deployer.statuses()["chat"].message
        await scene.look(6)
        assert load_state(scene.run).kept["chat"].track.phase is Phase.WATCHING, "nobody asked it anything"

    scene.measure = measure  # type: ignore[method-assign, assignment]
    asyncio.run(check())


def test_exits_of_deployments_that_are_gone_are_forgotten(scene: Scene) -> None:
    async def check() -> None:
        scene.launcher.refuses = deploy("1").revision
        for number in range(3):
            scene.wanted = [msgspec.structs.replace(deploy("1"), name=f"chat{number}")]
            await scene.look(3)
            assert f"chat{number}" in [name for name, _ in scene.deployer.exits]
        scene.wanted = []
        await scene.look(3)
        assert scene.deployer.exits == {}

    asyncio.run(check())


def make_manifest() -> dict[str, object]:
    return {"source": "embedded:smollm2-135m", "engine": {"kind": "llamacpp"}}


@pytest.mark.parametrize("stored", ['{"engine": {"kind": "of-a-later-version"}}', "{no json"])
def test_a_manifest_that_can_not_be_read_is_not_one_that_nobody_wants(tmp_path: Path, stored: str) -> None:
    database = Database.open(tmp_path / "forebay.db")
    database.migrate()
    config = Config.model_validate({}, context=ConfigOrigin(folder=tmp_path, file=None))
    repo = DeploymentRepo(database, SystemClock())
    repo.apply([WantedManifest(name=name, manifest=make_manifest()) for name in ("chat", "other")], TESTER)

    async def look(recall: Callable[[str], Deployment | None]) -> DeploymentStore:
        store = DeploymentStore(repo, lambda: config)
        store.recall = recall
        await store.poll()
        return store

    before = asyncio.run(look(lambda name: None)).list_current()
    with database.begin() as connection:
        connection.execute(update(manifests).where(manifests.c.name == "chat").values(manifest=stored))
    kept = {each.name: each for each in before}
    after = asyncio.run(look(kept.get))
    assert after.list_current() == before, "it runs on as it was asked for last"
    assert any("deployment chat was applied with another version" in each for each in after.problems)
    assert [each.name for each in asyncio.run(look(lambda name: None)).list_current()] == ["other"]
    repo.delete("chat", TESTER)
    assert [each.name for each in asyncio.run(look(kept.get)).list_current()] == ["other"]
    database.close()


def test_histories_of_names_that_come_and_go_do_not_add_up(tmp_path: Path) -> None:
    database = Database.open(tmp_path / "forebay.db")
    database.migrate()
    repo = DeploymentRepo(database, SystemClock(), deleted_max=2)
    for number in range(5):
        repo.apply([WantedManifest(name=f"d{number}", manifest={"n": number})], TESTER)
        if number != 1:
            repo.delete(f"d{number}", TESTER)
    with database.read() as connection:
        names = {row.name for row in connection.execute(manifests.select())}
    assert names == {"d1", "d3", "d4"}, "what is wanted stays, and the newest of what is gone"
    assert repo.roll_back("d4", TESTER).record.manifest == {"n": 4}
    database.close()
