"""The database: what a transaction promises, which errors come out, and migrations by several processes."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, MetaData, text
from sqlalchemy.exc import IntegrityError

from forebay.app import deployment_tables, matrix
from forebay.batch import tables as batch_tables
from forebay.gateway import repo_alert_tables, repo_signal_tables, repo_tables
from forebay.ledger import tables as ledger_tables
from forebay.registry import tables as registry_tables
from forebay.store.database import NAMING, Database, make_metadata
from forebay.store.errors import (
    StoreBusy,
    StoreMissing,
    StoreNewer,
    StoreOutdated,
    StoreUnavailable,
)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database.open(tmp_path / "data" / "forebay.db", busy_timeout_s=0.05)
    yield database
    database.close()


def count(connection: Connection) -> int:
    return connection.execute(text("SELECT count(*) FROM t")).scalar_one()


def test_a_new_database_is_private_and_keeps_a_write_ahead_log(database: Database, tmp_path: Path) -> None:
    path = tmp_path / "data" / "forebay.db"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    with database.read() as connection:
        assert connection.execute(text("PRAGMA journal_mode")).scalar_one() == "wal"
        assert connection.execute(text("PRAGMA foreign_keys")).scalar_one() == 1


def test_an_exception_takes_everything_back_tables_included(database: Database) -> None:
    def fail_after_creating() -> None:
        with database.begin() as connection:
            connection.execute(text("CREATE TABLE t (x INTEGER)"))
            raise KeyError

    with pytest.raises(KeyError):
        fail_after_creating()
    with database.begin() as connection:
        connection.execute(text("CREATE TABLE t (x INTEGER)"))
        connection.execute(text("INSERT INTO t VALUES (1)"))
    with database.read() as connection:
        assert count(connection) == 1


def test_a_reader_sees_one_state_while_another_writes(database: Database) -> None:
    with database.begin() as connection:
        connection.execute(text("CREATE TABLE t (x INTEGER)"))
    with database.read() as reader:
        assert count(reader) == 0
        with database.begin() as writer:
            writer.execute(text("INSERT INTO t VALUES (1)"))
        assert count(reader) == 0
    with database.read() as reader:
        assert count(reader) == 1


def test_the_write_lock_is_taken_at_the_start_and_a_second_writer_is_told(database: Database) -> None:
    with database.begin():
        with pytest.raises(StoreBusy):
            with database.begin():
                pytest.fail("two writers at a time")
    with database.begin() as connection:  # the refused one left nothing behind
        connection.execute(text("CREATE TABLE t (x INTEGER)"))


def test_no_increment_is_lost_between_threads(tmp_path: Path) -> None:
    database = Database.open(tmp_path / "a.db")
    with database.begin() as connection:
        connection.execute(text("CREATE TABLE t (x INTEGER)"))
        connection.execute(text("INSERT INTO t VALUES (0)"))

    def increment() -> None:
        for _ in range(25):
            with database.begin() as connection:
                value = connection.execute(text("SELECT x FROM t")).scalar_one()
                connection.execute(text("UPDATE t SET x = :x"), {"x": value + 1})

    threads = [threading.Thread(target=increment) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with database.read() as connection:
        assert connection.execute(text("SELECT x FROM t")).scalar_one() == 100
    database.close()


def test_an_absent_database_is_not_created_unless_asked_for(tmp_path: Path) -> None:
    with pytest.raises(StoreMissing, match=r"forebay\.db"):
        Database.open(tmp_path / "forebay.db", create=False)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_database_is_told(tmp_path: Path) -> None:
    path = tmp_path / "forebay.db"
    path.write_bytes(b"not a database " * 1000)
    with pytest.raises(StoreUnavailable):
        Database.open(path)


def test_a_place_where_no_file_can_be_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailable):
        Database.open(tmp_path / "file" / "forebay.db")
    with pytest.raises(StoreUnavailable):
        Database.open("sqlite://")
    with pytest.raises(StoreUnavailable, match="mysql"):
        Database.open("mysql://user:secret@host/name")


def test_errors_show_no_values(database: Database) -> None:
    with database.begin() as connection:
        connection.execute(text("CREATE TABLE t (x TEXT UNIQUE)"))
        connection.execute(text("INSERT INTO t VALUES (:x)"), {"x": "canary-secret"})
    with pytest.raises(IntegrityError) as caught:
        with database.begin() as connection:
            connection.execute(text("INSERT INTO t VALUES (:x)"), {"x": "canary-secret"})
    assert "canary-secret" not in str(caught.value)


def test_migrating_twice_is_migrating_once(database: Database) -> None:
    with pytest.raises(StoreOutdated):
        database.check_revision()
    revision = database.migrate()
    assert database.migrate() == revision
    assert database.check_revision() == revision


def test_the_tables_that_the_code_names_are_those_that_migrations_make(database: Database) -> None:
    database.migrate()
    everything = MetaData(naming_convention=NAMING)
    gateway = (repo_tables, repo_alert_tables, repo_signal_tables)
    parts = (*gateway, ledger_tables, batch_tables, deployment_tables, matrix, registry_tables)
    for metadata in {part.metadata for part in parts}:
        for table in metadata.tables.values():
            table.to_metadata(everything)
    with database.read() as connection:
        options = {"compare_type": True}
        assert compare_metadata(MigrationContext.configure(connection, opts=options), everything) == []
        assert compare_metadata(MigrationContext.configure(connection), make_metadata()) != []


def test_a_database_of_a_later_version_is_left_alone(database: Database) -> None:
    database.migrate()
    with database.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(StoreNewer, match="9999"):
        database.migrate()
    with pytest.raises(StoreNewer):
        database.check_revision()


MIGRATE = """
import sys
from forebay.store.database import Database
print("ready", flush=True)
sys.stdin.readline()
print(Database.open(sys.argv[1]).migrate())
"""


def test_processes_that_migrate_at_once_agree(tmp_path: Path) -> None:
    command = [sys.executable, "-c", MIGRATE, str(tmp_path / "forebay.db")]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    answers = []
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        answers.append(process.communicate(timeout=60)[0])
        assert process.returncode == 0
    assert len(set(answers)) == 1
    database = Database.open(tmp_path / "forebay.db")
    assert answers[0].strip() == database.check_revision()
    database.close()
