"""Deployments in the admin API: what it shows, who may change them; nobody undoes another's change."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from control_scene import TOKEN, Scene

from forebay.core.routes import decode_snapshot
from forebay.engines.deployment import (
    DeploymentPhase,
    DeploymentStatus,
    ReplicaState,
    ReplicaStatus,
    ServingReplica,
)
from forebay.gateway.tenancy import Role

YAML = """
models:
  chat: {endpoints: [chat/completions], targets: [{url: "https://far.example/v1"}]}
deployments:
  of-file: {model: chat, source: embedded:smollm2-135m, engine: {kind: llamacpp}}
"""
MANIFEST: dict[str, Any] = {"engine": {"kind": "minilm", "threads": 2}, "version": "1"}


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
            headers = {"authorization": f"Bearer {token}", **options.pop("headers", {})}
            return await client.request(method, f"/admin/v1{path}", headers=headers, **options)

    return asyncio.run(send())


def put(scene: Scene, name: str, manifest: dict[str, Any], query: str = "", **options: Any) -> httpx.Response:
    path = f"/deployments/{name}?allow_untested=true{query}"
    return call(scene, "PUT", path, json=manifest, **options)


def code_of(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


def names(scene: Scene) -> list[str]:
    return [each["name"] for each in call(scene, "GET", "/deployments").json()["data"]]


def test_one_is_made_changed_shown_and_ended(scene: Scene) -> None:
    made = put(scene, "vectors", MANIFEST).json()
    assert (made["outcome"], made["generation"], made["rolls"], made["dry_run"]) == (
        "created",
        1,
        True,
        False,
    )
    assert put(scene, "vectors", MANIFEST).json()["outcome"] == "unchanged"
    changed = put(scene, "vectors", {**MANIFEST, "replicas": {"min": 2}}).json()
    assert (changed["outcome"], changed["generation"], changed["rolls"]) == ("changed", 2, False)
    assert changed["changes"] == [{"key": "replicas.min", "before": 1, "after": 2}]
    shown = call(scene, "GET", "/deployments/vectors")
    assert shown.headers["etag"] == '"2"'
    view = shown.json()
    assert (view["origin"], view["model"], view["version"], view["engine"], view["replicas_min"]) == (
        *("applied", "vectors", "1", "minilm", 2),
    )
    assert view["changed_by"] == "admin.token"
    assert view["manifest"]["engine"] == {"kind": "minilm", "threads": 2}
    assert call(scene, "DELETE", "/deployments/vectors").json()["outcome"] == "deleted"
    assert names(scene) == ["of-file"]
    history = call(scene, "GET", "/deployments/vectors/history").json()["data"]
    assert [(each["generation"], each["deleted"]) for each in history] == [(3, True), (2, False), (1, False)]
    actions = [each["action"] for each in call(scene, "GET", "/audit?subject=vectors").json()["data"]]
    assert actions == ["deployment.delete", "deployment.change", "deployment.create"]


def test_a_dry_run_says_what_would_change_and_changes_nothing(scene: Scene) -> None:
    put(scene, "vectors", MANIFEST)
    for manifest, outcome in ((MANIFEST, "unchanged"), ({**MANIFEST, "version": "2"}, "changed")):
        told = put(scene, "vectors", manifest, "&dry_run=true").json()
        assert (told["outcome"], told["dry_run"], told["generation"]) == (outcome, True, None)
    assert put(scene, "other", MANIFEST, "&dry_run=true").json()["outcome"] == "created"
    assert names(scene) == ["of-file", "vectors"]
    assert call(scene, "GET", "/deployments/vectors").json()["version"] == "1"


def test_nobody_undoes_what_another_has_changed_meanwhile(scene: Scene) -> None:
    assert put(scene, "vectors", MANIFEST, headers={"if-match": '"0"'}).status_code == 200
    again = {**MANIFEST, "version": "2"}
    assert code_of(put(scene, "vectors", again, headers={"if-match": '"0"'})) == (409, "generation_conflict")
    assert put(scene, "vectors", again, headers={"if-match": '"1"'}).json()["generation"] == 2
    for method, path in (("DELETE", ""), ("POST", "/rollback")):
        response = call(scene, method, f"/deployments/vectors{path}", headers={"if-match": '"1"'})
        assert code_of(response) == (409, "generation_conflict")
    assert put(scene, "vectors", again, headers={"if-match": "2"}).status_code == 400


def test_a_rollback_is_a_change_like_any_other(scene: Scene) -> None:
    for version in ("1", "2", "3"):
        put(scene, "vectors", {**MANIFEST, "version": version})
    back = call(scene, "POST", "/deployments/vectors/rollback").json()
    assert (back["generation"], back["changes"]) == (4, [{"key": "version", "before": "3", "after": "2"}])
    first = call(scene, "POST", "/deployments/vectors/rollback", json={"to": 1}).json()
    assert (first["generation"], first["rolls"]) == (5, True)
    gone = call(scene, "POST", "/deployments/vectors/rollback", json={"to": 99})
    assert code_of(gone) == (409, "deployment_refused")
    assert code_of(call(scene, "POST", "/deployments/none/rollback")) == (404, "deployment_not_found")


def test_what_nobody_has_tried_needs_to_be_allowed(scene: Scene) -> None:
    refused = call(scene, "PUT", "/deployments/vectors", json=MANIFEST)
    assert code_of(refused) == (409, "untested")
    assert "--allow-untested" in refused.json()["error"]["message"]
    told = call(scene, "PUT", "/deployments/vectors?dry_run=true", json=MANIFEST).json()
    assert told["unknown"]
    put(scene, "vectors", MANIFEST)
    more = call(scene, "PUT", "/deployments/vectors", json={**MANIFEST, "replicas": {"min": 2}})
    assert more.status_code == 200, "what its replicas are has not changed"


@pytest.mark.parametrize(
    ("manifest", "words"),
    [
        ({"engine": {"kind": "minilm", "thread": 1}}, "engine.thread"),
        ({"engine": {"kind": "other"}}, "engine.kind"),
        ({"engine": {"kind": "llamacpp"}}, "needs the weights"),
        ({"engine": {"kind": "llamacpp"}, "source": "m.gguf"}, "relative path"),
        ({"engine": {"kind": "llamacpp"}, "source": "/gone.gguf"}, "/gone.gguf"),
        ({"engine": {"kind": "minilm", "arguments": {"port": 1}}}, "Forebay sets this argument itself"),
        ({"engine": {"kind": "minilm"}, "resources": {"gpus": 64}}, "this machine has"),
    ],
)
def test_a_mistake_is_a_400_that_says_where(scene: Scene, manifest: dict[str, Any], words: str) -> None:
    refused = put(scene, "vectors", manifest)
    assert refused.status_code == 400
    assert words in refused.json()["error"]["message"]
    assert names(scene) == ["of-file"]


def test_what_stands_in_the_file_is_changed_there(scene: Scene) -> None:
    assert put(scene, "of-file", MANIFEST).status_code == 400
    for method, path in (("DELETE", ""), ("POST", "/rollback")):
        refused = call(scene, method, f"/deployments/of-file{path}")
        assert code_of(refused) == (409, "deployment_refused")
        assert "forebay.yaml" in refused.json()["error"]["message"]
    shown = call(scene, "GET", "/deployments/of-file")
    assert (shown.json()["origin"], shown.json()["generation"]) == ("file", None)
    assert "etag" not in shown.headers
    assert code_of(call(scene, "GET", "/deployments/none")) == (404, "deployment_not_found")
    assert call(scene, "GET", "/deployments/Not_a_name").status_code == 400


def test_looking_takes_a_viewer_and_changing_an_operator(scene: Scene) -> None:
    made = call(scene, "POST", "/tokens", json={"name": "looker", "role": Role.VIEWER.value}).json()
    assert call(scene, "GET", "/deployments", made["token"]).status_code == 200
    for method, path in (("PUT", ""), ("DELETE", ""), ("POST", "/rollback")):
        response = call(scene, method, f"/deployments/vectors{path}", made["token"], json=MANIFEST)
        assert code_of(response) == (403, "role_too_low")


def test_what_has_become_of_it_is_shown(scene: Scene) -> None:
    put(scene, "vectors", MANIFEST)
    assert call(scene, "GET", "/deployments/vectors").json()["phase"] == "pending"
    replica = ReplicaStatus(
        id="vectors-x-0", deployment="vectors", revision="x", index=0, state=ReplicaState.READY, restarts=2
    )
    scene.statuses["vectors"] = DeploymentStatus(
        name="vectors",
        phase=DeploymentPhase.ROLLING,
        message="5 % of requests",
        serving_revision="x",
        share=0.05,
        replicas=(replica,),
    )
    view = call(scene, "GET", "/deployments/vectors").json()
    assert (view["phase"], view["message"], view["share"], view["replicas_ready"]) == (
        *("rolling", "5 % of requests", 0.05, 1),
    )
    assert view["replicas"][0]["restarts"] == 2


def test_what_serves_is_in_the_next_snapshot(scene: Scene) -> None:
    put(scene, "vectors", MANIFEST)
    scene.refresh()
    routes = {route.model: route for route in read_routes(scene)}
    assert [target.pool for target in routes["chat"].targets] == ["far.example"]
    assert routes["vectors"].targets == ()
    scene.serving = {
        "vectors": (ServingReplica(url="http://127.0.0.1:9/v1"),),
        "of-file": (ServingReplica(url="http://127.0.0.1:8/v1", version="2"),),
    }
    scene.refresh()
    routes = {route.model: route for route in read_routes(scene)}
    assert [target.url for target in routes["vectors"].targets] == ["http://127.0.0.1:9/v1"]
    assert [(target.pool, target.version) for target in routes["chat"].targets] == [
        *(("far.example", ""), ("of-file", "2")),
    ]
    call(scene, "DELETE", "/deployments/vectors")
    scene.refresh()
    assert "vectors" not in {route.model for route in read_routes(scene)}


def read_routes(scene: Scene) -> Any:
    return decode_snapshot(scene.defaults.snapshot_path.read_bytes()).table.routes


def test_an_edit_of_the_file_changes_deployments_without_a_restart(scene: Scene) -> None:
    put(scene, "vectors", MANIFEST)
    (scene.folder / "forebay.yaml").write_text(YAML.replace("of-file:", "vectors:").replace("chat,", "two,"))

    async def look() -> None:
        while not (scene.watch.poll() and not scene.watch.problems):
            await asyncio.sleep(0.01)
        await scene.store.poll()

    asyncio.run(asyncio.wait_for(look(), 60))
    listed = call(scene, "GET", "/deployments").json()
    (view,) = listed["data"]
    assert (view["name"], view["origin"], view["model"]) == ("vectors", "file", "two")
    assert ["was applied too: the file's holds" in problem for problem in listed["problems"]] == [True]
    assert scene.plane.restart_settings == ()
    assert call(scene, "DELETE", "/deployments/vectors").status_code == 200
    assert call(scene, "GET", "/deployments").json()["problems"] == []
