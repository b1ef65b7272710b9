"""Callers' keys at rest: made, listed, changed, rotated, revoked.

Runs in the control plane and the command line.

Only the digest of a key is stored: its text exists once, in what `create` and `rotate` return, and can't be
shown again.  Workers see `KeyEntry`s only.
"""

import secrets
from collections.abc import Callable
from typing import Final

import msgspec
from sqlalchemy import Connection, RowMapping, Select, func, select

from forebay.core.clock import Clock
from forebay.core.errors import InvalidValue
from forebay.core.keys import KEY_PREFIX, KeyEntry, Rights, compute_key_digest, narrow_rights
from forebay.gateway.repo_audit import Change, append_audit
from forebay.gateway.repo_tables import audit, keys, projects
from forebay.gateway.repo_teams import check_project_exists, encode_rights, make_rights
from forebay.gateway.tenancy import (
    Actor,
    KeyEnded,
    KeyNotFound,
    KeyRecord,
    KeyTerms,
    NewKey,
    check_name,
    check_owner,
    check_priority,
    check_rights,
    describe_key,
)
from forebay.store.database import Database

SHOWN_CHARS: Final = 8  #: of the key's text; the other 38 still hold 228 random bits
OVERLAP_MAX_S: Final = 366 * 86_400
_OF_PROJECT: Final = "project_rights_"


class KeyRepo:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def create(self, wanted: NewKey, actor: Actor) -> tuple[KeyRecord, str]:
        """Make a key; return it with its plain text.

        Raises:
            InvalidValue: something of it is not usable.
            TeamNotFound, ProjectNotFound: its owner does not exist.
        """
        check_owner("project", wanted.project)
        check_owner("team", wanted.team)
        now_ns = self._clock.wall_ns()
        terms = KeyTerms(
            name=wanted.name,
            rights=wanted.rights,
            priority=wanted.priority,
            expires_ns=wanted.expires_ns,
        )
        _check_terms(terms, now_ns)
        with self._database.begin() as connection:
            check_project_exists(connection, wanted.team, wanted.project)
            return self._insert(connection, wanted, actor, now_ns, rotated_from=None)

    def list(self) -> tuple[KeyRecord, ...]:
        """All keys there ever were, the oldest first."""
        with self._database.read() as connection:
            rows = connection.execute(_select_keys().order_by(keys.c.created_ns, keys.c.id)).mappings().all()
        return tuple(_make_record(row) for row in rows)

    def list_live(self) -> tuple[KeyEntry, ...]:
        """The keys that open something: what goes into a snapshot, in a stable order."""
        now_ns = self._clock.wall_ns()
        query = _select_keys().where(keys.c.revoked_ns.is_(None)).order_by(keys.c.created_ns, keys.c.id)
        with self._database.read() as connection:
            records = [_make_record(row) for row in connection.execute(query).mappings()]
        return tuple(record.entry for record in records if record.is_live(now_ns))

    def get(self, key_id: str) -> KeyRecord:
        """Raises KeyNotFound."""
        with self._database.read() as connection:
            return _load(connection, key_id)

    def change(self, key_id: str, edit: Callable[[KeyTerms], KeyTerms], actor: Actor) -> KeyRecord:
        """The key with other terms.  What stays as it was leaves no event.

        Args:
            edit: pure; is given the terms as they are, within the transaction, so that of two changes at once
                neither undoes what the other names.

        Raises:
            KeyNotFound
            KeyEnded: it is revoked or expired: what has ended stays so.
            InvalidValue: something of it is not usable.
        """
        now_ns = self._clock.wall_ns()
        with self._database.begin() as connection:
            old = _load(connection, key_id, to_change=True)
            _check_lives(old, now_ns)
            before = KeyTerms.of(old)
            wanted = edit(before)
            if wanted == before:
                return old
            _check_terms(wanted, now_ns)
            connection.execute(
                keys.update()
                .where(keys.c.id == key_id)
                .values(
                    name=wanted.name,
                    priority=wanted.priority,
                    expires_ns=wanted.expires_ns,
                    **encode_rights(wanted.rights),
                )
            )
            new = _load(connection, key_id)
            _audit(connection, actor, "key.change", old, new, now_ns)
        return new

    def rotate(
        self, key_id: str, actor: Actor, *, overlap_s: float, expires_ns: int | None = None
    ) -> tuple[KeyRecord, str]:
        """Make a key with the same rights; the old one opens nothing any more when the overlap is over.

        Args:
            overlap_s: 0 ends the old one at once.
            expires_ns: when the new one ends; None takes the old one's end.

        Raises:
            KeyNotFound
            KeyEnded: it is revoked or expired, or another has taken its place already.
            InvalidValue: an overlap of no use, or an end in the past.
        """
        if not 0 <= overlap_s <= OVERLAP_MAX_S:
            raise InvalidValue(f"the overlap is 0 to {OVERLAP_MAX_S} seconds", param="overlap_s")
        now_ns = self._clock.wall_ns()
        _check_expiry(expires_ns, now_ns)
        with self._database.begin() as connection:
            old = _load(connection, key_id, to_change=True)
            _check_can_rotate(connection, old, now_ns)
            wanted = NewKey(
                name=old.entry.name,
                project=old.entry.project,
                team=old.entry.team,
                rights=old.rights,
                priority=old.entry.priority,
                expires_ns=expires_ns or old.entry.expires_ns,
            )
            made, plaintext = self._insert(connection, wanted, actor, now_ns, rotated_from=key_id)
            ends_ns = now_ns + round(overlap_s * 1e9)
            if old.entry.expires_ns is not None:
                ends_ns = min(ends_ns, old.entry.expires_ns)
            connection.execute(keys.update().where(keys.c.id == key_id).values(expires_ns=ends_ns))
            _audit(connection, actor, "key.rotate", old, _load(connection, key_id), now_ns)
        return made, plaintext

    def revoke(self, key_id: str, actor: Actor) -> KeyRecord:
        """End a key.  Revoking it again changes nothing.  Raises KeyNotFound."""
        now_ns = self._clock.wall_ns()
        with self._database.begin() as connection:
            old = _load(connection, key_id, to_change=True)
            if old.revoked_ns is not None:
                return old
            connection.execute(keys.update().where(keys.c.id == key_id).values(revoked_ns=now_ns))
            new = _load(connection, key_id)
            _audit(connection, actor, "key.revoke", old, new, now_ns)
        return new

    def find_last_change(self) -> int:
        """Grows with every change of keys and of what they belong to: each has an event in the audit."""
        with self._database.read() as connection:
            return connection.execute(select(func.max(audit.c.id))).scalar_one() or 0

    def _insert(
        self, connection: Connection, wanted: NewKey, actor: Actor, now_ns: int, *, rotated_from: str | None
    ) -> tuple[KeyRecord, str]:
        plaintext = KEY_PREFIX + secrets.token_urlsafe(32)
        key_id = f"key_{secrets.token_hex(8)}"
        connection.execute(
            keys.insert().values(
                id=key_id,
                digest=compute_key_digest(plaintext),
                name=wanted.name,
                prefix=plaintext[:SHOWN_CHARS],
                project=wanted.project,
                team=wanted.team,
                priority=wanted.priority,
                created_ns=now_ns,
                expires_ns=wanted.expires_ns,
                rotated_from=rotated_from,
                **encode_rights(wanted.rights),
            )
        )
        made = _load(connection, key_id)
        _audit(connection, actor, "key.create", None, made, now_ns)
        return made, plaintext


