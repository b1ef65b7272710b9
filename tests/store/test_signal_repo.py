"""Reported load at rest: the last report counts, each change is seen, and the audit is not flooded."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tenancy_rig import ACTOR, Tenancy

from forebay.core.errors import InvalidValue
from forebay.core.keys import Rights
from forebay.gateway.repo_signals import SignalRepo
from forebay.gateway.signals import (
    PER_PROJECT_MAX,
    TTL_MAX_S,
    VALUE_MAX,
    SignalNotFound,
    SignalRecord,
    TooManySignals,
    make_report,
)
from forebay.gateway.tenancy import ProjectNotFound, TeamNotFound


class Signals(Tenancy):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.signals = SignalRepo(self.database, self.clock)
        self.teams.create_team("web", ACTOR)
        for project in ("search", "chat"):
            self.teams.put_project("web", project, Rights(), ACTOR)

    def report(self, value: float, project: str = "search", name: str = "ccu") -> SignalRecord:
        return self.signals.report("web", project, name, make_report(value), ACTOR)

    def events(self) -> list[tuple[str, str]]:
        found = [(event.action, event.subject) for event in self.audit.load_page(limit=200)]
        return [event for event in reversed(found) if event[0].startswith("signal.")]


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Signals]:
    with Signals(tmp_path) as scene:
        yield scene


def test_the_last_report_is_what_is_kept(scene: Signals) -> None:
    scene.report(3)
    scene.report(7, "chat", "rooms")
    scene.signals.report("web", "search", "ccu", make_report(1234.5, ttl_s=9), ACTOR)
    chat, search = scene.signals.list()
    assert (chat.place, chat.value, chat.ttl_ns) == (("web", "chat", "rooms"), 7, None)
    assert (search.place, search.value, search.ttl_ns) == (("web", "search", "ccu"), 1234.5, 9 * 10**9)
    assert search.reported_ns > chat.reported_ns
    assert search.version == 2
    assert scene.signals.list("web", "search") == (search,)
    assert scene.signals.list("default", "default") == ()


def test_the_audit_tells_of_the_first_report_and_of_the_removal_alone(scene: Signals) -> None:
    for value in range(5):
        scene.report(value)
    scene.signals.delete("web", "search", "ccu", ACTOR)
    scene.report(9)
    name = "web/search/ccu"
    assert scene.events() == [("signal.create", name), ("signal.delete", name), ("signal.create", name)]
    removal = scene.audit.load_page(limit=2, subject=name)[1]
    assert removal.before is not None
    assert removal.before["value"] == 4


def test_every_change_gives_another_stamp(scene: Signals) -> None:
    seen = {scene.signals.find_stamp()}

    def note() -> None:
        stamp = scene.signals.find_stamp()
        assert stamp not in seen
        assert stamp == scene.signals.find_stamp()
        seen.add(stamp)

    for _ in range(3):
        for project in ("search", "chat"):
            scene.report(1, project)
            note()
    for project in ("chat", "search"):
        scene.signals.delete("web", project, "ccu", ACTOR)
        note()
        scene.report(1, "search", "other")
        note()


def test_what_does_not_exist_is_told_apart(scene: Signals) -> None:
    report = make_report(1)
    with pytest.raises(TeamNotFound):
        scene.signals.report("lab", "search", "ccu", report, ACTOR)
    with pytest.raises(ProjectNotFound):
        scene.signals.report("web", "lab", "ccu", report, ACTOR)
    with pytest.raises(InvalidValue):
        scene.signals.report("web", "search", "Ccu", report, ACTOR)
    with pytest.raises(ProjectNotFound):
        scene.signals.list("web", "lab")
    with pytest.raises(ProjectNotFound):
        scene.signals.delete("web", "lab", "ccu", ACTOR)
    with pytest.raises(SignalNotFound):
        scene.signals.delete("web", "search", "ccu", ACTOR)
    assert scene.events() == []


def test_a_project_has_so_many_signals_and_no_more(scene: Signals) -> None:
    for number in range(PER_PROJECT_MAX):
        scene.report(1, name=f"s{number}")
    with pytest.raises(TooManySignals, match="delete one"):
        scene.report(1, name="more")
    scene.report(2, name="s0")
    scene.report(1, "chat", "more")
    scene.signals.delete("web", "search", "s0", ACTOR)
    scene.report(1, name="more")


def test_first_reports_at_once_are_one_signal(scene: Signals) -> None:
    barrier = threading.Barrier(4)
    failed: list[BaseException] = []

    def report(number: int) -> None:
        barrier.wait()
        try:
            scene.report(number)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=report, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    (record,) = scene.signals.list()
    assert record.version == 4
    assert len(scene.events()) == 1


@pytest.mark.parametrize(
    ("value", "micro"),
    [
        (0, 0),
        (0.1, 100_000),
        (1e-7, 0),
        (1234.5, 1_234_500_000),
        (VALUE_MAX, VALUE_MAX * 10**6),
        (1e12, 10**18),
    ],
)
def test_values_are_kept_in_millionths(value: float, micro: int) -> None:
    assert make_report(value).value_micro == micro


@pytest.mark.parametrize("value", [-1, -1e-9, float("nan"), float("inf"), VALUE_MAX + 1])
def test_what_is_no_load_is_refused(value: float) -> None:
    with pytest.raises(InvalidValue):
        make_report(value)


@pytest.mark.parametrize("ttl_s", [0, -1, TTL_MAX_S + 1, float("nan")])
def test_what_is_no_time_is_refused(ttl_s: float) -> None:
    with pytest.raises(InvalidValue):
        make_report(1, ttl_s)
