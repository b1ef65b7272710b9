"""The keys of the gateway, and the ledger: events, what could not be read, cursors, the hourly rollup."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

TOKEN_CLASSES = ("input", "input_cached", "input_audio", "output", "output_reasoning", "output_audio")


def upgrade() -> None:
    create_keys()
    create_segments()
    create_events()
    create_quarantine()
    create_usage_hourly()


def create_keys() -> None:
    op.create_table(
        "gateway_keys",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("prefix", sa.String(20), nullable=False),
        sa.Column("project", sa.String(100), nullable=False),
        sa.Column("team", sa.String(100), nullable=False),
        sa.Column("models", sa.Text(), nullable=False),
        sa.Column("created_ns", sa.BigInteger(), nullable=False),
        sa.Column("revoked_ns", sa.BigInteger()),
        sa.PrimaryKeyConstraint("id", name="pk_gateway_keys"),
        sa.UniqueConstraint("digest", name="uq_gateway_keys_digest"),
    )


def create_segments() -> None:
    op.create_table(
        "ledger_segments",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("records", sa.BigInteger(), nullable=False),
        sa.Column("damaged_bytes", sa.BigInteger(), nullable=False),
        sa.Column("torn_bytes", sa.BigInteger(), nullable=False),
        sa.Column("state_since_ns", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_ledger_segments"),
        sa.UniqueConstraint("name", name="uq_ledger_segments_name"),
    )


def create_events() -> None:
    op.create_table(
        "ledger_events",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), nullable=False),
        sa.Column("segment_id", sa.Integer(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("at_ns", sa.BigInteger(), nullable=False),
        sa.Column("key_id", sa.Text(), nullable=False),
        *(
            sa.Column(name, sa.Text(), nullable=False)
            for name in ("project", "team", "endpoint", "model", "target", "pool", "tier", "route_hash")
        ),
        sa.Column("stream", sa.Boolean(), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("outcome", sa.String(20), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        *(sa.Column(f"tokens_{name}", sa.BigInteger()) for name in TOKEN_CLASSES),
        sa.Column("usage_source", sa.String(20), nullable=False),
        sa.Column("first_token_ns", sa.BigInteger()),
        sa.Column("duration_ns", sa.BigInteger(), nullable=False),
        sa.Column("overhead_ns", sa.BigInteger()),
        sa.Column("request_bytes", sa.BigInteger(), nullable=False),
        sa.Column("answer_bytes", sa.BigInteger(), nullable=False),
        sa.Column("experiment", sa.Text(), nullable=False),
        sa.Column("variant", sa.Text(), nullable=False),
        sa.Column("worker", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_ledger_events"),
        sa.UniqueConstraint("segment_id", "position", name="uq_ledger_events_segment_id_position"),
        sa.ForeignKeyConstraint(["segment_id"], ["ledger_segments.id"], name="fk_ledger_events_segment_id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_ledger_events_at_ns", "ledger_events", ["at_ns"])


def create_quarantine() -> None:
    op.create_table(
        "ledger_quarantine",
        sa.Column("segment_id", sa.Integer(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.String(20), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("byte_count", sa.BigInteger(), nullable=False),
        sa.Column("payload", sa.LargeBinary(), nullable=False),
        sa.Column("since_ns", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("segment_id", "position", name="pk_ledger_quarantine"),
        sa.ForeignKeyConstraint(
            ["segment_id"], ["ledger_segments.id"], name="fk_ledger_quarantine_segment_id"
        ),
    )


def create_usage_hourly() -> None:
    op.create_table(
        "ledger_usage_hourly",
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("hour", sa.Integer(), nullable=False),
        *(
            sa.Column(name, sa.BigInteger(), nullable=False)
            for name in ("requests", "failed", "abandoned", "estimated")
        ),
        *(sa.Column(f"tokens_{name}", sa.BigInteger()) for name in TOKEN_CLASSES),
        *(
            sa.Column(f"{name}_{part}", sa.BigInteger(), nullable=False)
            for name in ("duration", "first_token", "overhead")
            for part in ("ns_sum", "count")
        ),
        sa.PrimaryKeyConstraint("key_id", "model", "hour", name="pk_ledger_usage_hourly"),
    )
    op.create_index("ix_ledger_usage_hourly_hour", "ledger_usage_hourly", ["hour"])
