"""A bill as rows for programs.  Costs are exact decimals of USD, and what is unknown is never 0."""

import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Final

from forebay.cli.csv_file import write_rows
from forebay.ledger.tables import TOKEN_CLASSES
from forebay.ledger.usage import UsageBy, UsageRow

Fields = Mapping[str, object]

COUNTS: Final = ("requests", "estimated", "unpriced", *(f"tokens_{name}" for name in TOKEN_CLASSES))


def list_fields(
    row: UsageRow, by: Sequence[UsageBy], tag: str | None, key_names: Mapping[str, str]
) -> dict[str, object]:
    """A row by the names of its columns.  What is unknown is None, and never 0."""
    named: dict[str, object] = {}
    for each in by:
        match each:
            case UsageBy.DAY:
                named["day"] = datetime.fromtimestamp(row.start_s or 0, tz=UTC).strftime("%Y-%m-%d")
            case UsageBy.TAG:
                named[f"tag_{tag}"] = row.tag or ""
            case UsageBy.KEY:
                named |= {"key": row.key or "", "key_name": key_names.get(row.key or "", "")}
            case _:
                named[each.value] = getattr(row, each.value) or ""
    counts = {name: getattr(row.totals, name) for name in COUNTS}
    return named | counts | {"cost_usd": format_usd(row.totals.cost_nano_usd)}


def format_usd(nano_usd: int | None) -> str | None:
    """All nine decimals; None where it is unknown."""
    return None if nano_usd is None else format(Decimal(nano_usd).scaleb(-9), "f")


def write_csv(file: str, names: Sequence[str], rows: Sequence[Fields]) -> None:
    """To a file, or to standard output for `-`.  Raises OSError."""
    opened = (
        nullcontext(sys.stdout) if file == "-" else Path(file).open("w", newline="", encoding="utf-8")  # noqa: SIM115 - the `with` below closes it
    )
    with opened as stream:
        write_rows(stream, names, rows)
