"""Sets aside what became no event: what could not be read, and what the database refuses among what could.

One record must never keep those that come after it out of the tables.  All functions run in the caller's
transaction, which holds the lock of `lock_ledger`.
"""

from dataclasses import asdict

from sqlalchemy import Connection, delete, insert, select
from sqlalchemy.exc import StatementError

from forebay.core.events import Event, encode_event
from forebay.core.prices import PriceBook
from forebay.ledger.batch import Reason, SetAside, read_event
from forebay.ledger.repo import add_events
from forebay.ledger.rollup import NO_ROLLUPS, Rollups
from forebay.ledger.tables import quarantine
from forebay.store.database import is_value_refused


def add_set_aside(connection: Connection, segment_id: int, items: list[SetAside], now_ns: int) -> None:
    if items:
        fixed = {"segment_id": segment_id, "since_ns": now_ns}
        rows = [asdict(item) | {"reason": item.reason.value} | fixed for item in items]
        connection.execute(insert(quarantine), rows)


def add_accepted(
    connection: Connection,
    segment_id: int,
    arrived: list[tuple[int, Event]],
    book: PriceBook,
    rollups: Rollups,
) -> list[SetAside]:
    """As `add_events`, but halves what is refused until only the culprits are left, which it returns.

    In their order, because the first names of a period find room in its totals.
    """
    try:
        with connection.begin_nested():
            add_events(connection, segment_id, arrived, book, rollups)
    except (StatementError, OverflowError, UnicodeEncodeError) as error:
        if not is_value_refused(error):
            raise
        if len(arrived) == 1:
            return [_set_aside(*arrived[0], error)]
        middle = len(arrived) // 2
        halves = (arrived[:middle], arrived[middle:])
        return [item for half in halves for item in add_accepted(connection, segment_id, half, book, rollups)]
    return []


def reconsider_unknown(
    connection: Connection,
    after: tuple[int, int],
    rows_max: int,
    book: PriceBook,
    rollups: Rollups = NO_ROLLUPS,
) -> tuple[int, tuple[int, int] | None]:
    """Take out of quarantine what an earlier version could not read or the database did not take, where this
    one can and does.

    Looks at `rows_max` of them behind the place `after` (segment, position); returns how many became events,
    and the place to go on from, or None at the end.
    """
    place = (quarantine.c.segment_id, quarantine.c.position)
    found = connection.execute(
        select(quarantine)
        .where(quarantine.c.reason.in_((Reason.UNKNOWN.value, Reason.REFUSED.value)))
        .where((place[0] > after[0]) | ((place[0] == after[0]) & (place[1] > after[1])))
        .order_by(*place)
        .limit(rows_max)
    )
    rows = found.mappings().all()
    moved = 0
    for row in rows:
        event = read_event(row["position"], row["payload"])
        if isinstance(event, SetAside):
            continue
        here = (place[0] == row["segment_id"]) & (place[1] == row["position"])
        arrived = [(row["position"], event)]
        if add_accepted(connection, row["segment_id"], arrived, book, rollups):
            continue
        connection.execute(delete(quarantine).where(here))
        moved += 1
    return moved, (rows[-1]["segment_id"], rows[-1]["position"]) if rows else None


def _set_aside(position: int, event: Event, error: StatementError | ValueError | ArithmeticError) -> SetAside:
    payload = encode_event(event)
    cause = error.orig if isinstance(error, StatementError) else error
    return SetAside(
        position=position,
        byte_count=len(payload),
        reason=Reason.REFUSED,
        detail=str(cause)[:500],
        payload=payload,
    )
