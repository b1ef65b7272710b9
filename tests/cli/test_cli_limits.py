"""`forebay limits`: a bar and a time for each limit, the tightest first, and words where nothing answers."""

import http.server
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
from command_line import forebay

from forebay.app.clock import SystemClock
from forebay.app.supervisor_state import RunState, save_run_state
from forebay.cli.limits import BAR_MARKS, draw_bar, format_wait
from forebay.testing.threaded import find_closed_port

TOKEN = "fba-test"


class Handler(http.server.BaseHTTPRequestHandler):
    answer: ClassVar[tuple[int, bytes]] = (200, b"")

    def do_GET(self) -> None:
        ok = self.path == "/admin/v1/limits" and self.headers["authorization"] == f"Bearer {TOKEN}"
        status, body = self.answer if ok else (401, b'{"error": {"message": "not this token"}}')
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FOREBAY_CONFIG", raising=False)
    run = tmp_path / ".forebay" / "run"
    run.mkdir(parents=True)
    (run.parent / "admin.token").write_text(f"{TOKEN}\n")
    return tmp_path


def say_that_it_runs(folder: Path, port: int) -> None:
    state = RunState(
        pid=os.getpid(),
        started_at_s=1,
        gateway_url="http://127.0.0.1:1",
        control_url=f"http://127.0.0.1:{port}",
        children=(),
    )
    save_run_state(folder / ".forebay" / "run" / "state.json", state)


@contextmanager
def control_plane(folder: Path, status: int, body: bytes) -> Iterator[None]:
    handler = type("Answer", (Handler,), {"answer": (status, body)})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        say_that_it_runs(folder, server.server_address[1])
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


def limit(owner: str, amount: int, left: int, **other: Any) -> dict[str, Any]:
    found = {
        "id": owner, "owner": owner, "measure": "requests", "unit": "requests", "amount": amount,
        "per": "minute", "left": left,
        "window": "bucket", "time_zone": None, "models": ["*"], "lent": 0, "resets_at_s": None,
        "when_exceeded": "refuse", "exceeded_at_s": None, "expression": None, "signals": [],
    }  # fmt: skip
    return found | other


def test_the_tightest_limit_comes_first_with_a_bar_and_a_time(folder: Path) -> None:
    now_s = SystemClock().wall_ns() / 1e9
    data = [
        limit("team idle", 100, 100, resets_at_s=now_s),
        limit("team over", 100, -20, per="day", resets_at_s=now_s + 7230),
        limit("key k", 5, 1, measure="concurrent_requests", per=None),
        limit("project a/b", 1_000_000, 600_000, measure="total_tokens", models=["gpt-*", "m"],
              resets_at_s=now_s + 30.2),
        limit("team shut", 0, 0),
        limit("team rich", 5000 * 10**9, 4_999_500_000_000, measure="cost_usd", unit="nano_usd", per="month"),
    ]  # fmt: skip
    with control_plane(folder, 200, json.dumps({"data": data}).encode()):
        result = forebay("limits")
    assert result.exit_code == 0
    rows = [line.rstrip() for line in result.stdout.splitlines()]
    assert [row.split()[0:2] for row in rows[1:]] == [
        ["team", "over"],
        ["team", "shut"],
        ["key", "k"],
        ["project", "a/b"],
        ["team", "rich"],
        ["team", "idle"],
    ]
    assert "100 requests a day" in rows[1]
    assert "-20" in rows[1]
    assert "██████████ 120%" in rows[1]
    assert rows[1].endswith("in 2 h 0 min")
    assert "5 concurrent at a time" in rows[3]
    assert "████████░░ 80%" in rows[3]
    assert "1,000,000 total tokens a minute" in rows[4]
    assert "gpt-* m" in rows[4]
    assert rows[4].endswith("in 30 s")
    assert "5,000.00 USD a month" in rows[5]
    assert "4,999.50" in rows[5]
    assert rows[6].endswith("░░░░░░░░░░ 0%")


