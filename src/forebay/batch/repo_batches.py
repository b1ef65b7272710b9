"""Batches in SQL: what was asked for, how far each is, and its files.

A batch moves from state to state only as `policy` says, and only from the state that it is in: of two that
move it at once, one finds it moved.
"""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Final

import msgspec
from sqlalchemy import ColumnElement, Connection, RowMapping, func, select, update

from forebay.batch.model import (
    BatchEnded,
    BatchNotThere,
    BatchRecord,
    Counts,
    FileElsewhere,
    FileRecord,
    LineError,
    Owner,
    QuotaReached,
    Status,
)
from forebay.batch.policy import FINAL, Happening, move
from forebay.batch.repo_files import UNFINISHED, Audit, Page, behind, insert_file, load_file, lock_quotas
from forebay.batch.tables import batches
from forebay.core.clock import Clock
from forebay.store.database import Database

_ENDED: Final = tuple(status.value for status in FINAL)


class BatchRepo:
    def __init__(self, database: Database, clock: Clock, audit: Audit) -> None:
        self._database = database
        self._clock = clock
        self._audit = audit

    def add(self, record: BatchRecord, unfinished_max: int) -> None:
        """Raises FileNotThere, FileElsewhere, QuotaReached."""
        owner = record.owner
        with self._database.begin() as connection:
            lock_quotas(connection)
            file = load_file(connection, owner, record.input_file, self._clock.wall_ns())
            if file.store != record.store:
                raise FileElsewhere(
                    f"the content of {file.id} lies on another machine of this database: create it there"
                )
            query = select(func.count()).where(*_of(owner), batches.c.status.in_(UNFINISHED))
            if connection.execute(query).scalar_one() >= unfinished_max:
                raise QuotaReached(
                    f"the project {owner.team}/{owner.project} has {unfinished_max} unfinished batches, "
                    "which is the most (batch.project_batches_max): wait for some, or cancel them"
                )
            connection.execute(batches.insert().values(**_encode(record)))
            self._audit(connection, record.key, "batch.create", record.id, None, _describe(record))

    def get(self, owner: Owner, batch_id: str) -> BatchRecord:
        """Raises BatchNotThere."""
        with self._database.read() as connection:
            return _load(connection, batch_id, owner)

    def load_page(self, owner: Owner, page: Page) -> tuple[list[BatchRecord], bool]:
        """A page, and whether more follows.  Raises BatchNotThere for an `after` that is none."""
        where = list(_of(owner))
        with self._database.read() as connection:
            if page.after is not None:
                last = _load(connection, page.after, owner)
                where.append(behind(batches.c, last.created_ns, last.id, page))
            query = select(batches).where(*where).limit(page.limit + 1)
            query = query.order_by(batches.c.created_ns.desc(), batches.c.id.desc())
            rows = [_make(row) for row in connection.execute(query).mappings()]
        return rows[: page.limit], len(rows) > page.limit

    def cancel(self, owner: Owner, batch_id: str, key: str) -> BatchRecord:
        """Asked again it changes nothing.  Raises BatchNotThere, BatchEnded."""
        with self._database.begin() as connection:
            lock_quotas(connection)
            record = _load(connection, batch_id, owner)
            if record.status is Status.CANCELLING:
                return record
            moved = self._move(connection, record, Happening.CANCEL)
            if moved is None:
                raise BatchEnded(f"the batch {batch_id} is {record.status.value}: there is nothing to cancel")
            self._audit(connection, key, "batch.cancel", batch_id, _describe(record), _describe(moved))
        return moved

    # --- whoever runs them ----------------------------------------------------------------------------------

    def list_unfinished(self, store: str) -> list[BatchRecord]:
        """Of a folder, the oldest first."""
        query = select(batches).where(batches.c.store == store, batches.c.status.in_(UNFINISHED))
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(batches.c.created_ns, batches.c.id)).mappings()
            return [_make(row) for row in rows]

    def reload(self, batch_id: str) -> BatchRecord:
        """Raises BatchNotThere."""
        with self._database.read() as connection:
            return _load(connection, batch_id)

    def save_counts(self, batch_id: str, counts: Counts) -> None:
        """Of one that has not ended: whoever comes late does not overwrite its last counts."""
        which = (batches.c.id == batch_id, batches.c.status.in_(UNFINISHED))
        with self._database.begin() as connection:
            connection.execute(update(batches).where(*which).values(**asdict(counts)))

    def move(
        self,
        record: BatchRecord,
        happening: Happening,
        *,
        counts: Counts | None = None,
        errors: tuple[LineError, ...] = (),
        files: tuple[FileRecord, ...] = (),
    ) -> BatchRecord:
        """Moves a batch on, with the files that it has made; one that has moved meanwhile is not.

        Raises BatchNotThere.
        """
        with self._database.begin() as connection:
            lock_quotas(connection)
            now = _load(connection, record.id)
            if now.status is not record.status:
                return now
            made = {file.id for file in files}
            changed = replace(
                now,
                counts=counts or now.counts,
                errors=errors or now.errors,
                has_output=now.output_file in made,
                has_errors=now.error_file in made,
            )
            for file in files:
                insert_file(connection, file)
            return self._move(connection, changed, happening) or now

    def remove_old(self, store: str, keep_s: float, limit: int) -> int:
        """Forgets batches that ended long ago."""
        before = self._clock.wall_ns() - round(keep_s * 1e9)
        old = select(batches.c.id).where(
            batches.c.store == store, batches.c.status.in_(_ENDED), batches.c.expires_ns < before
        )
        with self._database.begin() as connection:
            ids = tuple(connection.execute(old.limit(limit)).scalars())
            if ids:
                connection.execute(batches.delete().where(batches.c.id.in_(ids)))
        return len(ids)

    def _move(self, connection: Connection, record: BatchRecord, happening: Happening) -> BatchRecord | None:
        status = move(record.status, happening)
        if status is None:
            return None
        moved = replace(record, status=status, times={**record.times, status: self._clock.wall_ns()})
        connection.execute(update(batches).where(batches.c.id == record.id).values(**_encode(moved)))
        return moved


