"""Files in SQL: whose they are, how large, and until when.  Their contents are `disk`'s.

Nothing of one project is there for another.  A row is made once its content lies whole on the disk, and is
gone before its content is.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, RowMapping, and_, func, or_, select, text

from forebay.batch.model import FileInUse, FileNotThere, FileRecord, Owner, QuotaReached, Status
from forebay.batch.tables import batches, files
from forebay.core.clock import Clock
from forebay.store.database import Database

#: Tells of a change, in its transaction: the key's id, what was done, to what, and how that is described.
Audit = Callable[[Connection, str, str, str, Mapping[str, object] | None, Mapping[str, object] | None], None]
UNFINISHED: Final = (Status.VALIDATING, Status.IN_PROGRESS, Status.FINALIZING, Status.CANCELLING)
_LOCK: Final = 0x6261746368  # any fixed number, for PostgreSQL's advisory lock


@dataclass(frozen=True, slots=True, kw_only=True)
class FileQuota:
    """Of a project."""

    files_max: int
    bytes_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What of a list is wanted: what comes behind `after`, the newest first unless `is_ascending`."""

    limit: int
    after: str | None = None
    is_ascending: bool = False


def lock_quotas(connection: Connection) -> None:
    """One transaction at a time counts and adds; SQLite's write lock does that by itself."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})


class FileRepo:
    def __init__(self, database: Database, clock: Clock, audit: Audit) -> None:
        self._database = database
        self._clock = clock
        self._audit = audit

    def add(self, record: FileRecord, quota: FileQuota) -> None:
        """Raises QuotaReached."""
        with self._database.begin() as connection:
            lock_quotas(connection)
            count, size = _measure(connection, record.owner)
            check_quota(record.owner, count + 1, size + record.size, quota)
            insert_file(connection, record)
            self._audit(connection, record.key, "file.create", record.id, None, describe_file(record))

    def measure(self, owner: Owner) -> tuple[int, int]:
        """How many files a project has, and their bytes."""
        with self._database.read() as connection:
            return _measure(connection, owner)

    def get(self, owner: Owner, file_id: str) -> FileRecord:
        """Raises FileNotThere."""
        with self._database.read() as connection:
            return load_file(connection, owner, file_id, self._clock.wall_ns())

    def load_page(
        self, owner: Owner, page: Page, purpose: str | None = None
    ) -> tuple[list[FileRecord], bool]:
        """A page, and whether more follows.  Raises FileNotThere for an `after` that is none."""
        now_ns = self._clock.wall_ns()
        where = [_of(owner), _lives(now_ns)]
        if purpose is not None:
            where.append(files.c.purpose == purpose)
        with self._database.read() as connection:
            if page.after is not None:
                last = load_file(connection, owner, page.after, now_ns)
                where.append(behind(files.c, last.created_ns, last.id, page))
            order = (files.c.created_ns, files.c.id)
            query = select(files).where(*where).limit(page.limit + 1)
            query = query.order_by(*(each if page.is_ascending else each.desc() for each in order))
            rows = [make_file(row) for row in connection.execute(query).mappings()]
        return rows[: page.limit], len(rows) > page.limit

    def delete(self, owner: Owner, file_id: str, key: str) -> FileRecord:
        """Raises FileNotThere, FileInUse."""
        with self._database.begin() as connection:
            lock_quotas(connection)
            record = load_file(connection, owner, file_id, self._clock.wall_ns())
            user = _find_user(connection, file_id)
            if user is not None:
                raise FileInUse(
                    f"the batch {user} still reads the file {file_id}: cancel it first, or wait for its end"
                )
            connection.execute(files.delete().where(files.c.id == file_id))
            self._audit(connection, key, "file.delete", file_id, describe_file(record), None)
        return record

    def remove_expired(self, store: str, limit: int) -> tuple[str, ...]:
        """Removes the rows of files that are too old and in nobody's use; returns their ids."""
        old = and_(files.c.expires_ns <= self._clock.wall_ns(), files.c.store == store)
        used = select(batches.c.input_file).where(batches.c.status.in_(UNFINISHED))
        query = select(files.c.id).where(old, files.c.id.not_in(used)).limit(limit)
        with self._database.begin() as connection:
            ids = tuple(connection.execute(query).scalars())
            if ids:
                connection.execute(files.delete().where(files.c.id.in_(ids)))
        return ids

    def list_known(self, store: str) -> set[str]:
        """Ids of all contents that this folder is to have: of files, and those that batches write."""
        outputs = select(batches.c.output_file, batches.c.error_file).where(
            batches.c.store == store, batches.c.status.in_(UNFINISHED)
        )
        with self._database.read() as connection:
            known = set(connection.execute(select(files.c.id).where(files.c.store == store)).scalars())
            for output, errors in connection.execute(outputs):
                known |= {output, errors}
        return known


