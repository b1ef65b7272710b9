"""Answers "who used how much of what, and when" from the ledger's tables.  Only reads.

`load_usage` and `read_usage` need no other process: the tables are whole at any time.  Records that still lie
in segments alone are not in them; whoever wants those calls `Ingester.ingest_once` first.
"""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, Integer, Label, RowMapping, Table, case, cast, func, select

from forebay.core.errors import CallerError
from forebay.core.events import Outcome, UsageSource
from forebay.ledger.rollup import HOUR_NS, TOTALS, UsageTotals
from forebay.ledger.tables import TOKEN_CLASSES, events, usage_hourly
from forebay.store.database import Database

HOUR_S = 3600
DAY_S = 24 * HOUR_S


class UsageBy(StrEnum):
    """What usage is told apart by.  Hours and days are UTC."""

    KEY = "key"
    MODEL = "model"
    HOUR = "hour"
    DAY = "day"
    TARGET = "target"
    STATUS = "status"


class UsageQueryInvalid(CallerError):
    code = "invalid_usage_query"


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageQuery:
    """From `since_ns` on and before `until_ns`; None leaves a side or a filter open.  `key` is a key's id."""

    by: tuple[UsageBy, ...] = (UsageBy.KEY, UsageBy.MODEL, UsageBy.HOUR)
    since_ns: int | None = None
    until_ns: int | None = None
    key: str | None = None
    model: str | None = None
    rows_max: int = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRow:
    """Totals of one group.  What the query does not group by is None."""

    start_s: int | None = None  #: Unix seconds at which the hour or day begins
    key: str | None = None
    model: str | None = None
    target: str | None = None
    status: int | None = None
    totals: UsageTotals


def load_usage(database: Database, query: UsageQuery) -> list[UsageRow]:
    """The groups that hold at least one request, in the order of time, key, model, target, status.

    Raises UsageQueryInvalid, also when there are more than `rows_max` groups, StoreBusy, StoreUnavailable.
    """
    groups = _list_groups(query)
    hourly = _fits_hourly(query)
    table = usage_hourly if hourly else events
    columns = [_group_column(table, by) for by in groups]
    totals = _hourly_totals() if hourly else _event_totals()
    # By name: PostgreSQL does not see that two expressions with parameters are the same.
    names = [column.name for column in columns]
    statement = select(*columns, *totals).where(*_list_conditions(table, query))
    statement = statement.group_by(*names).order_by(*names).limit(query.rows_max + 1)
    with database.read() as connection:
        rows = [row for row in connection.execute(statement).mappings() if row["requests"]]
    if len(rows) > query.rows_max:
        raise UsageQueryInvalid(
            f"more than {query.rows_max} rows: narrow the time, name a key or model, or group by less"
        )
    return [_make_row(row, names) for row in rows]


def read_usage(location: Path | str, query: UsageQuery) -> list[UsageRow]:
    """As `load_usage`, on the database at a path or URL, which is opened and closed again.

    Raises also StoreMissing, StoreOutdated and StoreNewer.
    """
    database = Database.open(location, create=False)
    try:
        database.check_revision()
        return load_usage(database, query)
    finally:
        database.close()


_ORDER = (UsageBy.HOUR, UsageBy.DAY, UsageBy.KEY, UsageBy.MODEL, UsageBy.TARGET, UsageBy.STATUS)


def _list_groups(query: UsageQuery) -> list[UsageBy]:
    if UsageBy.HOUR in query.by and UsageBy.DAY in query.by:
        raise UsageQueryInvalid("group by hour or by day, not by both", param="by")
    if query.rows_max < 1:
        raise UsageQueryInvalid("rows_max must be 1 at least", param="rows_max")
    return [by for by in _ORDER if by in query.by]


def _fits_hourly(query: UsageQuery) -> bool:
    """Whether the hourly totals hold the answer; else the events themselves are added up."""
    has_detail = UsageBy.TARGET in query.by or UsageBy.STATUS in query.by
    return not has_detail and all(not at or at % HOUR_NS == 0 for at in (query.since_ns, query.until_ns))


def _hour(table: Table) -> ColumnElement[int]:
    return usage_hourly.c.hour if table is usage_hourly else cast(events.c.at_ns // HOUR_NS, Integer)


def _group_column(table: Table, by: UsageBy) -> Label[Any]:
    match by:
        case UsageBy.HOUR:
            return (_hour(table) * HOUR_S).label("start_s")
        case UsageBy.DAY:
            return (_hour(table) // 24 * DAY_S).label("start_s")
        case UsageBy.KEY:
            return table.c.key_id.label("key")
        case _:
            return table.c[by.value].label(by.value)


def _hourly_totals() -> list[ColumnElement[int]]:
    return [func.sum(usage_hourly.c[name]).label(name) for name in TOTALS]


def _event_totals() -> list[ColumnElement[int]]:
    """The SQL of `rollup.compute_totals`."""
    known = events.c
    tests = {
        "failed": known.outcome == Outcome.FAILED.value,
        "abandoned": known.outcome == Outcome.ABANDONED.value,
        "estimated": known.usage_source == UsageSource.ESTIMATED.value,
    }
    totals: dict[str, ColumnElement[int]] = {"requests": func.count()}
    totals |= {name: func.sum(case((test, 1), else_=0)) for name, test in tests.items()}
    totals |= {f"tokens_{name}": func.sum(known[f"tokens_{name}"]) for name in TOKEN_CLASSES}
    for name in ("duration", "first_token", "overhead"):
        totals[f"{name}_ns_sum"] = func.sum(known[f"{name}_ns"])
        totals[f"{name}_count"] = func.count(known[f"{name}_ns"])
    return [totals[name].label(name) for name in TOTALS]


def _list_conditions(table: Table, query: UsageQuery) -> list[ColumnElement[bool]]:
    time, unit = (usage_hourly.c.hour, HOUR_NS) if table is usage_hourly else (events.c.at_ns, 1)
    conditions: list[ColumnElement[bool]] = []
    if query.since_ns is not None:
        conditions.append(time >= query.since_ns // unit)
    if query.until_ns is not None:
        conditions.append(time < query.until_ns // unit)
    if query.key is not None:
        conditions.append(table.c.key_id == query.key)
    if query.model is not None:
        conditions.append(table.c.model == query.model)
    return conditions


def _make_row(row: RowMapping, names: list[str]) -> UsageRow:
    # A sum over no measurement is 0, and its count says so; but tokens that nobody knew stay unknown.
    # PostgreSQL adds big integers up as decimals.
    sums = {
        name: None if row[name] is None and name.startswith("tokens_") else int(row[name] or 0)
        for name in TOTALS
    }
    return UsageRow(
        **{name: row[name] for name in names},
        totals=UsageTotals(**sums),  # type: ignore[arg-type]  # None only where it may be
    )
