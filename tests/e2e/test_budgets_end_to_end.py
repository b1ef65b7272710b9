"""Limits of money over a whole Forebay: they agree with the bill to the nano-USD, and do what they say."""

import os
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest
from whole import Whole, await_period, running, wait_until

from forebay.testing.openai import usage, well_behaved
from forebay.testing.threaded import ThreadedUpstream

#: 0.7 USD for what the upstream says it used: the estimate of such a request is another figure.
USED = usage(100, 60)
PRICES = """prices:
  book:
    - {model: big, usd_per_mtok: {input: 1000, output: 10000}}
    - {model: small, usd_per_mtok: {input: 1, output: 1}, usd_per_request: "0.000000001"}
    - {model: slow, usd_per_second: 1}
"""
COST_BIG, COST_SMALL = 700_000_000, 160_001  # nano-USD


@contextmanager
def budget(folder: Path, *rules: str, more: str = "") -> Iterator[tuple[Whole, ThreadedUpstream]]:
    with ThreadedUpstream(well_behaved("Hello", tokens=USED)) as upstream:
        target = f"targets: [{{url: '{upstream.url}'}}]"
        models = "".join(
            f"  {name}: {{endpoints: [chat/completions], {target}}}\n"
            for name in ("big", "small", "slow", "unpriced")
        )
        text = f"gateway: {{port: 0, workers: 2}}\ncontrol: {{port: 0}}\nmodels:\n{models}{PRICES}"
        # A worker whose authority takes longer than a second lets nothing pass by itself.
        limits = (
            "limits:\n  when_away: closed\n"
            + more
            + "  rules:\n"
            + "".join(f"    - {rule}\n" for rule in rules)
        )
        with running(folder, text + limits) as whole:
            yield whole, upstream


def send(whole: Whole, model: str = "big", **body: Any) -> httpx.Response:
    """Asked again where nobody can say at the moment whether there is room: the machine is busy."""
    asked = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 50} | body
    headers = {"authorization": f"Bearer {whole.key}"}
    with httpx.Client(timeout=60, headers=headers) as client:
        while True:
            answer = client.post(f"{whole.url}/chat/completions", json=asked)
            if answer.status_code != 503 or "has no price" in answer.text:
                return answer
            time.sleep(0.1)


def admin(whole: Whole, path: str) -> dict[str, Any]:
    token = (whole.data / "admin.token").read_text().strip()
    url = f"{whole.state.control_url}/admin/v1{path}"
    answer = httpx.get(url, headers={"authorization": f"Bearer {token}"}, timeout=30)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def read_used(whole: Whole, expected: int | None = None) -> int:
    """Nano-USD that were used of the only limit of cost, once all that was lent is back.

    What an answer took beyond its reservation is told a moment after the rest: until then it is waited for.
    """
    found: list[dict[str, Any]] = []

    def is_back() -> bool:
        found[:] = [each for each in admin(whole, "/limits")["data"] if each["unit"] == "nano_usd"]
        used = found[0]["amount"] - found[0]["left"]
        return found[0]["lent"] == 0 and expected in (None, used)

    with suppress(TimeoutError):  # what it is in place of that, the test says
        wait_until(is_back, 60, "nothing is lent any more")
    return int(found[0]["amount"] - found[0]["left"])


def read_billed(whole: Whole, count: int) -> int:
    """Nano-USD on the bill, once so many records are on it."""
    total: dict[str, Any] = {}

    def is_there() -> bool:
        total.clear()
        total.update(admin(whole, "/bill?by=model")["total"])
        return total["requests"] >= count

    wait_until(is_there, 60, f"{count} records on the bill")
    return int(Decimal(total["cost_usd"]).scaleb(9))


def test_a_budget_is_used_as_the_bill_says_and_then_refuses(tmp_path: Path) -> None:
    await_period()
    rule = "{team: default, cost_usd: 5.0, per: day, window: calendar}"
    with budget(tmp_path, rule) as (whole, upstream):
        with ThreadPoolExecutor(6) as pool:
            answers = list(pool.map(lambda at: send(whole, stream=at % 2 == 0), range(30)))
        refused = [answer for answer in answers if answer.status_code == 429]
        passed = len(answers) - len(refused)
        assert len(upstream.requests) == passed
        # Each takes 0.7 and reserves about 0.6: seven fit for certain, and what they took more is a debt.
        assert 7 <= passed <= 9
        message = refused[0].json()["error"]["message"]
        assert "the limit of 5 USD a day of team default is reached" in message
        assert int(refused[0].headers["retry-after"]) > 0
        assert read_billed(whole, passed) == passed * COST_BIG
        assert read_used(whole, passed * COST_BIG) == passed * COST_BIG


