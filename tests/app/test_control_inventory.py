"""The inventory in the admin API."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from control_scene import AUTH, Scene

from forebay.engines.deployment import (
    Deployment,
    DeploymentPhase,
    DeploymentStatus,
    ReplicaState,
    ReplicaStatus,
)
from forebay.engines.model import EngineSpec

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    yield scene
    scene.close()


@pytest.fixture
async def http(scene: Scene) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=scene.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://x", headers=AUTH) as client:
        yield client


async def test_replicas_stand_beside_what_manifests_ask_for(scene: Scene, http: httpx.AsyncClient) -> None:
    asked = Deployment(
        name="chat", model="chat", spec=EngineSpec(name="chat", kind="llamacpp"), replicas_min=2
    )
    status = ReplicaStatus(
        id="chat-0-0", deployment="chat", revision="0", index=0, state=ReplicaState.READY, node="here"
    )
    scene.asked = (asked,)
    scene.statuses = {"chat": DeploymentStatus(name="chat", phase=DeploymentPhase.READY, replicas=(status,))}
    answer = await http.get("/admin/v1/inventory")
    assert answer.status_code == 200, answer.text
    there, missing = answer.json()["data"][:2]
    assert (there["deployment"], there["replica"], there["node"]) == ("chat", "chat-0-0", "here")
    assert there["engine_version"] is None
    assert there["tested"] is False
    assert there["drift"] == [f"runs revision 0, the manifest asks for {asked.revision}"]
    assert (missing["state"], missing["replica"]) == ("missing", None)
    assert missing["drift"] == ["1 replica is missing: at least 2 should run"]


async def test_without_deployments_nothing_has_drifted(http: httpx.AsyncClient) -> None:
    answer = await http.get("/admin/v1/inventory")
    assert answer.status_code == 200, answer.text
    assert all(item["drift"] == [] for item in answer.json()["data"])
