"""The admin API in process: who gets in, what it answers, and that every error has one shape."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from control_scene import AUTH, BASE_S, HOUR_S, KEY_ID, TOKEN, Scene, make_event
from hypothesis import given
from hypothesis import strategies as st

from forebay.app.applied import Applied, save_applied
from forebay.app.config import Config
from forebay.app.control_errors import describe_validation
from forebay.app.control_gate import BODY_MAX_BYTES
from forebay.app.control_schemas import KEY_NAME_PATTERN
from forebay.app.control_tenancy_schemas import KeyCreate
from forebay.app.control_watch import list_restart_settings
from forebay.app.supervisor_policy import ChildState
from forebay.app.supervisor_state import ChildStatus, RunState, save_run_state
from forebay.core.keys import compute_key_digest
from forebay.core.routes import decode_snapshot

YAML = """
models:
  chat: {endpoints: [chat/completions], targets: [{engine: smollm2-135m}]}
  far: {endpoints: [embeddings], targets: [{url: "https://far.example/v1", api_key: "file:secret.txt"}]}
"""


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    (tmp_path / "secret.txt").write_text("canary-71ab")
    scene = Scene(tmp_path, YAML)
    scene.refresh()
    yield scene
    scene.close()


def call(scene: Scene, method: str, path: str, **options: Any) -> httpx.Response:
    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app=scene.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://control") as client:
            return await client.request(method, path, **options)

    return asyncio.run(send())


def error_of(response: httpx.Response) -> dict[str, Any]:
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert response.headers["content-type"] == "application/json"
    found: dict[str, Any] = body["error"]
    return found


# --- who gets in --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        TOKEN,
        f"Basic {TOKEN}",
        "Bearer fba-\u00e9",
    ],
)
@pytest.mark.parametrize("path", ["/admin/v1/status", "/admin/v1/keys", "/admin/v1/nothing", "/"])
def test_nothing_is_learnt_without_the_token(scene: Scene, header: str | None, path: str) -> None:
    headers = [] if header is None else [(b"authorization", header.encode("latin-1"))]
    for method in ("GET", "POST", "PUT"):
        response = call(scene, method, path, headers=headers)
        assert response.status_code == 401
        assert response.headers["www-authenticate"] == "Bearer"
        assert error_of(response)["code"] == "invalid_api_key"
        assert TOKEN not in response.text


def test_the_token_opens_whatever_the_case_of_the_scheme(scene: Scene) -> None:
    for scheme in ("Bearer", "bearer", "BEARER"):
        headers = {"authorization": f"{scheme} {TOKEN}"}
        assert call(scene, "GET", "/admin/v1/status", headers=headers).status_code == 200


def test_health_and_the_document_are_open(scene: Scene) -> None:
    assert call(scene, "GET", "/healthz").json() == {"status": "ok"}
    assert call(scene, "GET", "/readyz").json() == {"status": "ok"}
    assert call(scene, "GET", "/admin/v1/openapi.json").json()["openapi"].startswith("3.")


def test_every_admin_route_is_in_the_document(scene: Scene) -> None:
    document = call(scene, "GET", "/admin/v1/openapi.json").json()
    described = {
        f"{method.upper()} {path}" for path, operations in document["paths"].items() for method in operations
    }
    assert described == {
        "GET /admin/v1/status",
        "GET /admin/v1/config",
        "GET /admin/v1/models",
        "GET /admin/v1/routes/explain",
        "GET /admin/v1/deployments",
        "GET /admin/v1/deployments/{name}",
        "PUT /admin/v1/deployments/{name}",
        "DELETE /admin/v1/deployments/{name}",
        "GET /admin/v1/deployments/{name}/history",
        "POST /admin/v1/deployments/{name}/rollback",
        "GET /admin/v1/fleet",
        "GET /admin/v1/teams",
        "PUT /admin/v1/teams/{team}",
        "GET /admin/v1/projects",
        "GET /admin/v1/teams/{team}/projects/{project}",
        "PUT /admin/v1/teams/{team}/projects/{project}",
        "PATCH /admin/v1/teams/{team}/projects/{project}",
        "PUT /admin/v1/projects/{team}/{project}/signals/{name}",
        "GET /admin/v1/keys",
        "POST /admin/v1/keys",
        "GET /admin/v1/keys/{key_id}",
        "PATCH /admin/v1/keys/{key_id}",
        "DELETE /admin/v1/keys/{key_id}",
        "POST /admin/v1/keys/{key_id}/rotate",
        "GET /admin/v1/tokens",
        "POST /admin/v1/tokens",
        "DELETE /admin/v1/tokens/{token_id}",
        "GET /admin/v1/audit",
        "GET /admin/v1/usage",
        "GET /admin/v1/bill",
        "GET /admin/v1/mirrors",
        "GET /admin/v1/matrix",
        "GET /admin/v1/inventory",
        "GET /admin/v1/matrix/explain",
        "POST /admin/v1/matrix",
        "GET /admin/v1/registry/models",
        "GET /admin/v1/registry/models/{name}",
        "GET /admin/v1/registry/models/{name}/versions/{version}",
        "PATCH /admin/v1/registry/models/{name}/versions/{version}",
        "DELETE /admin/v1/registry/models/{name}/versions/{version}",
        "GET /admin/v1/registry/models/{name}/aliases/{alias}",
        "PUT /admin/v1/registry/models/{name}/aliases/{alias}",
        "DELETE /admin/v1/registry/models/{name}/aliases/{alias}",
        "POST /admin/v1/registry/models/{name}/aliases/{alias}/rollback",
        "GET /admin/v1/limits",
        "GET /admin/v1/signals",
        "GET /admin/v1/teams/{team}/projects/{project}/signals",
        "PUT /admin/v1/teams/{team}/projects/{project}/signals/{name}",
        "DELETE /admin/v1/teams/{team}/projects/{project}/signals/{name}",
        "GET /admin/v1/alerts",
        "POST /admin/v1/alerts/test",
    }
    for operations in document["paths"].values():
        for operation in operations.values():
            assert "422" not in operation["responses"]
            assert {"400", "401", "503"} <= set(operation["responses"])


def test_every_route_and_parameter_is_in_the_documentation(scene: Scene) -> None:
    text = (Path(__file__).parents[2] / "docs" / "admin-api.md").read_text()
    document = call(scene, "GET", "/admin/v1/openapi.json").json()
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            assert f"`{method.upper()} {path}`" in text
            for parameter in operation.get("parameters", []):
                name = parameter["name"]
                assert f"`{name}`" in text or f"{{{name}}}" in text or f"?{name}=" in text, name
            for status in operation["responses"]:
                assert status in text, status


def test_every_setting_that_needs_a_restart_is_in_the_documentation() -> None:
    text = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    changed = {
        "data": {"dir": "/x"},
        "gateway": {"host": "::1", "port": 1, "workers": 1, "connections_max": 1, "drain": {"grace_s": 1.0}},
        "control": {"host": "::1", "port": 2},
        "ledger": {"segment_max_bytes": 2000, "keep_segments_s": 1.0},
        "engines": {"x": {"kind": "minilm"}},
    }
    for name in list_restart_settings(Config.embedded(), Config.model_validate(changed)):
        assert f"`{name}`" in text or f"`{name.partition('.')[0]}`" in text, name


def test_readiness_waits_for_the_first_snapshot(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    response = call(scene, "GET", "/readyz")
    assert response.status_code == 503
    assert response.headers["retry-after"] == "1"
    error_of(response)
    scene.refresh()
    assert call(scene, "GET", "/readyz").status_code == 200
    scene.close()


# --- errors -------------------------------------------------------------------------------------------------


def test_unknown_paths_and_methods(scene: Scene) -> None:
    response = call(scene, "GET", "/admin/v1/nothing", headers=AUTH)
    assert (response.status_code, error_of(response)["code"]) == (404, "unknown_url")
    response = call(scene, "PUT", "/admin/v1/keys", headers=AUTH)
    assert (response.status_code, error_of(response)["code"]) == (405, "method_not_allowed")
    assert response.headers["allow"] == "GET, POST"
    assert call(scene, "GET", "/admin/v1/keys/", headers=AUTH).status_code == 404


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        (b"{", "invalid_json", None),
        (b"", "missing_required_parameter", None),
        (b"[]", "invalid_json", None),
        (b"{}", "missing_required_parameter", "name"),
        (b'{"name": 1}', "invalid_value", "name"),
        (b'{"name": "x", "models": []}', "invalid_value", "models"),
        (b'{"name": "x", "models": ["a", ""]}', "invalid_value", "models[1]"),
        (b'{"name": "x", "extra": true}', "invalid_value", "extra"),
        (b'{"name": " x"}', "invalid_value", "name"),
        (b'{"name": "x", "project": "a b"}', "invalid_value", "project"),
    ],
)
def test_a_bad_body_is_explained(scene: Scene, body: bytes, code: str, param: str | None) -> None:
    headers = {**AUTH, "content-type": "application/json"}
    response = call(scene, "POST", "/admin/v1/keys", content=body, headers=headers)
    error = error_of(response)
    assert (response.status_code, error["code"], error["param"]) == (400, code, param)
    assert error["type"] == "invalid_request_error"
    assert scene.keys.list() == ()


def test_a_body_of_another_type_is_explained(scene: Scene) -> None:
    response = call(scene, "POST", "/admin/v1/keys", content=b'{"name": "x"}', headers=AUTH)
    assert response.status_code == 400
    assert "content-type: application/json" in error_of(response)["message"]


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_over_the_limit_is_refused(scene: Scene, chunked: bool) -> None:
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(BODY_MAX_BYTES // 1024 + 1):
            yield b" " * 1024

    content: Any = parts() if chunked else b" " * (BODY_MAX_BYTES + 1)
    response = call(scene, "POST", "/admin/v1/keys", content=content, headers=AUTH)
    assert (response.status_code, error_of(response)["code"]) == (413, "request_too_large")


def test_many_problems_make_one_bounded_message() -> None:
    problems = [{"loc": ("body", "models", i), "msg": f"bad {i}", "type": "x"} for i in range(50)]
    error = describe_validation(problems)
    assert error.param == "models[0]"
    assert "bad 4" in error.message
    assert "bad 5" not in error.message
    assert "45 more" in error.message


def test_a_closed_database_is_a_503_or_500_in_the_envelope(scene: Scene, tmp_path: Path) -> None:
    scene.database.close()
    database = tmp_path / ".forebay" / "forebay.db"
    for name in ("forebay.db-wal", "forebay.db-shm"):
        (tmp_path / ".forebay" / name).unlink(missing_ok=True)
    database.write_bytes(b"this is no database" * 1000)
    response = call(scene, "GET", "/admin/v1/keys", headers=AUTH)
    assert response.status_code == 503
    assert error_of(response)["code"].startswith("store_")
    response = call(scene, "GET", "/admin/v1/status", headers=AUTH)
    assert response.status_code == 200, "the status always answers"


# --- keys ---------------------------------------------------------------------------------------------------


def test_a_key_is_made_shown_once_given_to_the_gateway_and_revoked(scene: Scene) -> None:
    assert call(scene, "PUT", "/admin/v1/teams/web", headers=AUTH).status_code == 200
    project = call(scene, "PUT", "/admin/v1/teams/web/projects/search", json={}, headers=AUTH)
    assert project.json()["models"] == ["*"]
    wanted = {"name": "Zoë's key", "project": "search", "team": "web", "models": ["chat", "far*"]}
    response = call(scene, "POST", "/admin/v1/keys", json=wanted, headers=AUTH)
    assert response.status_code == 201
    assert response.headers["cache-control"] == "no-store"
    made = response.json()
    plaintext = made.pop("key")
    assert {name: made[name] for name in wanted} == wanted
    snapshot = decode_snapshot(scene.defaults.snapshot_path.read_bytes())
    assert [key.digest for key in snapshot.keys] == [compute_key_digest(plaintext)]

    listed = call(scene, "GET", "/admin/v1/keys", headers=AUTH)
    assert listed.json() == {"data": [made]}
    for hidden in (plaintext, plaintext[8:], hashlib.sha256(plaintext.encode()).hexdigest()):
        assert hidden not in listed.text

    revoked = call(scene, "DELETE", f"/admin/v1/keys/{made['id']}", headers=AUTH)
    assert revoked.status_code == 200
    assert revoked.json()["revoked_at_s"] >= made["created_at_s"]
    assert decode_snapshot(scene.defaults.snapshot_path.read_bytes()).keys == ()
    assert call(scene, "GET", "/admin/v1/keys", headers=AUTH).json() == {"data": []}
    shown = call(scene, "GET", "/admin/v1/keys?revoked=true", headers=AUTH).json()["data"]
    assert shown == [revoked.json()]


def test_an_unknown_key_cannot_be_revoked(scene: Scene) -> None:
    response = call(scene, "DELETE", "/admin/v1/keys/key_0123456789abcdef", headers=AUTH)
    assert (response.status_code, error_of(response)["code"]) == (404, "key_not_found")


def test_what_can_not_be_told_to_the_gateway_is_said(scene: Scene) -> None:
    """The snapshot's folder is gone: a new key is still shown, a revocation is not called done."""
    path = scene.defaults.snapshot_path
    key_id = call(scene, "POST", "/admin/v1/keys", json={"name": "a"}, headers=AUTH).json()["id"]
    path.unlink()
    path.mkdir()
    response = call(scene, "POST", "/admin/v1/keys", json={"name": "b"}, headers=AUTH)
    assert response.status_code == 201
    assert response.json()["key"].startswith("fb-")
    assert call(scene, "GET", "/admin/v1/status", headers=AUTH).json()["snapshot"]["error"]
    response = call(scene, "DELETE", f"/admin/v1/keys/{key_id}", headers=AUTH)
    assert (response.status_code, error_of(response)["code"]) == (503, "snapshot_unwritable")
    assert [key.name for key in scene.keys.list_live()] == ["b"]
    path.rmdir()
    assert call(scene, "DELETE", f"/admin/v1/keys/{key_id}", headers=AUTH).status_code == 200
    assert call(scene, "GET", "/admin/v1/status", headers=AUTH).json()["snapshot"]["error"] is None


