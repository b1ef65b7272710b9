"""A database that goes away for a time: callers do not see it, and no record is lost or counted twice."""

import os
import signal
from collections import Counter
from pathlib import Path

import httpx
import pytest
from sqlalchemy import text
from whole import Whole, running, wait_until

from forebay.app.control_plane import PAUSE_S_MAX, compute_pause_s
from forebay.store.database import Database
from forebay.store.errors import StoreError
from forebay.testing.openai import well_behaved
from forebay.testing.threaded import ThreadedUpstream
from postgres_server import NoPostgres, PostgresServer, start

CONFIG = """
data: {{database: 'env:TEST_OF_A_DATABASE'}}
gateway: {{host: 127.0.0.1, port: 0, workers: 1}}
control: {{host: 127.0.0.1, port: 0}}
ledger: {{segment_max_bytes: 4096, keep_segments_s: 0, ingest_interval_s: 0.1}}
models:
  m:
    endpoints: [chat/completions]
    targets:
      - url: {url}
"""
LIMIT_S = 60.0


def send(whole: Whole, count: int) -> list[str]:
    """Requests that must all be served; their ids."""
    ids = []
    with httpx.Client(headers={"authorization": f"Bearer {whole.key}"}, timeout=LIMIT_S) as client:
        for _ in range(count):
            body = {"model": "m", "messages": [{"role": "user", "content": "Hi."}]}
            answer = client.post(f"{whole.url}/chat/completions", json=body)
            assert answer.status_code == 200, answer.text
            ids.append(answer.headers["x-request-id"])
    return ids


def ask_control(whole: Whole, method: str, path: str, **given: object) -> httpx.Response:
    token = (whole.data / "admin.token").read_text().strip()
    headers = {"authorization": f"Bearer {token}"}
    url = f"{whole.state.control_url}/admin/v1{path}"
    return httpx.request(method, url, headers=headers, timeout=LIMIT_S, **given)  # type: ignore[arg-type]


def find_ingest(whole: Whole) -> dict[str, object]:
    return ask_control(whole, "GET", "/status").json()["ingest"]  # type: ignore[no-any-return]


def is_worker_ready(whole: Whole) -> bool:
    try:
        return httpx.get(f"{whole.state.gateway_url}/readyz", timeout=LIMIT_S).status_code == 200
    except httpx.TransportError:
        return False


def load_ids(url: str) -> Counter[str]:
    database = Database.open(url)
    with database.read() as connection:
        found = Counter(connection.execute(text("SELECT request_id FROM ledger_events")).scalars())
        for table in ("hourly", "daily"):
            counted = connection.execute(text(f"SELECT sum(requests) FROM ledger_usage_{table}")).scalar()
            assert counted == found.total(), table
    database.close()
    return found


def kill(whole: Whole, name: str) -> int:
    (pid,) = [child.pid for child in whole.state.children if child.name == name and child.pid]
    os.kill(pid, signal.SIGKILL)
    return pid


def pid_of(whole: Whole, name: str) -> int | None:
    return next(child.pid for child in whole.state.children if child.name == name)


def test_callers_go_on_without_the_database_and_all_is_there_once_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        with start() as server, ThreadedUpstream(well_behaved("Hello")) as upstream:
            url = server.create("template1")
            monkeypatch.setenv("TEST_OF_A_DATABASE", url)
            with running(tmp_path, CONFIG.format(url=upstream.url)) as whole:
                ids = send(whole, 5)
                wait_until(lambda: find_ingest(whole)["records"] == 5, LIMIT_S, "records are taken in")
                ids += go_without(server, whole)
                server.start_again()
                wait_until(lambda: set(load_when_there(url)) == set(ids), LIMIT_S, "all is made good")
                wait_until(lambda: find_ingest(whole)["error"] is None, LIMIT_S, "the control plane is well")
                made = ask_control(whole, "POST", "/keys", json={"name": "later"})
                assert made.status_code == 201
                ids += send(whole, 2)
            assert load_ids(url) == Counter(ids), "each once"
    except NoPostgres as error:
        pytest.skip(str(error))


def load_when_there(url: str) -> Counter[str]:
    try:
        return load_ids(url)
    except StoreError:  # it does not answer yet
        return Counter()


def go_without(server: PostgresServer, whole: Whole) -> list[str]:
    """With the database away, and processes that are killed meanwhile; the ids of what was served."""
    server.stop()
    ids = send(whole, 20)
    wait_until(lambda: find_ingest(whole)["error"] is not None, LIMIT_S, "the control plane says so")
    assert is_worker_ready(whole)
    answer = ask_control(whole, "POST", "/keys", json={"name": "now"})
    assert answer.status_code == 503
    assert "database" in answer.json()["error"]["message"]
    told = (whole.data / "logs" / "control.log").read_text().count("records can't be taken in")
    assert told == 1, "once, however often it is tried"

    killed = kill(whole, "worker-0")  # it starts anew with the snapshot on the disk
    wait_until(lambda: pid_of(whole, "worker-0") not in (None, killed), LIMIT_S, "another worker")
    wait_until(lambda: is_worker_ready(whole), LIMIT_S, "the worker is ready")
    ids += send(whole, 5)
    kill(whole, "control")  # it can't start before the database is back
    return ids + send(whole, 5)


def test_pauses_grow_while_the_database_refuses_and_have_an_end() -> None:
    assert [compute_pause_s(0.5, failures) for failures in range(7)] == [0.5, 1, 2, 4, 8, 10, 10]
    assert compute_pause_s(0.5, 10**9) == PAUSE_S_MAX
    assert compute_pause_s(60.0, 3) == 60.0
