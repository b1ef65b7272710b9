"""Prices records anew by the book in force now: those that came before their price did, or to prove a bill.

The cost of a record follows from the record and the book alone, so a second pass changes nothing.  What
changes is written in one transaction with the hourly totals and a row that says so.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from sqlalchemy import Connection, RowMapping, bindparam, insert, select, tuple_, update

from forebay.core.events import Tokens, UsageSource
from forebay.core.prices import NOTHING_SPENT, Cost, PriceBook
from forebay.ledger.marks import Kept, check_kept, load_marks
from forebay.ledger.repo import decode_units, keep_terms, lock_ledger
from forebay.ledger.rollup import DAY_HOURS, HOUR_NS, NO_ROLLUPS, Rollups, add_known
from forebay.ledger.tables import TOKEN_CLASSES, events, repricings
from forebay.ledger.totals import rebuild_hours, rebuild_tags
from forebay.store.database import Database

ROWS_MAX = 10_000  #: that are held in memory at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class Repricing:
    """What pricing anew came to.  Costs are sums over the records whose cost is known, None over none."""

    records: int = 0
    changed: int = 0
    unpriced_before: int = 0
    unpriced_after: int = 0
    cost_nano_usd_before: int | None = None
    cost_nano_usd_after: int | None = None


def reprice(
    database: Database,
    book: PriceBook,
    *,
    since_ns: int | None,
    until_ns: int | None,
    now_ns: int,
    rollups: Rollups = NO_ROLLUPS,
    rows_max: int = ROWS_MAX,
) -> Repricing:
    """Price all records from `since_ns` on and before `until_ns` anew; None leaves a side open.

    Ingest waits meanwhile.  Raises NoLongerKept where records of the time may have been removed, StoreBusy
    and StoreUnavailable; nothing has changed then.
    """
    before: list[int | None] = []
    after: list[int | None] = []
    counts = [0, 0, 0, 0]
    hours: set[int] = set()
    with database.begin() as connection:
        lock_ledger(connection)
        check_kept(load_marks(connection), Kept.RECORDS, since_ns, "what they cost stays as it is")
        for rows in _read_portions(connection, since_ns, until_ns, rows_max):
            costs = [_price(row, book) for row in rows]
            changed = [pair for pair in zip(rows, costs, strict=True) if _differs(*pair)]
            _write(connection, book, changed)
            hours.update(row["at_ns"] // HOUR_NS for row, _ in changed)
            old, new = [row["cost_nano_usd"] for row in rows], [cost.nano_usd for cost in costs]
            before, after = [add_known((*before, *old))], [add_known((*after, *new))]
            new_counts = (len(rows), len(changed), old.count(None), new.count(None))
            counts = [sum(pair) for pair in zip(counts, new_counts, strict=True)]
        report = Repricing(
            records=counts[0],
            changed=counts[1],
            unpriced_before=counts[2],
            unpriced_after=counts[3],
            cost_nano_usd_before=add_known(before),
            cost_nano_usd_after=add_known(after),
        )
        if hours:
            rebuild_hours(connection, min(hours), max(hours), rollups.pairs_max)
            rebuild_tags(connection, {hour // DAY_HOURS for hour in hours}, rollups)
            row = asdict(report) | {"at_ns": now_ns, "since_ns": since_ns, "until_ns": until_ns}
            connection.execute(insert(repricings), row)
    return report


def _read_portions(
    connection: Connection, since_ns: int | None, until_ns: int | None, rows_max: int
) -> Iterator[list[RowMapping]]:
    """In the order of time; each portion begins behind the last row of the one before."""
    known = events.c
    query = select(
        *(known.id, known.at_ns, known.model, known.target, known.pool, known.tier),
        *(known[f"tokens_{name}"] for name in TOKEN_CLASSES),
        *(known.usage_source, known.duration_ns, known.cost_nano_usd, known.price_id, known.units),
    )
    if until_ns is not None:
        query = query.where(known.at_ns < until_ns)
    query = query.order_by(known.at_ns, known.id).limit(rows_max)
    place = (since_ns or 0, -1)
    while rows := list(
        connection.execute(query.where(tuple_(known.at_ns, known.id) > tuple_(*place))).mappings()
    ):
        yield rows
        place = (rows[-1]["at_ns"], rows[-1]["id"])


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