def test_a_price_that_is_edited_while_the_database_is_away_changes_no_earlier_request(tmp_path: Path) -> None:
    await_period()
    rule = "{team: default, cost_usd: 500, per: day, window: calendar}"
    with budget(tmp_path, rule) as (whole, _):
        assert send(whole).status_code == 200
        assert read_billed(whole, 1) == COST_BIG
        before = admin(whole, "/status")["snapshot"]["hash"]
        with closing(sqlite3.connect(whole.data / "forebay.db", timeout=30, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")  # nothing is taken in until it lets go
            assert [send(whole, stream=at == 1).status_code for at in range(3)] == [200] * 3
            file = tmp_path / "forebay.yaml"
            file.write_text(
                file.read_text().replace("input: 1000, output: 10000", "input: 2000, output: 20000")
            )
            wait_until(lambda: _is_told(whole, before), 60, "the workers have the new prices")
            assert [send(whole).status_code for _ in range(2)] == [200] * 2
            other.execute("ROLLBACK")
        cost = 4 * COST_BIG + 2 * (2 * COST_BIG)
        assert read_used(whole, cost) == read_billed(whole, 6) == cost


def _is_told(whole: Whole, before: str) -> bool:
    status = admin(whole, "/status")
    return status["snapshot"]["hash"] != before and all(each["current"] for each in status["workers"])


def test_seconds_of_hardware_count_as_the_bill_has_them(tmp_path: Path) -> None:
    await_period()
    rule = "{each: key, cost_usd: 100, per: day, window: calendar}"
    with budget(tmp_path, rule) as (whole, _):
        for at in range(6):
            assert send(whole, "slow", stream=at % 2 == 0).status_code == 200
        billed = read_billed(whole, 6)
        assert read_used(whole, billed) == billed > 0


def test_what_is_used_survives_a_kill_of_the_control_plane(tmp_path: Path) -> None:
    await_period()
    rule = "{team: default, cost_usd: 5.0, per: day, window: calendar}"
    with budget(tmp_path, rule) as (whole, _):
        assert [send(whole).status_code for _ in range(3)] == [200] * 3
        assert read_used(whole, 3 * COST_BIG) == 3 * COST_BIG
        pid = next(child.pid for child in whole.state.children if child.name == "control")
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

        def is_back() -> bool:
            try:
                return read_used(whole) == 3 * COST_BIG
            except (httpx.HTTPError, AssertionError):
                return False

        wait_until(is_back, 60, "the control plane is back")


def test_a_model_without_a_price_is_refused_unless_that_is_allowed(tmp_path: Path) -> None:
    rule = "{team: default, cost_usd: 5.0, per: day, window: calendar}"
    with budget(tmp_path, rule) as (whole, upstream):
        answer = send(whole, "unpriced")
        assert answer.status_code == 503
        assert "the model unpriced has no price" in answer.json()["error"]["message"]
        assert "prices.book" in answer.json()["error"]["message"]
        assert upstream.requests == []
    (tmp_path / "two").mkdir()
    with budget(tmp_path / "two", rule, more="  unpriced: allow\n") as (whole, _):
        assert send(whole, "unpriced").status_code == 200
        assert read_used(whole) == 0


@pytest.mark.parametrize("stream", [False, True])
def test_a_budget_that_is_used_up_sends_to_a_cheaper_model(tmp_path: Path, stream: bool) -> None:
    await_period()
    rule = (
        "{team: default, cost_usd: 1.4, per: day, window: calendar, models: [big], "
        "when_exceeded: {downgrade: small}}"
    )
    with budget(tmp_path, rule) as (whole, upstream):
        answers = [send(whole, stream=stream) for _ in range(8)]
        assert [answer.status_code for answer in answers] == [200] * 8
        names = [answer.headers.get("x-forebay-answered-by", "big") for answer in answers]
        assert names[:2] == ["big", "big"]
        assert names[-4:] == ["small"] * 4
        assert [request.json()["model"] for request in upstream.requests] == names
        bigs = names.count("big")
        assert read_billed(whole, 8) == bigs * COST_BIG + (8 - bigs) * COST_SMALL
        with sqlite3.connect(whole.data / "forebay.db") as database:
            asked = "SELECT model, asked_model, COUNT(*) FROM ledger_events GROUP BY 1, 2 ORDER BY 1"
            assert database.execute(asked).fetchall() == [("big", "", bigs), ("small", "big", 8 - bigs)]


def test_a_budget_that_is_used_up_throttles(tmp_path: Path) -> None:
    await_period()
    rule = (
        "{team: default, cost_usd: 1.4, per: day, window: calendar, "
        "when_exceeded: {throttle: {requests: 3, per: day}}}"
    )
    with budget(tmp_path, rule) as (whole, upstream):
        answers = [send(whole) for _ in range(12)]
        passed = [answer for answer in answers if answer.status_code == 200]
        assert len(upstream.requests) == len(passed)
        assert 5 <= len(passed) <= 6  # two or three by the budget, three by the throttle
        message = answers[-1].json()["error"]["message"]
        assert "3 requests a day of team default, now that 1.4 USD of this day are used up" in message
        cost = len(passed) * COST_BIG
        assert read_used(whole, cost) == read_billed(whole, 12) == cost


def test_grace_lets_a_bounded_part_more_pass_for_a_while(tmp_path: Path) -> None:
    await_period()
    rule = "{team: default, cost_usd: 1.4, per: day, window: calendar, grace: {for_s: 3600, share: 1.0}}"
    with budget(tmp_path, rule) as (whole, upstream):
        answers = [send(whole) for _ in range(12)]
        passed = [answer for answer in answers if answer.status_code == 200]
        assert 4 <= len(passed) <= 5  # twice the budget
        assert len(upstream.requests) == len(passed)
        assert answers[-1].status_code == 429
        (limit,) = admin(whole, "/limits")["data"]
        assert limit["exceeded_at_s"] == pytest.approx(time.time(), abs=300)


def test_grace_ends_with_its_time(tmp_path: Path) -> None:
    await_period()
    rule = "{team: default, cost_usd: 0.7, per: day, window: calendar, grace: {for_s: 1.0, share: 100.0}}"
    with budget(tmp_path, rule) as (whole, _):
        assert send(whole).status_code == 200
        wait_until(_refuses(whole), 60, "the grace has ended")
        assert send(whole).status_code == 429


def _refuses(whole: Whole) -> Callable[[], bool]:
    return lambda: send(whole).status_code == 429
