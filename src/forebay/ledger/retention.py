"""Removes what was kept for long enough: records, and the hourly and daily totals that were made of them.

A whole day (UTC) of a kind goes at a time.  First its mark is moved, in one transaction with the proof that
the totals hold all of the records, and with whoever is told of the removal; then what lies before the mark
goes in small portions, between which others write.  Whoever is killed in between leaves a mark, and the next
call goes on from there.  Totals of a removed time are never added up anew.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Column, Connection, Executable, Table, delete, func, insert, select, update

from forebay.core.clock import Clock
from forebay.ledger.marks import Kept, load_marks
from forebay.ledger.repo import lock_ledger
from forebay.ledger.rollup import DAY_HOURS, DAY_NS, HOUR_NS, NO_ROLLUPS, Rollups
from forebay.ledger.sums import sum_events, sum_totals
from forebay.ledger.tables import events, removals, tags_daily, usage_daily, usage_hourly
from forebay.ledger.totals import delete_tags, rebuild_hours, rebuild_tag_day
from forebay.store.database import Database

PORTION_ROWS: Final = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepDays:
    """How many days each kind is kept; None is for ever."""

    records: int | None = None
    hourly: int | None = None
    daily: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """A day of a kind that is about to go.  `rows` are what it holds of it."""

    kind: Kept
    day_ns: int
    rows: int

    @property
    def gone_before_ns(self) -> int:
        return self.day_ns + DAY_NS


@dataclass(frozen=True, slots=True, kw_only=True)
class Excess:
    """What is older than it is to be kept; `first_ns` is when it begins, None where there is none."""

    kind: Kept
    rows: int
    first_ns: int | None
    until_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where a kind lies, and how many nanoseconds one of its periods is."""

    table: Table
    period: Column[int]
    unit_ns: int


_PLACES: Final = {
    Kept.RECORDS: _Place(table=events, period=events.c.at_ns, unit_ns=1),
    Kept.HOURLY: _Place(table=usage_hourly, period=usage_hourly.c.hour, unit_ns=HOUR_NS),
    Kept.DAILY: _Place(table=usage_daily, period=usage_daily.c.day, unit_ns=DAY_NS),
}


