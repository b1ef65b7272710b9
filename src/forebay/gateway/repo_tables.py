"""The gateway's tables, as SQLAlchemy names them; the migrations in `store` make them.  Holds no query."""

from sqlalchemy import (
    BigInteger,
    Column,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    String,
    Table,
    Text,
)

from forebay.store.database import make_metadata

metadata = make_metadata()


def _make_rights() -> tuple[Column[object], ...]:
    """`Rights` without the models; lists are JSON."""
    return (
        Column("endpoints", Text, nullable=False, server_default="[]"),
        Column("regions", Text, nullable=False, server_default="[]"),
        Column("tier_max", String(20)),
        Column("context_max_tokens", BigInteger),
        Column("output_max_tokens", BigInteger),
    )


teams = Table(
    "gateway_teams",
    metadata,
    Column("name", String(100), primary_key=True),
    Column("created_ns", BigInteger, nullable=False),
)

#: A project is named within its team, and never renamed: records bear both names.
projects = Table(
    "gateway_projects",
    metadata,
    Column("team", ForeignKey(teams.c.name), primary_key=True),
    Column("name", String(100), primary_key=True),
    Column("models", Text, nullable=False),
    *_make_rights(),
    Column("created_ns", BigInteger, nullable=False),
)

keys = Table(
    "gateway_keys",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("digest", LargeBinary(32), nullable=False, unique=True),
    Column("name", String(200), nullable=False),
    Column("prefix", String(20), nullable=False),
    Column("project", String(100), nullable=False),
    Column("team", String(100), nullable=False),
    Column("models", Text, nullable=False),  # a JSON list of patterns
    *_make_rights(),
    Column("priority", String(20), nullable=False, server_default="standard"),
    Column("created_ns", BigInteger, nullable=False),
    Column("expires_ns", BigInteger),
    Column("revoked_ns", BigInteger),
    Column("rotated_from", String(40)),
    ForeignKeyConstraint(["team", "project"], [projects.c.team, projects.c.name]),
)

#: Of people and programs that use the admin API.
tokens = Table(
    "gateway_tokens",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("digest", LargeBinary(32), nullable=False, unique=True),
    Column("name", String(200), nullable=False),
    Column("prefix", String(20), nullable=False),
    Column("role", String(20), nullable=False),
    Column("created_ns", BigInteger, nullable=False),
    Column("expires_ns", BigInteger),
    Column("revoked_ns", BigInteger),
)

#: Append-only.  Each row commits with the change that it tells of, so its last id tells whether any was made.
audit = Table(
    "gateway_audit",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("at_ns", BigInteger, nullable=False),
    # SQLite holds no text to its length, and keeps the type that the column was made with.
    Column("actor_id", String(300).with_variant(String(40), "sqlite"), nullable=False),
    Column("actor_name", String(200), nullable=False),
    Column("actor_issuer", String(500)),  # of an identity provider's token
    Column("action", String(40), nullable=False),
    Column("subject", String(250), nullable=False),
    Column("before", Text),  # JSON, without secrets
    Column("after", Text),
    Index(None, "subject"),
    sqlite_autoincrement=True,
)
