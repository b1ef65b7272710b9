"""Keeps the totals of hours, days and tags up with the records, and adds them up anew from them.

Both ways give the same rows (`rollup` says which).  All functions run in the caller's transaction, which
holds the lock of `lock_ledger`.  The names that come first find room in a period, so it is the order in which
records were stored that decides, whoever adds them up.
"""

from collections.abc import Mapping
from dataclasses import asdict
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    BindParameter,
    ColumnElement,
    Connection,
    Dialect,
    Label,
    Select,
    Table,
    Update,
    bindparam,
    case,
    delete,
    exists,
    func,
    insert,
    literal,
    null,
    select,
    tuple_,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from forebay.ledger.rollup import (
    DAY_HOURS,
    DAY_NS,
    HOUR_NS,
    NO_PAIR,
    TOTALS,
    Pair,
    Priced,
    Rollups,
    UsageCell,
    UsageTotals,
    fold_days,
    fold_tag,
    fold_usage,
    mark_others,
)
from forebay.ledger.sums import (
    can_be_named,
    find_tag,
    hour_of_event,
    is_pair_long,
    sum_events,
    sum_totals,
)
from forebay.ledger.tables import PLACES, events, tags_daily, usage_daily, usage_hourly


def add_totals(connection: Connection, priced: list[Priced], rollups: Rollups) -> None:
    """Add events that have just been stored, in the order in which they were."""
    hours = {each.event.at_ns // HOUR_NS for each in priced if each.event.experiment or each.event.variant}
    marked = mark_others(priced, {hour: load_pairs(connection, hour) for hour in hours}, rollups.pairs_max)
    _add_usage(connection, fold_usage(marked))
    for tag in rollups.tags:
        days = {each.event.at_ns // DAY_NS for each in marked}
        known = {day: load_values(connection, tag, day) for day in days}
        rows = [
            cell._asdict() | cell.place._asdict() | asdict(totals)
            for cell, totals in sorted(fold_tag(marked, tag, known, rollups.values_max).items())
        ]
        _upsert(connection, tags_daily, rows)


def _add_usage(connection: Connection, cells: Mapping[UsageCell, UsageTotals]) -> None:
    hours = [cell._asdict() | asdict(totals) for cell, totals in sorted(cells.items())]
    _upsert(connection, usage_hourly, hours)
    days = [
        cell._asdict() | asdict(totals) | {"day": cell.hour // DAY_HOURS}
        for cell, totals in sorted(fold_days(cells).items())
    ]
    _upsert(connection, usage_daily, days)


def _upsert(connection: Connection, totals: Table, rows: list[dict[str, object]]) -> None:
    names = [column.name for column in totals.columns]
    if rows:
        connection.execute(
            _make_upsert(connection.dialect, totals), [{name: row[name] for name in names} for row in rows]
        )


# What one statement costs to build and compile is paid once, not with each batch of a few records.
@lru_cache(maxsize=6)
def _make_upsert(dialect: Dialect, totals: Table) -> sqlite.Insert | postgresql.Insert:
    return _add_to_what_is_there(make_insert(dialect, totals), totals)


def _add_to_what_is_there(
    statement: sqlite.Insert | postgresql.Insert, totals: Table
) -> sqlite.Insert | postgresql.Insert:
    old, new = totals.c, statement.excluded
    return statement.on_conflict_do_update(
        index_elements=list(totals.primary_key.columns),
        # As `merge_totals`: unknown and known is known.
        set_={name: func.coalesce(old[name] + new[name], old[name], new[name]) for name in TOTALS},
    )


def make_insert(dialect: Dialect, table: Table) -> sqlite.Insert | postgresql.Insert:
    """An insert that knows what to do about a row that is there; SQLite and PostgreSQL write it alike."""
    return postgresql.insert(table) if dialect.name == "postgresql" else sqlite.insert(table)


class CostShift(NamedTuple):
    """How much the totals of a cell change when its records are priced anew."""

    unpriced: int
    nano_usd: int


def shift_costs(connection: Connection, shifts: Mapping[UsageCell, CostShift]) -> None:
    """Correct the totals of hours and days after costs of records have changed.  Not those of tags."""
    days: dict[UsageCell, CostShift] = {}
    for cell, (unpriced, nano_usd) in shifts.items():
        day = cell._replace(hour=cell.hour // DAY_HOURS)
        before = days.get(day, CostShift(0, 0))
        days[day] = CostShift(before.unpriced + unpriced, before.nano_usd + nano_usd)
    for totals, cells in ((usage_hourly, shifts), (usage_daily, days)):
        rows = [
            {f"at_{name}": value for name, value in cell._asdict().items()}
            | {"by_unpriced": shift.unpriced, "by_nano_usd": shift.nano_usd}
            for cell, shift in sorted(cells.items())
        ]
        if rows:
            connection.execute(_make_shift(totals), rows)


@lru_cache(maxsize=2)
def _make_shift(totals: Table) -> Update:
    known, by_unpriced = totals.c, bindparam("by_unpriced", type_=BigInteger)
    cost = func.coalesce(known.cost_nano_usd, 0) + bindparam("by_nano_usd", type_=BigInteger)
    period = known.hour if totals is usage_hourly else known.day
    return (
        update(totals)
        .where(period == bindparam("at_hour"))
        .where(*(known[name] == bindparam(f"at_{name}") for name in (*PLACES, "is_other")))
        .values(
            unpriced=known.unpriced + by_unpriced,
            # Of requests none of which has a known cost, the sum is unknown.
            cost_nano_usd=case((known.unpriced + by_unpriced == known.requests, null()), else_=cost),
        )
    )


# --- what has room ------------------------------------------------------------------------------------------


def load_pairs(connection: Connection, hour: int) -> set[Pair]:
    """The pairs that have room in an hour."""
    known = usage_hourly.c
    query = select(known.experiment, known.variant).distinct()
    query = query.where(known.hour == hour, (known.experiment != "") | (known.variant != ""))
    return {(row.experiment, row.variant) for row in connection.execute(query)}


def load_values(connection: Connection, tag: str, day: int) -> set[str]:
    """A tag's values that have room in a day.  One look into the index for each, however many rows it has."""
    known = tags_daily.c
    here = (known.tag == tag, known.day == day, known.is_rest == 0)
    found = select(func.min(known.value).label("value")).where(*here, known.value > "").cte(recursive=True)
    after = select(func.min(known.value)).where(*here, known.value > found.c.value)
    found = found.union_all(select(after.scalar_subquery()).where(found.c.value.is_not(None)))
    rows = connection.execute(select(found.c.value).where(found.c.value.is_not(None)))
    return set(rows.scalars())


def _list_stored_tags(connection: Connection) -> list[str]:
    """All that have totals.  One look into the index for each."""
    tags: list[str] = []
    while True:
        query = select(func.min(tags_daily.c.tag))
        tag = connection.execute(query.where(tags_daily.c.tag > tags[-1]) if tags else query).scalar()
        if tag is None:
            return tags
        tags.append(tag)


# --- anew ---------------------------------------------------------------------------------------------------


def rebuild_hours(connection: Connection, first: int | None, last: int | None, pairs_max: int) -> None:
    """Add the hours from `first` to `last`, both included, and their days up anew; None leaves a side open.

    All records of these days must be there.
    """
    dialect = connection.dialect.name
    old, source = delete(usage_hourly), select(*_list_places(is_pair_long(dialect)), *sum_events())
    if first is not None:
        old = old.where(usage_hourly.c.hour >= first)
        source = source.where(events.c.at_ns >= first * HOUR_NS)
    if last is not None:
        old = old.where(usage_hourly.c.hour <= last)
        source = source.where(events.c.at_ns < (last + 1) * HOUR_NS)
    connection.execute(old)
    _fill(connection, usage_hourly, "hour", source.add_columns(hour_of_event().label("hour")))
    for hour in _list_crowded(connection, first, last, pairs_max):
        _rebuild_crowded(connection, hour, pairs_max)
    _rebuild_days(
        connection,
        None if first is None else first // DAY_HOURS,
        None if last is None else last // DAY_HOURS,
    )


def _list_places(is_other: ColumnElement[int]) -> list[Label[Any]]:
    """Of an event, by names of their own: a database may take one that is a column's for the column's."""
    columns: dict[str, ColumnElement[Any]] = {name: events.c[name] for name in PLACES}
    for name in ("experiment", "variant"):
        if not isinstance(is_other, BindParameter):
            columns[name] = case((is_other == 1, ""), else_=events.c[name])
    columns["is_other"] = is_other
    return [column.label(f"at_{name}") for name, column in columns.items()]


_AT = tuple(f"at_{name}" for name in (*PLACES, "is_other"))


def _fill(connection: Connection, totals: Table, period: str, source: Select[Any], *more: str) -> None:
    """Insert what a query over events gives: places, sums, the period, and what else is told apart."""
    # By name: PostgreSQL does not see that two expressions with parameters are the same.
    source = source.group_by(period, *more, *_AT)
    names = [*PLACES, "is_other", *TOTALS, period, *(name.removeprefix("of_") for name in more)]
    statement = make_insert(connection.dialect, totals).from_select(names, source)
    connection.execute(_add_to_what_is_there(statement, totals))


def _list_crowded(connection: Connection, first: int | None, last: int | None, pairs_max: int) -> list[int]:
    """The hours that hold more pairs than they have room for."""
    known = usage_hourly.c
    pairs = select(known.hour, known.experiment, known.variant).distinct()
    pairs = pairs.where((known.experiment != "") | (known.variant != ""))
    if first is not None:
        pairs = pairs.where(known.hour >= first)
    if last is not None:
        pairs = pairs.where(known.hour <= last)
    found = pairs.subquery()
    crowded = select(found.c.hour).group_by(found.c.hour).having(func.count() > pairs_max)
    return list(connection.execute(crowded).scalars())


def _rebuild_crowded(connection: Connection, hour: int, pairs_max: int) -> None:
    pair = (events.c.experiment, events.c.variant)
    here = (events.c.at_ns >= hour * HOUR_NS, events.c.at_ns < (hour + 1) * HOUR_NS)
    named = (is_pair_long(connection.dialect.name) == 0, (pair[0] != "") | (pair[1] != ""))
    earliest = select(*pair).where(*here, *named).group_by(*pair)
    rows = connection.execute(earliest.order_by(func.min(events.c.id)).limit(pairs_max))
    kept = [(row.experiment, row.variant) for row in rows]
    is_other = case((tuple_(*pair).in_([NO_PAIR, *kept]), 0), else_=1)
    connection.execute(delete(usage_hourly).where(usage_hourly.c.hour == hour))
    source = select(*_list_places(is_other), *sum_events(), literal(hour).label("hour")).where(*here)
    _fill(connection, usage_hourly, "hour", source)


def _rebuild_days(connection: Connection, first: int | None, last: int | None) -> None:
    """From the hours."""
    old, hour = delete(usage_daily), usage_hourly.c.hour
    names = (*PLACES, "is_other")
    source = select((hour // DAY_HOURS).label("day"), *(usage_hourly.c[name] for name in names))
    source = source.add_columns(*sum_totals(usage_hourly))
    if first is not None:
        old = old.where(usage_daily.c.day >= first)
        source = source.where(hour >= first * DAY_HOURS)
    if last is not None:
        old = old.where(usage_daily.c.day <= last)
        source = source.where(hour < (last + 1) * DAY_HOURS)
    connection.execute(old)
    source = source.group_by("day", *names)
    connection.execute(insert(usage_daily).from_select(["day", *names, *TOTALS], source))


def list_tags(connection: Connection, rollups: Rollups) -> list[str]:
    """All that have totals or are to have them."""
    return sorted({*_list_stored_tags(connection), *rollups.tags})


def rebuild_tag(connection: Connection, tag: str, day: int, rollups: Rollups) -> None:
    """The same for a tag of a day; one that is not rolled up any more is forgotten there."""
    if tag in rollups.tags:
        rebuild_tag_day(connection, tag, day, rollups.values_max)
    else:
        delete_tag_day(connection, tag, day)


def rebuild_tag_day(connection: Connection, tag: str, day: int, values_max: int) -> None:
    """Add a day up anew for a tag, from its records, all of which must be there; its hours must be right."""
    kept = find_values(connection, tag, day, values_max)
    delete_tag_day(connection, tag, day)
    fill_tag(connection, tag, day * DAY_HOURS, (day + 1) * DAY_HOURS - 1, kept)


def find_values(connection: Connection, tag: str, day: int, values_max: int) -> list[str]:
    """A tag's values that find room in a day by its records: those that came first, but for long ones."""
    dialect = connection.dialect.name
    values = select(find_tag(tag, dialect).label("of_value"), func.min(events.c.id).label("first"))
    values = values.where(events.c.at_ns >= day * DAY_NS, events.c.at_ns < (day + 1) * DAY_NS)
    found = values.group_by("of_value").subquery()
    named = (found.c.of_value != "", can_be_named(found.c.of_value, dialect))
    first = select(found.c.of_value).where(*named).order_by(found.c.first).limit(values_max)
    return list(connection.execute(first).scalars())


def fill_tag(
    connection: Connection, tag: str, first: int, last: int, kept: list[str], last_id: int | None = None
) -> None:
    """Add the records of some hours of a day to a tag's totals: from `first` to `last`, both included, and up
    to an id.  `kept` are the values that have room."""
    day = first // DAY_HOURS
    here = [events.c.at_ns >= first * HOUR_NS, events.c.at_ns < (last + 1) * HOUR_NS]
    if last_id is not None:
        here.append(events.c.id <= last_id)
    value = find_tag(tag, connection.dialect.name)
    is_rest = case((value.in_(["", *kept]), 0), else_=1)
    known = usage_daily.c
    others = select(known.day).where(known.day == day, known.is_other == 1).limit(1)
    is_other = _find_other() if connection.execute(others).first() else literal(0)
    source = select(*_list_places(is_other), *sum_events(), literal(day).label("day")).where(*here)
    source = source.add_columns(
        case((is_rest == 0, value), else_="").label("of_value"),
        is_rest.label("of_is_rest"),
        literal(tag).label("of_tag"),
    )
    _fill(connection, tags_daily, "day", source, "of_value", "of_is_rest", "of_tag")


def delete_tag_day(connection: Connection, tag: str, day: int) -> None:
    known = tags_daily.c
    connection.execute(delete(tags_daily).where(known.tag == tag, known.day == day))


def delete_tags(connection: Connection, day: int) -> None:
    """All tags of a day."""
    for tag in _list_stored_tags(connection):
        delete_tag_day(connection, tag, day)


def _find_other() -> ColumnElement[int]:
    """Whether an event's pair has found no room, as the totals of its hour say."""
    known = usage_hourly.c
    has_room = exists().where(
        known.hour == hour_of_event(),
        known.is_other == 0,
        known.experiment == events.c.experiment,
        known.variant == events.c.variant,
    )
    return case((has_room.correlate(events), 0), else_=1)
