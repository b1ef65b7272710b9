"""Limits of several machines over one Redis or Valkey: exact, and whatever dies, no unit is lent twice."""

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest
from fleet import Fleet, Worker, fleet, make_request, run, try_many, try_one

import redis_server as redis_servers
from forebay.app.quota_authority import AuthorityAway
from forebay.core.errors import QuotaUnavailable
from forebay.core.events import Tokens, UsageSource
from forebay.core.limits import Kind, Limit, Measure, Period, WhenAway
from redis_server import RedisServer

MONTH = {"period": Period.MONTH, "kind": Kind.CALENDAR}
PLACES = Limit(id="places", owner="key k", measure=Measure.CONCURRENT, amount=5)
TOKENS = Limit(id="tokens", owner="team a", measure=Measure.TOTAL_TOKENS, amount=10_000, **MONTH)


def make(amount: int) -> Limit:
    return Limit(id="x", owner="team a", measure=Measure.REQUESTS, amount=amount, **MONTH)


@pytest.fixture
def mortal(redis_program: Path) -> Iterator[RedisServer]:
    """A server that a test may kill; it forgets what it knew."""
    with redis_servers.run(redis_program) as server:
        yield server


@pytest.fixture
def lasting(redis_program: Path) -> Iterator[RedisServer]:
    """A server that a test may kill; it forgets nothing."""
    with redis_servers.run(redis_program, keeps=True) as server:
        yield server


async def try_until_full(made: Fleet, amount: int) -> int:
    let_in = 0
    for _ in range(6):
        let_in += len(await try_many(made, amount + 20))
        await asyncio.sleep(0.05)
    return let_in


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("amount", [1, 10, 1000])
def test_exactly_the_amount_is_let_in_over_all_machines(
    redis_server: RedisServer, workers: int, amount: int
) -> None:
    async def test() -> None:
        limit = make(amount)
        async with fleet(redis_server.url, limit, workers=workers, when_away=WhenAway.CLOSED) as made:
            let_in = await try_until_full(made, amount)
            assert let_in <= amount
            if not any(worker.losses for worker in made.workers):  # what they held then counts as spent
                assert let_in == amount
            assert await made.left() == {"x": 0}

    run(test)


def test_what_one_machine_holds_and_does_not_use_is_there_for_another(redis_server: RedisServer) -> None:
    async def test() -> None:
        async with fleet(redis_server.socket_url, TOKENS, workers=1) as made:
            idle, busy = made.workers
            for lease in idle._leases.values():
                lease.spent = 10**6  # it expects to need much
            assert await try_many(made, 1, [idle], size=4, body=b'{"max_tokens":99}')
            assert idle._leases["tokens"].left > 500
            let_in = 0
            for _ in range(4):
                let_in += len(await try_many(made, 60, [busy], size=4, body=b'{"max_tokens":99}'))
            assert let_in == 99, "10,000 tokens are 100 requests of 100"

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
        async with fleet(redis_server.url, PLACES, make(100), workers=1) as made:
            gone, other = made.workers
            assert len(await try_many(made, 5, [gone])) == 5
            made.hosts[0].stop()  # the whole machine: nobody says anything any more
            gone._client._closing = True
            made.hosts.reverse()
            assert not await try_many(made, 3, [other])
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
            assert len(await try_many(made, 9, [other])) == 5
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


async def has_left(made: Fleet, limit_id: str, units: int) -> bool:
    return (await made.left())[limit_id] == units


def test_a_control_plane_that_is_killed_and_comes_back_costs_nothing(redis_server: RedisServer) -> None:
    async def test() -> None:
        async with fleet(redis_server.url, make(50), PLACES) as made:
            held = await try_many(made, 3)
            made.hosts[0].stop()
            await made.hosts[0].start()
            await made.until(lambda: made.hosts[0].authority.is_there)
            await made.until_connected()
            assert (await made.left())["places"] <= 2
            more = await try_many(made, 9)
            assert len(more) == 2
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


# --- a server that goes and comes ---------------------------------------------------------------------------