def test_a_limit_that_follows_load_says_from_what(folder: Path) -> None:
    def use(value: float, fresh: list[str], stale: list[str]) -> dict[str, Any]:
        return {"name": "ccu", "value": value, "fresh": fresh, "stale": stale}

    data = [
        limit("team a", 750, 1, expression="600 + 1.5 * ccu", signals=[use(100, ["a/b"], [])]),
        limit("team b", 700, 2, expression="9 * ccu", signals=[use(2.5, [], ["a/b"])]),
        limit("team c", 600, 3, expression="8 * ccu", signals=[use(1_000_000, ["a/d"], ["a/b", "a/c"])]),
        limit("team d", 500, 4, expression="7 * ccu", signals=[use(0, [], [])]),
        limit("team e", 400, 5, expression="60 * 10"),
    ]
    with control_plane(folder, 200, json.dumps({"data": data}).encode()):
        rows = [line.rstrip() for line in forebay("limits").stdout.splitlines()]
    assert [row.rpartition("  ")[2] for row in rows] == [
        "Computed from",
        "600 + 1.5 * ccu (ccu 100)",
        "9 * ccu (ccu 2.5, stale)",
        "8 * ccu (ccu 1,000,000, stale of 2 projects)",
        "7 * ccu (ccu 0 by default)",
        "60 * 10",
    ]


def test_json_is_the_answer_of_the_admin_api(folder: Path) -> None:
    data = {"data": [limit("team a", 1, 1)]}
    with control_plane(folder, 200, json.dumps(data).encode()):
        assert json.loads(forebay("limits", "--json").stdout) == data


def test_no_limits_are_told_so(folder: Path) -> None:
    with control_plane(folder, 200, b'{"data": []}'):
        result = forebay("limits")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "no limits" in result.stderr


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (503, b'{"error": {"message": "the disk is full"}}', "answered 503: the disk is full"),
        (500, b"<html>", "answered 500: not in the words"),
        (200, b'{"data": [{"owner": 1}]}', "does not answer like this version"),
        (200, b"", "does not answer like this version"),
    ],
)
def test_a_bad_answer_is_told_in_words(folder: Path, status: int, body: bytes, words: str) -> None:
    with control_plane(folder, status, body):
        result = forebay("limits")
    assert result.exit_code == 1
    assert words in result.stderr


def test_where_nothing_runs_it_says_how_to_start_it(folder: Path) -> None:
    result = forebay("limits")
    assert result.exit_code == 1
    assert "does not run here" in result.stderr
    assert "forebay up" in result.stderr


def test_a_control_plane_that_is_away_is_told_so(folder: Path) -> None:
    say_that_it_runs(folder, find_closed_port())
    result = forebay("limits")
    assert result.exit_code == 1
    assert "does not answer at http://127.0.0.1" in result.stderr


def test_a_token_that_is_gone_is_told_so(folder: Path) -> None:
    say_that_it_runs(folder, 1)
    (folder / ".forebay" / "admin.token").unlink()
    result = forebay("limits")
    assert result.exit_code == 1
    assert "token of the admin API can't be read" in result.stderr


@pytest.mark.parametrize(
    ("part", "marks"),
    [(-1, 0), (0, 0), (0.001, 1), (0.5, 5), (0.999, BAR_MARKS - 1), (1, BAR_MARKS), (7.5, BAR_MARKS)],
)
def test_a_bar_is_empty_or_full_only_of_nothing_and_all(part: float, marks: int) -> None:
    assert draw_bar(part) == "█" * marks + "░" * (BAR_MARKS - marks)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, ""),
        (-3, ""),
        (0.2, ""),
        (0.9, "in 1 s"),
        (119, "in 119 s"),
        (150, "in 2 min"),
        (7260, "in 2 h 1 min"),
        (20 * 86_400, "in 20 d"),
    ],
)
def test_a_wait_is_told_in_two_words(seconds: float | None, text: str) -> None:
    assert format_wait(seconds) == text
