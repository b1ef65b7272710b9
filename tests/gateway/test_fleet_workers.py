"""Limits of two machines with real workers: exact, and bounded whatever is killed with `kill -9`."""

import asyncio
import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import msgspec
import pytest
from limits_rig import PATIENCE_S, Authority, ask_many, workers

import redis_server as redis_servers
from forebay.app.clock import SystemClock
from forebay.app.quota_redis import RedisAuthority
from forebay.app.quota_server import QuotaServer
from forebay.core.limits import Kind, Limit, Measure, Period, WhenAway
from forebay.testing.gateway import GatewayProcess
from forebay.testing.openai import well_behaved
from forebay.testing.steps import Sleep, Stall
from forebay.testing.threaded import ThreadedUpstream
from redis_server import RedisServer

NAMES = itertools.count()
PLACES = Limit(id="c", owner="project test", measure=Measure.CONCURRENT, amount=4)


def make(amount: int) -> Limit:
    return Limit(
        id="r",
        owner="team test",
        measure=Measure.REQUESTS,
        amount=amount,
        period=Period.MONTH,
        kind=Kind.CALENDAR,
    )


class SharedAuthority(Authority):
    """The control plane's part of one machine, in a thread of its own."""

    def __init__(self, folder: Path, limits: tuple[Limit, ...], server: RedisServer, fleet: str) -> None:
        super().__init__(folder, limits)
        name = f"{folder.name}-{next(NAMES)}"
        self.shared = RedisAuthority(lambda: server.url, fleet, name, SystemClock())

    async def _start(self) -> None:
        (self.folder / "run").mkdir(parents=True, exist_ok=True)
        self.shared.recall_max_s = PATIENCE_S
        self.server = QuotaServer(self.folder / "run" / "quota.sock", self.shared, SystemClock())
        self.server.set_limits(self.limits)
        await self.server.start()

    def __exit__(self, *_: object) -> None:
        async def stop() -> None:
            self.server.close()
            await asyncio.wait(self.shared._tasks)

        asyncio.run_coroutine_threadsafe(stop(), self._loop).result(60)
        super().__exit__()

    def left(self) -> dict[str, int]:
        fetch = self.server.fetch_standings()
        found = asyncio.run_coroutine_threadsafe(fetch, self._loop).result(60)
        return {each.limit.id: each.left for each in found}


@contextmanager
def machines(
    folder: Path,
    server: RedisServer,
    url: str,
    *limits: Limit,
    count: int = 2,
    when_away: WhenAway = WhenAway.CLOSED,
) -> Iterator[tuple[list[SharedAuthority], list[list[GatewayProcess]]]]:
    """Two, with so many workers each."""
    fleet = f"{folder.name}-{next(NAMES)}"
    one, other = (SharedAuthority(folder / name, limits, server, fleet) for name in ("one", "other"))
    with one, other:
        with (
            workers(one.folder, count, url, limits, when_away=when_away) as first,
            workers(other.folder, count, url, limits, when_away=when_away) as second,
        ):
            for worker in (*first, *second):  # as their control planes tell them once all are counted
                worker.write_snapshot(msgspec.structs.replace(worker.snapshot, quota_workers=2 * count))
            yield [one, other], [first, second]


def count_served(groups: list[list[GatewayProcess]], count: int) -> int:
    """Of so many requests at each machine, all at once."""
    served = [0, 0]

    def load(at: int) -> None:
        with suppress(httpx.HTTPError):  # a worker may be killed meanwhile
            answers = ask_many(groups[at][0].url, count)
            served[at] = sum(answer.status_code == 200 for answer in answers)

    threads = [threading.Thread(target=load, args=(at,)) for at in range(len(groups))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(served)


@pytest.mark.parametrize("amount", [5, 60])
def test_exactly_the_amount_is_served_by_two_machines(
    tmp_path: Path, redis_server: RedisServer, amount: int
) -> None:
    for number in range(3):  # a machine that stands still loses what it was lent, and then it is fewer
        folder = tmp_path / str(number)
        with (
            ThreadedUpstream(well_behaved("Hello")) as upstream,
            machines(folder, redis_server, upstream.url, make(amount)) as (authorities, groups),
        ):
            served = sum(count_served(groups, amount) for _ in range(3))
            assert served <= amount
            assert len(upstream.requests) == served
            assert authorities[0].left() == {"r": 0}
        if served == amount:
            break
    assert served == amount


def test_places_of_killed_workers_come_back_on_the_other_machine(
    tmp_path: Path, redis_server: RedisServer
) -> None:
    limits = (PLACES, make(1000))
    with ThreadedUpstream([Sleep(60), Stall()]) as upstream:
        with machines(tmp_path, redis_server, upstream.url, *limits, count=1) as (authorities, groups):
            (holder,), (other,) = groups
            waiting = threading.Thread(target=count_served, args=([[holder]], 4))
            waiting.start()
            upstream.wait_requests(4)
            assert {answer.status_code for answer in ask_many(other.url, 3)} == {429}
            holder.kill()
            waiting.join()
            other.until(lambda: authorities[1].left()["c"] == 4)
            assert authorities[1].left()["r"] <= 996, "what it was lent of others counts as spent"


def test_over_killed_workers_no_more_than_the_amount_is_served(
    tmp_path: Path, redis_server: RedisServer
) -> None:
    amount = 80
    with ThreadedUpstream(well_behaved("Hello")) as upstream:
        with machines(tmp_path, redis_server, upstream.url, make(amount)) as (_, groups):
            for number in range(4):
                load = threading.Thread(target=count_served, args=(groups, 25))
                load.start()
                upstream.wait_requests(5 * (number + 1))
                victim = groups[number % 2][1]
                victim.kill()
                victim.start()
                load.join()
            for _ in range(3):
                count_served(groups, 60)
            assert len(upstream.requests) <= amount


def test_a_killed_server_lets_each_machine_go_on_with_its_share_and_hears_of_it_later(
    tmp_path: Path, redis_program: Path
) -> None:
    amount = 40
    with redis_servers.run(redis_program) as server, ThreadedUpstream(well_behaved("Hello")) as upstream:
        with machines(tmp_path, server, upstream.url, make(amount), when_away=WhenAway.SHARE) as (
            authorities,
            groups,
        ):
            before = count_served(groups, 5)
            server.kill()
            groups[0][0].until(lambda: not any(each.shared.is_there for each in authorities))
            away = count_served(groups, 60)
            # Each of the four workers has its part of what it heard to be left, beside what it was lent.
            assert before + away <= 2 * amount
            server.start()
            groups[0][0].until(lambda: all(each.shared.is_there for each in authorities))
            groups[0][0].until(lambda: authorities[0].left()["r"] <= amount - before - away)
            rest = count_served(groups, 60)
            assert before + away + rest <= max(amount, before + away)