class Retention:
    """Any number of these may work on one database.

    Args:
        database: where the tables are.
        clock: for what is old, as far as the newest record agrees.
        tell: is called within the transaction that seals the removal of a day.
        get_rollups: which tags have totals of their own, that must hold all of the records as well.
        portion_rows: records that one transaction removes.
    """

    def __init__(
        self,
        database: Database,
        clock: Clock,
        tell: Callable[[Connection, Removal], None],
        *,
        get_rollups: Callable[[], Rollups] = lambda: NO_ROLLUPS,
        portion_rows: int = PORTION_ROWS,
    ) -> None:
        self._database = database
        self._clock = clock
        self._tell = tell
        self._get_rollups = get_rollups
        self._portion_rows = portion_rows

    def find_excess(self, keep: KeepDays) -> list[Excess]:
        """What `remove_portion` would remove, and removes nothing.  Raises StoreError."""
        found = []
        with self._database.read() as connection:
            for kind, cut_ns in self._list_cuts(connection, keep):
                place = _PLACES[kind]
                old = place.period < cut_ns // place.unit_ns
                query = select(func.count(), func.min(place.period)).select_from(place.table).where(old)
                rows, first = connection.execute(query).one()
                first_ns = None if first is None else int(first) * place.unit_ns
                found.append(Excess(kind=kind, rows=rows, first_ns=first_ns, until_ns=cut_ns))
        return found

    def remove_portion(self, keep: KeepDays) -> int:
        """One short transaction; returns how many rows went, 0 when nothing is too old.

        Raises StoreBusy and StoreUnavailable; nothing has changed then, and the same call may be made again.
        """
        with self._database.read() as connection:
            cuts = self._list_cuts(connection, keep)
        for kind, cut_ns in cuts:
            with self._database.begin() as connection:
                lock_ledger(connection)
                if removed := self._remove(connection, kind, cut_ns):
                    return removed
        return 0

    def _list_cuts(self, connection: Connection, keep: KeepDays) -> list[tuple[Kept, int]]:
        """The first nanosecond that is kept, of each kind that is not kept for ever.

        Ages end with the newest record: a clock that is far ahead makes nothing old.
        """
        newest = _find_newest_day(connection)
        if newest is None:
            return []
        today = min(self._clock.wall_ns() // DAY_NS, newest)
        days = ((Kept.RECORDS, keep.records), (Kept.HOURLY, keep.hourly), (Kept.DAILY, keep.daily))
        return [(kind, max(0, today - each) * DAY_NS) for kind, each in days if each is not None]

    def _remove(self, connection: Connection, kind: Kept, cut_ns: int) -> int:
        place, mark = _PLACES[kind], load_marks(connection)[kind]
        first = connection.execute(select(func.min(place.period))).scalar()
        if first is None or int(first) * place.unit_ns >= cut_ns:
            return 0
        day_ns = int(first) * place.unit_ns // DAY_NS * DAY_NS
        if day_ns + DAY_NS > mark.gone_before_ns:
            if kind is Kept.RECORDS:
                _prove_totals(connection, day_ns, self._get_rollups())
            self._move_mark(
                connection, Removal(kind=kind, day_ns=day_ns, rows=_count(connection, kind, day_ns))
            )
        removed = _delete_portion(connection, kind, int(first), day_ns, self._portion_rows)
        connection.execute(
            update(removals)
            .where(removals.c.kind == kind.value)
            .values(removed=removals.c.removed + removed, removed_at_ns=self._clock.wall_ns())
        )
        return removed

    def _move_mark(self, connection: Connection, removal: Removal) -> None:
        kind, gone_before_ns = removal.kind.value, removal.gone_before_ns
        moved = update(removals).where(removals.c.kind == kind).values(gone_before_ns=gone_before_ns)
        if connection.execute(moved).rowcount == 0:
            row = {"kind": kind, "gone_before_ns": gone_before_ns, "removed": 0}
            connection.execute(insert(removals), row)
        self._tell(connection, removal)


def _find_newest_day(connection: Connection) -> int | None:
    newest = connection.execute(select(func.max(events.c.at_ns))).scalar()
    if newest is not None:
        return int(newest) // DAY_NS
    day = connection.execute(select(func.max(usage_daily.c.day))).scalar()
    return None if day is None else int(day)


def _prove_totals(connection: Connection, day_ns: int, rollups: Rollups) -> None:
    """Compares the sums of a day, over all places, and adds up anew what differs."""
    query = select(*sum_events()).where(events.c.at_ns >= day_ns, events.c.at_ns < day_ns + DAY_NS)
    expected = _find_sums(connection, query)
    first_hour, day = day_ns // HOUR_NS, day_ns // DAY_NS
    hours = usage_hourly.c.hour.between(first_hour, first_hour + DAY_HOURS - 1)
    hourly = _find_sums(connection, select(*sum_totals(usage_hourly)).where(hours))
    daily = _find_sums(connection, select(*sum_totals(usage_daily)).where(usage_daily.c.day == day))
    if not hourly == daily == expected:
        rebuild_hours(connection, first_hour, first_hour + DAY_HOURS - 1, rollups.pairs_max)
    for tag in rollups.tags:
        known = tags_daily.c
        tagged = select(*sum_totals(tags_daily)).where(known.tag == tag, known.day == day)
        if _find_sums(connection, tagged) != expected:
            rebuild_tag_day(connection, tag, day, rollups.values_max)


def _find_sums(connection: Connection, query: Executable) -> list[int | None]:
    return [None if value is None else int(value) for value in connection.execute(query).one()]


def _count(connection: Connection, kind: Kept, day_ns: int) -> int:
    place = _PLACES[kind]
    first, last = day_ns // place.unit_ns, (day_ns + DAY_NS - 1) // place.unit_ns
    query = select(func.count()).select_from(place.table).where(place.period.between(first, last))
    return int(connection.execute(query).scalar_one())


def _delete_portion(connection: Connection, kind: Kept, first: int, day_ns: int, rows_max: int) -> int:
    """Records by number; totals by periods, each of which holds no more rows than there are places."""
    if kind is not Kept.RECORDS:
        place = _PLACES[kind]
        if kind is Kept.DAILY:
            delete_tags(connection, first)
        return connection.execute(delete(place.table).where(place.period == first)).rowcount
    oldest = (
        select(events.c.id).where(events.c.at_ns < day_ns + DAY_NS).order_by(events.c.at_ns).limit(rows_max)
    )
    return connection.execute(delete(events).where(events.c.id.in_(oldest.scalar_subquery()))).rowcount
