"""Files and batches of callers; of a record, the line of a batch that it is for."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    op.create_table(
        "batch_files",
        sa.Column("id", sa.String(40), primary_key=True),
        sa.Column("team", sa.String(100), nullable=False),
        sa.Column("project", sa.String(100), nullable=False),
        sa.Column("key_id", sa.String(40), nullable=False),
        sa.Column("filename", sa.Text(), nullable=False),
        sa.Column("purpose", sa.String(20), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("store", sa.String(40), nullable=False),
        sa.Column("created_ns", sa.BigInteger(), nullable=False),
        sa.Column("expires_ns", sa.BigInteger()),
    )
    op.create_index("ix_batch_files_owner", "batch_files", ["team", "project", "created_ns", "id"])
    op.create_index("ix_batch_files_expires_ns", "batch_files", ["expires_ns"])
    op.create_table(
        "batch_batches",
        sa.Column("id", sa.String(40), primary_key=True),
        sa.Column("team", sa.String(100), nullable=False),
        sa.Column("project", sa.String(100), nullable=False),
        sa.Column("key_id", sa.String(40), nullable=False),
        sa.Column("store", sa.String(40), nullable=False),
        sa.Column("endpoint", sa.String(40), nullable=False),
        sa.Column("input_file", sa.String(40), nullable=False),
        sa.Column("completion_window", sa.String(20), nullable=False),
        sa.Column("metadata", sa.Text()),
        sa.Column("status", sa.String(20), nullable=False),
        sa.Column("created_ns", sa.BigInteger(), nullable=False),
        sa.Column("expires_ns", sa.BigInteger(), nullable=False),
        sa.Column("times", sa.Text(), nullable=False),
        sa.Column("total", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("completed", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("failed", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("output_file", sa.String(40), nullable=False),
        sa.Column("error_file", sa.String(40), nullable=False),
        sa.Column("has_output", sa.Boolean(), nullable=False),
        sa.Column("has_errors", sa.Boolean(), nullable=False),
        sa.Column("errors", sa.Text(), nullable=False),
    )
    op.create_index("ix_batch_batches_owner", "batch_batches", ["team", "project", "created_ns", "id"])
    op.create_index("ix_batch_batches_status", "batch_batches", ["status", "store"])
    op.add_column("ledger_events", sa.Column("batch", sa.Text(), nullable=False, server_default=""))
