"""What a control plane tells of its limits: when a share is used, once, whatever refuses meanwhile."""

import asyncio
import logging
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from alert_scene import LIMIT_ID, AlertScene, make_yaml, run
from borrower import Borrower
from fastapi.testclient import TestClient

from forebay.app.alert_setup import AlertParts
from forebay.core.limits import Kind, Limit, Measure, Period
from forebay.gateway.policy.alerting import AlertKind
from forebay.gateway.tenancy import FOREBAY, Role
from forebay.store.database import Database

Make = Callable[..., AlertScene]


@pytest.fixture
def make(tmp_path: Path, request: pytest.FixtureRequest) -> Make:
    def make_scene(**other: object) -> AlertScene:
        scene = AlertScene(tmp_path, make_yaml(tmp_path, **other))  # type: ignore[arg-type]
        request.addfinalizer(scene.close)
        return scene

    return make_scene


def test_shares_are_told_as_they_are_used_and_never_twice(make: Make) -> None:
    scene = make()

    async def scenario() -> None:
        async with scene.working() as worker:
            wanted = {40: [], 50: [500], 60: [500], 81: [500, 800], 100: [500, 800, 1000]}
            used = 0
            for step, shares in wanted.items():
                assert await worker.spend(step - used)
                used = step
                worker.give_all_back()
                for _ in range(2):
                    await scene.look()
                assert scene.shares() == shares
            fresh = AlertParts(scene.quota, scene.database, lambda: scene.watch.config.alerts, scene.clock)
            await fresh.alerts.look()
            assert scene.shares() == [500, 800, 1000], "not by a process that was started anew either"

    run(scenario)
    assert [alert.data["used"] for alert in scene.told()] == ["50", "81", "100"]


def test_near_a_share_workers_say_what_they_have_not_spent(make: Make) -> None:
    scene = make()

    async def scenario() -> None:
        async with scene.working() as worker:
            assert await worker.spend(35, like=40)
            assert await worker.spend(5, like=9)
            await scene.look()
            assert (worker.recalls, worker.held) == (0, 4), "far from any share nobody is asked"
            assert await worker.spend(10)
            worker.held += 5  # so much comes back of a request that reserved it
            await scene.look()
            assert (worker.recalls, worker.held) == (1, 0)
            assert scene.shares() == [], "45 are used, and 50 were lent"
            assert await worker.spend(5)
            await scene.look()
            assert scene.shares() == [500]

    run(scenario)
    assert scene.told()[0].data["used"] == "50"


def test_a_worker_that_never_rests_is_told_of_as_well(make: Make) -> None:
    """What it was lent adds up while it has no idle second to give anything back."""
    scene = make(amount=1000)

    async def scenario() -> None:
        async with scene.working() as worker:
            for used in range(10, 1001, 10):
                assert await worker.spend(10, like=12)
                await scene.look()
                assert len(scene.shares()) == sum(used >= share for share in (500, 800, 1000))

    run(scenario)


def test_the_first_request_without_room_is_told(make: Make) -> None:
    scene = make(rule="alert_at: [1.0]")

    async def scenario() -> None:
        async with scene.working() as worker:
            assert await worker.spend(100)
            await scene.look()
            assert not await worker.spend(1)
            await scene.look()
            await scene.look()

    run(scenario)
    assert [(alert.kind, alert.share) for alert in scene.told()] == [
        (AlertKind.SHARE_REACHED, 1000),
        (AlertKind.EXCEEDED, 0),
    ]
    assert scene.told()[1].data["exceeded_at"] is not None


def test_grace_is_told_when_it_begins_and_ends(make: Make) -> None:
    scene = make(rule="alert_at: [2.0], grace: {for_s: 3600, share: 0.1}")

    async def scenario() -> None:
        async with scene.working() as worker:
            assert await worker.spend(100)
            assert await worker.spend(5)
            worker.give_all_back()
            await scene.look()
            assert await worker.spend(5)
            worker.give_all_back()
            await scene.look()
            await scene.look()

    run(scenario)
    entered, ended = scene.told()
    assert (entered.kind, ended.kind) == (AlertKind.GRACE_ENTERED, AlertKind.GRACE_ENDED)
    grace = entered.data["grace"]
    assert isinstance(grace, dict)
    assert grace["amount"] == "10"
    assert grace["ends_at"] > str(entered.data["exceeded_at"])


