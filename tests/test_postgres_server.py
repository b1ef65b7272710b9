"""Why the tests over PostgreSQL are skipped is said; and where they run, they run over a real one."""

from pathlib import Path

import pytest
import sqlalchemy as sa

import postgres_server
from postgres_server import NoPostgres, PostgresServer, find_programs


def test_without_its_programs_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_server, "PLACES", f"{tmp_path}/none/*")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoPostgres, match="apt-get install postgresql"):
        find_programs()


def test_each_database_is_another(postgres_server: PostgresServer) -> None:
    urls = [postgres_server.create("empty") for _ in range(2)]
    engines = [sa.create_engine(url, poolclass=sa.NullPool) for url in urls]
    with engines[0].begin() as connection:
        connection.execute(sa.text("INSERT INTO gateway_teams (name, created_ns) VALUES ('x', 1)"))
    counts = []
    for engine in engines:
        with engine.connect() as connection:
            counts.append(connection.execute(sa.text("SELECT count(*) FROM gateway_teams")).scalar_one())
    assert counts == [2, 1]
    for url in urls:
        postgres_server.drop(url)
