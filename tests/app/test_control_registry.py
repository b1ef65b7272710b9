"""The registry in the admin API."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from control_scene import AUTH, Scene

from forebay.app.model_registry import make_author, open_registry
from forebay.gateway.tenancy import FOREBAY
from forebay.registry.service import Wanted

pytestmark = pytest.mark.anyio
CHAT = "/admin/v1/registry/models/chat"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    registry = open_registry(scene.watch.config, scene.database, scene.clock)
    for content in (b"one", b"two"):
        path = tmp_path / "weights"
        path.write_bytes(content)
        wanted = Wanted(name="chat", path=path, alias="champion", tags={"a": "1"})
        author = make_author(FOREBAY)
        registry.register(wanted, registry.look(wanted), author, lambda _count, _name: None)
    yield scene
    scene.close()


@pytest.fixture
async def http(scene: Scene) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=scene.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://x", headers=AUTH) as client:
        yield client


async def test_models_versions_and_aliases_are_shown(http: httpx.AsyncClient) -> None:
    (model,) = (await http.get("/admin/v1/registry/models")).json()["data"]
    assert (model["name"], model["aliases"]) == ("chat", {"champion": 2})
    assert (await http.get(CHAT)).json() == model
    assert [(each["version"], each["is_here"]) for each in model["versions"]] == [(2, True), (1, True)]
    version = (await http.get(f"{CHAT}/versions/2")).json()
    assert version == {**model["versions"][0], "used_by": []}
    assert (version["label"], version["aliases"], version["size_bytes"]) == ("chat-v2", ["champion"], 3)
    moves = (await http.get(f"{CHAT}/aliases/champion")).json()["data"]
    assert [move["version"] for move in moves] == [2, 1]
    for path in ("/admin/v1/registry/models/away", f"{CHAT}/versions/9", f"{CHAT}/aliases/other"):
        found = await http.get(path)
        assert (found.status_code, found.json()["error"]["code"]) == (404, "model_version_not_found")


async def test_an_alias_moves_goes_back_and_goes(http: httpx.AsyncClient) -> None:
    alias = f"{CHAT}/aliases/champion"
    moved = await http.put(alias, json={"version": 1}, params={"expected": 2})
    assert (moved.status_code, moved.json()["version"]) == (200, 1)
    late = await http.put(alias, json={"version": 1}, params={"expected": 2})
    assert (late.status_code, late.json()["error"]["code"]) == (409, "registry_conflict")
    assert (await http.post(f"{alias}/rollback")).json()["version"] == 2
    assert (await http.delete(alias)).json()["version"] is None
    assert (await http.delete(alias)).status_code == 404
    refused = await http.put(f"{CHAT}/aliases/latest", json={"version": 1})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "alias")
    events = (await http.get("/admin/v1/audit")).json()["data"]
    assert events[0]["action"] == "model.alias_remove"


async def test_a_version_is_described_and_forgotten(http: httpx.AsyncClient, scene: Scene) -> None:
    change = {"tags": {"a": None, "b": "2"}, "description": "better"}
    changed = (await http.patch(f"{CHAT}/versions/1", json=change)).json()
    assert (changed["tags"], changed["description"]) == ({"b": "2"}, "better")
    assert (await http.delete(f"{CHAT}/versions/2")).status_code == 409
    assert (await http.delete(f"{CHAT}/versions/1")).json()["digest"] == changed["digest"]
    assert (await http.get(f"{CHAT}/versions/1")).status_code == 404
    reader = {"authorization": "Bearer nobody"}
    assert (await http.delete(f"{CHAT}/versions/2", headers=reader)).status_code == 401
