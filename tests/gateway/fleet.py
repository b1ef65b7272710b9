"""Several machines that share limits, in one loop: each with a control plane's socket, and workers at it."""

import asyncio
import itertools
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from forebay.app.clock import SystemClock
from forebay.app.quota_redis import RedisAuthority
from forebay.app.quota_server import QuotaServer
from forebay.core.errors import QuotaUnavailable, RateLimited
from forebay.core.events import UsageSource
from forebay.core.keys import KeyEntry
from forebay.core.limits import Kind, Limit, Measure, Period, WhenAway
from forebay.core.routes import Endpoint
from forebay.gateway.model import Exchange
from forebay.gateway.quota import Quota
from forebay.providers import openai

NUMBERS = itertools.count()
WAIT_MAX_S = 40.0


MONTH = {"period": Period.MONTH, "kind": Kind.CALENDAR}
PLACES = Limit(id="places", owner="key k", measure=Measure.CONCURRENT, amount=5)
TOKENS = Limit(id="tokens", owner="team a", measure=Measure.TOTAL_TOKENS, amount=10_000, **MONTH)


def make(amount: int) -> Limit:
    return Limit(id="x", owner="team a", measure=Measure.REQUESTS, amount=amount, **MONTH)


class Worker(Quota):
    """What a worker knows of limits; it counts how often it lost its line."""

    losses = 0

    def lose_line(self) -> None:
        self.losses += 1
        super().lose_line()


class Host:
    """One machine: what its control plane and its workers do about limits."""

    def __init__(self, fleet: "Fleet", folder: Path) -> None:
        self.fleet = fleet
        self.folder = folder
        self.workers: list[Worker] = []
        self.server: QuotaServer
        self.authority: RedisAuthority

    async def start(self) -> None:
        name = f"host{next(NUMBERS)}"
        self.authority = RedisAuthority(lambda: self.fleet.url, self.fleet.name, name, SystemClock())
        self.authority.recall_max_s = self.fleet.recall_s
        self.server = QuotaServer(self.folder / "s", self.authority, SystemClock())
        self.server.set_limits(self.fleet.limits)
        await self.server.start()

    def stop(self) -> None:
        """As `kill -9` does it to a control plane: nothing more is said."""
        self.server.close()

    async def add_worker(self, when_away: WhenAway = WhenAway.SHARE, workers: int = 4) -> Worker:
        loop = asyncio.get_running_loop()
        quota = Worker(loop, self.folder / "s", f"w{next(NUMBERS)}", openai, SystemClock())
        quota.set_limits(self.fleet.limits, when_away, workers)
        self.workers.append(quota)
        self.fleet.sweep()
        return quota

    def kill_worker(self, quota: Worker) -> None:
        """As `kill -9` does it."""
        self.workers.remove(quota)
        quota._client._line._is_closing = True
        quota._client._line.drop()


class Fleet:
    """All machines, and the server that they share."""

    def __init__(self, url: str, folder: Path, limits: tuple[Limit, ...], recall_s: float) -> None:
        self.url = url
        self.recall_s = recall_s
        self.name = f"f{next(NUMBERS)}"
        self.limits = limits
        self.hosts: list[Host] = []
        self._folder = folder

    async def add_host(self) -> Host:
        folder = self._folder / f"h{len(self.hosts)}"
        folder.mkdir()
        host = Host(self, folder)
        self.hosts.append(host)
        await host.start()
        return host

    def sweep(self) -> None:
        for host in self.hosts:
            for quota in host.workers:
                quota.sweep()

    async def sweep_forever(self) -> None:
        while True:
            await asyncio.sleep(0.1)
            self.sweep()

    @property
    def workers(self) -> list[Worker]:
        return [quota for host in self.hosts for quota in host.workers]

    async def until(self, is_so: Callable[[], bool | Awaitable[bool]]) -> None:
        async with asyncio.timeout(WAIT_MAX_S):
            while True:
                found = is_so()
                if found if isinstance(found, bool) else await found:
                    return
                await asyncio.sleep(0.02)

    async def until_connected(self) -> None:
        await self.until(lambda: all(quota._client.is_connected for quota in self.workers))

    async def left(self) -> dict[str, int]:
        standings = await self.hosts[0].server.fetch_standings()
        return {each.limit.id: each.left for each in standings}


@asynccontextmanager
async def fleet(
    url: str,
    *limits: Limit,
    hosts: int = 2,
    workers: int = 2,
    when_away: WhenAway = WhenAway.SHARE,
    recall_s: float = 0.8,
) -> AsyncIterator[Fleet]:
    """Machines that know of each other.

    Args:
        recall_s: for which whoever stands still is waited for to return what others need.
    """
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        made = Fleet(url, Path(folder), limits, recall_s)
        for _ in range(hosts):
            await made.add_host()
        await made.until(lambda: all(host.authority.is_there for host in made.hosts))
        sweeping = asyncio.ensure_future(made.sweep_forever())
        try:
            for host in made.hosts:
                for _ in range(workers):
                    await host.add_worker(when_away)
            await made.until_connected()
            yield made
        finally:
            sweeping.cancel()
            for quota in made.workers:
                quota.close()
            for host in made.hosts:
                host.stop()
            await asyncio.sleep(0.02)


def run(test: Callable[[], Awaitable[None]], limit_s: float = 60) -> None:
    async def inside() -> None:
        async with asyncio.timeout(limit_s):
            await test()

    asyncio.run(inside())


def make_request(made: Fleet, size: int = 400, body: bytes = b'{"max_tokens":100}') -> Exchange:
    """A request as far as a quota looks at it."""
    names = tuple(limit.id for limit in made.limits)
    return cast(
        Exchange,
        SimpleNamespace(
            endpoint=Endpoint.CHAT, body=body, body_bytes=size, model="m", estimate=None, reservation=None,
            key=KeyEntry(id="k", digest=b"", name="k", prefix="", limits=names), names_output=True,
            limit_headers="", sent=True, tokens=None, usage_source=UsageSource.NONE, status=200,
            throttles=(), kept=(), dialect=openai, asked_model="", cost_estimate=None, is_uncertain=False,
            hedged_tokens=0,
        ),
    )  # fmt: skip


async def try_one(made: Fleet, quota: Quota, **request: Any) -> Exchange | None:
    one = make_request(made, **request)
    try:
        await quota.acquire(one, quota.find_plan(one.key, "m"))
    except (RateLimited, QuotaUnavailable):
        return None
    return one


async def try_many(
    made: Fleet, count: int, quotas: list[Worker] | None = None, **request: Any
) -> list[Exchange]:
    """Requests over workers in turn, all at once; those that were let in."""
    chosen = quotas or made.workers
    asked = await asyncio.gather(
        *(try_one(made, chosen[number % len(chosen)], **request) for number in range(count))
    )
    return [one for one in asked if one is not None]


async def try_until_full(made: Fleet, amount: int) -> int:
    let_in = 0
    for _ in range(6):
        let_in += len(await try_many(made, amount + 20))
        await asyncio.sleep(0.05)
    return let_in


async def has_left(made: Fleet, limit_id: str, units: int) -> bool:
    return (await made.left())[limit_id] == units
