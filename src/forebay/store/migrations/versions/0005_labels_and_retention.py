"""How far back the ledger is kept."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.create_table(
        "ledger_removals",
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("gone_before_ns", sa.BigInteger(), nullable=False),
        sa.Column("removed", sa.BigInteger(), nullable=False),
        sa.Column("removed_at_ns", sa.BigInteger()),
        sa.PrimaryKeyConstraint("kind", name="pk_ledger_removals"),
    )
