"""Answers "who used how much of what, and when" from the ledger's tables.  Only reads.

`load_usage` needs no other process: the tables are whole at any time.  Records that still lie
in segments alone are not in them; whoever wants those calls `Ingester.ingest_once` first.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, Connection, Label, RowMapping, Table, func, select

from forebay.core.errors import CallerError
from forebay.core.events import Kind
from forebay.ledger.marks import Kept, check_kept, load_marks
from forebay.ledger.rollup import DAY_HOURS, DAY_NS, HOUR_NS, TOTALS, UsageTotals
from forebay.ledger.sums import find_tag, hour_of_event, sum_events, sum_totals
from forebay.ledger.tables import events, tags_daily, usage_daily, usage_hourly
from forebay.store.database import Database

HOUR_S = 3600
DAY_S = DAY_HOURS * HOUR_S
TAG_LABEL = "value_of_tag"  # `tag` is a column, and GROUP BY would take it for that


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
    KIND = "kind"
    VERSION = "version"
    EXPERIMENT = "experiment"
    VARIANT = "variant"
    TAG = "tag"


class UsageQueryInvalid(CallerError):
    code = "invalid_usage_query"


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageQuery:
    """From `since_ns` on and before `until_ns`; None leaves a side or a filter open.  `key` is a key's id.

    `tag` names the tag to group by, or the one that is to have `tag_value`.  `figures` are the totals that
    are wanted; others stay as in NOTHING.  Without a `kind` it is what callers asked for, also in batches,
    unless kinds are told apart: copies for mirrors are nobody's usage.
    """

    by: tuple[UsageBy, ...] = (UsageBy.KEY, UsageBy.MODEL, UsageBy.HOUR)
    since_ns: int | None = None
    until_ns: int | None = None
    key: str | None = None
    model: str | None = None
    kind: Kind | None = None
    version: str | None = None
    experiment: str | None = None
    variant: str | None = None
    tag: str | None = None
    tag_value: str | None = None
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
    kind: str | None = None
    version: str | None = None  #: of the model
    experiment: str | None = None
    variant: str | None = None
    tag: str | None = None  #: its value; empty where a request has no such tag
    totals: UsageTotals


def load_usage(database: Database, query: UsageQuery) -> list[UsageRow]:
    """The groups that hold at least one request, in the order of UsageRow's fields.

    Raises UsageQueryInvalid, also when there are more than `rows_max` groups, NoLongerKept, StoreBusy,
    StoreUnavailable.
    """
    groups = _list_groups(query)
    figures = ("requests", *(name for name in query.figures if name != "requests"))
    with database.read() as connection:
        table = _choose_table(query)
        if table is not events and not _is_exact(connection, table, query):
            table = events
        rows = _load_rows(connection, table, query, groups, figures)
        if table is tags_daily and not _has_all(connection, query, rows):
            rows = _load_rows(connection, events, query, groups, figures)
    names = _list_names(groups)
    if len(rows) > query.rows_max:
        raise UsageQueryInvalid(
            f"more than {query.rows_max} rows: narrow the time, name a key or model, or group by less"
        )
    rows.sort(key=lambda row: [row[name] for name in names])  # databases differ in how they order texts
    return [_make_row(row, names, figures) for row in rows]


def _load_rows(
    connection: Connection,
    table: Table,
    query: UsageQuery,
    groups: Sequence[UsageBy],
    figures: Sequence[str],
) -> list[RowMapping]:
    """Raises NoLongerKept."""
    kind, hint = _KINDS[table]
    check_kept(load_marks(connection), kind, query.since_ns, hint)
    dialect = connection.dialect.name
    columns = [_group_column(table, by, query, dialect) for by in groups]
    totals = sum_events(figures) if table is events else sum_totals(table, figures)
    statement = select(*columns, *totals).where(*_list_conditions(table, query, dialect))
    # By name: PostgreSQL does not see that two expressions with parameters are the same.
    statement = statement.group_by(*_list_names(groups)).limit(query.rows_max + 1)
    return [row for row in connection.execute(statement).mappings() if row["requests"]]


#: In the order of UsageRow's fields.
_ORDER = (
    *(UsageBy.HOUR, UsageBy.DAY, UsageBy.KEY, UsageBy.MODEL, UsageBy.TARGET, UsageBy.STATUS),
    *(UsageBy.TEAM, UsageBy.PROJECT, UsageBy.POOL, UsageBy.TIER, UsageBy.REGION),
    *(UsageBy.KIND, UsageBy.VERSION, UsageBy.EXPERIMENT, UsageBy.VARIANT, UsageBy.TAG),
)
_IN_EVENTS_ALONE = {UsageBy.TARGET, UsageBy.STATUS}


def _list_groups(query: UsageQuery) -> list[UsageBy]:
    if UsageBy.HOUR in query.by and UsageBy.DAY in query.by:
        raise UsageQueryInvalid("group by hour or by day, not by both", param="by")
    if UsageBy.TAG in query.by and query.tag is None:
        raise UsageQueryInvalid("to group by tag, name the tag", param="tag")
    if query.tag is not None and UsageBy.TAG not in query.by and query.tag_value is None:
        raise UsageQueryInvalid("name the tag's value, or group by tag", param="tag")
    if query.tag is None and query.tag_value is not None:
        raise UsageQueryInvalid("name the tag that is to have the value", param="tag")
    if query.rows_max < 1:
        raise UsageQueryInvalid("rows_max must be 1 at least", param="rows_max")
    return [by for by in _ORDER if by in query.by]


def _choose_table(query: UsageQuery) -> Table:
    """The smallest that may hold the answer."""
    bounds = [at for at in (query.since_ns, query.until_ns) if at is not None]
    if not _IN_EVENTS_ALONE.isdisjoint(query.by) or any(at % HOUR_NS for at in bounds):
        return events
    is_hourly = UsageBy.HOUR in query.by or any(at % DAY_NS for at in bounds)
    if query.tag is not None:
        return events if is_hourly else tags_daily
    return usage_hourly if is_hourly else usage_daily


def _is_exact(connection: Connection, table: Table, query: UsageQuery) -> bool:
    """Whether totals can tell apart what is asked for: what had no room in them has no name there."""
    whole = replace(query, experiment=None, variant=None, tag_value=None)
    asks_pair = not {UsageBy.EXPERIMENT, UsageBy.VARIANT}.isdisjoint(query.by)
    if asks_pair or query.experiment is not None or query.variant is not None:
        nameless = select(table.c.is_other).where(table.c.is_other == 1)
        if connection.execute(nameless.where(*_list_conditions(table, whole, "")).limit(1)).first():
            return False
    if table is not tags_daily or whole == query:
        return True  # of a tag's rows that are all asked for, `_has_all` is asked afterwards
    return _sum_requests(connection, tags_daily, whole) == _sum_requests(connection, usage_daily, whole)


def _has_all(connection: Connection, query: UsageQuery, rows: Sequence[RowMapping]) -> bool:
    """Whether a tag's rows hold all requests: it may have been rolled up for a part of the time only."""
    if (query.experiment, query.variant, query.tag_value) != (None, None, None):
        return True  # `_is_exact` knows
    if len(rows) > query.rows_max:
        return True  # they are refused anyway
    return sum(int(row["requests"]) for row in rows) == _sum_requests(connection, usage_daily, query)


