"""Adds totals up anew from the records, a part at a time, so that whoever else writes gets in between.

Each part is a transaction after which the totals hold what the records do, so nobody who asks meanwhile, and
nobody who is killed, sees a wrong sum.  Totals of a time whose records may be gone stay as they are.
"""

from collections.abc import Callable
from typing import Final

from sqlalchemy import Connection, func, select

from forebay.ledger.marks import Kept, load_marks
from forebay.ledger.repo import lock_ledger
from forebay.ledger.rollup import DAY_HOURS, DAY_NS, NO_ROLLUPS, Rollups
from forebay.ledger.tables import events, usage_daily, usage_hourly
from forebay.ledger.totals import (
    delete_tag_day,
    fill_tag,
    find_values,
    list_tags,
    rebuild_hours,
    rebuild_tag,
)
from forebay.store.database import Database

#: A day with more records goes by the hour.
PART_RECORDS: Final = 50_000


def no_pause() -> None:
    """For whoever has the database alone."""


def rebuild_usage(
    database: Database,
    rollups: Rollups = NO_ROLLUPS,
    *,
    pause: Callable[[], None] = no_pause,
    part_records: int = PART_RECORDS,
) -> int:
    """Add the ledger up anew into the totals; returns the number of events that were added up.

    A part is at most a day, or an hour of one that has more than `part_records`.
    `pause` is called after each, to let others write.  Raises StoreBusy and StoreUnavailable; what was added
    up by then is right.
    """
    day = _find_day(database, 0)
    while day is not None:
        for first, last in _list_parts(database, day, part_records):
            with database.begin() as connection:
                lock_ledger(connection)
                if day >= _find_first_day(connection):
                    rebuild_hours(connection, first, last, rollups.pairs_max)
            pause()
        rebuild_day_tags(database, day, rollups, pause, part_records)
        day = _find_day(database, day + 1)
    with database.read() as connection:
        first_hour = _find_first_day(connection) * DAY_HOURS
        counted = select(func.sum(usage_hourly.c.requests)).where(usage_hourly.c.hour >= first_hour)
        return int(connection.execute(counted).scalar() or 0)


def rebuild_day_tags(
    database: Database,
    day: int,
    rollups: Rollups,
    pause: Callable[[], None],
    part_records: int = PART_RECORDS,
) -> None:
    """Add all tags of a day up anew; the day's hours must be right.

    Of a large day that takes several transactions.  Until the last of them the tag has not all requests, and
    whoever asks is answered from the records.
    """
    with database.read() as connection:
        tags = list_tags(connection, rollups)
    parts = _list_parts(database, day, part_records)
    for tag in tags:
        if len(parts) > 1 and tag in rollups.tags:
            _rebuild_in_parts(database, tag, day, rollups, parts, pause)
            continue
        with database.begin() as connection:
            lock_ledger(connection)
            if day >= _find_first_day(connection):
                rebuild_tag(connection, tag, day, rollups)
        pause()


def _rebuild_in_parts(
    database: Database,
    tag: str,
    day: int,
    rollups: Rollups,
    parts: list[tuple[int, int]],
    pause: Callable[[], None],
) -> None:
    with database.read() as connection:  # reads the whole day, and keeps nobody from writing
        kept = find_values(connection, tag, day, rollups.values_max)
    with database.begin() as connection:
        lock_ledger(connection)
        if day < _find_first_day(connection):
            return
        delete_tag_day(connection, tag, day)
        # What comes from here on is added by whoever stores it.
        last_id = connection.execute(select(func.max(events.c.id))).scalar()
    for first, last in parts:
        pause()
        with database.begin() as connection:
            lock_ledger(connection)
            if day < _find_first_day(connection):
                return
            fill_tag(connection, tag, first, last, kept, last_id)
    pause()


def _find_first_day(connection: Connection) -> int:
    """The first of which all records are there."""
    return load_marks(connection)[Kept.RECORDS].gone_before_ns // DAY_NS


def _find_day(database: Database, first: int) -> int | None:
    """The first day from `first` on that has records or totals.  A look into an index for each table."""
    places = ((events.c.at_ns, DAY_NS), (usage_hourly.c.hour, DAY_HOURS), (usage_daily.c.day, 1))
    with database.read() as connection:
        first = max(first, _find_first_day(connection))
        found = [
            (connection.execute(select(func.min(time)).where(time >= first * unit)).scalar(), unit)
            for time, unit in places
        ]
    return min((int(time) // unit for time, unit in found if time is not None), default=None)


def _list_parts(database: Database, day: int, part_records: int) -> list[tuple[int, int]]:
    """The first and the last hour of each."""
    here = select(events.c.id).where(events.c.at_ns >= day * DAY_NS, events.c.at_ns < (day + 1) * DAY_NS)
    counted = select(func.count()).select_from(here.limit(part_records + 1).subquery())
    with database.read() as connection:
        is_large = int(connection.execute(counted).scalar_one()) > part_records
    first = day * DAY_HOURS
    if is_large:
        return [(hour, hour) for hour in range(first, first + DAY_HOURS)]
    return [(first, first + DAY_HOURS - 1)]
