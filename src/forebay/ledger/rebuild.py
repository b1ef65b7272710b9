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
from forebay.ledger.totals import list_tags, rebuild_hours, rebuild_tag
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

    A part is at most a day, or an hour of one that has more than `part_records`; of a tag it is a day.
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
        rebuild_day_tags(database, day, rollups, pause)
        day = _find_day(database, day + 1)
    with database.read() as connection:
        first_hour = _find_first_day(connection) * DAY_HOURS
        counted = select(func.sum(usage_hourly.c.requests)).where(usage_hourly.c.hour >= first_hour)
        return int(connection.execute(counted).scalar() or 0)


def rebuild_day_tags(database: Database, day: int, rollups: Rollups, pause: Callable[[], None]) -> None:
    """Add all tags of a day up anew, each in a transaction of its own; the day's hours must be right."""
    with database.read() as connection:
        tags = list_tags(connection, rollups)
    for tag in tags:
        with database.begin() as connection:
            lock_ledger(connection)
            if day >= _find_first_day(connection):
                rebuild_tag(connection, tag, day, rollups)
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
