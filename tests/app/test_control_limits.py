"""`GET /admin/v1/limits`: what each limit allows, what is left of it, and when all of it is there again."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from control_scene import AUTH, Scene
from fastapi.testclient import TestClient

from forebay.gateway.policy.lending import Shortage, Want
from forebay.gateway.tenancy import FOREBAY, NewKey, Role

YAML = """
limits:
  rules:
    - {team: default, requests: 100, per: minute, models: [b, a]}
    - {each: key, total_tokens: 1000, per: month, window: calendar, time_zone: Europe/Berlin}
    - {project: default/default, concurrent_requests: 5}
    - {team: nobody, requests: 1, per: day}
"""


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path, YAML)
    record, _ = made.keys.create(NewKey(name="n"), FOREBAY)
    made.key = record.entry.id  # type: ignore[attr-defined]
    made.refresh()
    yield made
    made.close()


def get(scene: Scene) -> list[dict[str, Any]]:
    answer = TestClient(scene.app).get("/admin/v1/limits", headers=AUTH)
    assert answer.status_code == 200, answer.text
    data: list[dict[str, Any]] = answer.json()["data"]
    return data


def test_limits_of_owners_with_a_key_are_shown(scene: Scene) -> None:
    now_s = scene.clock.wall_ns() / 1e9
    month, places, minute = get(scene)
    assert month.pop("resets_at_s") > now_s
    assert month == {
        "id": f"key:{scene.key}/total_tokens/month/calendar",  # type: ignore[attr-defined]
        "owner": f"key {scene.key}",  # type: ignore[attr-defined]
        "measure": "total_tokens",
        "unit": "tokens",
        "amount": 1000,
        "expression": None,
        "signals": [],
        "per": "month",
        "window": "calendar",
        "time_zone": "Europe/Berlin",
        "models": ["*"],
        "left": 1000,
        "lent": 0,
        "when_exceeded": "refuse",
        "exceeded_at_s": None,
    }
    assert (places["owner"], places["per"], places["window"], places["left"]) == (
        "project default/default",
        None,
        None,
        5,
    )
    assert places["resets_at_s"] is None
    assert minute["resets_at_s"] == pytest.approx(now_s, abs=30)
    assert (minute["models"], minute["window"], minute["time_zone"]) == (["b", "a"], "bucket", None)


def test_what_is_lent_is_not_left(scene: Scene) -> None:
    quota = scene.quota
    limit_id = "team:default/requests/minute/bucket/models:a,b"
    assert not isinstance(
        quota._authority._lender.ask("w", (Want(limit_id, 50, 50),), quota._authority._now()), Shortage
    )
    now_s = scene.clock.wall_ns() / 1e9
    minute = get(scene)[2]
    assert minute["lent"] == 50
    assert 50 <= minute["left"] < 100
    assert 0 < minute["resets_at_s"] - now_s <= 31, "half of a bucket fills in half of its time"


def test_a_viewer_may_see_limits_and_nobody_else(scene: Scene) -> None:
    _, token = scene.repos.tokens.create("n", Role.VIEWER, FOREBAY)
    client = TestClient(scene.app)
    assert client.get("/admin/v1/limits", headers={"authorization": f"Bearer {token}"}).status_code == 200
    assert client.get("/admin/v1/limits").status_code == 401
