"""Workers at limits that are exceeded: all is told, nobody lives on an overdraft, and it ends with room."""

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from test_quota import DAY, World, end, make_request, pause, run, world

from forebay.core.errors import RateLimited
from forebay.core.events import Tokens
from forebay.core.keys import KeyEntry
from forebay.core.limits import Exceeded, Limit, Measure, Period, WhenAway
from forebay.gateway.model import Exchange
from forebay.gateway.quota import Quota

TOKENS = Limit(
    id="x", owner="team a", measure=Measure.TOTAL_TOKENS, amount=10_000, models=("big",),
    exceeded=Exceeded.DOWNGRADE, downgrade_to="small", **DAY,
)  # fmt: skip
BUCKET = msgspec.structs.replace(TOKENS, measure=Measure.REQUESTS, amount=10, period=Period.SECOND)
HARD = {"exceeded": Exceeded.REFUSE, "downgrade_to": ""}
HUGE = 10**9


async def ask(quota: Quota, most: int, used: int | None = None) -> str:
    """One request for `big` that may take so many tokens, and takes so many; who answers it, or `429`."""
    request = await begin(quota, most)
    if isinstance(request, str):
        return request
    end(quota, request, Tokens(input=1, output=(most if used is None else used) - 1))
    return request.model


async def begin(quota: Quota, most: int) -> Exchange | str:
    request: Any = make_request(size=4, body=b'{"max_tokens":%d}' % (most - 1))
    request.model = "big"
    request.key = KeyEntry(id="k", digest=b"", name="k", prefix="", limits=("x",))
    request.call = SimpleNamespace(headers={})

    def redirect(model: str) -> bool:
        request.asked_model, request.model = request.asked_model or request.model, model
        request.estimate = request.cost_estimate = None
        return True

    request.redirect = redirect
    plan = quota.find_plan(request.key, "big")
    try:
        if not quota.reserve(request, plan):
            await quota.acquire(request, plan)
    except RateLimited:
        return "429"
    made: Exchange = request
    return made


async def until_left(made: World, left: int) -> None:
    while made.server.list_left()[0][1] != left:
        for quota in made.workers:
            quota.sweep()
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("used", [20, 9_000])
def test_what_an_answer_used_is_told_though_its_lease_had_gone_idle(used: int) -> None:
    async def test() -> None:
        async with world(TOKENS) as made:
            quota = await made.add_worker(workers=2)
            request = await begin(quota, 1000)
            assert not isinstance(request, str)
            while quota._live:  # nothing is left to be looked after while the answer takes its time
                quota.sweep()
                await asyncio.sleep(0.01)
            end(quota, request, Tokens(input=1, output=used - 1))
            await until_left(made, 10_000 - used)

    run(test)


def test_a_downgrade_ends_as_soon_as_there_is_room_though_requests_never_pause() -> None:
    async def test() -> None:
        async with world(BUCKET) as made:
            quota = await made.add_worker(workers=1)
            burst = [await ask(quota, 10) for _ in range(12)]
            assert burst == ["big"] * 10 + ["small"] * 2
            names = []
            for _ in range(20):
                made.clock.advance(1.0)
                quota.sweep()
                await pause(0.01)
                names.append(await ask(quota, 10))
            assert names == ["big"] * 20

    run(test)


def test_a_raised_budget_ends_a_downgrade() -> None:
    async def test() -> None:
        async with world(TOKENS) as made:
            quota = await made.add_worker(workers=1)
            assert [await ask(quota, 5_000) for _ in range(3)] == ["big", "big", "small"]
            more = msgspec.structs.replace(TOKENS, amount=20_000)
            made.server.set_limits((more,))
            quota.set_limits((more,), WhenAway.SHARE, 1)
            assert [await ask(quota, 5_000) for _ in range(3)] == ["big", "big", "small"]

    run(test)


@pytest.mark.parametrize("edit", ["one more", "refuse"])
def test_what_was_lent_beyond_a_limit_is_never_ordinary_room(edit: str) -> None:
    async def test() -> None:
        async with world(TOKENS) as made:
            quota = await made.add_worker(workers=1)
            for _ in range(60):  # so many that it is lent ahead
                await ask(quota, 500)
            assert quota._leases["x"].left > 0
            if edit == "one more":
                made.server.set_amounts({"x": 10_001})
                await pause(0.05)
                assert "big" not in [await ask(quota, 500) for _ in range(40)]
            else:
                hard = msgspec.structs.replace(TOKENS, **HARD)
                made.server.set_limits((hard,))
                quota.set_limits((hard,), WhenAway.SHARE, 1)
                assert [await ask(quota, 500) for _ in range(40)] == ["429"] * 40

    run(test)


@pytest.mark.parametrize("way", ["downgrade", "grace"])
def test_a_request_that_is_larger_than_a_limit_uses_nothing_of_it_up(way: str) -> None:
    graceful = msgspec.structs.replace(TOKENS, **HARD, grace_units=1000, grace_ns=3600 * 10**9)
    limit = TOKENS if way == "downgrade" else graceful

    async def test() -> None:
        async with world(limit) as made:
            quota = await made.add_worker(workers=1)
            other = await made.add_worker(workers=1)
            assert await ask(quota, 50) == "big"
            assert await ask(quota, HUGE) == "429"
            (standing,) = made.server.list_standings()
            assert standing.exceeded_ns == 0
            assert standing.left >= 0
            assert [await ask(each, 50) for each in (quota, other) for _ in range(20)] == ["big"] * 40

    run(test)


def test_two_downgrades_that_point_at_each_other_refuse() -> None:
    back = msgspec.structs.replace(
        TOKENS, id="y", models=("small",), downgrade_to="big", measure=Measure.REQUESTS, amount=1
    )
    once = msgspec.structs.replace(TOKENS, measure=Measure.REQUESTS, amount=1)

    async def test() -> None:
        async with world(once, back) as made:
            quota = await made.add_worker(workers=1)
            key = KeyEntry(id="k", digest=b"", name="k", prefix="", limits=("x", "y"))
            found = []
            for _ in range(4):
                request: Any = make_request(size=4, body=b"{}")
                request.model, request.key, request.call = "big", key, SimpleNamespace(headers={})

                def redirect(model: str, request: Any = request) -> bool:
                    request.asked_model, request.model = request.asked_model or request.model, model
                    return True

                request.redirect = redirect
                try:
                    await quota.acquire(request, quota.find_plan(key, "big"))
                    found.append(request.model)
                except RateLimited as error:
                    found.append("429")
                    last = error
            assert found == ["big", "small", "429", "429"]
            assert "can't be answered by big in its place" in last.message
            assert last.retry_after_s is not None
            assert last.retry_after_s > 0

    run(test)


def test_a_worker_that_has_spent_all_says_so() -> None:
    async def test() -> None:
        async with world(TOKENS) as made:
            quota = await made.add_worker(workers=1)
            assert [await ask(quota, 100) for _ in range(20)] == ["big"] * 20
            while made.server.list_standings()[0].lent:
                quota.sweep()
                await asyncio.sleep(0.02)
            (standing,) = made.server.list_standings()
            assert (standing.used, standing.left) == (2000, 8000)
            while quota._live:
                quota.sweep()
                await asyncio.sleep(0.02)

    run(test)
