"""The ledger's tables, as SQLAlchemy names them; the migrations in `store` make them.  Holds no query."""

from enum import StrEnum
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from forebay.store.database import make_metadata

metadata = make_metadata()

TOKEN_CLASSES = (
    *("input", "input_cached", "input_audio", "output", "output_reasoning", "output_audio"),
    "input_cache_write",
)
COUNTS = ("requests", "failed", "abandoned", "estimated", "unpriced")
#: Whose usage it was, and what answered: what the hourly totals tell apart, beside the hour.
PLACES = (
    *("team", "project", "key_id", "model", "pool", "tier", "region"),
    *("kind", "version", "experiment", "variant"),
)


class SegmentState(StrEnum):
    OPEN = "open"  #: more may come
    SEALED = "sealed"  #: its writer is gone, and all of it is in the tables
    DELETED = "deleted"  #: sealed, and the file was removed
    MISSING = "missing"  #: the file went away before it was sealed; it is taken up again should it come back


#: One row for each file there ever was: the name is what keeps a file from being ingested twice.
segments = Table(
    "ledger_segments",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", String(200), nullable=False, unique=True),
    Column("state", String(20), nullable=False),
    Column("position", BigInteger, nullable=False),  # all before it is in the tables
    Column("records", BigInteger, nullable=False),
    Column("damaged_bytes", BigInteger, nullable=False),
    Column("torn_bytes", BigInteger, nullable=False),
    Column("state_since_ns", BigInteger, nullable=False),
    # Whose it is, as `folder.load_folder_id` has it; empty: nobody's yet.
    Column("folder", String(40), nullable=False, server_default=""),
)

