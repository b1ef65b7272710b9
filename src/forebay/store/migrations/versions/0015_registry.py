"""Registered models: versions, and the moves of their aliases."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"


def _id() -> sa.Column[int]:
    kind = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    return sa.Column("id", kind, autoincrement=True, nullable=False)


def _actor() -> tuple[sa.Column[str], ...]:
    return (
        sa.Column("actor_id", sa.String(300), nullable=False),
        sa.Column("actor_name", sa.String(200), nullable=False),
        sa.Column("actor_issuer", sa.String(500)),
    )


def upgrade() -> None:
    op.create_table(
        "registry_models",
        sa.Column("name", sa.String(48), nullable=False),
        sa.Column("versions_made", sa.Integer(), nullable=False),
        sa.Column("at_ns", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_registry_models"),
    )
    op.create_table(
        "registry_versions",
        _id(),
        sa.Column("name", sa.String(48), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("kind", sa.String(10), nullable=False),
        sa.Column("files", sa.Integer(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("origin", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("tags", sa.Text(), nullable=False),
        sa.Column("at_ns", sa.BigInteger(), nullable=False),
        *_actor(),
        sa.PrimaryKeyConstraint("id", name="pk_registry_versions"),
        sa.UniqueConstraint("name", "version", name="uq_registry_versions_version"),
        sa.UniqueConstraint("name", "digest", name="uq_registry_versions_digest"),
    )
    op.create_table(
        "registry_aliases",
        _id(),
        sa.Column("name", sa.String(48), nullable=False),
        sa.Column("alias", sa.String(48), nullable=False),
        sa.Column("version", sa.Integer()),
        sa.Column("at_ns", sa.BigInteger(), nullable=False),
        *_actor(),
        sa.Column("note", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_registry_aliases"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_registry_aliases_name", "registry_aliases", ["name"])
