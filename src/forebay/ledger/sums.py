"""The SQL of `rollup.compute_totals`, over events and over totals.  Runs none of it."""

from collections.abc import Iterable

from sqlalchemy import (
    ColumnElement,
    Integer,
    LargeBinary,
    Table,
    Text,
    and_,
    case,
    cast,
    func,
    literal,
    select,
)
from sqlalchemy.dialects.postgresql import JSON

from forebay.core.events import Outcome, UsageSource
from forebay.ledger.rollup import HOUR_NS, LABEL_BYTES_MAX, TOTALS
from forebay.ledger.tables import TOKEN_CLASSES, events


def hour_of_event() -> ColumnElement[int]:
    """Hours since the epoch, UTC."""
    return cast(events.c.at_ns // HOUR_NS, Integer)


def find_tag(name: str, dialect: str) -> ColumnElement[str]:
    """A tag's value, whatever characters are in its name; empty where an event has no such tag."""
    if dialect == "postgresql":
        value: ColumnElement[str] = cast(events.c.tags, JSON)[literal(name, Text)].astext
    else:
        tag = func.json_each(events.c.tags).table_valued("key", "value")
        value = select(tag.c.value).where(tag.c.key == name).correlate(events).scalar_subquery()
    return func.coalesce(value, "")


def can_be_named(label: ColumnElement[str], dialect: str) -> ColumnElement[bool]:
    """As `rollup.can_be_named`."""
    length = func.octet_length(label) if dialect == "postgresql" else func.length(cast(label, LargeBinary))
    # Hardly any is long, and the characters of a text are quicker to count than its bytes.
    return and_(func.length(label) <= LABEL_BYTES_MAX, length <= LABEL_BYTES_MAX)


def is_pair_long(dialect: str) -> ColumnElement[int]:
    """1 for events whose experiment or variant is too long for a name in totals."""
    names = (can_be_named(events.c[name], dialect) for name in ("experiment", "variant"))
    return case((and_(*names), 0), else_=1)


def sum_totals(table: Table, figures: Iterable[str] = TOTALS) -> list[ColumnElement[int]]:
    """Over a table of totals."""
    return [func.sum(table.c[name]).label(name) for name in figures]


def sum_events(figures: Iterable[str] = TOTALS) -> list[ColumnElement[int]]:
    known = events.c
    tests: dict[str, ColumnElement[bool]] = {
        "failed": known.outcome == Outcome.FAILED.value,
        "abandoned": known.outcome == Outcome.ABANDONED.value,
        "estimated": known.usage_source == UsageSource.ESTIMATED.value,
        "unpriced": known.cost_nano_usd.is_(None),
    }
    totals: dict[str, ColumnElement[int]] = {"requests": func.count()}
    totals |= {name: func.sum(case((test, 1), else_=0)) for name, test in tests.items()}
    totals |= {f"tokens_{name}": func.sum(known[f"tokens_{name}"]) for name in TOKEN_CLASSES}
    totals["cost_nano_usd"] = func.sum(known.cost_nano_usd)
    for name in ("duration", "first_token", "overhead"):
        # A sum over no measurement is 0, and its count says so; unknown tokens and costs stay unknown.
        totals[f"{name}_ns_sum"] = func.coalesce(func.sum(known[f"{name}_ns"]), 0)
        totals[f"{name}_count"] = func.count(known[f"{name}_ns"])
    return [totals[name].label(name) for name in figures]