@given(st.from_regex(KEY_NAME_PATTERN, fullmatch=True))
def test_a_name_that_the_document_allows_the_database_allows(name: str) -> None:
    assert name.isprintable()
    assert name == name.strip()
    assert 0 < len(KeyCreate(name=name).name) <= 100


# --- what is shown ------------------------------------------------------------------------------------------


def test_the_status_shows_processes_snapshot_configuration_and_records(scene: Scene) -> None:
    child = ChildStatus(
        name="worker-0", state=ChildState.READY, pid=42, since_s=1.5, restarts=3, failures=0, was_ready=True,
        last_exit="killed by SIGKILL",
    )  # fmt: skip
    state = RunState(
        pid=41, started_at_s=1.0, gateway_url="http://g", control_url="http://c", children=(child,)
    )
    save_run_state(scene.defaults.state_path, state)
    scene.record(make_event(1), make_event(2))
    found = call(scene, "GET", "/admin/v1/status", headers=AUTH).json()
    assert found["gateway_url"] == "http://g"
    assert found["processes"] == [
        {
            "name": "worker-0",
            "state": "ready",
            "pid": 42,
            "since_s": 1.5,
            "restarts": 3,
            "last_exit": "killed by SIGKILL",
        }
    ]
    assert scene.plane.snapshot_state is not None
    assert found["snapshot"]["route_hash"] == scene.plane.snapshot_state.route_hash
    assert (found["snapshot"]["models"], found["snapshot"]["error"]) == (2, None)
    assert found["config"]["valid"] is True
    assert (found["ingest"]["records"], found["ingest"]["lag_bytes"]) == (2, 0)
    assert 0 <= found["ingest"]["lag_s"] < 60


