"""The bill in the admin API: the figures of the ledger, exact, with what is unknown as null."""

from collections.abc import AsyncIterator, Iterator
from decimal import Decimal
from pathlib import Path

import httpx
import pytest
from control_scene import AUTH, BASE_S, HOUR_S, Scene, make_event

from forebay.core.events import Finished, UsageSource, encode_event
from forebay.core.prices import Price, PriceBook, Rates
from forebay.ledger.bill import name_month
from forebay.ledger.ingest import Ingester
from forebay.ledger.segment import SegmentWriter

BOOK = PriceBook((Price(model="m", rates=Rates(input=Decimal("0.15"), output=Decimal("0.60"))),))
MONTH = name_month(BASE_S * 10**9)
PERIOD = {"since_s": BASE_S, "until_s": BASE_S + 48 * HOUR_S}


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


def record(scene: Scene, *events: Finished) -> None:
    writer = SegmentWriter(scene.defaults.ledger_path, "w0", 1 << 20, scene.clock)
    for event in events:
        writer.append(encode_event(event))
    writer.close()
    ledger = scene.defaults.ledger_path
    Ingester(scene.database, ledger, scene.clock, get_prices=lambda: BOOK).ingest_once()


def event(number: int, **fields: object) -> Finished:
    made = make_event(number, hour=int(fields.pop("hour", 0)), model=str(fields.pop("model", "m")))  # type: ignore[call-overload]
    given = {name: getattr(made, name) for name in Finished.__struct_fields__}
    return Finished(**(given | {"usage_source": UsageSource.REPORTED} | fields))


async def ask(http: httpx.AsyncClient, **params: object) -> dict[str, object]:
    answer = await http.get("/admin/v1/bill", params=params)  # type: ignore[arg-type]
    assert answer.status_code == 200, answer.text
    return answer.json()  # type: ignore[no-any-return]


EVENTS = (
    event(1, team="a", project="p", tags=(("customer", "acme"),)),
    event(2, team="a", project="q"),
    event(3, team="b", project="p", model="free", hour=30),
)
pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_costs_are_exact_and_unknown_ones_are_null(scene: Scene, http: httpx.AsyncClient) -> None:
    record(scene, *EVENTS)
    found = await ask(http, by="team", **PERIOD)
    assert (found["currency"], found["since_s"]) == ("USD", BASE_S)
    rows = [(row["team"], row["cost_usd"], row["unpriced"], row["model"]) for row in found["data"]]  # type: ignore[attr-defined]
    assert rows == [("a", "0.000004800", 0, None), ("b", None, 1, None)]
    total = found["total"]
    assert (total["requests"], total["cost_usd"], total["unpriced"]) == (3, "0.000004800", 1)  # type: ignore[index]
    assert total["tokens"] == {"input": 30, "output": 6} | dict.fromkeys(  # type: ignore[index]
        ("input_cached", "input_cache_write", "input_audio", "output_reasoning", "output_audio")
    )


async def test_a_bill_is_told_apart_by_what_was_asked_for(scene: Scene, http: httpx.AsyncClient) -> None:
    record(scene, *EVENTS)
    found = await ask(http, by=["team", "day"], tag="customer", **PERIOD)
    day = BASE_S // 86_400 * 86_400
    places = [(row["start_s"], row["team"], row["tag"]) for row in found["data"]]  # type: ignore[attr-defined]
    later = (BASE_S + 30 * HOUR_S) // 86_400 * 86_400
    assert places == [(day, "a", ""), (day, "a", "acme"), (later, "b", "")]
    whole = await ask(
        http, by=["team", "project", "key", "model", "pool", "tier", "region", "day"], month=MONTH
    )
    assert len(whole["data"]) == 3  # type: ignore[arg-type]


async def test_without_a_time_it_is_this_month(scene: Scene, http: httpx.AsyncClient) -> None:
    record(scene, *EVENTS)
    found = await ask(http)
    assert (await ask(http, month=MONTH, since_s=7))["since_s"] == 7
    assert name_month(int(str(found["since_s"])) * 10**9) == name_month(scene.clock.wall_ns())


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"month": "2026-13"}, "month"),
        ({"by": "status"}, "by[0]"),
        ({"tag": ""}, "tag"),
        ({"since_s": -1}, "since_s"),
    ],
)
async def test_what_can_not_be_answered_is_told(
    http: httpx.AsyncClient, params: dict[str, str], param: str
) -> None:
    answer = await http.get("/admin/v1/bill", params=params)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


async def test_too_many_rows_are_refused(
    scene: Scene, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(scene, *EVENTS)
    monkeypatch.setattr("forebay.app.control_bill.ROWS_MAX", 1)
    answer = await http.get("/admin/v1/bill", params={"by": "team", **PERIOD})
    assert answer.status_code == 400
    assert "more than 1 rows" in answer.json()["error"]["message"]


async def test_a_bill_is_told_apart_by_and_narrowed_to_labels(scene: Scene, http: httpx.AsyncClient) -> None:
    record(
        scene,
        event(1, version="v1", experiment="e", variant="a", tags=(("customer", "acme"),)),
        event(2, version="v1", experiment="e", variant="b"),
        event(3, version="v2"),
    )
    bill = await ask(http, by=["version", "experiment", "variant"], **PERIOD)
    assert [(row["version"], row["experiment"], row["variant"]) for row in bill["data"]] == [  # type: ignore[attr-defined]
        ("v1", "e", "a"), ("v1", "e", "b"), ("v2", "", "")
    ]  # fmt: skip
    bill = await ask(http, by="model", tag="customer", tag_value="acme", experiment="e", **PERIOD)
    assert [(row["tag"], row["requests"]) for row in bill["data"]] == [("acme", 1)]  # type: ignore[attr-defined]
    bill = await ask(http, by="model", version="v1", variant="b", **PERIOD)
    assert [row["requests"] for row in bill["data"]] == [1]  # type: ignore[attr-defined]
    answer = await http.get("/admin/v1/usage", params={"by": "variant", "tag": "customer", "experiment": "e"})
    assert [(row["variant"], row["tag"], row["requests"]) for row in answer.json()["data"]] == [
        ("a", "acme", 1), ("b", "", 1)
    ]  # fmt: skip
    answer = await http.get("/admin/v1/usage", params={"tag_value": "acme"})
    assert answer.status_code == 400
    assert "name the tag" in answer.json()["error"]["message"]
