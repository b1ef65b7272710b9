"""Two who make, change or end the same thing at once: none fails, each event is told once, bounds hold."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tenancy_rig import ACTOR, Tenancy

from forebay.core.keys import Rights
from forebay.gateway.repo_signals import SignalRepo
from forebay.gateway.signals import PER_PROJECT_MAX, SignalNotFound, TooManySignals, make_report
from forebay.gateway.tenancy import KeyEnded, NewKey, Role

TRIES = 12  #: a race is lost now and then; without the lock or the retry, most of them fail
WRITERS = 3


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Tenancy]:
    with Tenancy(tmp_path) as scene:
        scene.teams.create_team("web", ACTOR)
        scene.teams.put_project("web", "search", Rights(), ACTOR)
        yield scene


def race(act: Callable[[int], object]) -> list[BaseException]:
    """Calls it from some threads at once, each with its number; what they raised."""
    barrier = threading.Barrier(WRITERS)

    def run(number: int) -> BaseException | None:
        barrier.wait()
        try:
            act(number)
        except Exception as error:
            return error
        return None

    with ThreadPoolExecutor(WRITERS) as pool:
        return [error for error in pool.map(run, range(WRITERS)) if error is not None]


def count_events(scene: Tenancy, action: str, subject: str) -> int:
    return sum(event.action == action for event in scene.audit.load_page(limit=50, subject=subject))


def test_the_same_team_and_project_are_made_once_and_nobody_fails(scene: Tenancy) -> None:
    for number in range(TRIES):
        team, project = f"t{number}", f"web/p{number}"
        assert race(lambda _, team=team: scene.teams.create_team(team, ACTOR)) == []  # type: ignore[misc]
        name = f"p{number}"
        assert (
            race(lambda _, name=name: scene.teams.put_project("web", name, Rights(), ACTOR)) == []  # type: ignore[misc]
        )
        assert count_events(scene, "team.create", team) == 1
        assert count_events(scene, "project.create", project) == 1


def test_a_token_and_a_key_end_once(scene: Tenancy) -> None:
    for _ in range(TRIES):
        token = scene.tokens.create("t", Role.VIEWER, ACTOR)[0].id
        assert race(lambda _, id=token: scene.tokens.revoke(id, ACTOR)) == []  # type: ignore[misc]
        assert count_events(scene, "token.revoke", token) == 1
        wanted = NewKey(name="k", team="web", project="search")
        key = scene.keys.create(wanted, ACTOR)[0].entry.id
        assert race(lambda _, id=key: scene.keys.revoke(id, ACTOR)) == []  # type: ignore[misc]
        assert count_events(scene, "key.revoke", key) == 1
        key = scene.keys.create(wanted, ACTOR)[0].entry.id
        errors = race(lambda _, id=key: scene.keys.rotate(id, ACTOR, overlap_s=60))  # type: ignore[misc]
        assert [type(error) for error in errors] == [KeyEnded] * (WRITERS - 1)


def test_a_signal_is_removed_once(scene: Tenancy) -> None:
    signals = SignalRepo(scene.database, scene.clock)
    for number in range(TRIES):
        name = f"s{number}"
        signals.report("web", "search", name, make_report(1), ACTOR)
        errors = race(lambda _, name=name: signals.delete("web", "search", name, ACTOR))  # type: ignore[misc]
        assert [type(error) for error in errors] == [SignalNotFound] * (WRITERS - 1)
        assert count_events(scene, "signal.delete", f"web/search/{name}") == 1


def test_first_reports_at_once_pass_no_bound(scene: Tenancy) -> None:
    signals = SignalRepo(scene.database, scene.clock)
    for number in range(PER_PROJECT_MAX - 1):
        signals.report("web", "search", f"s{number}", make_report(1), ACTOR)
    for _ in range(TRIES):
        errors = race(lambda number: signals.report("web", "search", f"z{number}", make_report(1), ACTOR))
        assert [type(error) for error in errors] == [TooManySignals] * (WRITERS - 1)
        listed = signals.list("web", "search")
        assert len(listed) == PER_PROJECT_MAX
        (last,) = (signal.name for signal in listed if signal.name.startswith("z"))
        signals.delete("web", "search", last, ACTOR)
