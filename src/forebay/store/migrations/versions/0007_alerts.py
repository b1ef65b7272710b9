"""Alerts of limits that were told, and their way to each webhook."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    create_alerts()
    create_deliveries()


def create_alerts() -> None:
    op.create_table(
        "gateway_alerts",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), nullable=False),
        sa.Column("event_id", sa.String(40), nullable=False),
        sa.Column("at_ns", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("limit_key", sa.String(32), nullable=False),
        sa.Column("limit_id", sa.Text(), nullable=False),
        sa.Column("owner", sa.String(250), nullable=False),
        sa.Column("begins_ns", sa.BigInteger(), nullable=False),
        sa.Column("share", sa.Integer(), nullable=False),
        sa.Column("amount", sa.BigInteger(), nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_gateway_alerts"),
        sa.UniqueConstraint("event_id", name="uq_gateway_alerts_event_id"),
        sa.UniqueConstraint(
            "limit_key",
            "begins_ns",
            "kind",
            "share",
            "amount",
            name="uq_gateway_alerts_limit_key_begins_ns_kind_share_amount",
        ),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_gateway_alerts_at_ns", "gateway_alerts", ["at_ns"])


def create_deliveries() -> None:
    op.create_table(
        "gateway_alert_deliveries",
        sa.Column("alert_id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), nullable=False),
        sa.Column("webhook", sa.String(1000), nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("due_ns", sa.BigInteger(), nullable=False),
        sa.Column("ended_ns", sa.BigInteger()),
        sa.Column("status", sa.Integer()),
        sa.Column("error", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("alert_id", "webhook", name="pk_gateway_alert_deliveries"),
        sa.ForeignKeyConstraint(
            ["alert_id"], ["gateway_alerts.id"], name="fk_gateway_alert_deliveries_alert_id"
        ),
    )
    op.create_index(
        "ix_gateway_alert_deliveries_state_due_ns", "gateway_alert_deliveries", ["state", "due_ns"]
    )
