"""Limits of money over a whole Forebay: they agree with the bill to the nano-USD, and do what they say."""

import json
import os
import signal
import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
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


#: Those of tests that may share a Forebay, each with a team of its own.
SHARED = """
used: {team: used, cost_usd: 5.0, per: day, window: calendar}
seconds: {each: key, cost_usd: 100, per: day, window: calendar, models: [slow]}
cheaper: {team: cheaper, models: [big], when_exceeded: {downgrade: small}, cost_usd: 1.4, per: day,
  window: calendar}
cheaper-stream: {team: cheaper-stream, models: [big], when_exceeded: {downgrade: small}, cost_usd: 1.4,
  per: day, window: calendar}
throttled: {team: throttled, cost_usd: 1.4, per: day, window: calendar,
  when_exceeded: {throttle: {requests: 3, per: day}}}
graced: {team: graced, cost_usd: 1.4, per: day, window: calendar, grace: {for_s: 3600, share: 1.0}}
brief: {team: brief, cost_usd: 0.7, per: day, window: calendar, grace: {for_s: 1.0, share: 100.0}}
"""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Shared"]:
    await_period()
    rules = yaml.safe_load(SHARED)
    with budget(tmp_path_factory.mktemp("shared"), *map(json.dumps, rules.values())) as (whole, upstream):
        token = (whole.data / "admin.token").read_text().strip()
        url, headers = f"{whole.state.control_url}/admin/v1", {"authorization": f"Bearer {token}"}
        teams: dict[str, Team] = {}
        with httpx.Client(headers=headers, timeout=60) as client:
            for name in rules:
                client.put(f"{url}/teams/{name}", json={}).raise_for_status()
                client.put(f"{url}/teams/{name}/projects/p", json={}).raise_for_status()
                made = client.post(f"{url}/keys", json={"name": name, "team": name, "project": "p"})
                key = made.raise_for_status().json()
                teams[name] = Team(name=name, key_id=key["id"], key=key["key"])
        wait_until(lambda: all(knows(whole, team.key) for team in teams.values()), 60, "the keys are known")
        wait_until(whole.is_in_force, 60, "they are known to all workers")
        yield Shared(whole=whole, upstream=upstream, teams=teams)


@dataclass(frozen=True, kw_only=True)
class Team:
    name: str
    key_id: str
    key: str


@dataclass(frozen=True, kw_only=True)
class Shared:
    whole: Whole
    upstream: ThreadedUpstream
    teams: dict[str, Team]


def knows(whole: Whole, key: str) -> bool:
    headers = {"authorization": f"Bearer {key}"}
    return httpx.get(f"{whole.url}/models", headers=headers, timeout=60).status_code == 200


def send(whole: Whole, model: str = "big", team: Team | None = None, **body: Any) -> httpx.Response:
    """Asked again where nobody can say at the moment whether there is room: the machine is busy."""
    asked = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 50} | body
    headers = {"authorization": f"Bearer {team.key if team else whole.key}"}
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


def read_used(whole: Whole, expected: int | None = None, owner: str = "team default") -> int:
    """Nano-USD that were used of the owner's only limit of cost, once all that was lent is back.

    What an answer took beyond its reservation is told a moment after the rest: until then it is waited for.
    """
    found: list[dict[str, Any]] = []

    def is_back() -> bool:
        limits = admin(whole, "/limits")["data"]
        found[:] = [each for each in limits if (each["unit"], each["owner"]) == ("nano_usd", owner)]
        used = found[0]["amount"] - found[0]["left"]
        return found[0]["lent"] == 0 and expected in (None, used)

    with suppress(TimeoutError):  # what it is in place of that, the test says
        wait_until(is_back, 60, "nothing is lent any more")
    return int(found[0]["amount"] - found[0]["left"])


def read_billed(whole: Whole, count: int, team: str = "default") -> int:
    """Nano-USD on the team's bill, once so many records are on it."""
    found: list[dict[str, Any]] = []

    def is_there() -> bool:
        found[:] = [line for line in admin(whole, "/bill?by=team")["data"] if line["team"] == team]
        return bool(found) and found[0]["requests"] >= count

    wait_until(is_there, 60, f"{count} records on the bill")
    return int(Decimal(found[0]["cost_usd"]).scaleb(9))


