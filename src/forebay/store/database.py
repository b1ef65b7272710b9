"""One database, SQLite or PostgreSQL: connections, transactions, migrations.

Owns how a transaction begins and which errors come out of it.  It must never know a table: each subsystem
declares its own in a `MetaData` from `make_metadata`, and migrations spell theirs out.  Nothing above it may
depend on which of the two it is.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import URL, Connection, Engine, MetaData, create_engine, event, func, make_url, select
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, ProgrammingError, StatementError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import ConnectionPoolEntry

from forebay.store.errors import (
    StoreBusy,
    StoreError,
    StoreMissing,
    StoreNewer,
    StoreOutdated,
    StoreUnavailable,
    StoreValueRefused,
)

MIGRATIONS = Path(__file__).with_name("migrations")
#: Names of constraints, so that a later migration can name what it changes, on any database.
NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}
_WRITING = "forebay_writing"
_MIGRATION_LOCK = 0x666F7265626179  # any fixed number, for PostgreSQL's advisory lock
_WAL_LIMIT_BYTES = 64 * 1024 * 1024
#: SQLSTATEs of a lock timeout, a serialization failure, a deadlock, and too many connections.
_BUSY_STATES = {"55P03", "40001", "40P01", "53300"}
#: Classes of SQLSTATEs of values that can't be stored: wrong data, and more than a program's limit.
_REFUSED_CLASSES = {"22", "54"}
_REFUSED_CODES = {sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_MISMATCH}
_TO_WRITE = ". It and its folder must be writable also to look: run this as the user who runs `forebay up`"
_REMEDIES = {
    sqlite3.SQLITE_READONLY: _TO_WRITE,
    sqlite3.SQLITE_CANTOPEN: _TO_WRITE,
    sqlite3.SQLITE_FULL: ". Make room on its disk",
}


def make_metadata() -> MetaData:
    """For a subsystem's tables."""
    return MetaData(naming_convention=NAMING)


