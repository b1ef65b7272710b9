"""Answers "who used how much of what, and when" from the ledger's tables.  Only reads.

`load_usage` and `read_usage` need no other process: the tables are whole at any time.  Records that still lie
in segments alone are not in them; whoever wants those calls `Ingester.ingest_once` first.
"""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, Connection, Label, RowMapping, Table, Text, cast, func, literal, select
from sqlalchemy.dialects.postgresql import JSON

from forebay.core.errors import CallerError
from forebay.ledger.marks import Kept, check_kept, load_marks
from forebay.ledger.rollup import DAY_HOURS, HOUR_NS, TOTALS, UsageTotals
from forebay.ledger.sums import hour_of_event, sum_events, sum_totals
from forebay.ledger.tables import events, usage_daily, usage_hourly
from forebay.store.database import Database

HOUR_S = 3600
DAY_S = DAY_HOURS * HOUR_S
DAY_NS = DAY_HOURS * HOUR_NS


class UsageBy(StrEnum):
    """What usage is told apart by.  Hours and days are UTC."""

    KEY = "key"
    MODEL = "model"
    HOUR = "hour"
    DAY = "day"
    TARGET = "target"
    STATUS = "status"
    TEAM = "team"
    PROJECT = "project"
    POOL = "pool"
    TIER = "tier"
    REGION = "region"
    TAG = "tag"


class UsageQueryInvalid(CallerError):
    code = "invalid_usage_query"


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageQuery:
    """From `since_ns` on and before `until_ns`; None leaves a side or a filter open.  `key` is a key's id.

    `tag` names the tag to group by.  `figures` are the totals that are wanted; others stay as in NOTHING.
    """

    by: tuple[UsageBy, ...] = (UsageBy.KEY, UsageBy.MODEL, UsageBy.HOUR)
    since_ns: int | None = None
    until_ns: int | None = None
    key: str | None = None
    model: str | None = None
    tag: str | None = None
    figures: tuple[str, ...] = TOTALS
    rows_max: int = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRow:
    """Totals of one group.  What the query does not group by is None."""

    start_s: int | None = None  #: Unix seconds at which the hour or day begins
    key: str | None = None
    model: str | None = None
    target: str | None = None
    status: int | None = None
    team: str | None = None
    project: str | None = None
    pool: str | None = None
    tier: str | None = None
    region: str | None = None
    tag: str | None = None  #: its value; empty where a request has no such tag
    totals: UsageTotals


def load_usage(database: Database, query: UsageQuery) -> list[UsageRow]:
    """The groups that hold at least one request, in the order of UsageRow's fields.

    Raises UsageQueryInvalid, also when there are more than `rows_max` groups, NoLongerKept, StoreBusy,
    StoreUnavailable.
    """
    groups = _list_groups(query)
    table = _choose_table(query)
    figures = ("requests", *(name for name in query.figures if name != "requests"))
    columns = [_group_column(table, by, query, database.dialect) for by in groups]
    totals = sum_events(figures) if table is events else sum_totals(table, figures)
    # By name: PostgreSQL does not see that two expressions with parameters are the same.
    names = [column.name for column in columns]
    statement = select(*columns, *totals).where(*_list_conditions(table, query))
    statement = statement.group_by(*names).limit(query.rows_max + 1)
    with database.read() as connection:
        _check_kept(connection, table, query)
        rows = [row for row in connection.execute(statement).mappings() if row["requests"]]
        _check_kept(connection, table, query)  # a mark is moved before anything goes, perhaps meanwhile
    if len(rows) > query.rows_max:
        raise UsageQueryInvalid(
            f"more than {query.rows_max} rows: narrow the time, name a key or model, or group by less"
        )
    rows.sort(key=lambda row: [row[name] for name in names])  # databases differ in how they order texts
    return [_make_row(row, names, figures) for row in rows]


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


