"""The tables of alerts, as SQLAlchemy names them; a migration in `store` makes them.  Holds no query."""

from sqlalchemy import BigInteger, Column, ForeignKey, Index, Integer, String, Table, Text, UniqueConstraint

from forebay.gateway.repo_tables import metadata

#: Append-only, but for old ones that are removed.  A row says that an alert was told, and what.
alerts = Table(
    "gateway_alerts",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("event_id", String(40), nullable=False, unique=True),
    Column("at_ns", BigInteger, nullable=False),
    Column("kind", String(20), nullable=False),
    Column("limit_key", String(32), nullable=False),  # a digest: ids may be longer than an index takes
    Column("limit_id", Text, nullable=False),
    Column("owner", String(250), nullable=False),
    Column("begins_ns", BigInteger, nullable=False),  # the period
    Column("share", Integer, nullable=False),  # thousandths
    Column("amount", BigInteger, nullable=False),
    Column("data", Text, nullable=False),  # JSON
    UniqueConstraint("limit_key", "begins_ns", "kind", "share", "amount"),
    Index(None, "at_ns"),
    sqlite_autoincrement=True,
)

#: What is to be sent, was sent, or could not be.
deliveries = Table(
    "gateway_alert_deliveries",
    metadata,
    Column("alert_id", ForeignKey(alerts.c.id), primary_key=True),
    Column("webhook", String(1000), primary_key=True),  # its address as configured
    Column("state", String(20), nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("due_ns", BigInteger, nullable=False),
    Column("ended_ns", BigInteger),
    Column("status", Integer),
    Column("error", Text, nullable=False),
    Index(None, "state", "due_ns"),
)