class Database:
    """A pool of connections.  May be shared by threads, not by forked processes."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._place = _name_place(engine.url)
        self._writing = engine.execution_options(**{_WRITING: True})
        self._reading = engine
        if engine.dialect.name == "postgresql":  # where each statement sees what was committed by then
            self._reading = engine.execution_options(isolation_level="REPEATABLE READ")
        self.dialect = engine.dialect.name  #: `sqlite` or `postgresql`

    @classmethod
    def open(cls, location: Path | str, *, busy_timeout_s: float = 5.0, create: bool = True) -> Self:
        """Open the SQLite file at a path, or the database at a URL (`sqlite:///…`, `postgresql+psycopg://…`).

        Waits up to `busy_timeout_s` for a lock wherever a transaction needs one.  With `create`, an absent
        file is made (0600) with its folder; without, StoreMissing is raised.
        Raises StoreMissing, StoreUnavailable, StoreBusy.
        """
        url = _make_url(location)
        if url.get_backend_name() == "sqlite":
            _prepare_file(url, create)
            engine = create_engine(url, hide_parameters=True, connect_args={"timeout": busy_timeout_s})
            event.listen(engine, "connect", _set_up_sqlite)
            event.listen(engine, "begin", _begin_sqlite)
            with _typed_errors(_name_place(url)):
                _set_up_file(engine)
        else:
            engine = _create_postgres(url, busy_timeout_s)
        return cls(engine)

    def close(self) -> None:
        self._engine.dispose()

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """A transaction that writes: commits at the end, rolls back on any exception.

        Takes SQLite's write lock at once, so that what was read inside stays true until the commit.
        Raises StoreBusy and StoreUnavailable.
        """
        with _typed_errors(self._place), self._writing.begin() as connection:
            yield connection

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that only reads, from one state of the database.  Raises as `begin`."""
        with _typed_errors(self._place), self._reading.connect() as connection:
            yield connection

    def migrate(self) -> str:
        """Bring all tables to this version's state and return its number.

        One transaction under a lock: of two processes, one does the work, the other waits and finds it done.
        Raises StoreNewer, StoreBusy, StoreUnavailable.
        """
        config = Config()
        config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
        config.set_main_option("version_locations", str(MIGRATIONS / "versions").replace("%", "%%"))
        config.set_main_option("path_separator", "newline")
        with self.begin() as connection:
            if self.dialect == "postgresql":
                connection.execute(select(func.pg_advisory_xact_lock(_MIGRATION_LOCK)))
            try:
                head = _check_revision(connection)
            except StoreOutdated:
                config.attributes["connection"] = connection
                command.upgrade(config, "head")
                head = _check_revision(connection)
        return head

    def count_spare_bytes(self) -> int:
        """Of an SQLite file, what is taken on the disk and holds nothing; 0 for PostgreSQL, whose autovacuum
        looks after that by itself.  Raises StoreError."""
        if self.dialect != "sqlite":
            return 0
        with self.read() as connection:
            pages, size = (
                int(connection.exec_driver_sql(f"PRAGMA {name}").scalar_one())
                for name in ("freelist_count", "page_size")
            )
        return pages * size

    def give_back(self, pages_max: int) -> bool:
        """Cut at most so many pages that hold nothing off an SQLite file; whether there may be more to cut.

        A short transaction.  A file that an earlier version made can't be cut, until `rewrite` has made it
        anew.  Raises StoreBusy and StoreUnavailable.
        """
        if self.dialect != "sqlite":
            return False
        count = "PRAGMA freelist_count"
        with self.begin() as connection:
            before = int(connection.exec_driver_sql(count).scalar_one())
            for _ in range(min(pages_max, before)):
                # Python's driver takes but one step of this statement, and one step is one page.
                connection.exec_driver_sql("PRAGMA incremental_vacuum(1)")
            after = int(connection.exec_driver_sql(count).scalar_one())
        return 0 < after < before

    def rewrite(self) -> None:
        """Make an SQLite file anew without what holds nothing, for which the disk needs as much room again.

        Whoever writes meanwhile gets StoreBusy.  Does nothing to PostgreSQL.  Raises StoreBusy and
        StoreUnavailable.
        """
        if self.dialect != "sqlite":
            return
        with _typed_errors(self._place):
            raw = self._engine.raw_connection()
            try:
                cursor = raw.cursor()
                cursor.execute("PRAGMA auto_vacuum = INCREMENTAL")
                cursor.execute("VACUUM")
                cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                cursor.close()
            finally:
                raw.close()

    def check_revision(self) -> str:
        """The number of the tables' state, when it is this version's.  Raises StoreOutdated or StoreNewer."""
        with self.read() as connection:
            return _check_revision(connection)


def is_value_refused(error: BaseException) -> bool:
    """Whether an error of a statement says that the database will never take the values that it was given, as
    against one that can't be used now."""
    cause = error.orig if isinstance(error, StatementError) else error
    if isinstance(cause, OverflowError | UnicodeEncodeError):  # SQLite's driver has no error of its own there
        return True
    if (state := getattr(cause, "sqlstate", None)) is not None:
        return str(state)[:2] in _REFUSED_CLASSES
    if (code := getattr(cause, "sqlite_errorcode", None)) is not None:
        return code & 0xFF in _REFUSED_CODES
    return isinstance(error, DataError)


def _create_postgres(url: URL, busy_timeout_s: float) -> Engine:
    if url.drivername == "postgresql":
        url = url.set(drivername="postgresql+psycopg")
    waits = {
        "connect_timeout": max(2, round(busy_timeout_s)),
        "options": f"-c lock_timeout={max(1, round(busy_timeout_s * 1000))}",
    }
    try:
        return create_engine(url, hide_parameters=True, pool_pre_ping=True, connect_args=waits)
    except ModuleNotFoundError as error:
        raise StoreUnavailable(
            f"PostgreSQL needs the package {error.name}: pip install 'forebay[postgres]'"
        ) from None


def _make_url(location: Path | str) -> URL:
    if isinstance(location, str) and "://" in location:
        url = make_url(location)
        if url.get_backend_name() not in ("sqlite", "postgresql"):
            raise StoreUnavailable(
                f"{url.get_backend_name()} is not a database Forebay knows: use sqlite or postgresql"
            )
        return url
    return URL.create("sqlite", database=str(location))


