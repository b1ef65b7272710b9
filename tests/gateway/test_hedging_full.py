"""Requests that are late while other places are full: a hedge takes no place that somebody waits for."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest
from crowd_rig import Place, Scene
from test_routing import STREAM, Fleet, slow
from test_routing import fleet as fleet

from forebay.core.routes import Choosing, Hedge, Order
from forebay.testing.steps import Stall

HEDGE = Hedge(after_quantile=0.95, after_min_s=0.1, max_share=1.0)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with ExitStack() as stack:
        yield Scene(tmp_path, stack)


def test_a_hedge_is_not_sent_to_a_place_that_is_full(scene: Scene) -> None:
    first = scene.add(Place(0.0), pool="own", tier="provisioned", requests_max=1)
    second = scene.add(Place(0.0), pool="other", tier="autoscaled", requests_max=1)
    route = scene.make_route()
    route = msgspec.structs.replace(route, choosing=msgspec.structs.replace(route.choosing, hedge=HEDGE))
    scene.start(route)

    async def run() -> None:
        async with scene.client() as client:
            for _ in range(24):
                assert (await scene.ask(client)).status_code == 200
            for place in (first, second):
                place.seconds = None
                place.gates.clear()
            both = [asyncio.create_task(scene.ask(client, str(number))) for number in range(2)]
            await scene.until(lambda: first.busy >= 1 and second.busy >= 1)
            third = asyncio.create_task(scene.ask(client, "waits"))
            await scene.until_waiting(1)
            await asyncio.sleep(0.5)  # in which both are late
            assert (first.peak, second.peak) == (1, 1), "a hedge filled a place beyond what it serves at once"
            second.release()
            await scene.until(lambda: second.order[-1] == "waits")
            for place in (first, second):
                place.seconds = 0.0
                place.release(9)
            answers = [await each for each in (*both, third)]
        assert [answer.status_code for answer in answers] == [200] * 3
        assert max(first.peak, second.peak) == 1

    asyncio.run(run())


def test_a_place_that_loses_is_known_to_be_slow(fleet: Fleet) -> None:
    """Else each request would go there first, and be hedged."""
    fleet.add("quick", slow(0.0), tier="provisioned")
    fleet.add("other", slow(0.2), tier="provisioned")
    fleet.start(fleet.make_route(choosing=Choosing(order=Order.LOAD, hedge=HEDGE)))
    for _ in range(30):
        assert fleet.ask(STREAM).status_code == 200
    before = fleet.count()
    assert before["quick"] > before["other"]
    fleet.upstreams["quick"].enqueue(*([Stall()] for _ in range(20)))
    for _ in range(10):
        assert fleet.ask(STREAM).status_code == 200
    made = fleet.count()["quick"] - before["quick"]
    assert 1 <= made <= 5  # of 10: while what the other once took is more than it was seen to take
    by_target = {each["target"]: each for each in fleet.explain(STREAM)["candidates"]}
    assert by_target["quick#0"]["first_token_s"] >= HEDGE.after_min_s
