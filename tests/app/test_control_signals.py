"""Signals over the admin API: reported, listed, removed, by whom, and what is no report."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from control_scene import AUTH, Scene
from fastapi.testclient import TestClient
from httpx import Response

from forebay.core.keys import Rights
from forebay.gateway.signals import TTL_MAX_S, VALUE_MAX, make_report
from forebay.gateway.tenancy import FOREBAY, NewKey, Role

YAML = """
limits:
  signals: {ccu: {default: 4, stale_after_s: 60}}
  rules:
    - {team: default, requests: 600 + 1.5 * ccu, per: minute}
    - {each: key, concurrent_requests: 5}
"""
PATH = "/admin/v1/teams/default/projects/default/signals"


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path, YAML)
    made.keys.create(NewKey(name="n"), FOREBAY)
    made.refresh()
    yield made
    made.close()


@pytest.fixture
def client(scene: Scene) -> TestClient:
    return TestClient(scene.app, headers=AUTH)


def put(client: TestClient, body: object, name: str = "ccu") -> Response:
    return client.put(f"{PATH}/{name}", json=body)


def get_limit(client: TestClient) -> dict[str, Any]:
    (found,) = (each for each in client.get("/admin/v1/limits").json()["data"] if each["expression"])
    return dict(found)


def test_a_signal_is_reported_listed_and_removed(scene: Scene, client: TestClient) -> None:
    now_s = scene.clock.wall_ns() / 1e9
    answer = put(client, {"value": 1234.5, "ttl_s": 30})
    assert answer.status_code == 200
    signal = answer.json()
    assert signal.pop("reported_at_s") == pytest.approx(now_s, abs=30)
    place = {"team": "default", "project": "default", "name": "ccu"}
    assert signal == place | {"value": 1234.5, "ttl_s": 30, "stale": False, "declared": True}
    assert put(client, {"value": 7}).json()["ttl_s"] is None
    short = client.put("/admin/v1/projects/default/default/signals/ccu", json={"value": 7})
    assert (short.status_code, short.json()["value"]) == (200, 7)
    assert put(client, {"value": 1}, "rooms").json()["declared"] is False
    for path in (PATH, "/admin/v1/signals"):
        listed = client.get(path).json()["data"]
        assert [(each["name"], each["value"]) for each in listed] == [("ccu", 7), ("rooms", 1)]
    assert client.delete(f"{PATH}/ccu").json()["value"] == 7
    assert [each["name"] for each in client.get(PATH).json()["data"]] == ["rooms"]
    assert client.delete(f"{PATH}/ccu").status_code == 404


def test_the_limit_says_what_it_is_computed_from(scene: Scene, client: TestClient) -> None:
    limit = get_limit(client)
    use = {"name": "ccu", "value": 4, "fresh": [], "stale": []}
    assert (limit["amount"], limit["expression"], limit["signals"]) == (606, "600 + 1.5 * ccu", [use])
    put(client, {"value": 100})
    scene.refresh()
    limit = get_limit(client)
    assert (limit["amount"], limit["signals"]) == (750, [use | {"value": 100, "fresh": ["default/default"]}])


def test_the_loop_follows_reports_without_another_snapshot(scene: Scene, client: TestClient) -> None:
    assert scene.plane.snapshot_state is not None
    before = scene.plane.snapshot_state.hash

    async def follow(amount: int) -> None:
        task = asyncio.get_running_loop().create_task(scene.live.run())
        async with asyncio.timeout(60):
            while get_amount(scene) != amount:
                await asyncio.sleep(0.01)
        task.cancel()

    put(client, {"value": 100})
    asyncio.run(follow(750))
    put(client, {"value": 0, "ttl_s": 30})
    asyncio.run(follow(600))
    scene.clock.leap(31)
    asyncio.run(follow(606))  # it is stale
    put(client, {"value": 10})
    asyncio.run(follow(615))
    client.delete(f"{PATH}/ccu")
    asyncio.run(follow(606))
    scene.refresh()
    assert scene.plane.snapshot_state.hash == before


def test_teams_projects_and_keys_have_the_load_that_is_theirs(tmp_path: Path) -> None:
    rules = "".join(
        f"    - {rule}\n"
        for rule in (
            "{each: team, requests: ccu, per: day}",
            "{each: project, requests: 2 * ccu, per: day}",
            "{each: key, requests: 3 * ccu, per: day}",
            "{team: default, cost_usd: ccu / 1000, per: day}",
            "{team: default, concurrent_requests: 7}",
        )
    )
    scene = Scene(
        tmp_path, f"limits:\n  unpriced: allow\n  signals: {{ccu: {{default: 5}}}}\n  rules:\n{rules}"
    )
    scene.repos.teams.put_project("default", "chat", Rights(), FOREBAY)
    keys = [
        scene.keys.create(NewKey(name=project, project=project), FOREBAY)[0].entry.id
        for project in ("default", "chat", "default")
    ]
    for project, value, ttl_s in (("default", 100, None), ("chat", 10, 30)):
        scene.signals.report("default", project, "ccu", make_report(value, ttl_s), FOREBAY)

    def get_amounts() -> dict[str, int]:
        scene.refresh()
        return {f"{limit.owner} {limit.measure.value}": limit.amount for limit, _ in scene.quota.list_left()}

    first = get_amounts()
    expected = {
        "team default requests": 110,
        "project default/default requests": 200,
        "project default/chat requests": 20,
        f"key {keys[0]} requests": 300,
        f"key {keys[1]} requests": 30,
        f"key {keys[2]} requests": 300,
        "team default cost_usd": 110_000_000,
        "team default concurrent_requests": 7,
    }
    assert first == expected
    scene.clock.leap(31)
    assert get_amounts() == expected | {
        "team default requests": 105,
        "project default/chat requests": 10,
        f"key {keys[1]} requests": 15,
        "team default cost_usd": 105_000_000,
    }
    scene.close()


def test_while_the_database_is_away_reports_hold_for_their_time(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.signals.report("default", "default", "ccu", make_report(100, 30), FOREBAY)
    scene.refresh()
    scene.database.close()
    for name in ("forebay.db-wal", "forebay.db-shm"):
        (scene.defaults.data_path / name).unlink(missing_ok=True)
    scene.defaults.database_path.write_bytes(b"this is no database" * 1000)
    assert get_amount(scene) == 750
    scene.clock.leap(31)

    async def follow() -> None:
        task = asyncio.get_running_loop().create_task(scene.live.run())
        async with asyncio.timeout(60):
            while get_amount(scene) == 750:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.5)
        task.cancel()

    asyncio.run(follow())
    assert get_amount(scene) == 606
    told = [record for record in caplog.records if "can't follow what is reported" in record.message]
    assert len(told) == 1


def get_amount(scene: Scene) -> int:
    (amount,) = (limit.amount for limit, _ in scene.quota.list_left() if limit.expression)
    return amount


def test_a_reporter_reports_a_viewer_looks_an_operator_does_both(scene: Scene, client: TestClient) -> None:
    allowed = {
        Role.REPORTER: (200, 403, 403),
        Role.VIEWER: (403, 200, 403),
        Role.OPERATOR: (200, 200, 200),
        Role.OWNER: (200, 200, 200),
    }
    for role in Role:
        _, token = scene.repos.tokens.create("n", role, FOREBAY)
        client.headers["authorization"] = f"Bearer {token}"
        found = put(client, {"value": 1}), client.get(PATH), client.delete(f"{PATH}/ccu")
        assert tuple(answer.status_code for answer in found) == allowed[role]
    del client.headers["authorization"]
    assert put(client, {"value": 1}).status_code == 401


def test_the_audit_tells_of_the_first_report_and_the_removal_with_who(client: TestClient) -> None:
    for value in range(3):
        put(client, {"value": value})
    client.delete(f"{PATH}/ccu")
    found = client.get("/admin/v1/audit", params={"subject": "default/default/ccu"}).json()["data"]
    assert [(each["action"], each["actor"]["id"]) for each in found] == [
        ("signal.delete", "admin.token"),
        ("signal.create", "admin.token"),
    ]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"value": None},
        {"value": "5"},
        {"value": True},
        {"value": -0.1},
        {"value": VALUE_MAX + 1},
        {"value": [1]},
        {"value": 1, "ttl_s": 0},
        {"value": 1, "ttl_s": TTL_MAX_S + 1},
        {"value": 1, "ttl_s": "5"},
        {"value": 1, "more": 1},
        5,
    ],
)
def test_what_is_no_report_is_refused_and_changes_nothing(client: TestClient, body: object) -> None:
    answer = put(client, body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"]
    assert client.get(PATH).json()["data"] == []


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_value_is_finite(client: TestClient, number: str) -> None:
    answer = client.put(f"{PATH}/ccu", content=f'{{"value": {number}}}')
    assert answer.status_code == 400


@pytest.mark.parametrize("name", ["CCU", "1x", "a-b", "a" * 41, "é"])
def test_a_name_is_one_that_an_expression_can_have(client: TestClient, name: str) -> None:
    assert put(client, {"value": 1}, name).status_code == 400


@pytest.mark.parametrize("place", ["teams/default/projects/none", "teams/none/projects/default"])
def test_a_project_that_does_not_exist_is_told(client: TestClient, place: str) -> None:
    path = f"/admin/v1/{place}/signals"
    for answer in (
        client.get(path),
        client.put(f"{path}/ccu", json={"value": 1}),
        client.delete(f"{path}/ccu"),
    ):
        assert answer.status_code == 404
        assert "none" in answer.json()["error"]["message"]


def test_a_hundred_reports_take_the_database_well_under_a_second(scene: Scene) -> None:
    begin = time.process_time()
    for value in range(100):
        scene.signals.report("default", "default", f"s{value % 10}", make_report(value), FOREBAY)
    assert time.process_time() - begin < 10, "a tenth of a second where nothing else runs"
