"""Prices records anew by the book in force now: those that came before their price did, or to prove a bill.

The cost of a record follows from the record and the book alone, so a second pass changes nothing.  It goes a
portion at a time: what changes is written in one transaction with the totals of hours and days and a row that
says so.  Whoever is killed in between leaves some records at the old price and no wrong sum.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field

from sqlalchemy import Connection, RowMapping, bindparam, insert, select, tuple_, update

from forebay.core.events import Tokens, UsageSource
from forebay.core.prices import NOTHING_SPENT, Cost, PriceBook
from forebay.ledger.marks import Kept, check_kept, load_marks
from forebay.ledger.rebuild import no_pause, rebuild_day_tags
from forebay.ledger.repo import decode_units, keep_terms, lock_ledger
from forebay.ledger.rollup import (
    DAY_HOURS,
    DAY_NS,
    HOUR_NS,
    NO_PAIR,
    NO_ROLLUPS,
    Pair,
    Rollups,
    UsageCell,
    add_known,
)
from forebay.ledger.tables import PLACES, TOKEN_CLASSES, events, repricings
from forebay.ledger.totals import CostShift, delete_tag_day, list_tags, load_pairs, shift_costs
from forebay.store.database import Database

ROWS_MAX = 5_000  #: of a portion


@dataclass(frozen=True, slots=True, kw_only=True)
class Repricing:
    """What pricing anew came to.  Costs are sums over the records whose cost is known, None over none."""

    records: int = 0
    changed: int = 0
    unpriced_before: int = 0
    unpriced_after: int = 0
    cost_nano_usd_before: int | None = None
    cost_nano_usd_after: int | None = None


Tell = Callable[[Connection, Repricing, bool], None]


def tell_nobody(connection: Connection, report: Repricing, is_done: bool) -> None:
    """For whoever keeps no audit."""


@dataclass(slots=True, kw_only=True)
class _Run:
    """How far it has come.  `days` are those whose tags have to be added up anew."""

    since_ns: int | None
    until_ns: int | None
    now_ns: int
    place: tuple[int, int]
    report: Repricing = Repricing()
    row_id: int | None = None
    days: set[int] = field(default_factory=set)
    is_done: bool = False

    def take_days(self) -> list[int]:
        """Those of `days` that are behind it."""
        behind = {day for day in self.days if self.is_done or day < self.place[0] // DAY_NS}
        self.days -= behind
        return sorted(behind)


def reprice(
    database: Database,
    book: PriceBook,
    *,
    since_ns: int | None,
    until_ns: int | None,
    now_ns: int,
    rollups: Rollups = NO_ROLLUPS,
    rows_max: int = ROWS_MAX,
    tell: Tell = tell_nobody,
    pause: Callable[[], None] = no_pause,
) -> Repricing:
    """Price all records from `since_ns` on and before `until_ns` anew; None leaves a side open.

    `tell` is called within a transaction that changes costs: the first, unless it is the only one, and the
    last (`is_done`).  `pause` is called after each, to let others write.

    Raises NoLongerKept where records of the time may have been removed; nothing has changed then.  Raises
    StoreBusy and StoreUnavailable; some records may be priced anew then, and totals are those of the records.
    """
    run = _Run(since_ns=since_ns, until_ns=until_ns, now_ns=now_ns, place=(since_ns or 0, -1))
    while not run.is_done:
        with database.begin() as connection:
            lock_ledger(connection)
            _price_portion(connection, run, book, rollups, rows_max, tell)
        for day in run.take_days():
            pause()
            rebuild_day_tags(database, day, rollups, pause)
        if not run.is_done:
            pause()
    return run.report


def _price_portion(
    connection: Connection, run: _Run, book: PriceBook, rollups: Rollups, rows_max: int, tell: Tell
) -> None:
    marks = load_marks(connection)
    if run.report.records:  # what was removed since the run began keeps its costs
        run.place = max(run.place, (marks[Kept.RECORDS].gone_before_ns, -1))
    else:
        check_kept(marks, Kept.RECORDS, run.since_ns, "what they cost stays as it is")
    rows = _read_portion(connection, run, rows_max + 1)
    run.is_done = len(rows) <= rows_max
    rows = rows[:rows_max]
    costs = [_price(row, book) for row in rows]
    changed = [pair for pair in zip(rows, costs, strict=True) if _differs(*pair)]
    _write(connection, book, changed)
    if rows:
        run.place = (rows[-1]["at_ns"], rows[-1]["id"])
    if changed:
        _shift_totals(connection, changed, run, rollups)
    had_changed = run.report.changed > 0
    run.report = _add(run.report, rows, costs, len(changed))
    if run.report.changed:
        _note(connection, run)
        if run.is_done or not had_changed:
            tell(connection, run.report, run.is_done)


def _shift_totals(
    connection: Connection, changed: list[tuple[RowMapping, Cost]], run: _Run, rollups: Rollups
) -> None:
    """Those of hours and days.  Those of a tag go: until they are made anew, what is asked of that tag and
    day is answered from the records."""
    hours = {row["at_ns"] // HOUR_NS for row, _ in changed if row["experiment"] or row["variant"]}
    rooms = {hour: load_pairs(connection, hour) for hour in hours}
    shifts: dict[UsageCell, CostShift] = {}
    for row, cost in changed:
        cell = _find_cell(row, rooms)
        unpriced, nano_usd = shifts.get(cell, (0, 0))
        unpriced += (cost.nano_usd is None) - (row["cost_nano_usd"] is None)
        nano_usd += (cost.nano_usd or 0) - (row["cost_nano_usd"] or 0)
        shifts[cell] = CostShift(unpriced, nano_usd)
    shift_costs(connection, shifts)
    days = {cell.hour // DAY_HOURS for cell in shifts}
    for tag in list_tags(connection, rollups):
        for day in days:
            delete_tag_day(connection, tag, day)
    run.days |= days


def _find_cell(row: RowMapping, rooms: Mapping[int, set[Pair]]) -> UsageCell:
    """In which a record is counted."""
    hour, pair = row["at_ns"] // HOUR_NS, (row["experiment"], row["variant"])
    cell = UsageCell._make((hour, *(row[name] for name in PLACES), 0))
    if pair == NO_PAIR or pair in rooms[hour]:
        return cell
    return cell._replace(experiment="", variant="", is_other=1)


def _add(report: Repricing, rows: list[RowMapping], costs: list[Cost], changed: int) -> Repricing:
    old, new = [row["cost_nano_usd"] for row in rows], [cost.nano_usd for cost in costs]
    return Repricing(
        records=report.records + len(rows),
        changed=report.changed + changed,
        unpriced_before=report.unpriced_before + old.count(None),
        unpriced_after=report.unpriced_after + new.count(None),
        cost_nano_usd_before=add_known((report.cost_nano_usd_before, *old)),
        cost_nano_usd_after=add_known((report.cost_nano_usd_after, *new)),
    )


def _note(connection: Connection, run: _Run) -> None:
    """The run's row says what it has done until now, so that it is right should this be the end."""
    row = asdict(run.report)
    if run.row_id is None:
        row |= {"at_ns": run.now_ns, "since_ns": run.since_ns, "until_ns": run.until_ns}
        made = connection.execute(insert(repricings).values(**row)).inserted_primary_key
        assert made is not None, "the table counts its rows"
        run.row_id = made[0]
    else:
        connection.execute(update(repricings).where(repricings.c.id == run.row_id).values(**row))


