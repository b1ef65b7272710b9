"""A model whose places are all full, through real workers: no more than they serve, and nobody is lost."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import msgspec
import pytest
from crowd_rig import CLASSES, RULES, Place, Scene

from forebay.core.events import Outcome
from forebay.core.keys import PRIORITIES
from forebay.core.limits import Limit, Measure
from forebay.core.routes import GatewayLimits
from forebay.testing.gateway import make_key


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with ExitStack() as stack:
        yield Scene(tmp_path, stack)


async def settle(*asked: "asyncio.Task[httpx.Response]") -> list[httpx.Response]:
    async with asyncio.timeout(120):
        return await asyncio.gather(*asked)


def begin(call: Awaitable[httpx.Response]) -> "asyncio.Task[httpx.Response]":
    return asyncio.ensure_future(call)  # type: ignore[arg-type]


def check_refusal(answer: httpx.Response) -> None:
    """It says what is full, and when to come again."""
    assert answer.status_code == 503
    error = answer.json()["error"]
    assert (error["code"], error["type"]) == ("model_overloaded", "overloaded_error")
    assert "the model `m` is full" in error["message"]
    assert 1 <= int(answer.headers["retry-after"]) <= 600


# --- a herd -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2])
def test_a_herd_never_exceeds_capacity_and_nobody_of_it_is_lost(scene: Scene, workers: int) -> None:
    own = scene.add(Place(0.3), requests_max=6)
    cloud = scene.add(Place(0.3), pool="cloud", tier="provider", requests_max=2)
    rules = msgspec.structs.replace(RULES, default_wait_s=(1.0, 1.0, 1.0))
    scene.start(scene.make_route(rules), workers=workers)

    async def run() -> list[httpx.Response]:
        async with scene.client() as client:
            await scene.ask(client)  # so that it is known how long answers take
            return await settle(*(begin(scene.ask(client)) for _ in range(199)))

    answers = asyncio.run(run())
    if workers == 1:
        assert (own.peak, cloud.peak) == (6, 2)
    assert own.peak <= 6  # of two, each fills its half, and one may have taken all connections
    assert cloud.peak <= 2
    statuses = Counter(answer.status_code for answer in answers)
    assert set(statuses) == {200, 503}
    assert statuses[200] == own.served + cloud.served - 1 > 10
    for answer in answers:
        if answer.status_code == 503:
            check_refusal(answer)
    records = scene.gateway.until(lambda: len(found := scene.gateway.records()) == 200 and found)
    assert len({record.request_id for record in records}) == 200
    waited = [record for record in records if record.queued_ns]
    assert all(record.queued_ns <= record.duration_ns for record in waited)
    served = sum(record.status == 200 for record in waited)
    scene.gateway.until(lambda: scene.ends("served") >= served)  # more: some waited for less than a tick
    assert scene.ends("served") + scene.ends("too_long") + scene.ends("expired") < 200
    scene.gateway.until(lambda: scene.waiting() == 0)


def test_who_waited_is_served_in_turn_and_told(scene: Scene) -> None:
    place = scene.add(Place(None), requests_max=1)
    scene.start()

    async def run() -> None:
        async with scene.client() as client:
            first = begin(scene.ask(client, "first"))
            await scene.until(lambda: place.busy > 0)
            second = begin(scene.ask(client, "second"))
            await scene.until_waiting(1, model="m", priority="standard")
            third = begin(scene.ask(client, "third", path="/messages"))
            await scene.until_waiting(2)
            for number, task in enumerate((first, second, third)):
                await scene.serve(place, 1)
                (answer,) = await settle(task)
                assert answer.status_code == 200
                assert ("x-forebay-waited-ms" in answer.headers) == (number > 0)
                record = await asyncio.to_thread(scene.gateway.wait_record, answer.headers["x-request-id"])
                assert (record.queued_ns > 0) == (number > 0)
                assert (record.overhead_ns or 0) < record.duration_ns / 2 or not number

    asyncio.run(run())
    assert place.order == ["first", "second", "third"]
    assert place.peak == 1


def test_who_would_wait_too_long_or_may_not_wait_is_refused_at_once(scene: Scene) -> None:
    place = scene.add(Place(None), requests_max=1)
    scene.start(scene.make_route(msgspec.structs.replace(RULES, requests_max=2, tenant_requests_max=1)))

    async def run() -> None:
        async with scene.client() as client:
            queue = (await scene.ask(client, x_forebay_debug="route")).json()["queue"]
            assert (queue["full"], queue["wait_s"]) == (False, 0)
            held = [begin(scene.ask(client))]
            await scene.until(lambda: place.busy > 0)
            for wait, words in {
                "0": "it may not wait", "0.001": "it may wait 0.001 s", "soon": "is not a number of seconds",
            }.items():  # fmt: skip
                answer = await scene.ask(client, x_forebay_wait=wait)
                check_refusal(answer)
                assert words in answer.json()["error"]["message"]
            held.append(begin(scene.ask(client)))
            await scene.until_waiting(1)
            queue = (await scene.ask(client, x_forebay_debug="route")).json()["queue"]
            assert (queue["full"], queue["waiting"]) == (True, {"interactive": 0, "standard": 1, "batch": 0})
            assert queue["wait_s"] > 0
            answer = await scene.ask(client)
            check_refusal(answer)
            assert "routing.queue.tenant_requests_max" in answer.json()["error"]["message"]
            held.append(begin(scene.ask(client, key=CLASSES["batch"])))
            await scene.until_waiting(2)
            answer = await scene.ask(client, key=CLASSES["interactive"])
            check_refusal(answer)
            assert "routing.queue.requests_max" in answer.json()["error"]["message"]
            messages = await scene.ask(client, path="/messages", x_forebay_wait="0")
            assert messages.json()["error"]["type"] == "overloaded_error"
            await scene.serve(place, len(held))
            assert {answer.status_code for answer in await settle(*held)} == {200}

    asyncio.run(run())
    assert place.peak == 1


def test_a_wait_ends_at_its_deadline(scene: Scene) -> None:
    place = scene.add(Place(None), requests_max=1)
    scene.start()

    async def run() -> None:
        async with scene.client() as client:
            first = begin(scene.ask(client))
            await scene.until(lambda: place.busy > 0)
            answer = await scene.ask(client, x_forebay_wait="1.5")
            check_refusal(answer)
            assert "none was free in the 1.5 s" in answer.json()["error"]["message"]
            assert 1500 <= int(answer.headers["x-forebay-waited-ms"]) < 10_000
            place.release()
            await settle(first)

    asyncio.run(run())
    scene.gateway.until(lambda: (place.served, scene.ends("expired")) == (1, 1))


def test_bodies_of_those_that_wait_have_half_of_the_memory(scene: Scene) -> None:
    place = scene.add(Place(None), requests_max=1)
    scene.start(limits=GatewayLimits(memory_max_bytes=1_000_000))

    async def run() -> None:
        async with scene.client() as client:
            held = [begin(scene.ask(client))]
            await scene.until(lambda: place.busy > 0)
            held.append(begin(scene.ask(client, "x" * 300_000)))
            await scene.until_waiting(1)
            answer = await scene.ask(client, "x" * 300_000)
            check_refusal(answer)
            assert "gateway.memory_max_bytes" in answer.json()["error"]["message"]
            await scene.serve(place, len(held))
            await settle(*held)

    asyncio.run(run())


# --- how a wait ends ----------------------------------------------------------------------------------------


def test_callers_that_leave_while_waiting_cost_nobody_anything(scene: Scene) -> None:
    place = scene.add(Place(None), requests_max=2)
    concurrent = Limit(id="c", owner="project test", measure=Measure.CONCURRENT, amount=12)
    scene.start(quotas=(concurrent,))

    async def run() -> None:
        async with scene.client() as client:
            for _ in range(3):  # more than the limit would bear if one of them kept its part of it
                held = [begin(scene.ask(client)) for _ in range(2)]
                await scene.until(lambda: place.busy == 2)
                gone = [begin(scene.ask(client)) for _ in range(9)]
                await scene.until_waiting(9)
                stays = begin(scene.ask(client))
                await scene.until_waiting(10)
                for task in gone:
                    task.cancel()
                await asyncio.gather(*gone, return_exceptions=True)
                await scene.until_waiting(1)
                place.release(2)
                assert {answer.status_code for answer in await settle(*held)} == {200}
                await scene.until(lambda: place.busy == 1)
                place.release()
                assert [answer.status_code for answer in await settle(stays)] == [200]

    asyncio.run(run())
    records = scene.gateway.until(lambda: len(found := scene.gateway.records()) == 36 and found)
    assert Counter(record.outcome for record in records) == {Outcome.ABANDONED: 27, Outcome.OK: 9}
    assert all(record.attempts == 0 for record in records if record.outcome is Outcome.ABANDONED)
    scene.gateway.until(lambda: scene.ends("ended") == 27)
    assert place.peak == 2


def test_a_gateway_that_ends_tells_those_that_wait_at_once_and_finishes_the_others(scene: Scene) -> None:
    place = scene.add(Place(None), requests_max=1)
    scene.start()

    async def run() -> None:
        async with scene.client() as client:
            first = begin(scene.ask(client))
            await scene.until(lambda: place.busy > 0)
            waiting = [begin(scene.ask(client)) for _ in range(3)]
            await scene.until_waiting(3)
            scene.gateway.terminate()
            for answer in await settle(*waiting):
                assert (answer.status_code, answer.json()["error"]["code"]) == (503, "gateway_draining")
            place.release()
            assert [answer.status_code for answer in await settle(first)] == [200]

    asyncio.run(run())
    assert scene.gateway.wait() == 0
    assert Counter(record.status for record in scene.gateway.records()) == {503: 3, 200: 1}


def test_a_herd_survives_a_new_table(scene: Scene) -> None:
    place = scene.add(Place(0.05), requests_max=4)
    route = scene.make_route()
    scene.start(route)
    (target,) = route.targets
    others = [
        msgspec.structs.replace(route, targets=(msgspec.structs.replace(target, requests_max=most),))
        for most in (3, 4, 2, 4)
    ]

    async def run() -> list[httpx.Response]:
        async with scene.client() as client:
            asked = [begin(scene.ask(client)) for _ in range(80)]
            for other in others:
                snapshot = scene.gateway.snapshot
                table = msgspec.structs.replace(snapshot.table, routes=(other,))
                scene.gateway.write_snapshot(msgspec.structs.replace(snapshot, table=table))
                await asyncio.sleep(0.25)
            return await settle(*asked)

    answers = asyncio.run(run())
    assert Counter(answer.status_code for answer in answers) == {200: 80}
    assert place.served == 80
    assert place.peak <= 4
    scene.gateway.until(lambda: scene.waiting() == 0)


# --- who is next --------------------------------------------------------------------------------------------


def test_classes_are_served_by_their_weights_and_projects_alike(scene: Scene) -> None:
    place = scene.add(Place(None), requests_max=1)
    keys = [
        msgspec.structs.replace(
            make_key(f"fb-{project}-{name}", id=f"{project}-{name}"), priority=name, project=project
        )
        for name in PRIORITIES
        for project in ("many", "one")
    ]
    scene.start(keys=keys)

    async def run() -> None:
        async with scene.client() as client:
            held = [begin(scene.ask(client, "first", key="fb-one-batch"))]
            await scene.until(lambda: place.busy > 0)
            for name in reversed(PRIORITIES):
                for project, count in (("many", 12), ("one", 2)):
                    label = f"{name} {project}"
                    held += [
                        begin(scene.ask(client, label, key=f"fb-{project}-{name}")) for _ in range(count)
                    ]
                    await scene.until_waiting(len(held) - 1)
            await scene.serve(place, len(held))
            await settle(*held)

    asyncio.run(run())
    first = [label.split() for label in place.order[1:22]]
    assert 12 <= sum(name == "interactive" for name, *_ in first) <= 14
    assert any(name == "standard" for name, *_ in first)
    assert {"interactive one", "interactive many"} == set(place.order[1:3])
    assert [label for label in place.order[1:6] if label == "interactive one"] == ["interactive one"] * 2
    assert Counter(place.order)["batch many"] == 12


def test_batch_waits_for_the_first_tier_while_others_go_on(scene: Scene) -> None:
    own = scene.add(Place(None), requests_max=2)
    cloud = scene.add(Place(None), pool="cloud", tier="provider", requests_max=2)
    scene.start()

    async def run() -> None:
        async with scene.client() as client:
            held = [begin(scene.ask(client, key=CLASSES["batch"])) for _ in range(2)]
            await scene.until(lambda: own.busy == 2)
            waits = begin(scene.ask(client, "waits", key=CLASSES["batch"]))
            await scene.until_waiting(1, priority="batch")
            held += [begin(scene.ask(client, "goes on", key=CLASSES["interactive"]))]
            await scene.until(lambda: cloud.busy == 1)
            assert not waits.done()
            own.release()
            await scene.until(lambda: "waits" in own.order)
            own.release(2)
            cloud.release()
            assert {answer.status_code for answer in await settle(*held, waits)} == {200}

    asyncio.run(run())
    assert cloud.order == ["goes on"]


# --- what else there is -------------------------------------------------------------------------------------


def test_a_fallback_with_room_answers_who_may_not_wait(scene: Scene) -> None:
    place = scene.add(Place(None), requests_max=1)
    big = scene.make_route(fallbacks=("small",))
    spare = scene.add(Place(None), pool="spare", requests_max=1)
    scene.start(big, scene.make_route(model="small"))

    async def run() -> None:
        async with scene.client() as client:
            held = [begin(scene.ask(client))]
            await scene.until(lambda: place.busy > 0)
            held.append(begin(scene.ask(client, x_forebay_wait="0")))
            await scene.until(lambda: spare.busy > 0)
            check_refusal(await scene.ask(client, x_forebay_wait="0"))
            waits = begin(scene.ask(client, "waits"))
            await scene.until_waiting(1)
            place.release()
            spare.release()
            await scene.until(lambda: "waits" in place.order)
            place.release()
            answers = await settle(*held, waits)
            assert [answer.status_code for answer in answers] == [200] * 3
            assert [answer.headers.get("x-forebay-answered-by") for answer in answers] == [
                None,
                "small",
                None,
            ]

    asyncio.run(run())
    assert (place.peak, spare.peak) == (1, 1)


def test_without_a_queue_or_a_known_capacity_the_last_tier_keeps_what_comes(scene: Scene) -> None:
    off, unknown = scene.add(Place(0.2), requests_max=1), Place(0.2)
    routes = [scene.make_route(None, "off")]
    scene.add(unknown)
    routes.append(scene.make_route(model="unknown"))
    scene.start(*routes)

    async def run() -> None:
        async with scene.client() as client:
            asked = [begin(scene.ask(client, model=name)) for name in ("off", "unknown") for _ in range(5)]
            assert {answer.status_code for answer in await settle(*asked)} == {200}

    asyncio.run(run())
    assert (off.peak, unknown.peak) == (5, 5)
    assert scene.ends("served") == 0
