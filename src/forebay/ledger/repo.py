"""The ledger's SQL: cursors of segments, events in, totals kept up, and events out for whoever folds them.

Every writing function runs in the caller's transaction, so that a cursor moves exactly when its rows arrive.
An event is stored with what it cost.  The queries for people are in `usage` and `bill`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import attrgetter

import msgspec
from sqlalchemy import (
    Connection,
    Dialect,
    RowMapping,
    column,
    func,
    insert,
    select,
    table,
    update,
)

from forebay.core.events import Event, Finished, Outcome, Tokens, UsageSource
from forebay.core.prices import PriceBook
from forebay.ledger.batch import Batch
from forebay.ledger.rollup import NO_ROLLUPS, Priced, Rollups
from forebay.ledger.tables import (
    TOKEN_CLASSES,
    SegmentState,
    events,
    prices,
    segments,
)
from forebay.ledger.totals import add_totals, make_insert

_WRITE_LOCK = 0x6C6564676572  # any fixed number, for PostgreSQL's advisory lock


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """How far a file has come into the tables."""

    id: int
    name: str
    state: SegmentState
    position: int
    state_since_ns: int
    folder: str = ""


def lock_ledger(connection: Connection) -> None:
    """Let one transaction at a time write events: their ids then commit in order, and totals add up.

    SQLite's write lock, which the transaction holds already, does this by itself.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(_WRITE_LOCK)))


def load_segments(connection: Connection, folder: str) -> dict[str, Segment]:
    """All of a folder that are not deleted, by name."""
    query = select(segments).where(
        segments.c.state != SegmentState.DELETED.value, segments.c.folder == folder
    )
    return {row["name"]: _make_segment(row) for row in connection.execute(query).mappings()}


def find_segment(connection: Connection, name: str) -> Segment | None:
    """The row of a file, in whatever state and folder it is."""
    row = connection.execute(select(segments).where(segments.c.name == name)).mappings().one_or_none()
    return None if row is None else _make_segment(row)


def adopt_segment(connection: Connection, segment: Segment, folder: str) -> Segment | None:
    """Give the row of a file to the folder that the file lies in; None when it has moved since it was loaded.

    One that was taken for deleted is sealed again: its file is still to be removed.
    """
    is_deleted = segment.state is SegmentState.DELETED
    state = SegmentState.SEALED if is_deleted else segment.state
    changed = connection.execute(
        update(segments)
        .where(segments.c.id == segment.id)
        .where(segments.c.folder == segment.folder)
        .where(segments.c.state == segment.state.value)
        .where(segments.c.position == segment.position)
        .values(state=state.value, folder=folder)
    )
    return replace(segment, state=state, folder=folder) if changed.rowcount == 1 else None


def add_segment(connection: Connection, name: str, folder: str, now_ns: int) -> Segment:
    """The row of a file, made if there is none, in whatever state it is."""
    zeros = {"position": 0, "records": 0, "damaged_bytes": 0, "torn_bytes": 0}
    state = {"state": SegmentState.OPEN.value, "state_since_ns": now_ns}
    values = {"name": name, "folder": folder} | state | zeros
    connection.execute(make_insert(connection.dialect, segments).values(**values).on_conflict_do_nothing())
    found = find_segment(connection, name)
    assert found is not None, "it was made a moment ago"
    return found


def advance_segment(
    connection: Connection, segment: Segment, batch: Batch, state: SegmentState, now_ns: int
) -> bool:
    """Move the cursor over the batch, if it still stands where the batch was read; False if it does not."""
    moved = connection.execute(
        update(segments)
        .where(segments.c.id == segment.id)
        .where(segments.c.position == batch.start)
        .where(segments.c.state.in_((SegmentState.OPEN.value, SegmentState.MISSING.value)))
        .values(
            state=state.value,
            state_since_ns=segment.state_since_ns if state is segment.state else now_ns,
            position=batch.end,
            records=segments.c.records + batch.records,
            damaged_bytes=segments.c.damaged_bytes + batch.damaged_bytes,
            torn_bytes=segments.c.torn_bytes + batch.torn_bytes,
        )
    )
    return moved.rowcount == 1


def change_state(connection: Connection, segment: Segment, state: SegmentState, now_ns: int) -> bool:
    """Move a segment to another state, if it has not moved since it was loaded."""
    changed = connection.execute(
        update(segments)
        .where(segments.c.id == segment.id)
        .where(segments.c.position == segment.position)
        .where(segments.c.state == segment.state.value)
        .values(state=state.value, state_since_ns=now_ns)
    )
    return changed.rowcount == 1


