"""Tokens of the admin API at rest: who may look, who may change, who may let others in.

Only the digest of a token is stored, as of a key.  The token of the file `admin.token` is not among them.
"""

import secrets
from typing import Final

from sqlalchemy import Connection, RowMapping, select

from forebay.core.clock import Clock
from forebay.core.errors import InvalidValue
from forebay.core.keys import compute_key_digest
from forebay.gateway.repo_audit import Change, append_audit
from forebay.gateway.repo_tables import tokens
from forebay.gateway.tenancy import Actor, Role, TokenNotFound, TokenRecord, check_name, describe_token
from forebay.store.database import Database

TOKEN_PREFIX: Final = "fba-"
SHOWN_CHARS: Final = 9


def make_token() -> str:
    return TOKEN_PREFIX + secrets.token_urlsafe(32)


class TokenRepo:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def create(
        self, name: str, role: Role, actor: Actor, *, expires_ns: int | None = None
    ) -> tuple[TokenRecord, str]:
        """Make a token; return it with its plain text.  Raises InvalidValue."""
        check_name("token", name)
        now_ns = self._clock.wall_ns()
        if expires_ns is not None and not now_ns < expires_ns < 1 << 62:
            raise InvalidValue("a token ends in the future, and before the year 2116", param="expires")
        plaintext = make_token()
        record = TokenRecord(
            id=f"tok_{secrets.token_hex(8)}",
            name=name,
            prefix=plaintext[:SHOWN_CHARS],
            role=role,
            created_ns=now_ns,
            expires_ns=expires_ns,
        )
        change = Change(action="token.create", subject=record.id, after=describe_token(record))
        with self._database.begin() as connection:
            connection.execute(
                tokens.insert().values(
                    id=record.id,
                    digest=compute_key_digest(plaintext),
                    name=name,
                    prefix=record.prefix,
                    role=role.value,
                    created_ns=now_ns,
                    expires_ns=expires_ns,
                )
            )
            append_audit(connection, actor, change, now_ns)
        return record, plaintext

    def list(self) -> tuple[TokenRecord, ...]:
        """All there ever were, the oldest first."""
        with self._database.read() as connection:
            rows = connection.execute(select(tokens).order_by(tokens.c.created_ns, tokens.c.id)).mappings()
            return tuple(map(_make_record, rows))

    def find_live(self, digest: bytes) -> TokenRecord | None:
        """The token with this digest, if it opens anything."""
        with self._database.read() as connection:
            row = connection.execute(select(tokens).where(tokens.c.digest == digest)).mappings().one_or_none()
        record = None if row is None else _make_record(row)
        return record if record is not None and record.is_live(self._clock.wall_ns()) else None

    def revoke(self, token_id: str, actor: Actor) -> TokenRecord:
        """End a token.  Revoking it again changes nothing.  Raises TokenNotFound."""
        now_ns = self._clock.wall_ns()
        with self._database.begin() as connection:
            old = _load(connection, token_id, to_change=True)
            if old.revoked_ns is not None:
                return old
            connection.execute(tokens.update().where(tokens.c.id == token_id).values(revoked_ns=now_ns))
            new = _load(connection, token_id)
            change = Change(
                action="token.revoke",
                subject=token_id,
                before=describe_token(old),
                after=describe_token(new),
            )
            append_audit(connection, actor, change, now_ns)
        return new


def _load(connection: Connection, token_id: str, *, to_change: bool = False) -> TokenRecord:
    query = select(tokens).where(tokens.c.id == token_id)
    if to_change:
        query = query.with_for_update()  # where there is more than one writer at a time
    row = connection.execute(query).mappings().one_or_none()
    if row is None:
        raise TokenNotFound(
            f"there is no token with the id {token_id[:100]!r}: `forebay tokens list` shows all", param="id"
        )
    return _make_record(row)


def _make_record(row: RowMapping) -> TokenRecord:
    return TokenRecord(
        id=row["id"],
        name=row["name"],
        prefix=row["prefix"],
        role=Role(row["role"]),
        created_ns=row["created_ns"],
        expires_ns=row["expires_ns"],
        revoked_ns=row["revoked_ns"],
    )
