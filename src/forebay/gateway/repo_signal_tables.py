"""The table of reported load, as SQLAlchemy names it; the migrations in `store` make it.  Holds no query."""

from sqlalchemy import BigInteger, Column, ForeignKeyConstraint, String, Table

from forebay.gateway.repo_tables import metadata, projects

#: The last report of each; a value in millionths.
signals = Table(
    "gateway_signals",
    metadata,
    Column("team", String(100), primary_key=True),
    Column("project", String(100), primary_key=True),
    Column("name", String(40), primary_key=True),
    Column("value_micro", BigInteger, nullable=False),
    Column("reported_ns", BigInteger, nullable=False),
    Column("ttl_ns", BigInteger),
    Column("version", BigInteger, nullable=False),
    ForeignKeyConstraint(["team", "project"], [projects.c.team, projects.c.name]),
)