def _of(owner: Owner) -> tuple[ColumnElement[bool], ...]:
    return (batches.c.team == owner.team, batches.c.project == owner.project)


def _load(connection: Connection, batch_id: str, owner: Owner | None = None) -> BatchRecord:
    query = select(batches).where(batches.c.id == batch_id)
    row = connection.execute(query).mappings().one_or_none()
    record = None if row is None else _make(row)
    if record is None or (owner is not None and record.owner != owner):
        raise BatchNotThere(f"there is no batch {batch_id[:100]!r} in this project", param="id")
    return record


def _describe(record: BatchRecord) -> Mapping[str, object]:
    return {
        "id": record.id,
        "team": record.owner.team,
        "project": record.owner.project,
        "endpoint": record.endpoint,
        "input_file": record.input_file,
        "status": record.status.value,
    }


def _encode(record: BatchRecord) -> dict[str, object]:
    metadata = record.metadata
    return {
        "id": record.id,
        "team": record.owner.team,
        "project": record.owner.project,
        "key_id": record.key,
        "store": record.store,
        "endpoint": record.endpoint,
        "input_file": record.input_file,
        "completion_window": record.window,
        "metadata": None if metadata is None else msgspec.json.encode(metadata).decode(),
        "status": record.status.value,
        "created_ns": record.created_ns,
        "expires_ns": record.expires_ns,
        "times": msgspec.json.encode(record.times).decode(),
        **asdict(record.counts),
        "output_file": record.output_file,
        "error_file": record.error_file,
        "has_output": record.has_output,
        "has_errors": record.has_errors,
        "errors": msgspec.json.encode(record.errors).decode(),
    }


def _make(row: RowMapping) -> BatchRecord:
    metadata = row["metadata"]
    return BatchRecord(
        id=row["id"],
        owner=Owner(team=row["team"], project=row["project"]),
        key=row["key_id"],
        store=row["store"],
        endpoint=row["endpoint"],
        input_file=row["input_file"],
        window=row["completion_window"],
        metadata=None if metadata is None else msgspec.json.decode(metadata, type=dict[str, str]),
        status=Status(row["status"]),
        created_ns=row["created_ns"],
        expires_ns=row["expires_ns"],
        times=msgspec.json.decode(row["times"], type=dict[Status, int]),
        counts=Counts(total=row["total"], completed=row["completed"], failed=row["failed"]),
        output_file=row["output_file"],
        error_file=row["error_file"],
        has_output=row["has_output"],
        has_errors=row["has_errors"],
        errors=msgspec.json.decode(row["errors"], type=tuple[LineError, ...]),
    )
