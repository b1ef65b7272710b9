"""Callers' keys at rest: made, listed, revoked.  Runs in the control plane; workers see `KeyEntry`s only.

Only the digest of a key is stored: its text exists once, in what `create` returns, and can't be shown again.
"""

import re
import secrets
from dataclasses import dataclass

import msgspec
from sqlalchemy import BigInteger, Column, LargeBinary, RowMapping, String, Table, Text, select

from forebay.core.clock import Clock
from forebay.core.errors import CallerError, InvalidValue
from forebay.core.keys import KEY_PREFIX, KeyEntry, compute_key_digest
from forebay.store.database import Database, make_metadata

metadata = make_metadata()
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
    Column("created_ns", BigInteger, nullable=False),
    Column("revoked_ns", BigInteger),
)

PATTERNS_MAX = 1000
SHOWN_CHARS = 8  # of the key's text; the other 38 still hold 228 random bits
_OWNER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


class KeyNotFound(CallerError):
    status = 404
    code = "key_not_found"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRecord:
    """A key as its owner sees it.  Times are nanoseconds since the epoch."""

    entry: KeyEntry
    created_ns: int
    revoked_ns: int | None = None


class KeyRepo:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def create(
        self, name: str, project: str = "default", team: str = "default", models: tuple[str, ...] = ("*",)
    ) -> tuple[KeyEntry, str]:
        """Make a key that may call the models that match one of the patterns; return it with its plain text.

        Raises InvalidValue for a name, project, team or pattern that is not usable.
        """
        _check_name(name)
        _check_owner("project", project)
        _check_owner("team", team)
        _check_patterns(models)
        plaintext = KEY_PREFIX + secrets.token_urlsafe(32)
        entry = KeyEntry(
            id=f"key_{secrets.token_hex(8)}",
            digest=compute_key_digest(plaintext),
            name=name,
            prefix=plaintext[:SHOWN_CHARS],
            project=project,
            team=team,
            models=tuple(models),
        )
        row = msgspec.structs.asdict(entry) | {"models": msgspec.json.encode(entry.models).decode()}
        with self._database.begin() as connection:
            connection.execute(keys.insert().values(**row, created_ns=self._clock.wall_ns()))
        return entry, plaintext

    def list(self) -> tuple[KeyRecord, ...]:
        """All keys there ever were, the oldest first."""
        with self._database.read() as connection:
            rows = connection.execute(select(keys).order_by(keys.c.created_ns, keys.c.id)).mappings().all()
        return tuple(_make_record(row) for row in rows)

    def list_live(self) -> tuple[KeyEntry, ...]:
        """The keys that open something: what goes into a snapshot, in a stable order."""
        return tuple(record.entry for record in self.list() if record.revoked_ns is None)

    def get(self, key_id: str) -> KeyRecord:
        """Raises KeyNotFound."""
        with self._database.read() as connection:
            row = connection.execute(select(keys).where(keys.c.id == key_id)).mappings().one_or_none()
        if row is None:
            raise KeyNotFound(
                f"there is no key with the id {key_id!r}: `forebay keys list` shows all", param="id"
            )
        return _make_record(row)

    def revoke(self, key_id: str) -> KeyRecord:
        """End a key.  Revoking it again changes nothing.  Raises KeyNotFound."""
        change = keys.update().where(keys.c.id == key_id, keys.c.revoked_ns.is_(None))
        with self._database.begin() as connection:
            connection.execute(change.values(revoked_ns=self._clock.wall_ns()))
        return self.get(key_id)


def _make_record(row: RowMapping) -> KeyRecord:
    entry = KeyEntry(
        id=row["id"],
        digest=bytes(row["digest"]),
        name=row["name"],
        prefix=row["prefix"],
        project=row["project"],
        team=row["team"],
        models=msgspec.json.decode(row["models"], type=tuple[str, ...]),
    )
    return KeyRecord(entry=entry, created_ns=row["created_ns"], revoked_ns=row["revoked_ns"])


def _check_name(name: str) -> None:
    if not 0 < len(name) <= 100 or not name.isprintable() or name != name.strip():
        raise InvalidValue(
            "a key's name is 1 to 100 printable characters, without blanks at its ends", param="name"
        )


def _check_owner(param: str, value: str) -> None:
    if not _OWNER.fullmatch(value):
        raise InvalidValue(
            f"{param} {value[:100]!r}: use up to 100 letters, digits, '_', '.', '-'; a letter or digit first",
            param=param,
        )


def _check_patterns(patterns: tuple[str, ...]) -> None:
    if not 0 < len(patterns) <= PATTERNS_MAX:
        raise InvalidValue(
            f"a key needs 1 to {PATTERNS_MAX} model patterns; '*' is all models", param="models"
        )
    for pattern in patterns:
        if not 0 < len(pattern) <= 200 or not pattern.isprintable():
            raise InvalidValue(
                f"model pattern {pattern[:200]!r}: use 1 to 200 printable characters", param="models"
            )