#: Append-only.  Ids go up in the order in which transactions commit, so a reader can keep one as its cursor.
events = Table(
    "ledger_events",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("segment_id", ForeignKey(segments.c.id), nullable=False),
    Column("position", BigInteger, nullable=False),  # of the frame in its segment
    Column("request_id", Text, nullable=False),
    Column("at_ns", BigInteger, nullable=False),
    Column("key_id", Text, nullable=False),
    Column("project", Text, nullable=False),
    Column("team", Text, nullable=False),
    Column("endpoint", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("target", Text, nullable=False),
    Column("pool", Text, nullable=False),
    Column("tier", Text, nullable=False),
    Column("route_hash", Text, nullable=False),
    Column("stream", Boolean, nullable=False),
    Column("status", Integer, nullable=False),
    Column("outcome", String(20), nullable=False),
    Column("error", Text, nullable=False),
    Column("attempts", Integer, nullable=False),
    *(Column(f"tokens_{name}", BigInteger) for name in TOKEN_CLASSES),
    Column("usage_source", String(20), nullable=False),
    Column("first_token_ns", BigInteger),
    Column("duration_ns", BigInteger, nullable=False),
    Column("overhead_ns", BigInteger),
    Column("request_bytes", BigInteger, nullable=False),
    Column("answer_bytes", BigInteger, nullable=False),
    Column("experiment", Text, nullable=False),
    Column("variant", Text, nullable=False),
    Column("worker", Integer, nullable=False),
    Column("region", Text, nullable=False, server_default=""),
    Column("cost_nano_usd", BigInteger),  # NULL: unknown
    Column("price_id", String(40), nullable=False, server_default=""),  # of `prices`; empty: none
    Column("tags", Text),  # a JSON object of strings; NULL: none
    Column("units", Text),  # a JSON object of integers; NULL: none
    Column("version", Text, nullable=False, server_default=""),
    Column("asked_model", Text, nullable=False, server_default=""),  # where another one answered
    Column("kind", String(20), nullable=False, server_default="request"),
    Column("mirror_of", Text, nullable=False, server_default=""),  # a request's id; empty: no mirror
    Column("mirror_same", Boolean),  # NULL: not compared
    Column("mirrors_dropped", Integer, nullable=False, server_default="0"),
    Column("filler_ns", BigInteger),
    Column("queued_ns", BigInteger, nullable=False, server_default="0"),
    Column("hedged", Text, nullable=False, server_default=""),  # the target that did not answer
    Column("hedged_tokens", BigInteger, nullable=False, server_default="0"),
    Column("batch", Text, nullable=False, server_default=""),  # the line of one; empty: of none
    UniqueConstraint("segment_id", "position"),
    Index(None, "at_ns"),
    Index(
        "ix_ledger_events_mirrors",
        "at_ns",
        sqlite_where=text("mirror_of != ''"),
        postgresql_where=text("mirror_of != ''"),
    ),
    sqlite_autoincrement=True,
)

#: What could not become an event: damaged stretches, and records that this version does not understand.
quarantine = Table(
    "ledger_quarantine",
    metadata,
    Column("segment_id", ForeignKey(segments.c.id), primary_key=True),
    Column("position", BigInteger, primary_key=True),
    Column("reason", String(20), nullable=False),
    Column("detail", Text, nullable=False),
    Column("byte_count", BigInteger, nullable=False),
    Column("payload", LargeBinary, nullable=False),
    Column("since_ns", BigInteger, nullable=False),
)

#: The terms of each price that a record was ever charged by: a bill explains itself, whatever has become of
#: the configuration since.
prices = Table(
    "ledger_prices",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("terms", Text, nullable=False),  # as `core.prices.Price.describe`
)

#: Each time that records were priced anew and something changed.  Append-only.
repricings = Table(
    "ledger_repricings",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("at_ns", BigInteger, nullable=False),
    Column("since_ns", BigInteger),
    Column("until_ns", BigInteger),
    Column("records", BigInteger, nullable=False),
    Column("changed", BigInteger, nullable=False),
    Column("unpriced_before", BigInteger, nullable=False),
    Column("unpriced_after", BigInteger, nullable=False),
    Column("cost_nano_usd_before", BigInteger),
    Column("cost_nano_usd_after", BigInteger),
    sqlite_autoincrement=True,
)

#: How far back each kind of row is still there (`marks.Kept`), and what became of what was.  One row for each
#: kind of which something was removed.
removals = Table(
    "ledger_removals",
    metadata,
    Column("kind", String(20), primary_key=True),
    Column("gone_before_ns", BigInteger, nullable=False),
    Column("removed", BigInteger, nullable=False),
    Column("removed_at_ns", BigInteger),
)


def _make_totals(name: str, *periods: Column[Any]) -> Table:
    """Totals of each period, counted since the epoch (UTC), for each place.

    A bill reads periods in a row, and so they lie.
    """
    return Table(
        name,
        metadata,
        *periods,
        *(Column(name, Text, primary_key=True) for name in PLACES),
        # 1: experiments and variants for which the hour has no room, all together and without their names.
        Column("is_other", Integer, primary_key=True, autoincrement=False),
        *(Column(name, BigInteger, nullable=False) for name in COUNTS),
        *(Column(f"tokens_{name}", BigInteger) for name in TOKEN_CLASSES),
        Column("cost_nano_usd", BigInteger),  # of requests whose cost is known; NULL: of none
        *(
            Column(f"{name}_{part}", BigInteger, nullable=False)
            for name in ("duration", "first_token", "overhead")
            for part in ("ns_sum", "count")
        ),
        sqlite_with_rowid=False,
    )


def _make_period(name: str) -> Column[int]:
    return Column(name, Integer, primary_key=True, autoincrement=False)


#: A fold over `events` (`rollup.fold_usage`), kept up in the same transaction.
usage_hourly = _make_totals("ledger_usage_hourly", _make_period("hour"))
#: The same by days, for a bill of a month: with many keys the hours alone are too many to add up while asked.
usage_daily = _make_totals("ledger_usage_daily", _make_period("day"))
#: The totals of days once more for each tag that is rolled up, told apart by its value: each of these tags
#: has all requests of a day, those without it under an empty value.
tags_daily = _make_totals(
    "ledger_tags_daily",
    Column("tag", Text, primary_key=True),
    _make_period("day"),
    # 1: values for which the day has no room, all together under an empty one.
    _make_period("is_rest"),
    Column("value", Text, primary_key=True),
)
