"""Limits of several machines over one Redis or Valkey: exact, and whatever dies, no unit is lent twice."""

import pytest
from fleet import PLACES, TOKENS, Fleet, fleet, has_left, make, run, try_many, try_one, try_until_full

from forebay.core.events import Tokens, UsageSource
from forebay.core.limits import WhenAway
from redis_server import RedisServer


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("amount", [1, 10, 1000])
def test_exactly_the_amount_is_let_in_over_all_machines(
    redis_server: RedisServer, workers: int, amount: int
) -> None:
    async def test() -> None:
        limit = make(amount)
        async with fleet(redis_server.url, limit, workers=workers, when_away=WhenAway.CLOSED) as made:
            let_in = await try_until_full(made, amount)
            left = (await made.left())["x"]
            assert let_in + left <= amount
            if not any(worker.losses for worker in made.workers):  # what they held then counts as spent
                assert (let_in, left) == (amount, 0)

    run(test)


def test_what_one_machine_holds_and_does_not_use_is_there_for_another(redis_server: RedisServer) -> None:
    async def test() -> None:
        async with fleet(redis_server.socket_url, TOKENS, workers=1) as made:
            idle, busy = made.workers
            for lease in idle._leases.values():
                lease.spent = 10**6  # it expects to need much
            assert await try_many(made, 1, [idle], size=4, body=b'{"max_tokens":99}')
            assert idle._leases["tokens"].left > 500
            let_in: list[object] = []

            async def takes_all() -> bool:  # what the other holds comes back once it was asked for it
                let_in.extend(await try_many(made, 60, [busy], size=4, body=b'{"max_tokens":99}'))
                return len(let_in) >= 99

            await made.until(takes_all)
            assert not await try_many(made, 60, [busy], size=4, body=b'{"max_tokens":99}')
            assert len(let_in) == 99, "10,000 tokens are 100 requests of 100"

    run(test)


def test_places_are_exact_and_those_of_a_killed_worker_come_back(redis_server: RedisServer) -> None:
    async def test() -> None:
        async with fleet(redis_server.url, PLACES, workers=1) as made:
            one, other = made.workers
            held = await try_many(made, 20, [one])
            assert len(held) == 5
            assert not await try_many(made, 3, [other])
            one.settle(held[0])
            await made.until(lambda: one_more(made, other))
            made.hosts[0].kill_worker(one)
            for _ in range(4):
                await made.until(lambda: one_more(made, other))
            assert not await try_many(made, 3, [other])

    run(test)


async def one_more(made: Fleet, quota: object) -> bool:
    return await try_one(made, quota) is not None  # type: ignore[arg-type]


def test_places_of_a_machine_that_is_not_seen_any_more_come_back(redis_server: RedisServer) -> None:
    async def test() -> None:
        # Who is gone answers no recall: what is asked for is to be refused before it counts as gone.
        async with fleet(redis_server.url, PLACES, make(100), workers=1, recall_s=0.1) as made:
            gone, other = made.workers
            assert len(await try_many(made, 5, [gone])) == 5
            made.hosts[0].stop()  # the whole machine: nobody says anything any more
            gone._client._line._is_closing = True
            made.hosts.reverse()
            assert not await try_many(made, 1, [other])
            await made.until(lambda: one_more(made, other))
            left = await made.left()
            assert left["places"] == 4
            assert left["x"] <= 94, "what it was lent of others counts as spent"

    run(test)


def test_a_machine_that_comes_back_says_what_it_holds(redis_server: RedisServer) -> None:
    async def test() -> None:
        async with fleet(redis_server.url, PLACES, make(100), workers=1) as made:
            away, other = made.workers
            held = await try_many(made, 2, [away])
            made.hosts[0].authority._link.is_up = False  # cut off: it says nothing, and its workers go on
            made.hosts[0].authority._tasks[0].cancel()
            made.hosts[0].server.close_lines()
            here = made.hosts[1].server
            await made.until(lambda: here.members == 1)
            taken = []

            async def takes_all() -> bool:  # what was lent comes back a moment after its machine is gone
                taken.extend(await try_many(made, 9, [other]))
                return len(taken) >= 5

            await made.until(takes_all)
            assert len(taken) == 5
            made.hosts[0].stop()
            await made.hosts[0].start()
            await made.until(lambda: made.hosts[0].authority.is_there)
            await made.until_connected()
            places = next(each for each in await here.fetch_standings() if each.limit.id == "places")
            assert (places.left, places.lent) == (-2, 7)
            for request in held:
                away.settle(request)
            await made.until(lambda: has_left(made, "places", 0))
            assert 100 - (await made.left())["x"] >= 7

    run(test)


def test_a_control_plane_that_is_killed_and_comes_back_costs_nothing(redis_server: RedisServer) -> None:
    async def test() -> None:
        async with fleet(redis_server.url, make(50), PLACES) as made:
            held = await try_many(made, 3)
            made.hosts[0].stop()
            await made.hosts[0].start()
            await made.until(lambda: made.hosts[0].authority.is_there)
            await made.until_connected()
            assert (await made.left())["places"] <= 2
            more: list[object] = []

            async def takes_all() -> bool:
                more.extend(await try_many(made, 9))
                return len(more) >= 2

            await made.until(takes_all)
            assert not await try_many(made, 9)
            assert len(held) + len(more) == 5

    run(test)


@pytest.mark.parametrize("amount", [10, 300])
def test_workers_that_are_killed_spend_nothing_twice(redis_server: RedisServer, amount: int) -> None:
    async def test() -> None:
        async with fleet(redis_server.url, make(amount), workers=3, when_away=WhenAway.CLOSED) as made:
            let_in = 0
            for number in range(12):
                let_in += len(await try_many(made, amount // 4))
                host = made.hosts[number % 2]
                host.kill_worker(host.workers[0])
                await host.add_worker(WhenAway.CLOSED)
                await made.until_connected()
            let_in += await try_until_full(made, amount)
            assert let_in <= amount

    run(test)


def test_an_answer_that_took_more_is_a_debt_of_all_machines(redis_server: RedisServer) -> None:
    async def test() -> None:
        async with fleet(redis_server.url, TOKENS, workers=1) as made:
            one, other = made.workers
            (request,) = await try_many(made, 1, [one], size=4, body=b'{"max_tokens":9}')
            request.tokens, request.usage_source = Tokens(input=1, output=12_000), UsageSource.REPORTED
            one.settle(request)
            await made.until(lambda: has_left(made, "tokens", -2001))
            assert not await try_many(made, 1, [other])

    run(test)


def test_an_edit_on_one_machine_holds_for_all(redis_server: RedisServer) -> None:
    async def test() -> None:
        async with fleet(redis_server.url, make(10), workers=1) as made:
            assert len(await try_many(made, 30)) == 10
            made.hosts[0].server.set_limits((make(15),))
            await made.until(lambda: has_left(made, "x", 5))
            let_in = await try_until_full(made, 20)
            assert let_in == 5, "also by the worker of the machine that was not edited"

    run(test)
