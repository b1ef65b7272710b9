"""The tables of files and batches, as SQLAlchemy names them; a migration in `store` makes them."""

from sqlalchemy import BigInteger, Boolean, Column, Index, Integer, String, Table, Text

from forebay.store.database import make_metadata

metadata = make_metadata()

#: What callers have sent, and what batches have made.  The contents lie in the folder of `store`'s machine.
files = Table(
    "batch_files",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("team", String(100), nullable=False),
    Column("project", String(100), nullable=False),
    Column("key_id", String(40), nullable=False),
    Column("filename", Text, nullable=False),
    Column("purpose", String(20), nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("sha256", String(64), nullable=False),
    Column("store", String(40), nullable=False),
    Column("created_ns", BigInteger, nullable=False),
    Column("expires_ns", BigInteger),  # NULL: never
    Index("ix_batch_files_owner", "team", "project", "created_ns", "id"),
    Index("ix_batch_files_expires_ns", "expires_ns"),
)

batches = Table(
    "batch_batches",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("team", String(100), nullable=False),
    Column("project", String(100), nullable=False),
    Column("key_id", String(40), nullable=False),
    Column("store", String(40), nullable=False),
    Column("endpoint", String(40), nullable=False),
    Column("input_file", String(40), nullable=False),
    Column("completion_window", String(20), nullable=False),
    Column("metadata", Text),  # a JSON object of strings; NULL: none
    Column("status", String(20), nullable=False),
    Column("created_ns", BigInteger, nullable=False),
    Column("expires_ns", BigInteger, nullable=False),
    Column("times", Text, nullable=False),  # a JSON object: when each state began
    Column("total", Integer, nullable=False, server_default="0"),
    Column("completed", Integer, nullable=False, server_default="0"),
    Column("failed", Integer, nullable=False, server_default="0"),
    Column("output_file", String(40), nullable=False),
    Column("error_file", String(40), nullable=False),
    Column("has_output", Boolean, nullable=False),
    Column("has_errors", Boolean, nullable=False),
    Column("errors", Text, nullable=False),  # a JSON list
    Index("ix_batch_batches_owner", "team", "project", "created_ns", "id"),
    Index("ix_batch_batches_status", "status", "store"),
)