def test_a_server_that_is_killed_and_has_kept_all_goes_on_where_it_was(lasting: RedisServer) -> None:
    async def test() -> None:
        async with fleet(lasting.url, make(100), PLACES) as made:
            held = await try_many(made, 4)
            for quota in made.workers:
                quota._return(quota._leases.values())
            lasting.kill()
            await made.until(lambda: not any(quota._client.is_connected for quota in made.workers))
            lasting.start()
            await made.until_connected()
            left = await made.left()
            assert (left["places"], left["x"]) == (1, 96)
            assert len(held) == 4

    run(test)


def test_a_server_that_comes_back_empty_does_not_fill_the_limits(mortal: RedisServer) -> None:
    async def test() -> None:
        async with fleet(mortal.url, make(100), PLACES, TOKENS) as made:
            held = await try_many(made, 5, size=4, body=b'{"max_tokens":99}')
            assert len(held) == 5
            mortal.kill()
            await made.until(lambda: not any(quota._client.is_connected for quota in made.workers))
            mortal.start()
            await made.until_connected()
            assert not await try_many(made, 3), "the places are all in use"
            left = await made.left()
            assert left["places"] == 0
            assert left["x"] <= 95
            assert left["tokens"] <= 9500

    run(test)


@pytest.mark.parametrize("when_away", list(WhenAway))
def test_without_a_server_workers_go_on_and_it_is_told_later(
    mortal: RedisServer, when_away: WhenAway
) -> None:
    async def test() -> None:
        async with fleet(mortal.url, make(100), workers=2) as made:
            for quota in made.workers:
                quota.set_limits(made.limits, when_away, 4)
            let_in = len(await try_many(made, 20))
            assert let_in == 20
            mortal.kill()
            await made.until(lambda: not any(quota._client.is_connected for quota in made.workers))
            if when_away is WhenAway.CLOSED:
                assert len(await try_many(made, 200)) <= 80, "what they hold is spent"
                with pytest.raises(QuotaUnavailable):
                    await acquire(made, made.workers[0])
                return
            more = len(await try_many(made, 200))
            assert more == 200 if when_away is WhenAway.OPEN else 60 <= more <= 100
            mortal.start()
            await made.until_connected()
            await made.until(lambda: has_at_most(made, 100 - let_in - more))

    run(test)


async def acquire(made: Fleet, quota: Worker) -> None:
    request = make_request(made)
    assert request.key is not None
    await quota.acquire(request, quota.find_plan(request.key, "m"))


async def has_at_most(made: Fleet, units: int) -> bool:
    return (await made.left())["x"] <= units


def test_a_server_that_hangs_is_away_and_comes_back(mortal: RedisServer) -> None:
    async def test() -> None:
        async with fleet(mortal.url, make(100), workers=1) as made:
            mortal.stall()
            begun = asyncio.get_running_loop().time()
            assert len(await try_many(made, 8)) == 8
            assert asyncio.get_running_loop().time() - begun < 5
            mortal.go_on()
            await made.until_connected()
            await made.until(lambda: has_at_most(made, 92))

    run(test)


def test_a_script_that_is_flushed_is_loaded_again(redis_server: RedisServer) -> None:
    async def test() -> None:
        async with fleet(redis_server.url, make(1000)) as made:
            let_in = 0
            for _ in range(5):
                with redis_server.connect() as client:
                    client.script_flush()
                let_in += len(await try_many(made, 40))
            assert let_in == 200
            assert all(quota._client.is_connected for quota in made.workers)

    run(test)


# --- what people are told -----------------------------------------------------------------------------------


def spoil_memory(server: RedisServer) -> None:
    with server.connect() as client:
        client.config_set("maxmemory", "1")


def spoil_role(server: RedisServer) -> None:
    with server.connect() as client:
        client.replicaof("127.0.0.1", 9)
        client.config_set("replica-serve-stale-data", "yes")


