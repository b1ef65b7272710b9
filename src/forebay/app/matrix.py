"""The version matrix at rest: trials of combinations, in SQL.

A trial is appended together with its event in the audit, and never changed.  Of one combination the last
`TRIALS_MAX` are kept, of all together `TOTAL_MAX`: beyond that a new combination is refused.
"""

from collections.abc import Sequence
from typing import ClassVar, Final

import msgspec
from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Integer,
    RowMapping,
    String,
    Table,
    Text,
    delete,
    func,
    insert,
    select,
)

from forebay.core.clock import Clock
from forebay.core.errors import InvalidValue
from forebay.engines.matrix import FIELDS, Combination, Trial, TrialOutcome, check_trial
from forebay.gateway.repo_audit import Change, append_audit
from forebay.gateway.tenancy import Actor
from forebay.store.database import Database, make_metadata

TRIALS_MAX: Final = 20  #: of one combination
TOTAL_MAX: Final = 20_000
SOURCES: Final = ("bench", "manual", "smoke")
#: The model that an environment's smoke inference serves.
SMOKE_MODEL: Final = "forebay-smoke"

metadata = make_metadata()
trials = Table(
    "matrix_trials",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("model", String(200), nullable=False, index=True),
    Column("model_version", String(200), nullable=False),
    Column("engine", String(200), nullable=False),
    Column("engine_version", String(200), nullable=False),
    Column("hardware", String(200), nullable=False),
    Column("precision", String(200), nullable=False),
    Column("outcome", String(20), nullable=False),
    Column("at_ns", BigInteger, nullable=False),
    Column("source", String(20), nullable=False),
    Column("figures", Text, nullable=False),
    Column("environment", String(64), nullable=False),
    Column("note", Text, nullable=False),
)


class MatrixFull(InvalidValue):
    """No more trials are taken."""

    status: ClassVar[int] = 409
    code: ClassVar[str] = "matrix_full"


class MatrixRepo:
    """See the module."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def record(self, trial: Trial, actor: Actor) -> Trial:
        """Appends a trial.  One without a time is of now.

        Raises InvalidValue, MatrixFull.
        """
        if problems := check_trial(trial):
            raise InvalidValue("; ".join(problems), param=problems[0].partition(":")[0].replace(" ", "_"))
        if trial.source not in SOURCES:
            raise InvalidValue(f"source: one of {', '.join(SOURCES)}", param="source")
        now_ns = self._clock.wall_ns()
        if trial.at_ns <= 0:
            trial = msgspec.structs.replace(trial, at_ns=now_ns)
        with self._database.begin() as connection:
            count = connection.execute(select(func.count()).select_from(trials)).scalar_one()
            _forget_oldest(connection, trial.combination)
            if count >= TOTAL_MAX:
                raise MatrixFull(
                    f"the version matrix has {count} trials, which is the most: `forebay matrix forget` "
                    "removes those of a model"
                )
            connection.execute(insert(trials).values(**_make_row(trial)))
            change = Change(
                action="matrix.record", subject=trial.combination.model, after=msgspec.to_builtins(trial)
            )
            append_audit(connection, actor, change, now_ns)
        return trial

    def forget(self, model: str, actor: Actor) -> int:
        """Removes all trials of a model.  Returns how many there were."""
        with self._database.begin() as connection:
            count = connection.execute(delete(trials).where(trials.c.model == model)).rowcount
            if count:
                change = Change(action="matrix.forget", subject=model, before={"trials": count})
                append_audit(connection, actor, change, self._clock.wall_ns())
        return int(count)

    def list(self, model: str | None = None) -> tuple[Trial, ...]:
        """Of one model or of all, the newest first."""
        query = select(trials).order_by(trials.c.at_ns.desc(), trials.c.id.desc())
        if model is not None:
            query = query.where(trials.c.model == model)
        with self._database.read() as connection:
            return tuple(map(_make_trial, connection.execute(query).mappings()))


def load_trials(database: Database) -> Sequence[Trial]:
    """All of them, for `is_tested` and `explain_unknown`.  Raises StoreError."""
    with database.read() as connection:
        return tuple(map(_make_trial, connection.execute(select(trials)).mappings()))


def _forget_oldest(connection: Connection, combination: Combination) -> None:
    """So that with one more there are `TRIALS_MAX`."""
    here = [getattr(trials.c, name) == getattr(combination, name) for name in FIELDS]
    newest = select(trials.c.id).where(*here).order_by(trials.c.at_ns.desc(), trials.c.id.desc())
    old = connection.execute(newest.offset(TRIALS_MAX - 1)).scalars().all()
    if old:
        connection.execute(delete(trials).where(trials.c.id.in_(old)))


def _make_row(trial: Trial) -> dict[str, object]:
    return {
        **{name: getattr(trial.combination, name) for name in FIELDS},
        "outcome": trial.outcome.value,
        "at_ns": trial.at_ns,
        "source": trial.source,
        "figures": msgspec.json.encode(trial.figures).decode(),
        "environment": trial.environment,
        "note": trial.note,
    }


def _make_trial(row: RowMapping) -> Trial:
    return Trial(
        combination=Combination(**{name: row[name] for name in FIELDS}),
        outcome=TrialOutcome(row["outcome"]),
        at_ns=row["at_ns"],
        source=row["source"],
        figures=msgspec.json.decode(row["figures"], type=dict[str, float]),
        environment=row["environment"],
        note=row["note"],
    )
