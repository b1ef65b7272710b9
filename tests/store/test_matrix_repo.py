"""Trials of the version matrix in SQL."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from forebay.app.matrix import TRIALS_MAX, MatrixFull, MatrixRepo, load_trials
from forebay.core.errors import InvalidValue
from forebay.engines.matrix import Combination, Trial, TrialOutcome, is_tested
from forebay.gateway.repo_audit import AuditRepo
from forebay.gateway.tenancy import FOREBAY
from forebay.store.database import Database
from forebay.testing.clock import VirtualClock
from postgres_server import make_location, remove_location

BASE = Combination(model="chat", model_version="2", engine="vllm", engine_version="0.32.0", precision="bf16")


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    location = make_location(tmp_path)
    database = Database.open(location)
    database.migrate()
    yield database
    database.close()
    remove_location(location)


def make_trial(combination: Combination = BASE, *, passed: bool = True, at_ns: int = 0) -> Trial:
    return Trial(
        combination=combination,
        outcome=TrialOutcome.PASSED if passed else TrialOutcome.FAILED,
        at_ns=at_ns,
        source="bench",
        figures={"output_tokens_per_s": 120.5},
        environment="0123456789abcdef",
        note="on a busy machine",
    )


def test_what_is_recorded_is_what_comes_back(database: Database) -> None:
    clock = VirtualClock()
    repo = MatrixRepo(database, clock)
    kept = repo.record(make_trial(), FOREBAY)
    assert kept.at_ns == clock.wall_ns()
    assert repo.list() == load_trials(database) == (kept,)
    assert msgspec.structs.replace(kept, at_ns=0) == make_trial()
    assert is_tested(BASE, load_trials(database))
    assert repo.list("other") == ()
    (event,) = AuditRepo(database).load_page(limit=10)
    assert (event.action, event.subject) == ("matrix.record", "chat")
    assert repo.forget("chat", FOREBAY) == 1
    assert repo.list() == ()
    assert AuditRepo(database).load_page(limit=1)[0].action == "matrix.forget"
    assert repo.forget("chat", FOREBAY) == 0
    assert len(AuditRepo(database).load_page(limit=10)) == 2, "what changed nothing is not told"


def test_of_each_combination_the_newest_are_kept(database: Database) -> None:
    repo = MatrixRepo(database, VirtualClock())
    other = msgspec.structs.replace(BASE, precision="fp8")
    repo.record(make_trial(other), FOREBAY)
    for at_ns in range(1, TRIALS_MAX + 4):
        repo.record(make_trial(at_ns=at_ns), FOREBAY)
    found = [trial.at_ns for trial in repo.list() if trial.combination == BASE]
    assert found == list(range(TRIALS_MAX + 3, 3, -1))
    assert sum(trial.combination == other for trial in repo.list()) == 1


def test_there_is_a_most_of_all_together(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    repo = MatrixRepo(database, VirtualClock())
    monkeypatch.setattr("forebay.app.matrix.TOTAL_MAX", 1)
    repo.record(make_trial(), FOREBAY)
    with pytest.raises(MatrixFull, match="matrix forget"):
        repo.record(make_trial(), FOREBAY)
    assert len(repo.list()) == 1


def test_what_is_no_trial_is_refused(database: Database) -> None:
    repo = MatrixRepo(database, VirtualClock())
    with pytest.raises(InvalidValue, match="model: must be given"):
        repo.record(make_trial(msgspec.structs.replace(BASE, model="")), FOREBAY)
    with pytest.raises(InvalidValue, match="source: one of bench, manual, smoke"):
        repo.record(msgspec.structs.replace(make_trial(), source="hearsay"), FOREBAY)
    assert repo.list() == ()
