"""`data.database`: everything that Forebay remembers lies where it says, and its password lies nowhere."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import sqlalchemy as sa
from control_scene import LiveControl, make_event

from forebay.app.clock import SystemClock
from forebay.app.config import check_config
from forebay.core.events import encode_event
from forebay.ledger.segment import SegmentWriter
from forebay.store.database import Database
from forebay.store.errors import StoreUnavailable
from postgres_server import PostgresServer

SECRET = "s3cret-w0rd"
YAML = "data: {database: 'env:FOREBAY_TEST_DATABASE'}\n"


def run_process(
    *args: str, cwd: Path, env: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[bytes]":
    command = [sys.executable, "-m", "forebay", *args]
    return subprocess.run(command, cwd=cwd, env=os.environ | (env or {}), capture_output=True, timeout=60)


@pytest.fixture
def url(postgres_server: PostgresServer) -> Iterator[str]:
    url = postgres_server.create("template1")
    with_password = sa.make_url(url).set(password=SECRET, drivername="postgresql")
    yield with_password.render_as_string(hide_password=False)
    postgres_server.drop(url)


def test_a_control_plane_keeps_everything_in_postgresql(tmp_path: Path, url: str) -> None:
    env = {"FOREBAY_TEST_DATABASE": url}
    control = LiveControl(tmp_path, YAML, env)
    try:
        writer = SegmentWriter(control.data / "ledger", "w0", 1 << 20, SystemClock())
        for number in range(3):
            writer.append(encode_event(make_event(number)))
        writer.close()
        control.wait_for(lambda: control.status()["ingest"]["records"] == 3)
        usage = control.get("/admin/v1/usage?by=model").json()["data"]
        assert [(row["model"], row["requests"]) for row in usage] == [("m", 3)]
        assert "FOREBAY_TEST_DATABASE" in control.get("/admin/v1/config").text
        assert SECRET not in control.get("/admin/v1/config").text
        made = run_process("keys", "create", "k", "--json", cwd=tmp_path, env=env)
        assert made.returncode == 0, made.stderr
        shown = run_process("usage", "--since", "all", "--json", cwd=tmp_path, env=env)
        assert json.loads(shown.stdout)["total"]["requests"] == 3
        bill = run_process("bill", "--month", "2026-09", "--json", cwd=tmp_path, env=env)
        assert json.loads(bill.stdout)["total"]["requests"] == 3
        assert SECRET not in control.log.read_text()
    finally:
        control.close()
    assert not (control.data / "forebay.db").exists()


def test_a_server_that_is_not_there_is_told_without_its_password(tmp_path: Path) -> None:
    env = {"FOREBAY_TEST_DATABASE": f"postgresql://postgres:{SECRET}@127.0.0.1:9/none"}
    (tmp_path / "forebay.yaml").write_text(YAML)
    done = run_process("keys", "list", cwd=tmp_path, env=env)
    assert done.returncode == 1
    assert b"can't be used" in done.stderr
    assert b"Traceback" not in done.stderr
    assert SECRET.encode() not in done.stderr


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "FOREBAY_TEST_DATABASE is not set"),
        ("no address", "holds no address"),
        ("mysql://h/n", "mysql"),
    ],
)
def test_a_reference_that_leads_nowhere_is_told(tmp_path: Path, value: str | None, words: str) -> None:
    (tmp_path / "forebay.yaml").write_text(YAML)
    env = {} if value is None else {"FOREBAY_TEST_DATABASE": value}
    done = run_process("keys", "list", cwd=tmp_path, env=env)
    assert done.returncode == 1
    assert words in done.stderr.decode()
    assert b"Traceback" not in done.stderr


def test_a_path_is_another_file(tmp_path: Path) -> None:
    (tmp_path / "forebay.yaml").write_text("data: {database: elsewhere/other.db}\n")
    assert run_process("keys", "create", "k", cwd=tmp_path).returncode == 0
    assert (tmp_path / "elsewhere" / "other.db").exists()
    assert not (tmp_path / ".forebay" / "forebay.db").exists()


def test_an_address_in_the_file_is_refused_and_a_reference_to_nothing_is_a_warning(tmp_path: Path) -> None:
    file = tmp_path / "forebay.yaml"
    file.write_text(f"data:\n  database: postgresql://u:{SECRET}@h/n\n")
    (problem,) = check_config(file, {})[1]
    assert (problem.line, problem.key) == (2, "data.database")
    assert "env:NAME or file:PATH" in problem.message
    assert SECRET not in problem.render()
    file.write_text(YAML)
    config, (warning,) = check_config(file, {})
    assert config is not None
    assert warning.secret


def test_a_driver_that_is_not_installed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StoreUnavailable, match="forebay\\[postgres\\]"):
        Database.open("postgresql://h/n")