def spoil_password(server: RedisServer) -> None:
    with server.connect() as client:
        client.config_set("requirepass", "other")
        client.execute_command("AUTH", "other")
        client.client_kill_filter(_type="normal", skipme=True)
        client.client_kill_filter(_type="pubsub", skipme=True)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (spoil_memory, "no memory left"),
        (spoil_role, "a replica, which takes no writes"),
        (spoil_password, "does not accept the name and password"),
        (lambda server: server.kill(), "no connection"),
    ],
)
def test_why_it_is_away_is_said_once_in_plain_words(
    mortal: RedisServer, caplog: pytest.LogCaptureFixture, spoil: object, words: str
) -> None:
    async def test() -> None:
        async with fleet(mortal.url, make(100), workers=1, hosts=1) as made:
            assert len(await try_many(made, 8)) == 8
            with caplog.at_level(logging.INFO, "forebay.quota"):
                spoil(mortal)  # type: ignore[operator]
                await made.until(lambda: not made.hosts[0].authority.is_there)
                await made.until(lambda: words in made.hosts[0].authority.trouble)
                assert len(await try_many(made, 8)) == 8, "by the worker's share"
                await asyncio.sleep(1.2)
            with pytest.raises(AuthorityAway, match=words):
                await made.hosts[0].server.fetch_standings()
            told = [record.getMessage() for record in caplog.records if words in record.getMessage()]
            assert len(told) == 1
            assert "workers go on with their share" in told[0]

    run(test)


def test_a_fleet_is_counted_over_all_machines(redis_server: RedisServer) -> None:
    async def test() -> None:
        async with fleet(redis_server.url, make(100), hosts=3, workers=2) as made:
            await made.until(lambda: all(host.server.members == 6 for host in made.hosts))
            made.hosts[0].kill_worker(made.hosts[0].workers[0])
            await made.until(lambda: all(host.server.members == 5 for host in made.hosts))

    run(test)


def test_fleets_of_other_names_share_nothing(redis_server: RedisServer) -> None:
    async def test() -> None:
        async with fleet(redis_server.url, make(10), workers=1) as one:
            async with fleet(redis_server.url, make(10), workers=1) as other:
                assert len(await try_many(one, 20)) == 10
                assert len(await try_many(other, 20)) == 10
                assert make_request(one).reservation is None

    run(test)


def test_live_amounts_are_told_to_the_workers_and_hold_everywhere(redis_server: RedisServer) -> None:
    async def test() -> None:
        live = msgspec.structs.replace(make(10), expression="10 + x")
        async with fleet(redis_server.url, live, workers=1) as made:
            made.hosts[0].server.set_amounts({"x": 30})
            await made.until(lambda: made.hosts[0].workers[0]._leases["x"].limit.amount == 30)
            assert len(await try_many(made, 60, [made.workers[0]])) == 30

    run(test)


def test_a_cluster_is_followed_to_the_server_that_keeps_the_limits(redis_program: Path) -> None:
    with ExitStack() as stack:
        servers: list[RedisServer] = []
        for first, last in ((0, 8191), (8192, 16383)):
            bus = str(redis_servers.find_free_port())
            settings = ("--cluster-enabled", "yes", "--cluster-port", bus, "--cluster-config-file", "nodes")
            server = stack.enter_context(redis_servers.run(redis_program, *settings))
            with server.connect() as client:
                client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
                for other in servers:
                    client.execute_command("CLUSTER", "MEET", "127.0.0.1", other.port, other.settings[3])
            servers.append(server)
        wait_until_whole(servers)

        async def test() -> None:
            for server in servers:  # one of them keeps it, and the other tells where it is
                async with fleet(server.url, make(20), workers=1) as made:
                    assert len(await try_many(made, 60)) == 20
                    assert {host.authority.trouble for host in made.hosts} == {""}

        run(test)


def wait_until_whole(servers: list[RedisServer]) -> None:
    deadline = time.monotonic() + 30
    for server in servers:
        with server.connect() as client:
            while client.cluster("info")["cluster_state"] != "ok":
                assert time.monotonic() < deadline
                time.sleep(0.05)
