"""Limits whose amounts change while they are spent: workers hear at once, and what was used stays used."""

import msgspec
import pytest
from test_quota import DAY, World, key, make_request, pause, run, try_many, world

from forebay.core.errors import RateLimited
from forebay.core.limits import Kind, Limit, Measure, Period
from forebay.gateway import amounts
from forebay.gateway.lease import REFUSED_S
from forebay.gateway.quota import Quota

LIVE = Limit(id="x", owner="team a", measure=Measure.REQUESTS, amount=10, expression="10 + 2 * ccu", **DAY)
BUCKET = msgspec.structs.replace(LIVE, period=Period.SECOND, kind=Kind.BUCKET)
PLACES = msgspec.structs.replace(LIVE, measure=Measure.CONCURRENT, period=None)


async def change(made: World, amount: int) -> None:
    made.server.set_amounts({"x": amount})
    await pause(2 * REFUSED_S)


async def refuse(made: World, quota: Quota) -> tuple[str, str]:
    """Words and headers for a request that is refused."""
    request = make_request()
    with pytest.raises(RateLimited) as refused:
        await quota.acquire(request, quota.find_plan(key(made), "m"))
    return refused.value.message, request.limit_headers


@pytest.mark.parametrize("workers", [1, 4])
def test_more_is_let_in_at_once_over_all_workers_and_exactly_so_much(workers: int) -> None:
    async def test() -> None:
        async with world(LIVE) as made:
            quotas = [await made.add_worker() for _ in range(workers)]
            assert len(await try_many(made, 30, quotas)) == 10
            await change(made, 25)
            assert len(await try_many(made, 40, quotas)) == 15
            words, headers = await refuse(made, quotas[0])
            assert "the limit of 25 requests a day of team a is reached" in words
            assert "x-ratelimit-limit-requests: 25\r\n" in headers
            assert "x-ratelimit-remaining-requests: 0\r\n" in headers
            await change(made, 5)
            assert await try_many(made, 10, quotas) == []
            made.clock.advance(86_400)
            await pause(2 * REFUSED_S)
            assert len(await try_many(made, 10, quotas)) == 5

    run(test)


def test_what_workers_hold_of_a_larger_amount_goes_back_when_it_gets_smaller() -> None:
    async def test() -> None:
        large = msgspec.structs.replace(LIVE, amount=10_000)
        async with world(large) as made:
            quotas = [await made.add_worker() for _ in range(2)]
            assert len(await try_many(made, 2, quotas)) == 2
            for lease in quotas[0]._leases.values():
                lease.spent = 10**6  # it expects to need much
                lease.left = 0
            assert len(await try_many(made, 1, quotas)) == 1
            assert quotas[0]._leases["x"].left > 100
            used = 10_000 - sum(units for _, units in made.server.list_left())
            await change(made, 5)
            assert [lease.left for quota in quotas for lease in quota._leases.values()] == [0, 0]
            assert made.server.list_left()[0][1] <= 5 - 3
            assert used > 3
            assert len(await try_many(made, 20, quotas)) <= 2

    run(test)


def test_a_bucket_keeps_its_level_and_fills_at_the_new_rate() -> None:
    async def test() -> None:
        async with world(BUCKET) as made:
            quota = await made.add_worker()
            assert len(await try_many(made, 30, [quota])) == 10
            await change(made, 100)
            assert await try_many(made, 5, [quota]) == []
            made.clock.advance(0.2)
            await pause(2 * REFUSED_S)
            assert len(await try_many(made, 50, [quota])) == 20

    run(test)


def test_places_grow_and_shrink_with_requests_in_flight() -> None:
    async def test() -> None:
        async with world(PLACES) as made:
            quota = await made.add_worker()
            first = await try_many(made, 20, [quota])
            assert len(first) == 10
            await change(made, 12)
            first += await try_many(made, 20, [quota])
            assert len(first) == 12
            await change(made, 4)
            for number, request in enumerate(first):
                quota.settle(request)
                quota._return(quota._leases.values())
                await pause(2 * REFUSED_S)  # a refusal is remembered for a moment
                more = await try_many(made, 1, [quota])
                for one in more:
                    quota.settle(one)
                assert bool(more) == (number >= 8), f"{11 - number} are in flight"

    run(test)


def test_a_worker_that_comes_later_or_again_knows_the_amount() -> None:
    async def test() -> None:
        async with world(LIVE) as made:
            quota = await made.add_worker()
            await change(made, 3)
            late = await made.add_worker()
            assert [each._leases["x"].limit.amount for each in (quota, late)] == [3, 3]
            made.stop_server()
            await pause(0.02)
            await made.start_server()
            made.server.set_limits(made.limits, {"x": 7})
            await made.reconnect()
            assert [each._leases["x"].limit.amount for each in (quota, late)] == [7, 7]

    run(test)


def test_the_amount_outlives_another_snapshot_and_comes_before_its_own() -> None:
    async def test() -> None:
        async with world(LIVE) as made:
            quota = await made.add_worker()
            new = msgspec.structs.replace(LIVE, id="y")
            made.server.set_limits((LIVE, new), {"x": 3, "y": 4})
            await pause(0.02)
            quota.set_limits((LIVE, new), quota._when_away, 4)
            assert {each.limit.id: each.limit.amount for each in quota._leases.values()} == {"x": 3, "y": 4}
            fixed = msgspec.structs.replace(LIVE, expression="")
            quota.set_limits((fixed,), quota._when_away, 4)
            assert quota._leases["x"].limit == fixed

    run(test)


def test_without_an_authority_the_share_is_of_the_last_amount() -> None:
    async def test() -> None:
        async with world(BUCKET) as made:
            quota = await made.add_worker(workers=2)
            await change(made, 100)
            made.stop_server()
            await pause(0.02)
            made.clock.advance(10)
            assert len(await try_many(made, 200, [quota])) == 50

    run(test)


def test_what_was_used_stays_used_over_a_restart_with_another_amount() -> None:
    async def test() -> None:
        async with world(LIVE) as made:
            quota = await made.add_worker()
            await change(made, 20)
            assert len(await try_many(made, 15, [quota])) == 15
            quota._return(quota._leases.values())
            await pause(0.02)
            made.stop_server()
            for amount, left in ((20, 5), (16, 1), (30, 15)):
                await made.start_server()
                made.server.set_limits(made.limits, {"x": amount})
                assert made.server.list_left()[0][1] == left
                made.stop_server()

    run(test)


def test_amounts_that_are_not_needed_are_forgotten_when_they_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(amounts, "KNOWN_MAX", 3)
    known = amounts.Amounts()
    for number in range(10):
        known.learn("x" if number == 0 else f"gone{number}", 7, {"x"})
    assert known.apply(LIVE).amount == 7
    assert len(known._known) <= 3
