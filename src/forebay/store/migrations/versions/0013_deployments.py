"""Manifests of deployments, with their history."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    op.create_table(
        "deploy_manifests",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), nullable=False),
        sa.Column("name", sa.String(40), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("manifest", sa.Text()),
        sa.Column("at_ns", sa.BigInteger(), nullable=False),
        sa.Column("actor_id", sa.String(300), nullable=False),
        sa.Column("actor_name", sa.String(200), nullable=False),
        sa.Column("actor_issuer", sa.String(500)),
        sa.Column("note", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_deploy_manifests"),
        sa.UniqueConstraint("name", "generation", name="uq_deploy_manifests_name_generation"),
        sqlite_autoincrement=True,
    )