def add_events(
    connection: Connection,
    segment_id: int,
    arrived: list[tuple[int, Event]],
    book: PriceBook,
    rollups: Rollups = NO_ROLLUPS,
) -> None:
    """Store events by position with what they cost, and add them to the totals."""
    if arrived:
        priced = [Priced(event, book.compute_cost(event)) for _, event in arrived]
        _insert_events(connection, segment_id, [position for position, _ in arrived], priced)
        keep_terms(connection, book, {each.cost.price_id for each in priced})
        add_totals(connection, priced, rollups)


def keep_terms(connection: Connection, book: PriceBook, price_ids: Iterable[str]) -> None:
    """Store the terms of the prices that records name, where they are not stored yet."""
    found = [book.used[price_id] for price_id in sorted(set(price_ids) - {""})]
    rows = [{"id": price.id, "terms": price.describe()} for price in found]
    if rows:
        connection.execute(make_insert(connection.dialect, prices).on_conflict_do_nothing(), rows)


def load_events(connection: Connection, after_id: int, events_max: int) -> list[tuple[int, Event]]:
    """Events with ids above `after_id`, in order, for readers that keep the last id as their cursor."""
    query = select(events).where(events.c.id > after_id).order_by(events.c.id).limit(events_max)
    return [(row["id"], _make_event(row)) for row in connection.execute(query).mappings()]


@lru_cache(maxsize=4)
def _compile_event_insert(dialect: Dialect) -> tuple[str, bool]:
    """The statement, and whether its parameters are told apart by place and not by name."""
    # A table of its own, because parameters come in the order of the table's columns.
    target = table(events.name, *(column(name, events.c[name].type) for name in _EVENT_COLUMNS))
    compiled = insert(target).compile(dialect=dialect, column_keys=list(_EVENT_COLUMNS))
    assert tuple(compiled.positiontup or _EVENT_COLUMNS) == _EVENT_COLUMNS
    return str(compiled), compiled.positional


def _make_segment(row: RowMapping) -> Segment:
    return Segment(
        id=row["id"],
        name=row["name"],
        state=SegmentState(row["state"]),
        position=row["position"],
        state_since_ns=row["state_since_ns"],
        folder=row["folder"],
    )


#: Where each column of an event comes from: the field of its name, or what stands here.
_SOURCES = {
    **{"key_id": "key", "outcome": "outcome.value", "usage_source": "usage_source.value"},
    **{f"tokens_{name}": f"tokens.{name}" for name in TOKEN_CLASSES},
    "kind": "kind.value",  # which follows from `mirror_of` and `batch`
}
#: Columns that are no field of an event, or not as they are, in the order in which `_insert_events` has them.
_ADDED = ("segment_id", "position", "cost_nano_usd", "price_id", "tags", "units")
_COLUMNS = tuple(c.name for c in events.columns if c.name not in (*_ADDED, "id"))
_EVENT_COLUMNS = (*_ADDED, *_COLUMNS)
_get_values = attrgetter(*(_SOURCES.get(name, name) for name in _COLUMNS))
_PLAIN = tuple(name for name in _COLUMNS if name not in _SOURCES)


def _insert_events(
    connection: Connection, segment_id: int, positions: list[int], priced: list[Priced]
) -> None:
    """Straight to the driver: SQLAlchemy's work on each parameter costs more than all the rest of ingest."""
    statement, is_positional = _compile_event_insert(connection.dialect)
    rows = [
        (
            *(segment_id, position, each.cost.nano_usd, each.cost.price_id),
            *(_encode_pairs(each.event.tags), _encode_pairs(each.event.units)),
            *_get_values(each.event),
        )
        for position, each in zip(positions, priced, strict=True)
    ]
    if is_positional:
        connection.exec_driver_sql(statement, rows)
    else:
        connection.exec_driver_sql(statement, [dict(zip(_EVENT_COLUMNS, row, strict=True)) for row in rows])


def _encode_pairs(pairs: tuple[tuple[str, str | int], ...]) -> str | None:
    return msgspec.json.encode(dict(pairs)).decode() if pairs else None


def _decode_tags(text: str | None) -> tuple[tuple[str, str], ...]:
    return () if text is None else tuple(msgspec.json.decode(text, type=dict[str, str]).items())


def decode_units(text: str | None) -> tuple[tuple[str, int], ...]:
    """The column `units`."""
    return () if text is None else tuple(msgspec.json.decode(text, type=dict[str, int]).items())


def _make_event(row: RowMapping) -> Event:
    return Finished(
        **{name: row[name] for name in _PLAIN},
        key=row["key_id"],
        outcome=Outcome(row["outcome"]),
        usage_source=UsageSource(row["usage_source"]),
        tokens=Tokens(**{name: row[f"tokens_{name}"] for name in TOKEN_CLASSES}),
        tags=_decode_tags(row["tags"]),
        units=decode_units(row["units"]),
    )
