"""Mirrors of a model whose places are full: what was never sent has no copy."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest
from crowd_rig import Place, Scene

from forebay.core.routes import Mirror


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with ExitStack() as stack:
        yield Scene(tmp_path, stack)


@pytest.mark.parametrize("at_once", [True, False])
def test_only_what_gets_a_place_is_copied(scene: Scene, at_once: bool) -> None:
    place = scene.add(Place(None), requests_max=1)
    mirrors = (Mirror(model="other", share=1.0, at_once=at_once),)
    route = msgspec.structs.replace(scene.make_route(), mirrors=mirrors)
    copies = scene.add(Place(0.0), pool="other")
    scene.start(route, scene.make_route(None, "other"))

    async def run() -> None:
        async with scene.client() as client:
            first = asyncio.create_task(scene.ask(client, "first"))
            await scene.until(lambda: place.busy == 1)
            waits = asyncio.create_task(scene.ask(client, "waits"))
            await scene.until_waiting(1)
            refused = await scene.ask(client, "refused", x_forebay_wait="0")
            late = await scene.ask(client, "late", x_forebay_wait="0.2")
            assert (refused.status_code, late.status_code) == (503, 503)
            await scene.until(lambda: copies.order == ["first"] * at_once)
            await scene.serve(place, 2)
            assert {(await first).status_code, (await waits).status_code} == {200}
            await scene.until(lambda: len(copies.order) == 2)

    asyncio.run(run())
    scene.gateway.wait_idle()
    assert sorted(copies.order) == ["first", "waits"]
