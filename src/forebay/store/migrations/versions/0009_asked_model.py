"""Which model a caller asked for where another one answered in its place."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.add_column("ledger_events", sa.Column("asked_model", sa.Text(), nullable=False, server_default=""))
