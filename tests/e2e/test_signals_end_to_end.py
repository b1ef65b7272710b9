"""Limits follow reported load over a whole Forebay: within a second, over kills, and back to the default."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import httpx
from test_limits_end_to_end import LIMITS, Edits, admin, ask, count_passed, kill_control_plane, snapshot_of
from whole import Whole, await_period, running, wait_until

from forebay.testing.openai import well_behaved
from forebay.testing.threaded import ThreadedUpstream

FOLLOWS_S = 1.0  #: from the answer to a report until a worker lets the next request in
TRIES = 30  #: to see it: the machine may be busy with something else
SEEN_S = 60.0
PATH = "/admin/v1/teams/default/projects/default/signals/ccu"
RULES = (
    f"{LIMITS}"
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
    await_period()
    with ThreadedUpstream(well_behaved("Hello")) as upstream:
        with running(tmp_path, Edits(tmp_path, upstream.url).base + RULES) as whole:
            token, before = make_token(whole), snapshot_of(whole)
            assert count_passed(whole, 20) == 10
            followed: list[float] = []
            while len(followed) < 2 or min(followed) >= FOLLOWS_S:
                assert len(followed) < TRIES, followed
                at = report(whole, token, value=len(followed) + 1)
                wait_until(lambda: count_passed(whole, 1) == 1, SEEN_S, "more is let in")
                followed.append(time.monotonic() - at)
                assert count_passed(whole, 3) == 0

            amount = 25 + len(followed)  # 15 more than were let in
            report(whole, token, value=amount - 10)
            assert wait_amount(whole, amount)["signals"] == [
                {"name": "ccu", "value": amount - 10, "fresh": ["default/default"], "stale": []}
            ]
            kill_worker(whole)
            assert count_passed(whole, 30) == 15
            refused = ask(whole, 3)[0]
            assert f"the limit of {amount} requests a month of team default is reached" in refused.message
            assert refused.response.headers["x-ratelimit-limit-requests"] == str(amount)

            kill_control_plane(whole)
            limit = wait_amount(whole, amount)
            assert (limit["left"], limit["expression"]) == (0, "10 + 1 * ccu")
            assert count_passed(whole, 10) == 0, "what was used is used after a restart"

            def is_raised() -> bool:
                report(whole, token, value=100, ttl_s=2)
                return bool(get_limit(whole)["amount"] == 110)

            wait_until(is_raised, SEEN_S, "the amount is 110, for a while")
            limit = wait_amount(whole, 10)
            assert limit["signals"] == [
                {"name": "ccu", "value": 0, "fresh": [], "stale": ["default/default"]}
            ]
            assert limit["left"] == 10 - amount, "at most so much is let in, and more were"
            table = whole.command("limits").stdout
            assert "10 requests a month" in table
            assert "10 + 1 * ccu (ccu 0, stale)" in table

            told = whole.command("signals", "set", "ccu", str(amount + 10))
            assert told.returncode == 0, told.stderr
            wait_amount(whole, amount + 20)
            wait_until(lambda: count_passed(whole, 1) == 1, SEEN_S, "another process has reported")
            assert count_passed(whole, 30) == 19
            assert snapshot_of(whole) == before, "no report makes a snapshot"
