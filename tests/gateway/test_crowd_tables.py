"""Tables that change while requests wait for places of the one before."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest
from crowd_rig import Place, Scene

from forebay.core.routes import Route


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with ExitStack() as stack:
        yield Scene(tmp_path, stack)


def write(scene: Scene, route: Route, places: int) -> None:
    """Each target serves so many from now on."""
    targets = tuple(msgspec.structs.replace(target, requests_max=places) for target in route.targets)
    snapshot = scene.gateway.snapshot
    table = msgspec.structs.replace(snapshot.table, routes=(msgspec.structs.replace(route, targets=targets),))
    scene.gateway.write_snapshot(msgspec.structs.replace(snapshot, table=table))


@pytest.mark.parametrize("replicas", [1, 2])
def test_who_waits_fills_places_that_serve_more_and_nobody_who_comes_later_goes_before(
    scene: Scene, replicas: int
) -> None:
    places = [scene.add(Place(None), requests_max=1) for _ in range(replicas)]
    route = scene.make_route()
    scene.start(route)

    async def run() -> list[int]:
        async with scene.client() as client:
            held = [asyncio.create_task(scene.ask(client, f"old {number}")) for number in range(9)]
            await scene.until_waiting(9 - replicas)
            write(scene, route, 3)
            await scene.until(lambda: [place.busy for place in places] == [3] * replicas)
            held += [asyncio.create_task(scene.ask(client, f"new {number}")) for number in range(3)]
            await scene.until_waiting(12 - 3 * replicas)
            while not all(task.done() for task in held):
                for place in places:
                    place.release()
                await asyncio.sleep(0.01)
            return [task.result().status_code for task in held]

    assert asyncio.run(run()) == [200] * 12
    assert max(place.peak for place in places) == 3
    assert all(text.startswith("old") for text in places[0].order[:3])


@pytest.mark.parametrize("replicas", [1, 2])
def test_who_waits_leaves_places_alone_that_serve_less(scene: Scene, replicas: int) -> None:
    places = [scene.add(Place(None), requests_max=3) for _ in range(replicas)]
    route = scene.make_route()
    scene.start(route)

    async def run() -> list[int]:
        async with scene.client() as client:
            held = [asyncio.create_task(scene.ask(client)) for _ in range(12)]
            await scene.until_waiting(12 - 3 * replicas)
            write(scene, route, 1)
            async with asyncio.timeout(60):
                while (await scene.ask(client, x_forebay_debug="route")).json()["candidates"][0]["used"] < 2:
                    await asyncio.sleep(0.02)  # until the table is in force
            for place in places:
                place.release(3)
            await scene.until(lambda: [place.busy for place in places] == [1] * replicas)
            for place in places:
                place.peak = 0
            while not all(task.done() for task in held):
                for place in places:
                    place.release()
                await asyncio.sleep(0.01)
            return [task.result().status_code for task in held]

    assert asyncio.run(run()) == [200] * 12
    assert max(place.peak for place in places) == 1


def test_a_wait_in_vain_ends_at_a_fallback_that_has_room(scene: Scene) -> None:
    place = scene.add(Place(None), requests_max=1)
    route = scene.make_route(fallbacks=("other",))
    other = scene.add(Place(0.0), pool="other", requests_max=1)
    scene.start(route, scene.make_route(model="other"))

    async def run() -> None:
        async with scene.client() as client:
            first = asyncio.create_task(scene.ask(client, "first"))
            await scene.until(lambda: place.busy == 1)
            late = await scene.ask(client, "late", x_forebay_wait="1.5")  # by a guess, 1 s will do
            assert (late.status_code, late.headers.get("x-forebay-answered-by")) == (200, "other"), late.text
            place.release()
            assert (await first).status_code == 200

    asyncio.run(run())
    assert (place.order, other.order) == (["first"], ["late"])
    assert scene.ends("expired") == 1
    scene.gateway.wait_idle()
    assert scene.waiting() == 0


def put(scene: Scene, *routes: Route) -> None:
    """These are the routes from now on."""
    snapshot = scene.gateway.snapshot
    table = msgspec.structs.replace(snapshot.table, routes=routes)
    scene.gateway.write_snapshot(msgspec.structs.replace(snapshot, table=table))


def test_who_waits_goes_to_replicas_that_are_new_before_who_comes_later(scene: Scene) -> None:
    old = scene.add(Place(None), requests_max=1)
    route = scene.make_route()
    scene.start(route)
    new = scene.add(Place(None), requests_max=2)
    wider = msgspec.structs.replace(route, targets=(*route.targets, *scene.make_route().targets))

    async def run() -> None:
        async with scene.client() as client:
            held = [asyncio.create_task(scene.ask(client, "holds"))]
            await scene.until(lambda: old.busy == 1)
            for number in range(4):
                held.append(asyncio.create_task(scene.ask(client, f"old {number}")))
                await scene.until_waiting(number + 1)
            put(scene, wider)
            await scene.until(lambda: new.busy == 2)  # while nothing gets free where they waited
            await scene.until_waiting(2)
            held.append(asyncio.create_task(scene.ask(client, "late")))
            await scene.until_waiting(3)
            await scene.serve(new, 2)
            await scene.until(lambda: len(new.order) == 4)  # the two that came before `late`
            while not all(task.done() for task in held):
                new.release()
                old.release()
                await asyncio.sleep(0.01)
            assert [task.result().status_code for task in held] == [200] * 6

    asyncio.run(run())
    assert sorted(new.order[:2]) == ["old 0", "old 1"]
    assert sorted(new.order[2:4]) == ["old 2", "old 3"]
    records = scene.gateway.until(lambda: len(found := scene.gateway.records()) == 6 and found)
    hashes = Counter(record.route_hash for record in records)
    assert sorted(hashes.values()) == [
        1,
        5,
    ]  # all but the first, which did not wait, were sent by the new table
    scene.gateway.until(lambda: scene.ends("served") == 5)
    scene.gateway.until(lambda: scene.waiting() == 0)


def test_who_waits_for_a_model_that_is_gone_is_served_where_it_was(scene: Scene) -> None:
    place = scene.add(Place(None), requests_max=1)
    route = scene.make_route()
    other = scene.add(Place(0.0))
    scene.start(route)
    rest = scene.make_route(model="other")

    async def run() -> list[int]:
        async with scene.client() as client:
            held = [asyncio.create_task(scene.ask(client, f"{number}")) for number in range(3)]
            await scene.until_waiting(2)
            put(scene, rest)
            async with asyncio.timeout(60):
                while (await scene.ask(client, x_forebay_debug="route")).status_code != 404:
                    await asyncio.sleep(0.02)
            while not all(task.done() for task in held):
                place.release()
                await asyncio.sleep(0.01)
            return [task.result().status_code for task in held]

    assert asyncio.run(run()) == [200] * 3
    assert (len(place.order), other.order) == (3, [])
