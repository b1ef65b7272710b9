"""The version matrix in the admin API."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from control_scene import AUTH, Scene

pytestmark = pytest.mark.anyio

BASE = {
    "model": "chat",
    "model_version": "2",
    "engine": "vllm",
    "engine_version": "0.32.0",
    "hardware": "cpu",
    "precision": "bf16",
}


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


async def test_the_admin_api_records_and_explains(http: httpx.AsyncClient) -> None:
    body = {**BASE, "outcome": "passed", "figures": {"ttft_s": 0.5}, "note": "fine"}
    made = await http.post("/admin/v1/matrix", json=body)
    assert made.status_code == 201, made.text
    assert made.json()["source"] == "manual"
    (listed,) = (await http.get("/admin/v1/matrix", params={"model": "chat"})).json()["data"]
    assert listed == made.json()
    known = (await http.get("/admin/v1/matrix/explain", params=BASE)).json()
    assert known == {"tested": True, "unknown": [], "neighbours": []}
    asked = {**BASE, "engine_version": "0.33.0"}
    unknown = (await http.get("/admin/v1/matrix/explain", params=asked)).json()
    assert unknown["tested"] is False
    assert unknown["neighbours"] == [listed]
    assert "engine version 0.32.0 instead of 0.33.0" in unknown["unknown"][1]


@pytest.mark.parametrize(
    "change",
    [{"model": ""}, {"outcome": "maybe"}, {"figures": {"a": "much"}}, {"note": "x" * 1001}, {"unheard": 1}],
)
async def test_the_admin_api_refuses_what_is_no_trial(
    http: httpx.AsyncClient, change: dict[str, object]
) -> None:
    body = {"model": "chat", "engine": "vllm", "outcome": "passed", **change}
    answer = await http.post("/admin/v1/matrix", json=body)
    assert answer.status_code == 400, answer.text
    assert (await http.get("/admin/v1/matrix")).json()["data"] == []
