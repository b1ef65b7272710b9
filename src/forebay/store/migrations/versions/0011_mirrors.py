"""Mirrors apart from requests of callers, in records and all totals; fillers, hedges, waits in records."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"

PLACES = (
    *("team", "project", "key_id", "model", "pool", "tier", "region"),
    *("version", "experiment", "variant"),
)
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
    for column in (
        sa.Column("kind", sa.String(20), nullable=False, server_default="request"),
        sa.Column("mirror_of", sa.Text(), nullable=False, server_default=""),
        sa.Column("mirror_same", sa.Boolean()),
        sa.Column("mirrors_dropped", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("filler_ns", sa.BigInteger()),
        sa.Column("queued_ns", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("hedged", sa.Text(), nullable=False, server_default=""),
        sa.Column("hedged_tokens", sa.BigInteger(), nullable=False, server_default="0"),
    ):
        op.add_column("ledger_events", column)
    # Of a time, mirrors are few among the records, and a comparison looks for them alone.
    is_mirror = sa.text("mirror_of != ''")
    op.create_index(
        "ix_ledger_events_mirrors",
        "ledger_events",
        ["at_ns"],
        sqlite_where=is_mirror,
        postgresql_where=is_mirror,
    )
    move_totals("ledger_usage_hourly", _integer("hour"))
    move_totals("ledger_usage_daily", _integer("day"))
    move_totals(
        "ledger_tags_daily",
        sa.Column("tag", sa.Text(), nullable=False),
        _integer("day"),
        _integer("is_rest"),
        sa.Column("value", sa.Text(), nullable=False),
    )


def _integer(name: str) -> "sa.Column[object]":
    return sa.Column(name, sa.Integer(), autoincrement=False, nullable=False)


def move_totals(table: str, *periods: "sa.Column[object]") -> None:
    """There was no mirror so far, so the sums stay as they are."""
    old = f"{table}_old"
    op.rename_table(table, old)
    if op.get_bind().dialect.name == "postgresql":
        op.execute(sa.text(f"ALTER TABLE {old} RENAME CONSTRAINT pk_{table} TO pk_{old}"))
    op.create_table(
        table,
        *periods,
        *(sa.Column(name, sa.Text(), nullable=False) for name in PLACES),
        sa.Column("kind", sa.Text(), nullable=False),
        _integer("is_other"),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in COUNTS),
        *(sa.Column(name, sa.BigInteger()) for name in MAYBE_COUNTS),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in TIMES),
        sa.PrimaryKeyConstraint(
            *(each.name for each in periods), *PLACES, "kind", "is_other", name=f"pk_{table}"
        ),
        sqlite_with_rowid=False,
    )
    kept = ", ".join((*(each.name for each in periods), *PLACES, "is_other", *COUNTS, *MAYBE_COUNTS, *TIMES))
    op.execute(sa.text(f"INSERT INTO {table} ({kept}, kind) SELECT {kept}, 'request' FROM {old}"))
    op.drop_table(old)
