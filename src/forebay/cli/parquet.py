"""Writes a bill as Parquet, with pyarrow, which is an option (`forebay[parquet]`) and only imported here."""

import importlib.util
from collections.abc import Collection, Mapping, Sequence
from decimal import Decimal
from pathlib import Path

from forebay.cli.terminal import Failure

MONEY = "cost_usd"


def find_parquet() -> None:
    """Raises Failure where Parquet can't be written."""
    if importlib.util.find_spec("pyarrow") is None:
        raise Failure(
            "Parquet needs the package pyarrow, which is not installed",
            hint="pip install 'forebay[parquet]', or take --csv",
        )


def write_parquet(
    file: Path, names: Sequence[str], rows: Sequence[Mapping[str, object]], counts: Collection[str]
) -> None:
    """Costs as decimals with nine places, `counts` as integers, all else as text.  Raises OSError."""
    import pyarrow as pa
    from pyarrow import parquet

    columns = {}
    for name in names:
        values = [row[name] for row in rows]
        if name == MONEY:
            known = [None if value is None else Decimal(str(value)) for value in values]
            columns[name] = pa.array(known, type=pa.decimal128(38, 9))
        else:
            columns[name] = pa.array(values, type=pa.int64() if name in counts else pa.string())
    parquet.write_table(pa.table(columns), file)
