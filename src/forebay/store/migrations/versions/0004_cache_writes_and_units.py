"""Tokens that were written to a prompt cache, as a class of their own, and what else targets count."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

TABLES = ("ledger_events", "ledger_usage_hourly", "ledger_usage_daily")


def upgrade() -> None:
    """Of records that are there already nobody told such tokens apart: they are unknown, and stay so."""
    for table in TABLES:
        op.add_column(table, sa.Column("tokens_input_cache_write", sa.BigInteger()))
    op.add_column("ledger_events", sa.Column("units", sa.Text()))
