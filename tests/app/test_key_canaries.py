"""Keys and tokens stand in the answer that shows them once and nowhere else: all files are read."""

import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from control_scene import LiveControl

SHOWN = {"local.key", "admin.token"}


@pytest.fixture
def control(tmp_path: Path) -> Iterator[LiveControl]:
    control = LiveControl(tmp_path, "control: {port: 0}\n")
    yield control
    control.close()


def test_no_file_no_log_and_no_later_answer_holds_a_key_or_a_token(control: LiveControl) -> None:
    def ask(method: str, path: str, body: object = None) -> str:
        headers = {"authorization": f"Bearer {control.token}"}
        url = f"{control.url}/admin/v1{path}"
        response = httpx.request(method, url, headers=headers, json=body, timeout=30)
        response.raise_for_status()
        return response.text

    def run(*words: str) -> dict[str, str]:
        command = [sys.executable, "-m", "forebay", *words, "--json", "-c", str(control.file)]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
        found: dict[str, str] = json.loads(done.stdout)
        return found

    first = json.loads(ask("POST", "/keys", {"name": "canary"}))
    second = json.loads(ask("POST", f"/keys/{first['id']}/rotate", {}))
    token = json.loads(ask("POST", "/tokens", {"name": "canary", "role": "owner"}))
    third, fourth = run("keys", "create", "canary"), run("tokens", "create", "canary")
    fifth = run("keys", "rotate", third["id"])
    # As a slip would bring them into a log: in a path and in a header that is no bearer token.
    for secret in (first["key"], token["token"]):
        httpx.get(
            f"{control.url}/admin/v1/{secret}", headers={"authorization": f"Basic {secret}"}, timeout=30
        )
    ask("DELETE", f"/keys/{first['id']}")
    secrets = [each["key"] for each in (first, second, third, fifth)]
    secrets += [token["token"], fourth["token"]]
    answers = "".join(
        ask("GET", path)
        for path in ("/keys?revoked=true", "/tokens", "/audit", "/status", "/config", "/models")
    )
    assert answers.count("canary") >= 6
    database = sqlite3.connect(control.data / "forebay.db")
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    database.close()
    files = [path for path in control.folder.rglob("*") if path.is_file() and path.name not in SHOWN]
    assert {"forebay.db", "control.log", "snapshot.msgpack"} <= {path.name for path in files}
    for secret in secrets:
        rest = secret[9:]  # behind the first characters, which are for people to recognise it by
        assert rest not in answers
        assert [path for path in files if rest.encode() in path.read_bytes()] == []