#: In the order of UsageRow's fields.
_ORDER = (
    *(UsageBy.HOUR, UsageBy.DAY, UsageBy.KEY, UsageBy.MODEL, UsageBy.TARGET, UsageBy.STATUS),
    *(UsageBy.TEAM, UsageBy.PROJECT, UsageBy.POOL, UsageBy.TIER, UsageBy.REGION, UsageBy.TAG),
)
_IN_EVENTS_ALONE = {UsageBy.TARGET, UsageBy.STATUS, UsageBy.TAG}


def _list_groups(query: UsageQuery) -> list[UsageBy]:
    if UsageBy.HOUR in query.by and UsageBy.DAY in query.by:
        raise UsageQueryInvalid("group by hour or by day, not by both", param="by")
    if (UsageBy.TAG in query.by) != (query.tag is not None):
        raise UsageQueryInvalid("to group by tag, name the tag, and group by no other", param="tag")
    if query.rows_max < 1:
        raise UsageQueryInvalid("rows_max must be 1 at least", param="rows_max")
    return [by for by in _ORDER if by in query.by]


def _choose_table(query: UsageQuery) -> Table:
    """The smallest that holds the answer."""
    bounds = [at for at in (query.since_ns, query.until_ns) if at is not None]
    if not _IN_EVENTS_ALONE.isdisjoint(query.by) or any(at % HOUR_NS for at in bounds):
        return events
    if UsageBy.HOUR in query.by or any(at % DAY_NS for at in bounds):
        return usage_hourly
    return usage_daily


#: What each table holds, and how else the answer is there where that is gone.
_KINDS = {
    events: (Kept.RECORDS, "totals know no status, target and tag, and no part of an hour; ask without"),
    usage_hourly: (Kept.HOURLY, "ask by days, and from the begin of one to the begin of another (UTC)"),
    usage_daily: (Kept.DAILY, "nothing is left of that time"),
}


def _check_kept(connection: Connection, table: Table, query: UsageQuery) -> None:
    kind, hint = _KINDS[table]
    check_kept(load_marks(connection), kind, query.since_ns, hint)


def _hour(table: Table) -> ColumnElement[int]:
    return usage_hourly.c.hour if table is usage_hourly else hour_of_event()


def _day(table: Table) -> ColumnElement[int]:
    return usage_daily.c.day if table is usage_daily else _hour(table) // DAY_HOURS


def _group_column(table: Table, by: UsageBy, query: UsageQuery, dialect: str) -> Label[Any]:
    match by:
        case UsageBy.HOUR:
            return (_hour(table) * HOUR_S).label("start_s")
        case UsageBy.DAY:
            return (_day(table) * DAY_S).label("start_s")
        case UsageBy.KEY:
            return table.c.key_id.label("key")
        case UsageBy.TAG:
            return func.coalesce(_find_tag(query.tag or "", dialect), "").label("tag")
        case _:
            return table.c[by.value].label(by.value)


def _find_tag(name: str, dialect: str) -> ColumnElement[str]:
    """A tag's value, whatever characters are in its name; NULL where there is none."""
    if dialect == "postgresql":
        value: ColumnElement[str] = cast(events.c.tags, JSON)[literal(name, Text)].astext
        return value
    tag = func.json_each(events.c.tags).table_valued("key", "value")
    return select(tag.c.value).where(tag.c.key == name).correlate(events).scalar_subquery()


#: The column that says when, and how many nanoseconds one of it is.
_TIMES: dict[Table, tuple[ColumnElement[int], int]] = {
    usage_daily: (usage_daily.c.day, DAY_NS),
    usage_hourly: (usage_hourly.c.hour, HOUR_NS),
    events: (events.c.at_ns, 1),
}


def _list_conditions(table: Table, query: UsageQuery) -> list[ColumnElement[bool]]:
    time, unit = _TIMES[table]
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


def _make_row(row: RowMapping, names: list[str], figures: tuple[str, ...]) -> UsageRow:
    # What nobody knew stays unknown.  PostgreSQL adds big integers up as decimals.
    sums = {name: None if row[name] is None else int(row[name]) for name in figures}
    return UsageRow(
        **{name: row[name] for name in names},
        totals=UsageTotals(**sums),  # type: ignore[arg-type]  # None only where it may be
    )
