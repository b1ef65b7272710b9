"""Limits follow reported load over a whole Forebay: within a second, over kills, and back to the default."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import httpx
from test_limits_end_to_end import Edits, admin, ask, count_passed, kill_control_plane, snapshot_of
from whole import Whole, running, wait_until

from forebay.testing.openai import well_behaved
from forebay.testing.threaded import ThreadedUpstream

LOADED_S = 8.0  #: the same on a machine that is busy with something else
FOLLOWS_S = 1.0  #: from the answer to a report until a worker lets the next request in
SEEN_S = 60.0
PATH = "/admin/v1/teams/default/projects/default/signals/ccu"
RULES = (
    "limits:\n"
    "  signals: {ccu: {default: 0, stale_after_s: 600}}\n"
    "  rules:\n"
    "    - {team: default, requests: 10 + 1 * ccu, per: month, window: calendar}\n"
)


def report(whole: Whole, token: str, **body: float) -> float:
    """When it was answered."""
    answer = httpx.put(
        f"{whole.state.control_url}{PATH}",
        headers={"authorization": f"Bearer {token}"},
        json=body,
        timeout=30,
    )
    assert answer.status_code == 200, answer.text
    return time.monotonic()


def make_token(whole: Whole) -> str:
    """One that an application would have."""
    return whole.command("tokens", "create", "game-server", "--role", "reporter").stdout.split()[0]


def get_limit(whole: Whole) -> dict[str, Any]:
    (limit,) = admin(whole, "/limits")["data"]
    return dict(limit)


def wait_amount(whole: Whole, amount: int) -> dict[str, Any]:
    """The limit, once it has the amount."""
    found: dict[str, Any] = {}

    def has_it() -> bool:
        try:
            found.update(get_limit(whole))
        except (httpx.HTTPError, ValueError):
            return False  # the control plane is being started again
        return bool(found["amount"] == amount)

    wait_until(has_it, SEEN_S, f"the amount is {amount}")
    return found


def kill_worker(whole: Whole) -> None:
    before = next(child for child in whole.state.children if child.name == "worker-0")
    assert before.pid is not None
    os.kill(before.pid, signal.SIGKILL)

    def is_back() -> bool:
        now = next(child for child in whole.state.children if child.name == "worker-0")
        return now.pid not in (None, before.pid) and now.state == "ready"

    wait_until(is_back, SEEN_S, "the worker is back")


def test_a_report_lets_more_in_within_a_second_and_outlives_what_is_killed(tmp_path: Path) -> None:
    with ThreadedUpstream(well_behaved("Hello")) as upstream:
        with running(tmp_path, Edits(tmp_path, upstream.url).base + RULES) as whole:
            token, before = make_token(whole), snapshot_of(whole)
            assert count_passed(whole, 20) == 10
            followed = []
            for ccu in range(1, 6):
                at = report(whole, token, value=ccu)
                wait_until(lambda: count_passed(whole, 1) == 1, SEEN_S, "more is let in")
                followed.append(time.monotonic() - at)
                assert count_passed(whole, 3) == 0
            print(f"limits followed reports within {max(followed):.3f} s")
            assert min(followed) < FOLLOWS_S, followed
            assert max(followed) < LOADED_S, followed

            report(whole, token, value=20)
            assert wait_amount(whole, 30)["signals"] == [
                {"name": "ccu", "value": 20, "fresh": ["default/default"], "stale": []}
            ]
            kill_worker(whole)
            assert count_passed(whole, 30) == 15
            refused = ask(whole, 3)[0]
            assert "the limit of 30 requests a month of team default is reached" in refused.message
            assert refused.response.headers["x-ratelimit-limit-requests"] == "30"

            kill_control_plane(whole)
            limit = wait_amount(whole, 30)
            assert (limit["left"], limit["expression"]) == (0, "10 + 1 * ccu")
            assert count_passed(whole, 10) == 0, "what was used is used after a restart"

            report(whole, token, value=100, ttl_s=6)
            wait_amount(whole, 110)
            limit = wait_amount(whole, 10)
            assert limit["signals"] == [
                {"name": "ccu", "value": 0, "fresh": [], "stale": ["default/default"]}
            ]
            assert limit["left"] == -20, "at most so much is let in, and thirty were"
            table = whole.command("limits").stdout
            assert "10 requests a month" in table
            assert "10 + 1 * ccu (ccu 0, stale)" in table

            told = whole.command("signals", "set", "ccu", "40")
            assert told.returncode == 0, told.stderr
            wait_amount(whole, 50)
            wait_until(lambda: count_passed(whole, 1) == 1, SEEN_S, "another process has reported")
            assert count_passed(whole, 30) == 19
            assert snapshot_of(whole) == before, "no report makes a snapshot"