def test_the_status_shows_a_worker_that_lags(scene: Scene) -> None:
    def make_child(name: str, pid: int) -> ChildStatus:
        return ChildStatus(
            name=name, state=ChildState.READY, pid=pid, since_s=1.5, restarts=0, failures=0, was_ready=True,
            last_exit="",
        )  # fmt: skip

    children = tuple(make_child(f"worker-{number}", 40 + number) for number in range(4))
    state = RunState(
        pid=39,
        started_at_s=1.0,
        gateway_url="http://g",
        control_url="http://c",
        children=(*children, make_child("control", 50)),
    )
    save_run_state(scene.defaults.state_path, state)
    assert scene.plane.snapshot_state is not None
    current = scene.plane.snapshot_state.hash
    run_dir = scene.defaults.run_path
    save_applied(run_dir, "worker-0", Applied(pid=40, snapshot_hash=current, problems=("target x: why",)))
    save_applied(run_dir, "worker-1", Applied(pid=41, snapshot_hash="older", refused="no room"))
    save_applied(run_dir, "worker-2", Applied(pid=7, snapshot_hash=current))
    (run_dir / "applied" / "worker-3.json").write_text("{")
    found = call(scene, "GET", "/admin/v1/status", headers=AUTH).json()
    assert found["snapshot"]["hash"] == current
    silent = {"current": False, "snapshot_hash": None, "refused": None, "problems": []}
    assert found["workers"] == [
        {
            "name": "worker-0",
            "current": True,
            "snapshot_hash": current,
            "refused": None,
            "problems": ["target x: why"],
        },
        {
            "name": "worker-1",
            "current": False,
            "snapshot_hash": "older",
            "refused": "no room",
            "problems": [],
        },
        {"name": "worker-2"} | silent,
        {"name": "worker-3"} | silent,
    ]