def _prepare_file(url: URL, create: bool) -> None:
    if not url.database or url.database == ":memory:":
        raise StoreUnavailable("a database in memory is not shared between connections: name a file")
    path = Path(url.database)
    if path.exists():
        return
    if not create:
        raise StoreMissing(f"there is no database at {path}: has `forebay up` run here?")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600)  # SQLite gives its companion files the same mode
    except OSError as error:
        raise StoreUnavailable(f"can't create the database {path}: {error.strerror}") from error


def _set_up_sqlite(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
    # No transaction is begun behind our back: `_begin_sqlite` does it, in the mode that is asked for.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute("PRAGMA foreign_keys = ON")
    # In WAL mode NORMAL loses no committed row when a process dies; after a power failure the last
    # transactions may be gone, whole.  The ledger's segments are still there to bring them back.
    cursor.execute("PRAGMA synchronous = NORMAL")
    cursor.execute(f"PRAGMA journal_size_limit = {_WAL_LIMIT_BYTES}")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    writing = connection.get_execution_options().get(_WRITING, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")


def _set_up_file(engine: Engine) -> None:
    """Done once for a file, which then remembers it."""
    raw = engine.raw_connection()
    try:
        cursor = raw.cursor()
        if cursor.execute("PRAGMA page_count").fetchone()[0] == 0:
            # Later it would change nothing, and wait for whoever writes.
            cursor.execute("PRAGMA auto_vacuum = INCREMENTAL")
        for attempts_left in (2, 1, 0):
            try:
                cursor.execute("PRAGMA journal_mode = WAL")
            except sqlite3.OperationalError:
                # SQLite does not wait when it switches.  The write lock does wait, for whoever switches now.
                if attempts_left == 0:
                    raise
                cursor.execute("BEGIN IMMEDIATE")
                cursor.execute("COMMIT")
        cursor.close()
    finally:
        raw.close()


def _check_revision(connection: Connection) -> str:
    script = ScriptDirectory(str(MIGRATIONS), version_locations=[str(MIGRATIONS / "versions")])
    head = script.get_current_head()
    assert head is not None, "there are migrations in the package"
    current = MigrationContext.configure(connection).get_current_revision()
    if current == head:
        return head
    if current is not None and current not in {revision.revision for revision in script.walk_revisions()}:
        raise StoreNewer(
            f"the database is at state {current}, this version of Forebay knows {head}: update Forebay"
        )
    raise StoreOutdated(
        f"the database is at state {current or 'none'}, this version needs {head}: run `forebay up`"
    )


def _name_place(url: URL) -> str:
    """For people, without a password."""
    if url.get_backend_name() == "sqlite":
        return url.database or ""
    return f"{url.database} at {url.host or 'this machine'}"


@contextmanager
def _typed_errors(place: str) -> Iterator[None]:
    """Turn the driver's errors that are no fault in our SQL into this package's.  They name the place."""
    try:
        yield
    except (IntegrityError, ProgrammingError):
        raise
    except DBAPIError as error:
        if is_value_refused(error):
            raise StoreValueRefused(f"the database {place} refused a value: {error.orig}") from error
        raise _make_error(error.orig, place) from error
    except sqlite3.Error as error:
        raise _make_error(error, place) from error
    except (OverflowError, UnicodeEncodeError) as error:  # SQLite's driver, of what its types can't hold
        raise StoreValueRefused(f"the database {place} refused a value: {error}") from error
    except PoolTimeout as error:
        raise StoreBusy("all connections to the database are in use") from error


def _make_error(cause: BaseException | None, place: str) -> StoreError:
    code = getattr(cause, "sqlite_errorcode", None)
    busy = code is not None and code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
    if busy or getattr(cause, "sqlstate", None) in _BUSY_STATES:
        return StoreBusy(f"the database is busy: {cause}", retry_after_s=1)
    remedy = _REMEDIES.get((code or 0) & 0xFF, "")
    return StoreUnavailable(f"the database {place} can't be used: {cause}{remedy}")
