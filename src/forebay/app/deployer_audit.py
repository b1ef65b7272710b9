"""Puts the moves of changes of deployments into the audit, each once, however often it is asked to.

A move is saved with what follows from it, and told from there until the audit holds it; so whoever is killed
in between tells it again, and what is there already is not added.  Decides nothing.
"""

from sqlalchemy import Connection, select

from forebay.app.deployer_state import Move
from forebay.gateway.repo_audit import Change, append_audit, lock_audit
from forebay.gateway.repo_tables import audit
from forebay.gateway.tenancy import FOREBAY
from forebay.store.database import Database


def tell_move(database: Database, move: Move) -> None:
    """Raises StoreError."""
    with database.begin() as connection:
        append_move(connection, move)


def append_move(connection: Connection, move: Move) -> None:
    """Within a transaction; nothing where it is there already."""
    action, at_ns = f"deployment.rollout_{move.told.turn.value}", round(move.at_s * 1e9)
    lock_audit(connection)
    is_there = select(audit.c.id).where(
        audit.c.subject == move.name, audit.c.action == action, audit.c.at_ns == at_ns
    )
    if connection.execute(is_there.limit(1)).first() is not None:
        return
    after = {"revision": move.told.revision, "reason": move.told.message}
    append_audit(connection, FOREBAY, Change(action=action, subject=move.name, after=after), at_ns)
