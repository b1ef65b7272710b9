"""Limits edited in `forebay.yaml` while Forebay runs: they hold over all workers, and are never forgotten."""

import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from whole import Whole, await_period, running, wait_until

from forebay.testing.openai import well_behaved
from forebay.testing.threaded import ThreadedUpstream

WORKERS = 3
TOLD_S = 60.0  #: two seconds where the cores are not shared
#: A worker whose authority takes longer than a second, as on a busy machine, lets nothing pass by itself.
LIMITS = "limits:\n  when_away: closed\n"


class Edits:
    """The configuration file of a Forebay, edited while it runs."""

    def __init__(self, folder: Path, upstream_url: str) -> None:
        self._file = folder / "forebay.yaml"
        self.base = (
            f"gateway: {{port: 0, workers: {WORKERS}}}\ncontrol: {{port: 0}}\n"
            f"models: {{m: {{endpoints: [chat/completions], targets: [{{url: '{upstream_url}'}}]}}}}\n"
        )

    def write(self, *rules: str) -> None:
        self._file.write_text(
            self.base + LIMITS + "  rules:\n" + "".join(f"    - {rule}\n" for rule in rules)
        )


def admin(whole: Whole, path: str) -> dict[str, Any]:
    token = (whole.data / "admin.token").read_text().strip()
    answer = httpx.get(
        f"{whole.state.control_url}/admin/v1{path}", headers={"authorization": f"Bearer {token}"}, timeout=30
    )
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def snapshot_of(whole: Whole) -> str:
    return str(admin(whole, "/status")["snapshot"]["hash"])


def wait_told(whole: Whole, before: str) -> None:
    """Until all workers run a snapshot that is another than `before`."""

    def is_told() -> bool:
        try:
            status = admin(whole, "/status")
        except httpx.HTTPError:
            return False  # it is being started again
        current = [worker["current"] for worker in status["workers"]]
        return status["snapshot"]["hash"] != before and current == [True] * WORKERS

    wait_until(is_told, TOLD_S, "all workers have the edit")


def ask(whole: Whole, count: int) -> list[openai.RateLimitError]:
    """So many requests, each over a connection of its own, at once; those that were refused.

    Where nobody can say at the moment whether there is room, it is asked again.
    """
    url, key = whole.url, whole.key

    def one() -> openai.RateLimitError | None:
        with openai.OpenAI(base_url=url, api_key=key, max_retries=0, timeout=60) as client:
            while True:
                try:
                    answer = client.chat.completions.create(
                        model="m", messages=[{"role": "user", "content": "Hi"}]
                    )
                except openai.RateLimitError as error:
                    return error
                except openai.InternalServerError as error:
                    if error.code != "quota_unavailable":
                        raise
                    time.sleep(0.1)
                else:
                    assert answer.choices[0].message.content == "Hello"
                    return None

    with ThreadPoolExecutor(8) as pool:
        return [error for error in pool.map(lambda _: one(), range(count)) if error is not None]


def count_passed(whole: Whole, count: int) -> int:
    return count - len(ask(whole, count))


def kill_control_plane(whole: Whole) -> None:
    pid = next(child.pid for child in whole.state.children if child.name == "control")
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("window", ["calendar", "bucket"])
def test_a_limit_holds_from_its_edit_on_over_all_workers_and_over_a_kill(tmp_path: Path, window: str) -> None:
    await_period()
    rule = f"{{team: default, requests: %d, per: month, window: {window}}}"
    with ThreadedUpstream(well_behaved("Hello")) as upstream:
        edits = Edits(tmp_path, upstream.url)
        with running(tmp_path, edits.base) as whole:
            assert count_passed(whole, 6) == 6
            before = snapshot_of(whole)
            edits.write(rule % 10)
            wait_told(whole, before)

            refused = ask(whole, 30)
            assert len(refused) == 20
            assert len(upstream.requests) == 6 + 10
            error = refused[0]
            assert (error.status_code, error.code, error.type) == (
                429,
                "rate_limit_exceeded",
                "rate_limit_error",
            )
            assert "the limit of 10 requests a month of team default is reached" in error.message
            assert int(error.response.headers["retry-after"]) > 0
            assert error.response.headers["x-ratelimit-limit-requests"] == "10"
            assert error.response.headers["x-ratelimit-remaining-requests"] == "0"
            assert error.response.headers["x-ratelimit-reset-requests"]

            shown = json.loads(whole.command("limits", "--json").stdout)["data"]
            assert [(limit["owner"], limit["amount"], limit["left"]) for limit in shown] == [
                ("team default", 10, 0)
            ]
            table = whole.command("limits").stdout
            assert "10 requests a month" in table
            assert "██████████ 100%" in table

            before = snapshot_of(whole)
            edits.write(rule % 16)
            wait_told(whole, before)
            more = 6 if window == "calendar" else 0  # a bucket that was empty stays empty: it fills at more
            assert count_passed(whole, 30) == more

            before = snapshot_of(whole)
            kill_control_plane(whole)
            edits.write(rule % 20, "{each: key, concurrent_requests: 50}")
            wait_told(whole, before)
            assert count_passed(whole, 30) == (4 if window == "calendar" else 0)
            limits = {limit["measure"]: limit for limit in admin(whole, "/limits")["data"]}
            assert limits["requests"]["left"] == 0
            wait_until(
                lambda: {one["left"] for one in admin(whole, "/limits")["data"]} == {0, 50},
                TOLD_S,
                "places come back",
            )
