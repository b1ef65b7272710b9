"""Applied manifests at rest: all or none, in the order of their generations, with an audit of each change."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tenancy_rig import ACTOR, Tenancy

from forebay.app.deployment_records import (
    DeploymentNotFound,
    DeploymentsRefused,
    GenerationConflict,
    Outcome,
    WantedManifest,
)
from forebay.app.deployment_repo import MANIFEST_MAX_BYTES, DeploymentRepo
from forebay.gateway.tenancy import Actor


class Deployments(Tenancy):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.repo = DeploymentRepo(self.database, self.clock)

    def apply(self, *names: str, slots: int = 1, expected: int | None = None) -> list[tuple[str, int]]:
        wanted = [WantedManifest(name=name, manifest={"slots": slots}, expected=expected) for name in names]
        return [(str(each.outcome), each.record.generation) for each in self.repo.apply(wanted, ACTOR)]

    def names(self) -> list[str]:
        return [record.name for record in self.repo.list_current()]

    def events(self) -> list[tuple[str, str]]:
        found = [(event.action, event.subject) for event in self.audit.load_page(limit=1000)]
        return [event for event in reversed(found) if event[0].startswith("deployment.")]


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Deployments]:
    with Deployments(tmp_path) as scene:
        yield scene


def test_each_change_is_a_generation_and_what_is_the_same_is_none(scene: Deployments) -> None:
    assert scene.apply("b", "a") == [("created", 1), ("created", 1)]
    assert scene.names() == ["a", "b"]
    change = scene.repo.find_last_change()
    assert scene.apply("a", slots=1) == [("unchanged", 1)]
    assert scene.repo.find_last_change() == change
    assert scene.apply("a", slots=2) == [("changed", 2)]
    assert scene.repo.find_last_change() > change
    assert scene.repo.get("a").manifest == {"slots": 2}
    assert [record.generation for record in scene.repo.load_history("a")] == [2, 1]
    assert scene.events() == [
        *(("deployment.create", "b"), ("deployment.create", "a")),
        ("deployment.change", "a"),
    ]


def test_an_event_tells_what_was_and_what_is(scene: Deployments) -> None:
    scene.apply("a")
    scene.apply("a", slots=2)
    (event, *_) = scene.audit.load_page(limit=1)
    assert event.before == {"generation": 1, "manifest": {"slots": 1}}
    assert event.after == {"generation": 2, "manifest": {"slots": 2}}
    assert event.actor == ACTOR
    assert scene.repo.get("a").actor == ACTOR


def test_all_hold_or_none(scene: Deployments) -> None:
    scene.apply("a")
    events = scene.events()
    with pytest.raises(GenerationConflict, match="a was changed meanwhile, by tester"):
        scene.repo.apply(
            [
                WantedManifest(name="new", manifest={}),
                WantedManifest(name="a", manifest={}, expected=0),
            ],
            ACTOR,
        )
    with pytest.raises(DeploymentsRefused, match="bytes"):
        scene.repo.apply(
            [
                WantedManifest(name="new", manifest={}),
                WantedManifest(name="long", manifest={"warm_up": ["x" * MANIFEST_MAX_BYTES]}),
            ],
            ACTOR,
        )
    assert scene.names() == ["a"]
    assert scene.events() == events


def test_nobody_undoes_what_another_has_done_meanwhile(scene: Deployments) -> None:
    assert scene.apply("a", expected=0) == [("created", 1)]
    with pytest.raises(GenerationConflict):
        scene.apply("a", expected=0, slots=2)
    with pytest.raises(GenerationConflict, match="not there any more"):
        scene.apply("gone", expected=3)
    with pytest.raises(GenerationConflict):
        scene.repo.delete("a", ACTOR, expected=2)
    with pytest.raises(GenerationConflict):
        scene.repo.roll_back("a", ACTOR, expected=2)
    assert scene.apply("a", expected=1, slots=2) == [("changed", 2)]


def test_what_is_deleted_is_gone_and_its_history_stays(scene: Deployments) -> None:
    scene.apply("a")
    change = scene.repo.find_last_change()
    assert scene.repo.delete("a", ACTOR).manifest is None
    assert scene.repo.find_last_change() > change
    assert scene.names() == []
    for act in (lambda: scene.repo.get("a"), lambda: scene.repo.delete("a", ACTOR)):
        with pytest.raises(DeploymentNotFound, match="forebay deployments"):
            act()
    assert [record.manifest is None for record in scene.repo.load_history("a")] == [True, False]
    assert scene.apply("a", expected=0) == [("created", 3)]
    assert [action for action, _ in scene.events()] == [
        *("deployment.create", "deployment.delete", "deployment.create"),
    ]


def test_a_rollback_is_a_new_generation_like_an_earlier_one(scene: Deployments) -> None:
    for slots in (1, 2, 3):
        scene.apply("a", slots=slots)
    back = scene.repo.roll_back("a", ACTOR)
    assert (back.record.generation, back.record.manifest, back.record.note) == (
        *(4, {"slots": 2}, "rollback to 2"),
    )
    assert scene.repo.roll_back("a", ACTOR, to=1).record.manifest == {"slots": 1}
    assert scene.repo.roll_back("a", ACTOR, to=1).outcome is Outcome.UNCHANGED
    with pytest.raises(DeploymentsRefused, match="no generation 9 to go back to; there is 5, 4, 3, 2, 1"):
        scene.repo.roll_back("a", ACTOR, to=9)
    scene.repo.delete("a", ACTOR)
    again = scene.repo.roll_back("a", ACTOR)
    assert (again.outcome, again.record.manifest) == (Outcome.CREATED, {"slots": 1})
    assert scene.events()[-1] == ("deployment.rollback", "a")


def test_there_is_nothing_to_go_back_to_from_the_first(scene: Deployments) -> None:
    scene.apply("a")
    with pytest.raises(DeploymentsRefused, match="no earlier generation"):
        scene.repo.roll_back("a", ACTOR)
    with pytest.raises(DeploymentNotFound):
        scene.repo.roll_back("b", ACTOR)


def test_history_and_number_are_bounded(scene: Deployments) -> None:
    scene.repo = DeploymentRepo(scene.database, scene.clock, history_max=4, deployments_max=3)
    for slots in range(6):
        scene.apply("a", slots=slots)
    assert [record.generation for record in scene.repo.load_history("a")] == [6, 5, 4, 3]
    with pytest.raises(DeploymentsRefused, match="would make 4 deployments, and 3 is the most"):
        scene.apply("b", "c", "d")
    assert scene.names() == ["a"]
    scene.apply("b", "c")
    assert scene.names() == ["a", "b", "c"]


def test_writers_at_once_each_get_a_generation_of_their_own(scene: Deployments) -> None:
    scene.apply("a")
    refused: list[str] = []

    def write(writer: int) -> None:
        for number in range(5):
            actor = Actor(id=f"tok_{writer}", name=f"writer {writer}")
            wanted = WantedManifest(name="a", manifest={"slots": 100 * writer + number + 2})
            scene.repo.apply([wanted], actor)
        try:
            scene.repo.apply([WantedManifest(name="a", manifest={"slots": writer}, expected=1)], ACTOR)
        except GenerationConflict as error:
            refused.append(error.message)

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(1, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(refused) == 3
    assert [record.generation for record in scene.repo.load_history("a")] == list(range(16, 0, -1))
    assert len(scene.events()) == 16


def test_going_back_to_what_was_deleted_makes_no_more_than_there_may_be(scene: Deployments) -> None:
    scene.repo = DeploymentRepo(scene.database, scene.clock, deployments_max=1)
    scene.apply("a")
    scene.repo.delete("a", ACTOR)
    scene.apply("b")
    with pytest.raises(DeploymentsRefused, match="2 deployments, and 1 is the most"):
        scene.repo.roll_back("a", ACTOR)
    assert scene.names() == ["b"]