def test_the_configuration_shows_references_and_no_secret(scene: Scene, tmp_path: Path) -> None:
    response = call(scene, "GET", "/admin/v1/config", headers=AUTH)
    effective = response.json()["effective"]
    reference = f"file:{tmp_path / 'secret.txt'}"
    assert effective["models"]["far"]["targets"][0]["api_key"] == reference
    assert effective["gateway"]["body_max_bytes"] == 33_554_432
    models = call(scene, "GET", "/admin/v1/models", headers=AUTH)
    assert [model["name"] for model in models.json()["data"]] == ["chat", "far"]
    assert models.json()["data"][1]["targets"][0]["api_key"] == reference
    assert "canary-71ab" not in response.text + models.text


def usage(scene: Scene, query: str) -> dict[str, Any]:
    response = call(scene, "GET", f"/admin/v1/usage?{query}", headers=AUTH)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


@pytest.mark.parametrize("path", ["usage", "bill"])
def test_a_time_that_ends_before_it_begins_is_refused(scene: Scene, path: str) -> None:
    query = f"since_s={BASE_S + 1}&until_s={BASE_S}"
    response = call(scene, "GET", f"/admin/v1/{path}?{query}", headers=AUTH)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("invalid_value", "until_s")
    assert str(BASE_S) in error["message"]
    query = f"since_s={BASE_S}&until_s={BASE_S}"
    empty = call(scene, "GET", f"/admin/v1/{path}?{query}", headers=AUTH)
    assert (empty.status_code, empty.json()["data"]) == (200, [])