def test_a_limit_whose_rule_asks_for_no_alerts_is_told_of_by_none(make: Make) -> None:
    scene = make(rule="models: ['*']")

    async def scenario() -> None:
        async with scene.working() as worker:
            assert await worker.spend(100)
            assert not await worker.spend(1)
            await scene.look()

    run(scenario)
    assert scene.told() == []


def test_what_the_database_refuses_is_told_when_it_takes_it(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    other = "project: default/default, requests: 10, per: month, window: calendar, alert_at: [1.0]"
    scene = make(rule=f"alert_at: [0.5]}}\n    - {{{other}")
    impatient = Database.open(scene.defaults.database_path, busy_timeout_s=0.05)
    parts = AlertParts(scene.quota, impatient, lambda: scene.watch.config.alerts, scene.clock)

    async def scenario() -> None:
        async with scene.working() as worker:
            assert await worker.spend(60)
            project = Borrower(
                scene.defaults.run_path / "quota.sock",
                "project:default/default/requests/month/calendar",
                "w1",
            )
            await project.connect()
            assert await project.spend(10)
            lock = sqlite3.connect(scene.defaults.database_path, isolation_level=None)
            lock.execute("BEGIN IMMEDIATE")
            await parts.alerts.look()
            await parts.alerts.look()
            scene.quota.set_limits(())  # as if the period were over: how it stood is gone
            await parts.alerts.look()
            lock.execute("COMMIT")
            lock.close()
            project.close()
            await parts.alerts.look()

    with caplog.at_level(logging.INFO, logger="forebay.alerts"):
        run(scenario)
    impatient.close()
    assert sorted(scene.shares()) == [500, 1000]
    messages = [record.getMessage() for record in caplog.records]
    assert sum("alerts can't be told" in message for message in messages) == 1
    assert "alerts are told again" in messages[-1]


def test_ten_thousand_limits_leave_the_event_loop_to_others(make: Make) -> None:
    scene = make()
    limits = [
        Limit(
            id=f"key:{number}", owner=f"key {number}", measure=Measure.REQUESTS, amount=100,
            period=Period.MONTH, kind=Kind.CALENDAR, alert_at=(500,) if number % 2 else (),
        )
        for number in range(10_000)
    ]  # fmt: skip

    async def scenario() -> None:
        scene.quota.set_limits(limits)
        looking = asyncio.create_task(scene.alerts.alerts._find_due())
        turns = 0
        while not looking.done():
            await asyncio.sleep(0)
            turns += 1
        assert turns >= 40
        assert len(scene.alerts.alerts._keys) == 5_000

    run(scenario)


# --- the admin API ------------------------------------------------------------------------------------------


def test_alerts_are_shown_by_pages_and_filters_to_a_viewer(make: Make) -> None:
    scene = make()

    async def scenario() -> None:
        async with scene.working() as worker:
            for units in (50, 30, 20):
                assert await worker.spend(units)
                await scene.look()
            assert not await worker.spend(1)
            await scene.look()

    run(scenario)
    _, token = scene.repos.tokens.create("n", Role.VIEWER, FOREBAY)
    client = TestClient(scene.app, headers={"authorization": f"Bearer {token}"})

    def get(query: str = "") -> dict[str, object]:
        answer = client.get(f"/admin/v1/alerts{query}")
        assert answer.status_code == 200, answer.text
        found: dict[str, object] = answer.json()
        return found

    whole = get()
    data = whole["data"]
    assert isinstance(data, list)
    assert [(each["event"], each["share"]) for each in data] == [
        ("exceeded", None),
        ("share_reached", 1.0),
        ("share_reached", 0.8),
        ("share_reached", 0.5),
    ]
    assert data[0]["limit"] == LIMIT_ID
    page = get("?limit=3")
    rest = get(f"?limit=3&cursor={page['next_cursor']}")
    assert [*page["data"], *rest["data"]] == data  # type: ignore[misc]
    assert rest["next_cursor"] is None
    assert get("?event=exceeded")["data"] == data[:1]
    assert get("?owner=team%20default")["data"] == data
    assert get("?owner=team%20other")["data"] == []
    assert get("?delivery=failed")["data"] == []
    assert client.get("/admin/v1/alerts?event=nope").status_code == 400
    assert client.post("/admin/v1/alerts/test").status_code == 403
    assert TestClient(scene.app).get("/admin/v1/alerts").status_code == 401