def _sum_requests(connection: Connection, table: Table, query: UsageQuery) -> int:
    counted = select(func.sum(table.c.requests)).where(*_list_conditions(table, query, ""))
    return int(connection.execute(counted).scalar() or 0)


#: What each table holds, and how else the answer is there where that is gone.
_KINDS = {
    events: (
        Kept.RECORDS,
        "totals know no status, no target and no part of an hour, and of tags and experiments only those "
        "that were rolled up and had room; ask without",
    ),
    usage_hourly: (Kept.HOURLY, "ask by days, and from the begin of one to the begin of another (UTC)"),
    usage_daily: (Kept.DAILY, "nothing is left of that time"),
    tags_daily: (Kept.DAILY, "nothing is left of that time"),
}


def _list_names(groups: Sequence[UsageBy]) -> list[str]:
    """Of the columns of a query for them."""
    named = {UsageBy.HOUR: "start_s", UsageBy.DAY: "start_s", UsageBy.TAG: TAG_LABEL}
    return [named.get(by, by.value) for by in groups]


def _hour(table: Table) -> ColumnElement[int]:
    return usage_hourly.c.hour if table is usage_hourly else hour_of_event()


def _day(table: Table) -> ColumnElement[int]:
    return _hour(table) // DAY_HOURS if table in (events, usage_hourly) else table.c.day


def _group_column(table: Table, by: UsageBy, query: UsageQuery, dialect: str) -> Label[Any]:
    match by:
        case UsageBy.HOUR:
            return (_hour(table) * HOUR_S).label("start_s")
        case UsageBy.DAY:
            return (_day(table) * DAY_S).label("start_s")
        case UsageBy.KEY:
            return table.c.key_id.label("key")
        case UsageBy.TAG:
            return _tag_value(table, query.tag or "", dialect).label(TAG_LABEL)
        case _:
            return table.c[by.value].label(by.value)


def _tag_value(table: Table, name: str, dialect: str) -> ColumnElement[str]:
    return find_tag(name, dialect) if table is events else table.c.value


#: The column that says when, and how many nanoseconds one of it is.
_TIMES: dict[Table, tuple[ColumnElement[int], int]] = {
    usage_daily: (usage_daily.c.day, DAY_NS),
    tags_daily: (tags_daily.c.day, DAY_NS),
    usage_hourly: (usage_hourly.c.hour, HOUR_NS),
    events: (events.c.at_ns, 1),
}


def _list_conditions(table: Table, query: UsageQuery, dialect: str) -> list[ColumnElement[bool]]:
    time, unit = _TIMES[table]
    conditions: list[ColumnElement[bool]] = []
    if query.since_ns is not None:
        conditions.append(time >= query.since_ns // unit)
    if query.until_ns is not None:
        conditions.append(time < query.until_ns // unit)
    if query.key is not None:
        conditions.append(table.c.key_id == query.key)
    if query.kind is not None:
        conditions.append(table.c.kind == query.kind.value)
    elif UsageBy.KIND not in query.by:
        conditions.append(table.c.kind != Kind.MIRROR.value)
    for name in ("model", "version", "experiment", "variant"):
        if (value := getattr(query, name)) is not None:
            conditions.append(table.c[name] == value)
    if table is tags_daily:  # but for the values that had no room
        conditions += [tags_daily.c.tag == query.tag, tags_daily.c.is_rest == 0]
    if query.tag is not None and query.tag_value is not None and table in (events, tags_daily):
        conditions.append(_tag_value(table, query.tag, dialect) == query.tag_value)
    return conditions


def _make_row(row: RowMapping, names: list[str], figures: tuple[str, ...]) -> UsageRow:
    # What nobody knew stays unknown.  PostgreSQL adds big integers up as decimals.
    sums = {name: None if row[name] is None else int(row[name]) for name in figures}
    return UsageRow(
        **{"tag" if name == TAG_LABEL else name: row[name] for name in names},
        totals=UsageTotals(**sums),  # type: ignore[arg-type]  # None only where it may be
    )
