"""Teams, projects, keys, tokens and the audit in the admin API: who may what, and what it shows."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from control_scene import TOKEN, Scene

from forebay.core.keys import compute_key_digest
from forebay.core.routes import decode_snapshot
from forebay.gateway.tenancy import FOREBAY, Role

YAML = """
models:
  chat:
    endpoints: [chat/completions, completions]
    targets:
      - {engine: smollm2-135m, region: eu}
      - {url: "https://far.example/v1", region: us}
      - {url: "https://near.example/v1", region: eu}
  vectors: {endpoints: [embeddings], targets: [{engine: minilm-l6-v2}]}
"""


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path, YAML)
    scene.refresh()
    yield scene
    scene.close()


def call(scene: Scene, method: str, path: str, token: str = TOKEN, **options: Any) -> httpx.Response:
    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app=scene.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://control") as client:
            headers = {"authorization": f"Bearer {token}"}
            return await client.request(method, f"/admin/v1{path}", headers=headers, **options)

    return asyncio.run(send())


def make_key(scene: Scene, **fields: Any) -> dict[str, Any]:
    response = call(scene, "POST", "/keys", json={"name": "k"} | fields)
    assert response.status_code == 201, response.text
    made: dict[str, Any] = response.json()
    return made


def make_token(scene: Scene, role: Role) -> str:
    response = call(scene, "POST", "/tokens", json={"name": f"a {role.value}", "role": role.value})
    assert response.status_code == 201, response.text
    token: str = response.json()["token"]
    return token


def code_of(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


# --- roles --------------------------------------------------------------------------------------------------


def list_operations(scene: Scene) -> list[tuple[str, str, Role]]:
    document = call(scene, "GET", "/openapi.json").json()
    return [
        (method.upper(), path.removeprefix("/admin/v1"), Role(operation["x-forebay-role"]))
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    ]


def fill(path: str) -> str:
    ids = {"key_id": "key_0000000000000000", "token_id": "tok_0000000000000000"}
    return path.format(team="t", project="p", name="ccu", version="1", alias="best", **ids)


@pytest.mark.parametrize("role", list(Role))
def test_a_token_opens_what_its_role_includes_and_nothing_else(scene: Scene, role: Role) -> None:
    token = make_token(scene, role)
    before = scene.keys.list(), scene.repos.tokens.list(), scene.repos.teams.list_teams()
    operations = list_operations(scene)
    assert {needed for _, _, needed in operations} == set(Role)
    for method, path, needed in operations:
        response = call(scene, method, fill(path), token, json={})
        if role.includes(needed):
            assert response.status_code in (200, 400, 404), (method, path, response.text)
        else:
            assert code_of(response) == (403, "role_too_low"), (method, path)
            assert needed.value in response.json()["error"]["message"]
    if role in (Role.REPORTER, Role.VIEWER):
        assert (scene.keys.list(), scene.repos.tokens.list(), scene.repos.teams.list_teams()) == before


def test_reading_takes_a_viewer_changing_an_operator_and_letting_in_an_owner(scene: Scene) -> None:
    for method, path, needed in list_operations(scene):
        if path.startswith("/tokens"):
            assert needed is Role.OWNER
        elif method == "PUT" and "/signals/" in path:
            assert needed is Role.REPORTER
        else:
            assert needed is (Role.VIEWER if method == "GET" else Role.OPERATOR), (method, path)


def test_a_token_that_was_revoked_or_has_expired_opens_nothing_from_then_on(scene: Scene) -> None:
    made = call(scene, "POST", "/tokens", json={"name": "bot", "role": "owner"}).json()
    assert call(scene, "GET", "/keys", made["token"]).status_code == 200
    revoked = call(scene, "DELETE", f"/tokens/{made['id']}")
    assert revoked.json()["revoked_at_s"] is not None
    assert code_of(call(scene, "GET", "/keys", made["token"])) == (401, "invalid_api_key")
    brief = scene.clock.wall_ns() + 10**9
    record, plaintext = scene.repos.tokens.create("brief", Role.OWNER, FOREBAY, expires_ns=brief)
    assert call(scene, "GET", "/keys", plaintext).status_code == 200
    while scene.clock.wall_ns() < brief:
        pass
    assert call(scene, "GET", "/keys", plaintext).status_code == 401
    listed = call(scene, "GET", "/tokens")
    assert [token["id"] for token in listed.json()["data"]] == [made["id"], record.id]
    for secret in (made["token"], plaintext):
        assert secret not in listed.text


def test_a_callers_key_is_no_token(scene: Scene) -> None:
    assert call(scene, "GET", "/keys", make_key(scene)["key"]).status_code == 401


def test_the_token_of_the_file_opens_also_while_the_database_does_not(scene: Scene) -> None:
    other = make_token(scene, Role.VIEWER)
    scene.database.close()
    for name in ("forebay.db-wal", "forebay.db-shm"):
        (scene.defaults.data_path / name).unlink(missing_ok=True)
    scene.defaults.database_path.write_bytes(b"this is no database" * 1000)
    assert call(scene, "GET", "/status").status_code == 200
    status, code = code_of(call(scene, "GET", "/status", other))
    assert (status, code.startswith("store_")) == (503, True)
    assert call(scene, "GET", "/status", "fba-short").status_code == 401, "and costs the database no look"


# --- keys within projects -----------------------------------------------------------------------------------


def test_a_key_shows_what_it_reaches_within_its_project(scene: Scene) -> None:
    call(scene, "PUT", "/teams/web")
    bounds = {"regions": ["eu"], "output_max_tokens": 50}
    assert call(scene, "PUT", "/teams/web/projects/search", json=bounds).status_code == 200
    rights = {
        "models": ["chat"],
        "endpoints": ["chat/completions", "embeddings"],
        "regions": [],
        "tier_max": None,
        "context_max_tokens": 1000,
        "output_max_tokens": None,
    }
    made = make_key(scene, team="web", project="search", priority="batch", expires_in_s=3600, **rights)
    assert {name: made[name] for name in rights} == rights
    assert 3590 < made["expires_at_s"] - made["created_at_s"] <= 3600.1
    detail = call(scene, "GET", f"/keys/{made['id']}").json()
    assert (detail["live"], detail["priority"]) == (True, "batch")
    assert detail["project_rights"] == {
        "models": ["*"], "endpoints": [], "tier_max": None, "context_max_tokens": None, **bounds,
    }  # fmt: skip
    assert detail["reach"] == [
        {
            "model": "chat",
            "endpoints": ["chat/completions"],
            "targets": ["chat@smollm2-135m", "chat@near.example"],
        }
    ]
    (entry,) = decode_snapshot(scene.defaults.snapshot_path.read_bytes()).keys
    assert (entry.regions, entry.output_max_tokens, entry.context_max_tokens) == (("eu",), 50, 1000)
    assert entry.digest == compute_key_digest(made["key"])

    project = call(scene, "PUT", "/teams/web/projects/search", json={"tier_max": "provisioned"})
    assert (project.json()["regions"], project.json()["output_max_tokens"]) == ([], None), "all is replaced"
    detail = call(scene, "GET", f"/keys/{made['id']}").json()
    assert detail["reach"][0]["targets"] == ["chat@smollm2-135m"]
    call(scene, "DELETE", f"/keys/{made['id']}")
    detail = call(scene, "GET", f"/keys/{made['id']}").json()
    assert (detail["live"], detail["reach"]) == (False, [])


def test_a_rotated_key_and_its_successor_are_both_in_the_snapshot(scene: Scene) -> None:
    old = make_key(scene, regions=["eu"])
    response = call(scene, "POST", f"/keys/{old['id']}/rotate", json={"overlap_s": 600})
    assert response.status_code == 201
    new = response.json()
    assert (new["rotated_from"], new["regions"], new["name"]) == (old["id"], ["eu"], "k")
    keys = decode_snapshot(scene.defaults.snapshot_path.read_bytes()).keys
    assert {key.digest for key in keys} == {compute_key_digest(each["key"]) for each in (old, new)}
    assert code_of(call(scene, "POST", f"/keys/{old['id']}/rotate", json={})) == (409, "key_ended")
    call(scene, "POST", f"/keys/{new['id']}/rotate", json={"overlap_s": 0})
    keys = decode_snapshot(scene.defaults.snapshot_path.read_bytes()).keys
    assert compute_key_digest(new["key"]) not in {key.digest for key in keys}


def test_of_a_key_a_patch_changes_what_it_names_and_null_lifts_a_limit(scene: Scene) -> None:
    made = make_key(scene, regions=["eu"], output_max_tokens=50, priority="batch", expires_in_s=3600)
    changed = call(scene, "PATCH", f"/keys/{made['id']}", json={"output_max_tokens": 7, "name": "m"}).json()
    assert changed == {
        **{name: value for name, value in made.items() if name != "key"}, "output_max_tokens": 7, "name": "m",
    }  # fmt: skip
    (entry,) = decode_snapshot(scene.defaults.snapshot_path.read_bytes()).keys
    assert (entry.regions, entry.output_max_tokens, entry.name) == (("eu",), 7, "m")
    lifted = dict.fromkeys(
        ("models", "endpoints", "regions", "tier_max", "context_max_tokens", "output_max_tokens")
    )
    body = {**lifted, "expires_in_s": None, "priority": "standard"}
    freed = call(scene, "PATCH", f"/keys/{made['id']}", json=body).json()
    assert (freed["models"], freed["endpoints"], freed["regions"]) == (["*"], [], [])
    assert [freed[name] for name in ("tier_max", "context_max_tokens", "output_max_tokens")] == [None] * 3
    assert (freed["expires_at_s"], freed["priority"], freed["name"]) == (None, "standard", "m")
    again = call(scene, "PATCH", f"/keys/{made['id']}", json={"expires_in_s": 60, "models": ["chat"]}).json()
    assert 50 < again["expires_at_s"] - scene.clock.wall_ns() / 1e9 <= 60
    events = call(scene, "GET", f"/audit?subject={made['id']}").json()["data"]
    assert [event["action"] for event in events] == ["key.change"] * 3 + ["key.create"]
    assert (events[0]["before"]["models"], events[0]["after"]["models"]) == (["*"], ["chat"])


def test_a_patch_that_names_nothing_or_what_can_not_be_changes_nothing(scene: Scene) -> None:
    made = make_key(scene, output_max_tokens=5)
    events = len(call(scene, "GET", "/audit").json()["data"])
    assert call(scene, "PATCH", f"/keys/{made['id']}", json={}).status_code == 200
    for body, param in (
        ({"name": None}, "name"),
        ({"name": ""}, "name"),
        ({"priority": None}, "priority"),
        ({"models": []}, "models"),
        ({"team": "web"}, "team"),
        ({"project": "p"}, "project"),
        ({"output_max_tokens": 0}, "output_max_tokens"),
        ({"endpoints": ["chat"]}, "endpoints[0]"),
        ({"expires_in_s": 0}, "expires_in_s"),
    ):
        response = call(scene, "PATCH", f"/keys/{made['id']}", json=body)
        assert (*code_of(response), response.json()["error"]["param"]) == (400, "invalid_value", param)
    assert len(call(scene, "GET", "/audit").json()["data"]) == events
    call(scene, "DELETE", f"/keys/{made['id']}")
    assert code_of(call(scene, "PATCH", f"/keys/{made['id']}", json={"name": "m"})) == (409, "key_ended")


def test_of_a_project_a_patch_changes_what_it_names_and_bounds_its_keys_at_once(scene: Scene) -> None:
    call(scene, "PUT", "/teams/default/projects/p", json={"regions": ["eu"], "output_max_tokens": 50})
    made = make_key(scene, project="p")
    path = "/teams/default/projects/p"
    changed = call(scene, "PATCH", path, json={"tier_max": "provisioned", "output_max_tokens": None}).json()
    assert (changed["regions"], changed["tier_max"], changed["output_max_tokens"]) == (
        ["eu"], "provisioned", None,
    )  # fmt: skip
    (entry,) = decode_snapshot(scene.defaults.snapshot_path.read_bytes()).keys
    assert (entry.regions, entry.tier_max, entry.output_max_tokens) == (("eu",), "provisioned", None)
    reach = call(scene, "GET", f"/keys/{made['id']}").json()["reach"]
    assert [each["targets"] for each in reach] == [["chat@smollm2-135m"]]


def test_a_team_takes_no_body_with_content(scene: Scene) -> None:
    assert call(scene, "PUT", "/teams/a").status_code == 200
    assert call(scene, "PUT", "/teams/b", json={}).status_code == 200
    response = call(scene, "PUT", "/teams/c", json={"name": "d", "models": ["x"]})
    assert code_of(response) == (400, "invalid_value")
    assert response.json()["error"]["param"] == "name"
    assert call(scene, "PUT", "/teams/c", content=b"not json").status_code == 400
    names = [team["name"] for team in call(scene, "GET", "/teams").json()["data"]]
    assert names == ["a", "b", "default"]


def test_what_does_not_exist_is_not_found(scene: Scene) -> None:
    for method, path, body, code in (
        ("GET", "/keys/key_0123456789abcdef", None, "key_not_found"),
        ("POST", "/keys/key_0123456789abcdef/rotate", {}, "key_not_found"),
        ("DELETE", "/tokens/tok_0123456789abcdef", None, "token_not_found"),
        ("GET", "/teams/none/projects/p", None, "team_not_found"),
        ("GET", "/teams/default/projects/p", None, "project_not_found"),
        ("PUT", "/teams/none/projects/p", {}, "team_not_found"),
        ("PATCH", "/teams/default/projects/p", {}, "project_not_found"),
        ("PATCH", "/keys/key_0123456789abcdef", {}, "key_not_found"),
        ("POST", "/keys", {"name": "k", "project": "none"}, "project_not_found"),
    ):
        assert code_of(call(scene, method, path, json=body)) == (404, code), path


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"endpoints": ["chat"]}, "endpoints[0]"),
        ({"regions": ["a b"]}, "regions[0]"),
        ({"tier_max": "cloud"}, "tier_max"),
        ({"output_max_tokens": 0}, "output_max_tokens"),
        ({"context_max_tokens": True}, "context_max_tokens"),
        ({"priority": "urgent"}, "priority"),
        ({"expires_in_s": 0}, "expires_in_s"),
    ],
)
def test_a_right_that_is_none_is_named(scene: Scene, body: dict[str, Any], param: str) -> None:
    response = call(scene, "POST", "/keys", json={"name": "k"} | body)
    assert code_of(response) == (400, "invalid_value")
    assert response.json()["error"]["param"] == param
    assert scene.keys.list() == ()


def test_teams_and_projects_are_made_once_and_listed(scene: Scene) -> None:
    for name in ("web", "ads", "web"):
        assert call(scene, "PUT", f"/teams/{name}").json()["name"] == name
    call(scene, "PUT", "/teams/web/projects/x", json={})
    assert [team["name"] for team in call(scene, "GET", "/teams").json()["data"]] == ["ads", "default", "web"]
    listed = call(scene, "GET", "/projects").json()["data"]
    assert [(each["team"], each["name"]) for each in listed] == [("default", "default"), ("web", "x")]
    assert call(scene, "GET", "/teams/web/projects/x").json() == listed[1]


# --- audit --------------------------------------------------------------------------------------------------


def test_the_audit_says_whose_token_changed_what(scene: Scene) -> None:
    token = make_token(scene, Role.OPERATOR)
    made = call(scene, "POST", "/keys", token, json={"name": "k"}).json()
    call(scene, "DELETE", f"/keys/{made['id']}")
    audit = call(scene, "GET", "/audit", make_token(scene, Role.VIEWER)).json()["data"]
    actions = [(event["actor"]["name"], event["action"]) for event in reversed(audit)]
    assert actions == [
        ("admin.token", "token.create"),
        ("a operator", "key.create"),
        ("admin.token", "key.revoke"),
        ("admin.token", "token.create"),
    ]
    about = call(scene, "GET", f"/audit?subject={made['id']}")
    created, revoked = reversed(about.json()["data"])
    assert created["actor"]["id"].startswith("tok_")
    assert created["before"] is None
    assert (revoked["before"]["revoked_ns"], revoked["after"]["revoked_ns"] is None) == (None, False)
    assert made["key"] not in about.text
    assert token not in call(scene, "GET", "/audit").text


def test_pages_of_the_audit_put_together_are_the_whole(scene: Scene) -> None:
    for number in range(5):
        call(scene, "PUT", f"/teams/t{number}")
    whole = call(scene, "GET", "/audit").json()
    assert whole["next_cursor"] is None
    found: list[Any] = []
    page = call(scene, "GET", "/audit?limit=2").json()
    found += page["data"]
    call(scene, "PUT", "/teams/later")
    while page["next_cursor"]:
        page = call(scene, "GET", f"/audit?limit=2&cursor={page['next_cursor']}").json()
        found += page["data"]
    assert found == whole["data"]