def test_a_budget_is_used_as_the_bill_says_and_then_refuses(shared: Shared) -> None:
    whole, upstream, team = shared.whole, shared.upstream, shared.teams["used"]
    before = len(upstream.requests)
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda at: send(whole, team=team, stream=at % 2 == 0), range(30)))
    refused = [answer for answer in answers if answer.status_code == 429]
    passed = len(answers) - len(refused)
    assert len(upstream.requests) - before == passed
    # Each takes 0.7 and reserves about 0.6: seven fit for certain, and what they took more is a debt.
    assert 7 <= passed <= 9
    message = refused[0].json()["error"]["message"]
    assert "the limit of 5 USD a day of team used is reached" in message
    assert int(refused[0].headers["retry-after"]) > 0
    assert read_billed(whole, len(answers), "used") == passed * COST_BIG
    assert read_used(whole, passed * COST_BIG, "team used") == passed * COST_BIG


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


def test_seconds_of_hardware_count_as_the_bill_has_them(shared: Shared) -> None:
    whole, team = shared.whole, shared.teams["seconds"]
    for at in range(6):
        assert send(whole, "slow", team, stream=at % 2 == 0).status_code == 200
    billed = read_billed(whole, 6, team.name)
    assert read_used(whole, billed, f"key {team.key_id}") == billed > 0


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


def test_a_model_without_a_price_is_refused_unless_that_is_allowed(shared: Shared, tmp_path: Path) -> None:
    before = len(shared.upstream.requests)
    answer = send(shared.whole, "unpriced", shared.teams["used"])
    assert answer.status_code == 503
    assert "the model unpriced has no price" in answer.json()["error"]["message"]
    assert "prices.book" in answer.json()["error"]["message"]
    assert len(shared.upstream.requests) == before
    rule = "{team: default, cost_usd: 5.0, per: day, window: calendar}"
    with budget(tmp_path, rule, more="  unpriced: allow\n") as (whole, _):
        assert send(whole, "unpriced").status_code == 200
        assert read_used(whole) == 0


@pytest.mark.parametrize("stream", [False, True])
def test_a_budget_that_is_used_up_sends_to_a_cheaper_model(shared: Shared, stream: bool) -> None:
    whole, upstream = shared.whole, shared.upstream
    team, before = shared.teams["cheaper-stream" if stream else "cheaper"], len(upstream.requests)
    answers = [send(whole, team=team, stream=stream) for _ in range(8)]
    assert [answer.status_code for answer in answers] == [200] * 8
    names = [answer.headers.get("x-forebay-answered-by", "big") for answer in answers]
    assert names[:2] == ["big", "big"]
    assert names[-4:] == ["small"] * 4
    assert [request.json()["model"] for request in upstream.requests[before:]] == names
    bigs = names.count("big")
    assert read_billed(whole, 8, team.name) == bigs * COST_BIG + (8 - bigs) * COST_SMALL
    with sqlite3.connect(whole.data / "forebay.db") as database:
        asked = (
            "SELECT model, asked_model, COUNT(*) FROM ledger_events WHERE key_id = ? GROUP BY 1, 2 ORDER BY 1"
        )
        found = database.execute(asked, (team.key_id,)).fetchall()
    assert found == [("big", "", bigs), ("small", "big", 8 - bigs)]


def test_a_budget_that_is_used_up_throttles(shared: Shared) -> None:
    whole, upstream, team = shared.whole, shared.upstream, shared.teams["throttled"]
    before = len(upstream.requests)
    answers = [send(whole, team=team) for _ in range(12)]
    passed = [answer for answer in answers if answer.status_code == 200]
    assert len(upstream.requests) - before == len(passed)
    assert 5 <= len(passed) <= 6  # two or three by the budget, three by the throttle
    message = answers[-1].json()["error"]["message"]
    assert "3 requests a day of team throttled, now that 1.4 USD of this day are used up" in message
    cost = len(passed) * COST_BIG
    assert read_used(whole, cost, "team throttled") == read_billed(whole, 12, "throttled") == cost


def test_grace_lets_a_bounded_part_more_pass_for_a_while(shared: Shared) -> None:
    whole, upstream, team = shared.whole, shared.upstream, shared.teams["graced"]
    before = len(upstream.requests)
    answers = [send(whole, team=team) for _ in range(12)]
    passed = [answer for answer in answers if answer.status_code == 200]
    assert 4 <= len(passed) <= 5  # twice the budget
    assert len(upstream.requests) - before == len(passed)
    assert answers[-1].status_code == 429
    (limit,) = [each for each in admin(whole, "/limits")["data"] if each["owner"] == "team graced"]
    assert limit["exceeded_at_s"] == pytest.approx(time.time(), abs=300)


def test_grace_ends_with_its_time(shared: Shared) -> None:
    whole, team = shared.whole, shared.teams["brief"]
    assert send(whole, team=team).status_code == 200
    wait_until(lambda: send(whole, team=team).status_code == 429, 60, "the grace has ended")
    assert send(whole, team=team).status_code == 429
