"""A server of limits that goes, comes or forgets: workers go on, and tell it later; people are told why."""

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest
from fleet import (
    PLACES,
    TOKENS,
    Fleet,
    Worker,
    fleet,
    make,
    make_request,
    run,
    try_many,
)

import redis_server as redis_servers
from forebay.app.quota_authority import AuthorityAway
from forebay.core.errors import QuotaUnavailable
from forebay.core.limits import WhenAway
from forebay.testing.threaded import find_closed_port
from redis_server import RedisServer


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
            assert asyncio.get_running_loop().time() - begun < 15
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
            bus = str(find_closed_port())
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
    deadline = time.monotonic() + 90
    for server in servers:
        with server.connect() as client:
            while client.cluster("info")["cluster_state"] != "ok":
                assert time.monotonic() < deadline
                time.sleep(0.05)
