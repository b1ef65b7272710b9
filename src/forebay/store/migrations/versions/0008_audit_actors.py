"""Actors of the audit whom an identity provider knows: longer subjects, and whose they are."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.add_column("gateway_audit", sa.Column("actor_issuer", sa.String(500)))
    if op.get_bind().dialect.name == "postgresql":  # SQLite holds no text to its length
        op.alter_column("gateway_audit", "actor_id", type_=sa.String(300), existing_nullable=False)
