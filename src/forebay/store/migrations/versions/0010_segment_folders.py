"""Whose a segment is: several machines may have folders of their own over one database.

Rows from before belong to nobody; whoever has the file takes the row over.
"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.add_column("ledger_segments", sa.Column("folder", sa.String(40), nullable=False, server_default=""))
