"""Totals by model version, experiment, variant and tag; how far back the ledger is kept."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

OLD_PLACES = ("team", "project", "key_id", "model", "pool", "tier", "region")
NEW_PLACES = ("version", "experiment", "variant")
COUNTS = ("requests", "failed", "abandoned", "estimated", "unpriced")
MAYBE_COUNTS = (
    *("tokens_input", "tokens_input_cached", "tokens_input_audio"),
    *("tokens_output", "tokens_output_reasoning", "tokens_output_audio", "tokens_input_cache_write"),
    "cost_nano_usd",
)
TIMES = tuple(
    f"{name}_{part}" for name in ("duration", "first_token", "overhead") for part in ("ns_sum", "count")
)


def upgrade() -> None:
    op.add_column("ledger_events", sa.Column("version", sa.Text(), nullable=False, server_default=""))
    move_totals("ledger_usage_hourly", "hour")
    move_totals("ledger_usage_daily", "day")
    create_totals(
        "ledger_tags_daily",
        sa.Column("tag", sa.Text(), nullable=False),
        sa.Column("day", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("is_rest", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
    )
    op.create_table(
        "ledger_removals",
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("gone_before_ns", sa.BigInteger(), nullable=False),
        sa.Column("removed", sa.BigInteger(), nullable=False),
        sa.Column("removed_at_ns", sa.BigInteger()),
        sa.PrimaryKeyConstraint("kind", name="pk_ledger_removals"),
    )


def move_totals(table: str, period: str) -> None:
    """No record had a version, an experiment or a variant so far, so the sums stay as they are."""
    old = f"{table}_old"
    op.rename_table(table, old)
    if op.get_bind().dialect.name == "postgresql":
        op.execute(sa.text(f"ALTER TABLE {old} RENAME CONSTRAINT pk_{table} TO pk_{old}"))
    create_totals(table, sa.Column(period, sa.Integer(), autoincrement=False, nullable=False))
    kept = ", ".join((period, *OLD_PLACES, *COUNTS, *MAYBE_COUNTS, *TIMES))
    op.execute(
        sa.text(
            f"INSERT INTO {table} ({kept}, {', '.join(NEW_PLACES)}, is_other) "
            f"SELECT {kept}, '', '', '', 0 FROM {old}"
        )
    )
    op.drop_table(old)


def create_totals(table: str, *periods: "sa.Column[object]") -> None:
    places = (*OLD_PLACES, *NEW_PLACES)
    op.create_table(
        table,
        *periods,
        *(sa.Column(name, sa.Text(), nullable=False) for name in places),
        sa.Column("is_other", sa.Integer(), autoincrement=False, nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in COUNTS),
        *(sa.Column(name, sa.BigInteger()) for name in MAYBE_COUNTS),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in TIMES),
        sa.PrimaryKeyConstraint(*(each.name for each in periods), *places, "is_other", name=f"pk_{table}"),
        sqlite_with_rowid=False,
    )
