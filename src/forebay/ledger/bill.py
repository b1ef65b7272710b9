"""The bill: what the requests of a time cost, and whose they were.  Only reads.

It is a usage query for the figures that a bill has.  Over whole days it is answered from the daily totals, by
a tag that has none from the records themselves.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import reduce
from typing import Any, Final

from sqlalchemy import select

from forebay.ledger.marks import Kept, load_marks
from forebay.ledger.rollup import NOTHING, UsageTotals, merge_totals
from forebay.ledger.tables import TOKEN_CLASSES, prices, repricings
from forebay.ledger.usage import UsageBy, UsageQuery, UsageQueryInvalid, UsageRow, load_usage
from forebay.store.database import Database

#: Of UsageTotals, what a bill shows; the others stay as in NOTHING.
FIGURES: Final = (
    *("requests", "estimated", "unpriced", "cost_nano_usd"),
    *(f"tokens_{name}" for name in TOKEN_CLASSES),
)
#: What a bill can be told apart by.
BILL_BY: Final = (
    *(UsageBy.TEAM, UsageBy.PROJECT, UsageBy.KEY, UsageBy.MODEL, UsageBy.POOL, UsageBy.TIER),
    *(UsageBy.REGION, UsageBy.KIND, UsageBy.VERSION, UsageBy.EXPERIMENT, UsageBy.VARIANT),
    *(UsageBy.TAG, UsageBy.DAY),
)
ROWS_MAX: Final = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """From `since_ns` on and before `until_ns`.  Rows are in the order of UsageRow's fields."""

    since_ns: int
    until_ns: int
    rows: Sequence[UsageRow]
    records_since_ns: int = 0  #: the records of what came before may be gone, and only totals be left

    @property
    def total(self) -> UsageTotals:
        return reduce(merge_totals, (row.totals for row in self.rows), NOTHING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """A price that records were charged by, and its terms as JSON."""

    id: str
    terms: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """A time at which records of a bill were priced anew."""

    at_ns: int
    changed: int
    cost_nano_usd_before: int | None
    cost_nano_usd_after: int | None


def load_bill(
    database: Database,
    *,
    by: Sequence[UsageBy],
    since_ns: int,
    until_ns: int,
    tag: str | None = None,
    where: Mapping[str, Any] | None = None,
    rows_max: int = ROWS_MAX,
) -> Bill:
    """`where` holds filters by the names that UsageQuery has for them.

    Raises UsageQueryInvalid (more than `rows_max` rows too), NoLongerKept, StoreBusy, StoreUnavailable.
    """
    if wrong := [each.value for each in by if each not in BILL_BY]:
        raise UsageQueryInvalid(f"a bill can't be told apart by {', '.join(wrong)}", param="by")
    query = UsageQuery(
        by=tuple(by), since_ns=since_ns, until_ns=until_ns, tag=tag, figures=FIGURES, rows_max=rows_max
    )
    query = replace(query, **(where or {}))
    rows = load_usage(database, query)
    with database.read() as connection:
        records_since_ns = load_marks(connection)[Kept.RECORDS].gone_before_ns
    return Bill(since_ns=since_ns, until_ns=until_ns, rows=rows, records_since_ns=records_since_ns)


def load_terms(database: Database) -> list[Terms]:
    """All prices that records were ever charged by."""
    with database.read() as connection:
        return [Terms(id=row.id, terms=row.terms) for row in connection.execute(select(prices))]


def load_corrections(database: Database, since_ns: int, until_ns: int) -> list[Correction]:
    """The times at which records of a period were priced anew, the oldest first."""
    known = repricings.c
    query = select(repricings).where(
        known.since_ns.is_(None) | (known.since_ns < until_ns),
        known.until_ns.is_(None) | (known.until_ns > since_ns),
    )
    with database.read() as connection:
        return [
            Correction(
                at_ns=row["at_ns"],
                changed=row["changed"],
                cost_nano_usd_before=row["cost_nano_usd_before"],
                cost_nano_usd_after=row["cost_nano_usd_after"],
            )
            for row in connection.execute(query.order_by(known.id)).mappings()
        ]


def find_month(text: str) -> tuple[int, int]:
    """The first nanosecond of a month like `2026-11` (UTC), and that of the next.  Raises ValueError."""
    found = re.fullmatch(r"([0-9]{4})-([0-9]{2})", text)
    if found is None or not 1970 <= int(found[1]) <= 2200 or not 1 <= int(found[2]) <= 12:
        raise ValueError(f"{text} is not a month; write one like 2026-11")
    year, month = int(found[1]), int(found[2])
    begin = datetime(year, month, 1, tzinfo=UTC)
    end = datetime(year + month // 12, month % 12 + 1, 1, tzinfo=UTC)
    return int(begin.timestamp()) * 10**9, int(end.timestamp()) * 10**9


def name_month(at_ns: int) -> str:
    """The month in which a moment lies."""
    return datetime.fromtimestamp(at_ns // 10**9, tz=UTC).strftime("%Y-%m")
