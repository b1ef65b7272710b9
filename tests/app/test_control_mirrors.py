"""Comparisons of mirrors in the admin API."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import msgspec
import pytest
from control_scene import AUTH, BASE_S, Scene, make_event

from forebay.core.events import encode_event
from forebay.ledger.ingest import Ingester
from forebay.ledger.segment import SegmentWriter

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


async def test_copies_stand_beside_their_requests(scene: Scene, http: httpx.AsyncClient) -> None:
    request = make_event(1, model="m")
    copy = msgspec.structs.replace(request, request_id="c", mirror_of=request.request_id, model="new")
    writer = SegmentWriter(scene.defaults.ledger_path, "w0", 1 << 20, scene.clock)
    for event in (request, copy):
        writer.append(encode_event(event))
    writer.close()
    Ingester(scene.database, scene.defaults.ledger_path, scene.clock).ingest_once()
    answer = await http.get("/admin/v1/mirrors", params={"since_s": BASE_S})
    assert answer.status_code == 200, answer.text
    (found,) = answer.json()["data"]
    assert (found["model"], found["mirror"], found["pairs"], found["good"]) == ("m", "new", 1, 1)
    assert found["requests"] == found["copies"]
    other = await http.get("/admin/v1/mirrors", params={"since_s": BASE_S, "model": "n"})
    assert other.json()["data"] == []
    wrong = await http.get("/admin/v1/mirrors", params={"since_s": 9, "until_s": 8})
    assert wrong.status_code == 400
    kinds = await http.get("/admin/v1/usage", params={"by": "kind"})
    assert [(row["kind"], row["requests"]) for row in kinds.json()["data"]] == [("mirror", 1), ("request", 1)]
    alone = await http.get("/admin/v1/bill", params={"by": "model", "kind": "mirror", "since_s": BASE_S})
    assert [row["model"] for row in alone.json()["data"]] == ["new"]