def _read_portion(connection: Connection, run: _Run, rows_max: int) -> list[RowMapping]:
    """In the order of time, from behind the place that the run has come to."""
    known = events.c
    query = select(
        *(known.id, known.at_ns, known.target, *(known[name] for name in PLACES)),
        *(known[f"tokens_{name}"] for name in TOKEN_CLASSES),
        *(known.usage_source, known.duration_ns, known.cost_nano_usd, known.price_id, known.units),
    )
    if run.until_ns is not None:
        query = query.where(known.at_ns < run.until_ns)
    query = query.where(tuple_(known.at_ns, known.id) > tuple_(*run.place))
    return list(connection.execute(query.order_by(known.at_ns, known.id).limit(rows_max)).mappings())


def _price(row: RowMapping, book: PriceBook) -> Cost:
    """As `PriceBook.compute_cost` over the event."""
    if row["usage_source"] == UsageSource.NONE.value:
        return NOTHING_SPENT
    place = (row["model"], row["target"], row["pool"], row["tier"])
    tokens = Tokens(**{name: row[f"tokens_{name}"] for name in TOKEN_CLASSES})
    units = decode_units(row["units"])
    return book.compute_cost_at(place, row["at_ns"], tokens, row["duration_ns"], units)


def _differs(row: RowMapping, cost: Cost) -> bool:
    return (row["cost_nano_usd"], row["price_id"]) != (cost.nano_usd, cost.price_id)


_UPDATE = (
    update(events)
    .where(events.c.id == bindparam("row_id"))
    .values(cost_nano_usd=bindparam("nano_usd"), price_id=bindparam("new_price_id"))
)


def _write(connection: Connection, book: PriceBook, changed: list[tuple[RowMapping, Cost]]) -> None:
    if not changed:
        return
    values = [
        {"row_id": row["id"], "nano_usd": cost.nano_usd, "new_price_id": cost.price_id}
        for row, cost in changed
    ]
    connection.execute(_UPDATE, values)
    keep_terms(connection, book, {cost.price_id for _, cost in changed})