def test_usage_is_grouped_filtered_and_summed(scene: Scene) -> None:
    other = "key_0000000000000002"
    scene.record(
        make_event(1), make_event(2), make_event(3, key=other, hour=1), make_event(4, model="n", hour=25)
    )
    row = usage(scene, f"by=key&key={KEY_ID}")["data"]
    assert len(row) == 1
    assert (row[0]["requests"], row[0]["key"], row[0]["model"], row[0]["start_s"]) == (3, KEY_ID, None, None)
    assert (row[0]["tokens"]["input"], row[0]["tokens"]["output"]) == (30, 7)
    assert row[0]["tokens"]["input_audio"] is None
    assert (row[0]["duration_mean_s"], row[0]["first_token_mean_s"]) == (2.0, None)
    hours = usage(scene, "by=model&interval=hour")["data"]
    assert [(each["start_s"], each["model"], each["requests"]) for each in hours] == [
        (BASE_S, "m", 2),
        (BASE_S + HOUR_S, "m", 1),
        (BASE_S + 25 * HOUR_S, "n", 1),
    ]
    late = usage(scene, f"since_s={BASE_S + HOUR_S}&until_s={BASE_S + 2 * HOUR_S}")["data"]
    assert [(each["key"], each["requests"]) for each in late] == [(other, 1)]
    assert usage(scene, "model=n&by=target&by=status")["data"][0]["target"] == "n@pool"
    assert usage(scene, "model=none")["data"] == []


def test_pages_put_together_are_the_whole(scene: Scene) -> None:
    scene.record(*(make_event(number, model=f"m{number % 3}", hour=number % 5) for number in range(40)))
    whole = usage(scene, "interval=hour&by=model&by=key&limit=1000")
    assert whole["next_cursor"] is None
    assert len(whole["data"]) == 15
    for limit in (1, 4, 15):
        rows: list[Any] = []
        page = usage(scene, f"interval=hour&by=model&by=key&limit={limit}")
        rows += page["data"]
        while page["next_cursor"]:
            path = f"interval=hour&by=model&by=key&limit={limit}&cursor={page['next_cursor']}"
            page = usage(scene, path)
            rows += page["data"]
        assert rows == whole["data"]


def test_a_cursor_stays_right_when_earlier_groups_arrive(scene: Scene) -> None:
    scene.record(*(make_event(number, hour=number) for number in range(1, 6)))
    first = usage(scene, "interval=hour&limit=2")
    scene.record(make_event(0, hour=0))
    second = usage(scene, f"interval=hour&limit=2&cursor={first['next_cursor']}")
    assert [row["start_s"] for row in second["data"]] == [BASE_S + 3 * HOUR_S, BASE_S + 4 * HOUR_S]


@pytest.mark.parametrize("cursor", ["x", "abcd", "W10=", "bnVsbA=="])
def test_a_cursor_of_nobody_is_not_found(scene: Scene, cursor: str) -> None:
    response = call(scene, "GET", f"/admin/v1/usage?cursor={cursor}", headers=AUTH)
    assert (response.status_code, error_of(response)["code"]) == (404, "cursor_unknown")


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=1001", "by=nothing", "since_s=-1", "key=fb-x", "interval=week"]
)
def test_a_bad_query_names_its_parameter(scene: Scene, query: str) -> None:
    response = call(scene, "GET", f"/admin/v1/usage?{query}", headers=AUTH)
    assert response.status_code == 400
    assert (error_of(response)["param"] or "").partition("[")[0] == query.partition("=")[0]
