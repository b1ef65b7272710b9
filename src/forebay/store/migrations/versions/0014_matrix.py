"""Trials of combinations of model version, engine, hardware and precision."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    op.create_table(
        "matrix_trials",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("model", sa.String(200), nullable=False),
        sa.Column("model_version", sa.String(200), nullable=False),
        sa.Column("engine", sa.String(200), nullable=False),
        sa.Column("engine_version", sa.String(200), nullable=False),
        sa.Column("hardware", sa.String(200), nullable=False),
        sa.Column("precision", sa.String(200), nullable=False),
        sa.Column("outcome", sa.String(20), nullable=False),
        sa.Column("at_ns", sa.BigInteger(), nullable=False),
        sa.Column("source", sa.String(20), nullable=False),
        sa.Column("figures", sa.Text(), nullable=False),
        sa.Column("environment", sa.String(64), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_matrix_trials"),
    )
    op.create_index("ix_matrix_trials_model", "matrix_trials", ["model"])