def _select_keys() -> Select[tuple[object, ...]]:
    """Keys with the rights of their projects beside their own."""
    of_project = [projects.c[name].label(_OF_PROJECT + name) for name in Rights.__struct_fields__]
    return select(keys, *of_project).join(
        projects, (projects.c.team == keys.c.team) & (projects.c.name == keys.c.project)
    )


def _load(connection: Connection, key_id: str, *, to_change: bool = False) -> KeyRecord:
    query = _select_keys().where(keys.c.id == key_id)
    if to_change:
        query = query.with_for_update(of=keys)  # where there is more than one writer at a time
    row = connection.execute(query).mappings().one_or_none()
    if row is None:
        raise KeyNotFound(
            f"there is no key with the id {key_id[:100]!r}: `forebay keys list` shows all", param="id"
        )
    return _make_record(row)


def _make_record(row: RowMapping) -> KeyRecord:
    own, of_project = make_rights(row), make_rights(row, _OF_PROJECT)
    entry = KeyEntry(
        id=row["id"],
        digest=bytes(row["digest"]),
        name=row["name"],
        prefix=row["prefix"],
        project=row["project"],
        team=row["team"],
        project_models=of_project.models,
        expires_ns=row["expires_ns"],
        priority=row["priority"],
        **msgspec.structs.asdict(narrow_rights(of_project, own)),
    )
    return KeyRecord(
        entry=entry,
        rights=own,
        created_ns=row["created_ns"],
        revoked_ns=row["revoked_ns"],
        rotated_from=row["rotated_from"],
    )


def _check_can_rotate(connection: Connection, old: KeyRecord, now_ns: int) -> None:
    successor = connection.execute(
        select(keys.c.id).where(keys.c.rotated_from == old.entry.id).limit(1)
    ).scalar_one_or_none()
    if successor is not None:
        raise KeyEnded(f"the key {old.entry.id} has been rotated already: rotate {successor}")
    _check_lives(old, now_ns)


def _check_lives(record: KeyRecord, now_ns: int) -> None:
    """Raises KeyEnded."""
    if not record.is_live(now_ns):
        what = "expired" if record.revoked_ns is None else "revoked"
        raise KeyEnded(f"the key {record.entry.id} is {what}: make a new one with `forebay keys create`")


def _check_terms(terms: KeyTerms, now_ns: int) -> None:
    """Raises InvalidValue."""
    check_name("key", terms.name)
    check_rights(terms.rights)
    check_priority(terms.priority)
    _check_expiry(terms.expires_ns, now_ns)


def _check_expiry(expires_ns: int | None, now_ns: int) -> None:
    if expires_ns is not None and not now_ns < expires_ns < 1 << 62:
        raise InvalidValue("a key ends in the future, and before the year 2116", param="expires")


def _audit(
    connection: Connection, actor: Actor, action: str, old: KeyRecord | None, new: KeyRecord, now_ns: int
) -> None:
    change = Change(
        action=action,
        subject=new.entry.id,
        before=None if old is None else describe_key(old),
        after=describe_key(new),
    )
    append_audit(connection, actor, change, now_ns)