def insert_file(connection: Connection, record: FileRecord) -> None:
    values = asdict(record)
    owner, key, size = values.pop("owner"), values.pop("key"), values.pop("size")
    connection.execute(files.insert().values(**values, **owner, key_id=key, size_bytes=size))


def load_file(connection: Connection, owner: Owner, file_id: str, now_ns: int) -> FileRecord:
    """Raises FileNotThere, also for another project's."""
    query = select(files).where(_of(owner), files.c.id == file_id, _lives(now_ns))
    row = connection.execute(query).mappings().one_or_none()
    if row is None:
        raise FileNotThere(f"there is no file {file_id[:100]!r} in this project", param="id")
    return make_file(row)


def behind(columns: Any, created_ns: int, id: str, page: Page) -> ColumnElement[bool]:
    """What comes after a row in a page's order; `columns` have `created_ns` and `id`."""
    if page.is_ascending:
        return or_(columns.created_ns > created_ns, and_(columns.created_ns == created_ns, columns.id > id))
    return or_(columns.created_ns < created_ns, and_(columns.created_ns == created_ns, columns.id < id))


def check_quota(owner: Owner, count: int, size: int, quota: FileQuota) -> None:
    """Raises QuotaReached."""
    if count > quota.files_max:
        raise QuotaReached(
            f"the project {owner.team}/{owner.project} has {quota.files_max} files, which is the most "
            "(batch.project_files_max): delete some"
        )
    if size > quota.bytes_max:
        raise QuotaReached(
            f"the files of the project {owner.team}/{owner.project} would be larger than "
            f"{quota.bytes_max} bytes together (batch.project_max_bytes): delete some"
        )


def describe_file(record: FileRecord) -> dict[str, object]:
    return {
        "id": record.id,
        "team": record.owner.team,
        "project": record.owner.project,
        "purpose": record.purpose,
        "bytes": record.size,
        "sha256": record.sha256,
    }


def make_file(row: RowMapping) -> FileRecord:
    return FileRecord(
        id=row["id"],
        owner=Owner(team=row["team"], project=row["project"]),
        key=row["key_id"],
        filename=row["filename"],
        purpose=row["purpose"],
        size=row["size_bytes"],
        sha256=row["sha256"],
        store=row["store"],
        created_ns=row["created_ns"],
        expires_ns=row["expires_ns"],
    )


def _of(owner: Owner) -> ColumnElement[bool]:
    return and_(files.c.team == owner.team, files.c.project == owner.project)


def _lives(now_ns: int) -> ColumnElement[bool]:
    return or_(files.c.expires_ns.is_(None), files.c.expires_ns > now_ns)


def _measure(connection: Connection, owner: Owner) -> tuple[int, int]:
    query = select(func.count(), func.coalesce(func.sum(files.c.size_bytes), 0)).where(_of(owner))
    count, size = connection.execute(query).one()
    return int(count), int(size)


def _find_user(connection: Connection, file_id: str) -> str | None:
    query = select(batches.c.id).where(batches.c.input_file == file_id, batches.c.status.in_(UNFINISHED))
    return connection.execute(query.limit(1)).scalar_one_or_none()
