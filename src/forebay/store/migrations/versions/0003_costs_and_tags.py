"""What each request cost, and its tags; hourly totals by whose usage it was and what answered."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

TOKEN_CLASSES = ("input", "input_cached", "input_audio", "output", "output_reasoning", "output_audio")
HOUR_NS = 3600 * 10**9
PLACES = ("team", "project", "key_id", "model", "pool", "tier", "region")


def upgrade() -> None:
    add_costs()
    create_prices()
    create_repricings()
    make_totals_anew()


def add_costs() -> None:
    """Of records that are there already the cost is unknown until they are priced."""
    op.add_column("ledger_events", sa.Column("cost_nano_usd", sa.BigInteger()))
    op.add_column("ledger_events", sa.Column("price_id", sa.String(40), nullable=False, server_default=""))
    op.add_column("ledger_events", sa.Column("tags", sa.Text()))
    op.execute(sa.text("UPDATE ledger_events SET cost_nano_usd = 0 WHERE usage_source = 'none'"))


def create_prices() -> None:
    op.create_table(
        "ledger_prices",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("terms", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_ledger_prices"),
    )


def create_repricings() -> None:
    op.create_table(
        "ledger_repricings",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), nullable=False),
        sa.Column("at_ns", sa.BigInteger(), nullable=False),
        sa.Column("since_ns", sa.BigInteger()),
        sa.Column("until_ns", sa.BigInteger()),
        *(
            sa.Column(name, sa.BigInteger(), nullable=False)
            for name in ("records", "changed", "unpriced_before", "unpriced_after")
        ),
        *(sa.Column(name, sa.BigInteger()) for name in ("cost_nano_usd_before", "cost_nano_usd_after")),
        sa.PrimaryKeyConstraint("id", name="pk_ledger_repricings"),
        sqlite_autoincrement=True,
    )


def make_totals_anew() -> None:
    """Hourly totals are a fold of the records and daily ones of those, so both are folded and not moved."""
    op.drop_table("ledger_usage_hourly")
    create_totals("ledger_usage_hourly", "hour")
    create_totals("ledger_usage_daily", "day")
    sums = {
        "requests": "count(*)",
        "failed": "sum(CASE WHEN outcome = 'failed' THEN 1 ELSE 0 END)",
        "abandoned": "sum(CASE WHEN outcome = 'abandoned' THEN 1 ELSE 0 END)",
        "estimated": "sum(CASE WHEN usage_source = 'estimated' THEN 1 ELSE 0 END)",
        "unpriced": "sum(CASE WHEN cost_nano_usd IS NULL THEN 1 ELSE 0 END)",
        **{f"tokens_{name}": f"sum(tokens_{name})" for name in TOKEN_CLASSES},
        "cost_nano_usd": "sum(cost_nano_usd)",
    }
    for name in ("duration", "first_token", "overhead"):
        sums[f"{name}_ns_sum"] = f"coalesce(sum({name}_ns), 0)"
        sums[f"{name}_count"] = f"count({name}_ns)"
    fold("ledger_usage_hourly", "hour", f"at_ns / {HOUR_NS}", sums, "ledger_events")
    sums = {name: f"sum({name})" for name in sums}
    fold("ledger_usage_daily", "day", "hour / 24", sums, "ledger_usage_hourly")


def create_totals(table: str, period: str) -> None:
    counts = ("requests", "failed", "abandoned", "estimated", "unpriced")
    times = ("duration", "first_token", "overhead")
    op.create_table(
        table,
        sa.Column(period, sa.Integer(), autoincrement=False, nullable=False),
        *(sa.Column(name, sa.Text(), nullable=False) for name in PLACES),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in counts),
        *(sa.Column(f"tokens_{name}", sa.BigInteger()) for name in TOKEN_CLASSES),
        sa.Column("cost_nano_usd", sa.BigInteger()),
        *(
            sa.Column(f"{name}_{part}", sa.BigInteger(), nullable=False)
            for name in times
            for part in ("ns_sum", "count")
        ),
        sa.PrimaryKeyConstraint(period, *PLACES, name=f"pk_{table}"),
        sqlite_with_rowid=False,
    )


def fold(table: str, period: str, when: str, sums: dict[str, str], source: str) -> None:
    places = ", ".join(PLACES)
    op.execute(
        sa.text(
            f"INSERT INTO {table} ({period}, {places}, {', '.join(sums)}) "
            f"SELECT {when}, {places}, {', '.join(sums.values())} FROM {source} GROUP BY {when}, {places}"
        )
    )
