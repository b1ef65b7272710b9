"""What a file no longer needs goes back to the disk: in small steps, and for old files at one stroke."""

import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import text

from forebay.store.database import Database
from forebay.store.errors import StoreBusy
from postgres_server import PostgresServer


def fill_and_empty(database: Database, rows: int = 2000) -> None:
    with database.begin() as connection:
        connection.execute(text("CREATE TABLE t (x TEXT)"))
        connection.execute(text("INSERT INTO t VALUES (:x)"), [{"x": "a" * 1000}] * rows)
    with database.begin() as connection:
        connection.execute(text("DELETE FROM t"))


def count_pages(database: Database) -> int:
    with database.read() as connection:
        return connection.execute(text("PRAGMA page_count")).scalar_one()


def test_a_file_is_cut_step_by_step(tmp_path: Path) -> None:
    database = Database.open(tmp_path / "forebay.db")
    fill_and_empty(database)
    spare = database.count_spare_bytes()
    assert spare > 1_500_000
    pages = count_pages(database)
    assert database.give_back(100)
    assert count_pages(database) == pages - 100, "no step is larger than it may be"
    while database.give_back(100):
        pass
    assert database.count_spare_bytes() == 0
    assert not database.give_back(100)
    database.close()
    assert (tmp_path / "forebay.db").stat().st_size < spare / 10


def test_a_file_of_an_earlier_version_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "forebay.db"
    old = sqlite3.connect(path)
    old.execute("CREATE TABLE of_old (x)")
    old.close()
    database = Database.open(path)
    fill_and_empty(database)
    spare = database.count_spare_bytes()
    assert not database.give_back(100), "it can't be cut"
    assert database.count_spare_bytes() == spare
    database.rewrite()
    assert database.count_spare_bytes() == 0
    assert path.stat().st_size < spare / 10
    with database.begin() as connection:
        connection.execute(text("DROP TABLE t"))
    fill_and_empty(database)
    assert database.give_back(100), "from now on it can"
    database.close()


def test_to_make_a_file_anew_waits_for_no_writer(tmp_path: Path) -> None:
    database = Database.open(tmp_path / "forebay.db", busy_timeout_s=0.05)
    fill_and_empty(database)
    with database.begin(), pytest.raises(StoreBusy):
        database.rewrite()
    database.rewrite()
    database.close()


def test_postgresql_looks_after_itself(postgres_server: PostgresServer) -> None:
    url = postgres_server.create("template1")
    database = Database.open(url)
    assert database.count_spare_bytes() == 0
    assert not database.give_back(100)
    database.rewrite()
    database.close()
    postgres_server.drop(url)
