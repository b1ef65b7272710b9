"""`forebay alerts`: what was told and whether it arrived, and what a test of the webhooks brought back."""

import http.server
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from command_line import forebay

from forebay.app.supervisor_state import RunState, save_run_state
from forebay.core.limits import NANO_PER_USD, Kind, Limit, Measure, Period
from forebay.gateway.alerts import DeliveryState
from forebay.gateway.policy.alerting import AlertKind
from forebay.gateway.policy.lending import Standing
from forebay.gateway.repo_alerts import AlertRepo
from forebay.gateway.repo_deliveries import DeliveryRepo, Result
from forebay.store.database import Database

NOVEMBER_NS = 1_793_491_200 * 10**9
AT_NS = NOVEMBER_NS + 10**15
TOKEN = "fba-test"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FOREBAY_CONFIG", raising=False)
    (tmp_path / ".forebay" / "run").mkdir(parents=True)
    (tmp_path / ".forebay" / "admin.token").write_text(f"{TOKEN}\n")
    return tmp_path


@pytest.fixture
def told(folder: Path) -> None:
    """80% of a budget of team a, which one of two webhooks has, and 100% of team b's, which nobody has."""
    database = Database.open(folder / ".forebay" / "forebay.db")
    database.migrate()
    repo, deliveries = AlertRepo(database), DeliveryRepo(database)

    def choose(kind: AlertKind, owner: str) -> tuple[str, ...]:
        return ("https://hooks/good", "env:BAD") if owner == "team a" else ()

    for owner, used in (("team a", 4_012_500_000_001), ("team b", 5000 * NANO_PER_USD)):
        limit = Limit(
            id=f"{owner}/cost",
            owner=owner,
            measure=Measure.COST,
            amount=5000 * NANO_PER_USD,
            period=Period.MONTH,
            kind=Kind.CALENDAR,
            alert_at=(800, 1000),
        )
        repo.tell([(Standing(limit, limit.amount - used, 0, None, NOVEMBER_NS), AT_NS)], choose)
    (good,) = deliveries.claim("https://hooks/good", 9, AT_NS, AT_NS + 1)
    deliveries.finish(good, Result(state=DeliveryState.DELIVERED, status=200), AT_NS)
    (bad,) = deliveries.claim("env:BAD", 9, AT_NS, AT_NS + 1)
    result = Result(state=DeliveryState.FAILED, status=410, error="answered 410")
    deliveries.finish(bad, result, AT_NS)
    database.close()


@pytest.mark.usefixtures("told")
def test_alerts_are_listed_with_what_became_of_them() -> None:
    result = forebay("alerts", "list")
    assert result.exit_code == 0
    _, b, a = result.stdout.splitlines()
    assert b.split("  ")[0] == a.split("  ")[0] == "2026-11-12T13:46:40Z"
    assert "team b" in b
    assert "100% reached" in b
    assert all(
        word in a for word in ("team a", "80% reached", "4012.500000001", "5000 usd", "month from 2026-11-01")
    )
    assert "env:BAD failed after 1 tries: answered 410" in a


@pytest.mark.usefixtures("told")
def test_filters_and_json() -> None:
    def owners(*words: str) -> list[str]:
        return [alert["owner"] for alert in json.loads(forebay("alerts", "list", "--json", *words).stdout)]

    assert owners() == ["team b", "team a"]
    assert owners("--owner", "team b") == ["team b"]
    assert owners("--event", "exceeded") == []
    assert owners("--delivery", "failed") == ["team a"]
    assert owners("--delivery", "waiting") == []
    assert owners("--limit", "1") == ["team b"]
    assert "`--limit 10` shows more" in forebay("alerts", "list", "--limit", "1").stderr
    (alert,) = json.loads(forebay("alerts", "list", "--json", "--owner", "team a").stdout)
    assert [each["state"] for each in alert["deliveries"]] == ["failed", "delivered"]
    assert alert["data"]["used"] == "4012.500000001"


@pytest.mark.usefixtures("told")
@pytest.mark.parametrize(("option", "known"), [("--event", "share_reached"), ("--delivery", "waiting")])
def test_a_word_that_is_none_is_told_with_those_that_are(option: str, known: str) -> None:
    result = forebay("alerts", "list", option, "nope")
    assert result.exit_code != 0
    assert known in result.stderr


def test_where_nothing_was_told_it_says_what_asks_for_alerts(folder: Path) -> None:
    Database.open(folder / ".forebay" / "forebay.db").close()
    result = forebay("alerts", "list")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "alert_at" in result.stderr


# --- test ---------------------------------------------------------------------------------------------------


@contextmanager
def control_plane(folder: Path, answer: object) -> Iterator[list[str]]:
    """Answers every POST with the token; what it was asked."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            ok = self.headers["authorization"] == f"Bearer {TOKEN}"
            asked.append(self.path)
            body = json.dumps(answer).encode()
            self.send_response(200 if ok else 401)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        state = RunState(
            pid=os.getpid(),
            started_at_s=1,
            gateway_url="http://127.0.0.1:1",
            control_url=f"http://127.0.0.1:{server.server_address[1]}",
            children=(),
        )
        save_run_state(folder / ".forebay" / "run" / "state.json", state)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield asked
        finally:
            server.shutdown()
            thread.join()


GOOD = {"webhook": "https://hooks/good", "status": 204, "error": None, "answer": "", "duration_s": 0.251}
BAD = {
    "webhook": "env:BAD", "status": 401, "error": "answered 401: who are you", "answer": "who are you",
    "duration_s": 1.0,
}  # fmt: skip
LOST = {
    "webhook": "env:LOST",
    "status": None,
    "error": "no answer within 10 s",
    "answer": "",
    "duration_s": 10.0,
}


def test_what_came_back_is_shown(folder: Path) -> None:
    with control_plane(folder, {"data": [GOOD, BAD, LOST]}) as asked:
        result = forebay("alerts", "test")
    assert asked == ["/admin/v1/alerts/test"]
    assert result.exit_code == 1
    _, good, bad, lost = result.stdout.splitlines()
    assert all(word in good for word in ("https://hooks/good", "204", "0.25 s", "delivered"))
    assert "answered 401: who are you" in bad
    assert all(word in lost for word in ("env:LOST", "none", "no answer within 10 s"))


def test_a_test_that_arrived_everywhere_is_no_problem(folder: Path) -> None:
    with control_plane(folder, {"data": [GOOD]}):
        assert forebay("alerts", "test").exit_code == 0
        assert json.loads(forebay("alerts", "test", "--json").stdout) == {"data": [GOOD]}


def test_no_webhooks_and_an_older_control_plane_are_told_so(folder: Path) -> None:
    with control_plane(folder, {"data": []}):
        result = forebay("alerts", "test")
        assert (result.exit_code, result.stdout) == (0, "")
        assert "no webhooks" in result.stderr
    with control_plane(folder, {"what": 1}):
        result = forebay("alerts", "test")
        assert result.exit_code == 1
        assert "does not answer like this version" in result.stderr
