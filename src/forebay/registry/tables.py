"""The tables of the registry, as SQLAlchemy names them; migrations in `store` make them.  No query."""

from sqlalchemy import BigInteger, Column, Integer, String, Table, Text, UniqueConstraint

from forebay.store.database import make_metadata

metadata = make_metadata()
_ID = BigInteger().with_variant(Integer, "sqlite")

#: A row for each name.  `versions_made` only goes up, so that a number is never given twice.
models = Table(
    "registry_models",
    metadata,
    Column("name", String(48), primary_key=True),
    Column("versions_made", Integer, nullable=False),
    Column("at_ns", BigInteger, nullable=False),
)

#: A row for each version that is there; of what was deleted the audit tells.
versions = Table(
    "registry_versions",
    metadata,
    Column("id", _ID, primary_key=True, autoincrement=True),
    Column("name", String(48), nullable=False),
    Column("version", Integer, nullable=False),
    Column("digest", String(64), nullable=False),
    Column("kind", String(10), nullable=False),
    Column("files", Integer, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("origin", Text, nullable=False),
    Column("description", Text, nullable=False),
    Column("tags", Text, nullable=False),  # a JSON object of strings
    Column("at_ns", BigInteger, nullable=False),
    Column("actor_id", String(300), nullable=False),
    Column("actor_name", String(200), nullable=False),
    Column("actor_issuer", String(500)),
    UniqueConstraint("name", "version", name="uq_registry_versions_version"),
    UniqueConstraint("name", "digest", name="uq_registry_versions_digest"),
)

#: A row for each change of an alias; the last of an alias holds.
aliases = Table(
    "registry_aliases",
    metadata,
    Column("id", _ID, primary_key=True, autoincrement=True),
    Column("name", String(48), nullable=False, index=True),
    Column("alias", String(48), nullable=False),
    Column("version", Integer),  # NULL: it was removed
    Column("at_ns", BigInteger, nullable=False),
    Column("actor_id", String(300), nullable=False),
    Column("actor_name", String(200), nullable=False),
    Column("actor_issuer", String(500)),
    Column("note", Text, nullable=False),
    sqlite_autoincrement=True,
)
