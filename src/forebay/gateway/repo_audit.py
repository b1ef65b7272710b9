"""The audit: who changed what in the control plane, when, from what to what.  Append-only.

An event is added within the transaction of the change that it tells of, by whoever makes the change, so there
is none without the other.  It holds no secret: keys and tokens appear as ids and visible prefixes.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
from sqlalchemy import Connection, RowMapping, insert, select, text

from forebay.gateway.repo_tables import audit
from forebay.gateway.tenancy import Actor
from forebay.store.database import Database


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEvent:
    """One change.  `before` is None for what was made, `after` for what is gone."""

    id: int
    at_ns: int
    actor: Actor
    action: str  #: such as `key.create`
    subject: str  #: what was changed: an id, or a name
    before: Mapping[str, object] | None
    after: Mapping[str, object] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What `append_audit` is told of a change."""

    action: str
    subject: str
    before: Mapping[str, object] | None = None
    after: Mapping[str, object] | None = None


def append_audit(connection: Connection, actor: Actor, change: Change, now_ns: int) -> None:
    """To be called in the transaction that makes the change.

    Ids go up in the order in which changes commit, so that a reader who has seen one has seen all before it.
    """
    lock_audit(connection)
    connection.execute(
        insert(audit).values(
            at_ns=now_ns,
            actor_id=actor.id[:300],
            actor_name=actor.name[:200],
            actor_issuer=None if actor.issuer is None else actor.issuer[:500],
            action=change.action,
            subject=change.subject,
            before=_encode(change.before),
            after=_encode(change.after),
        )
    )


def lock_audit(connection: Connection) -> None:
    """One writer at a time until the transaction ends, as SQLite has anyway."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("LOCK TABLE gateway_audit IN SHARE ROW EXCLUSIVE MODE"))


class AuditRepo:
    """Reads the audit."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def load_page(
        self, *, limit: int, before_id: int | None = None, subject: str | None = None
    ) -> tuple[AuditEvent, ...]:
        """The newest events first, those older than `before_id` alone; all, or those of one subject."""
        query = select(audit).order_by(audit.c.id.desc()).limit(limit)
        if before_id is not None:
            query = query.where(audit.c.id < before_id)
        if subject is not None:
            query = query.where(audit.c.subject == subject)
        with self._database.read() as connection:
            return tuple(_make_event(row) for row in connection.execute(query).mappings())


def _encode(described: Mapping[str, object] | None) -> str | None:
    return None if described is None else msgspec.json.encode(described).decode()


def _make_event(row: RowMapping) -> AuditEvent:
    before, after = (
        None if row[name] is None else msgspec.json.decode(row[name], type=dict[str, object])
        for name in ("before", "after")
    )
    return AuditEvent(
        id=row["id"],
        at_ns=row["at_ns"],
        actor=Actor(id=row["actor_id"], name=row["actor_name"], issuer=row["actor_issuer"]),
        action=row["action"],
        subject=row["subject"],
        before=before,
        after=after,
    )
