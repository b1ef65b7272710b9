"""The ledger's tables of totals, whole, as the folds over its events have them."""

from sqlalchemy import Connection, RowMapping, Table, select

from forebay.ledger.rollup import DAY_HOURS, TOTALS, TagCell, UsageCell, UsageTotals
from forebay.ledger.tables import PLACES, tags_daily, usage_daily, usage_hourly


def load_usage_cells(connection: Connection) -> dict[UsageCell, UsageTotals]:
    """The whole table of hourly totals, as `rollup.fold_usage` has them."""
    return {_make_cell(row, row["hour"]): _make_totals(row) for row in _load_rows(connection, usage_hourly)}


def load_daily_cells(connection: Connection) -> dict[UsageCell, UsageTotals]:
    """The whole table of daily totals, as `rollup.fold_days` has them."""
    rows = _load_rows(connection, usage_daily)
    return {_make_cell(row, row["day"] * DAY_HOURS): _make_totals(row) for row in rows}


def load_tag_cells(connection: Connection) -> dict[TagCell, UsageTotals]:
    """The whole table of the tags' totals, as `fold_tag` has them."""
    return {
        TagCell(
            row["tag"], row["day"], row["is_rest"], row["value"], _make_cell(row, row["day"] * DAY_HOURS)
        ): _make_totals(row)
        for row in _load_rows(connection, tags_daily)
    }


def _load_rows(connection: Connection, table: Table) -> list[RowMapping]:
    return list(connection.execute(select(table)).mappings())


def _make_cell(row: RowMapping, hour: int) -> UsageCell:
    return UsageCell(hour, *(row[name] for name in PLACES), row["is_other"])


def _make_totals(row: RowMapping) -> UsageTotals:
    return UsageTotals(**{name: row[name] for name in TOTALS})
