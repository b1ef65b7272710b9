"""Requests that are late while other places are full: a hedge takes no place that somebody waits for."""

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from crowd_rig import Place, Scene
from test_routing import CHAT, STREAM, Fleet, slow
from test_routing import fleet as fleet

from forebay.core.events import Tokens
from forebay.core.routes import Choosing, Hedge, Order
from forebay.gateway.model import Exchange
from forebay.gateway.policy.load import ReplicaLoad
from forebay.testing import anthropic
from forebay.testing.steps import Gate, Reset, Stall, Wait

HEDGE = Hedge(after_quantile=0.95, after_min_s=0.1, max_share=1.0)


def wait_until(is_so: Callable[[], bool]) -> None:
    begun = time.monotonic()
    while not is_so():
        assert time.monotonic() < begun + 30
        time.sleep(0.02)


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


@pytest.mark.parametrize("body", [STREAM, CHAT], ids=["stream", "whole"])
def test_a_place_that_loses_is_known_to_be_slow(fleet: Fleet, body: dict[str, Any]) -> None:
    """Else each request would go there first, and be hedged."""
    fleet.add("quick", slow(0.0), tier="provisioned")
    fleet.add("other", slow(0.2), tier="provisioned")
    fleet.start(fleet.make_route(choosing=Choosing(order=Order.LOAD, hedge=HEDGE)))
    for number in range(
        400
    ):  # until it is known to be quick, also by a machine that stood still for a moment
        assert fleet.ask(body).status_code == 200
        if number >= 30 and compare(fleet, body) < 0:
            break
    fleet.upstreams["quick"].enqueue(*([Stall()] for _ in range(100)))
    before = fleet.count()["quick"]
    for _ in range(40):
        assert fleet.ask(body).status_code == 200
        if compare(fleet, body) > 0:
            break
    assert fleet.count()["quick"] > before
    by_target = {each["target"]: each for each in fleet.explain(body)["candidates"]}
    assert by_target["quick#0"]["first_token_s"] >= HEDGE.after_min_s
    known = 0
    for _ in range(40):
        is_known, begun_s = compare(fleet, body) > 0, time.monotonic()
        assert fleet.ask(body).status_code == 200
        known += is_known
        # It may be the second place of a request that is late at the other, and not the first.
        assert not is_known or find_first(fleet, begun_s) == "other"
        if known == 5:
            break
    assert known == 5


def find_first(fleet: Fleet, begun_s: float) -> str:
    """Where the first request came that came after a time."""
    came = [
        (request.arrived_at_s, name)
        for name, upstream in fleet.upstreams.items()
        for request in upstream.requests
        if request.arrived_at_s > begun_s
    ]
    return min(came)[1]


def compare(fleet: Fleet, body: dict[str, Any]) -> float:
    """By how much the worker takes the first place to be slower than the other; 0 where it can't tell."""
    quick, other = sorted(fleet.explain(body)["candidates"], key=lambda each: each["pool"] != "quick")
    for name in ("first_token_s", "token_s"):
        if (quick[name] is None) != (other[name] is None):
            return 0.0
    return float(quick["score_s"] - other["score_s"])


def test_a_place_that_lost_soon_is_not_known_to_be_quick() -> None:
    quick, late = ReplicaLoad(1), ReplicaLoad(2)
    for output, read in ((0, lambda: late.first_at), (100, lambda: late.token_at)):
        exchange = cast(Any, SimpleNamespace(tokens=Tokens(output=output), outpaced=(late, 0.01, 0.2)))
        Exchange.tell_outpaced(exchange, 100.0)
        assert read() < 0, "it had less time than the other took"
        exchange.outpaced = late, 0.3, 0.2
        Exchange.tell_outpaced(exchange, 100.0)
        assert read() == 100.0
    assert late.first_s == 0.3
    assert late.token_s == pytest.approx(0.003)
    late.tell_token(0.01, 101.0)
    exchange.outpaced = late, 0.5, 0.2
    Exchange.tell_outpaced(exchange, 101.0)
    assert late.token_s == 0.01, "that is known to take longer already"
    assert quick.first_at < 0


def test_both_bodies_of_a_hedged_request_are_in_the_memory_account(fleet: Fleet) -> None:
    for name, tier in (("one", "provisioned"), ("two", "autoscaled")):
        fleet.add(name, anthropic.well_behaved("Hi"), tier=tier, dialect="anthropic")
    fleet.start(fleet.make_route(choosing=Choosing(order=Order.LOAD, hedge=HEDGE)))
    for _ in range(24):
        assert fleet.ask(CHAT).status_code == 200
    gate = Gate()
    for name in ("one", "two"):
        fleet.upstreams[name].enqueue([Wait(gate), Reset()])
    words = "word " * 40_000
    body = CHAT | {"messages": [{"role": "user", "content": words}]}
    before = fleet.count()["two"]

    def read_held() -> float:
        return fleet.gateway.metric("forebay_memory_held_bytes")

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(fleet.ask, body)
        try:
            wait_until(lambda: fleet.count()["two"] > before)
            wait_until(lambda: read_held() >= 3 * len(words))  # the caller's, and one for each place
        finally:
            gate.open()
        asked.result()
    wait_until(lambda: read_held() == 0)
