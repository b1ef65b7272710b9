"""The table of applied manifests, as SQLAlchemy names it; migrations in `store` make it.  Holds no query."""

from sqlalchemy import BigInteger, Column, Integer, String, Table, Text, UniqueConstraint

from forebay.store.database import make_metadata

metadata = make_metadata()

#: A row for each change, by its name and a number that goes up; the last of a name holds.  The last id tells
#: whether any was made.
manifests = Table(
    "deploy_manifests",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("name", String(40), nullable=False),
    Column("generation", Integer, nullable=False),
    Column("manifest", Text),  # JSON; null: it was deleted
    Column("at_ns", BigInteger, nullable=False),
    Column("actor_id", String(300), nullable=False),
    Column("actor_name", String(200), nullable=False),
    Column("actor_issuer", String(500)),
    Column("note", Text, nullable=False),
    UniqueConstraint("name", "generation"),
    sqlite_autoincrement=True,
)
