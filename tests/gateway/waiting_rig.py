"""An authority and workers in one loop, and requests that come, wait, and end, for tests of waiting."""

import asyncio
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from forebay.app.clock import SystemClock
from forebay.app.quota_server import QuotaServer
from forebay.app.quota_state import QuotaState
from forebay.core.errors import RateLimited
from forebay.core.events import Tokens, UsageSource
from forebay.core.keys import KeyEntry
from forebay.core.limits import Kind, Limit, Measure, Period, QueueRules, WhenAway
from forebay.core.routes import Endpoint
from forebay.gateway.model import Exchange
from forebay.gateway.quota import Quota
from forebay.providers import openai

PLACE = Limit(id="place", owner="project t/p", measure=Measure.CONCURRENT, amount=1)
RATE = Limit(id="rate", owner="team t", measure=Measure.REQUESTS, amount=20, period=Period.SECOND)
TOKENS = Limit(id="tokens", owner="team t", measure=Measure.TOTAL_TOKENS, amount=1000, period=Period.SECOND)
MONTH = Limit(
    id="month", owner="team t", measure=Measure.REQUESTS, amount=3, period=Period.MONTH, kind=Kind.CALENDAR
)
RULES = QueueRules(requests_max=2000, tenant_requests_max=1000)


class Stage:
    """An authority and one worker in one loop, and requests that come, wait, and end."""

    def __init__(self, folder: Path, limits: tuple[Limit, ...]) -> None:
        self.folder = folder
        self.limits = limits
        self.asks = 0
        self.waits: Counter[str] = Counter()
        self.let_in: list[str] = []
        self.tasks: dict[str, asyncio.Task[Exchange]] = {}
        self.quotas: list[Quota] = []
        self.server: QuotaServer

    @property
    def quota(self) -> Quota:
        return self.quotas[0]

    async def start(self, when_away: WhenAway, workers: int) -> None:
        await self.start_server()
        for number in range(workers):
            name = f"w{number}"
            quota = Quota(asyncio.get_running_loop(), self.folder / "s", name, openai, SystemClock())
            quota.waits.set_rules(RULES)
            quota.set_limits(self.limits, when_away, workers)
            self.quotas.append(quota)
        await self.reconnect()

    async def start_server(self) -> None:
        self.server = QuotaServer(self.folder / "s", QuotaState(self.folder / "state"), SystemClock())
        self.server._authority.recall_max_s = 5.0  # a process that stands still for 50 ms refuses nobody
        self.server._authority.grace_s = 0.0
        self.server.set_limits(self.limits)
        await self.server.start()
        answer = self.server.answer

        def count(*args: Any) -> None:
            self.asks += 1
            answer(*args)

        self.server.answer = count  # type: ignore[method-assign]

    async def reconnect(self) -> None:
        for quota in self.quotas:
            while not quota._client.is_connected:
                quota._client._line._try_at = 0.0
                quota.sweep()
                await asyncio.sleep(0.005)

    def come(
        self, name: str, wait: bytes | None = b"10", *, size: int = 4, max_tokens: int = 9, **key: Any
    ) -> asyncio.Task[Exchange]:
        """A request; `name` and a colon before it say whose it is."""
        self.tasks[name] = asyncio.ensure_future(self._acquire(name, wait, size, max_tokens, key))
        return self.tasks[name]

    def make(
        self, name: str, wait: bytes | None, size: int, max_tokens: int, key: dict[str, Any]
    ) -> Exchange:
        ids = tuple(limit.id for limit in self.limits)
        owner = name.partition(":")[0]
        entry = KeyEntry(
            id=owner, digest=b"", name="k", prefix="", team="t", **{"project": "p", "limits": ids} | key
        )
        cells = SimpleNamespace(count_wait=lambda _, result, __: self.waits.update([result]))
        headers = {} if wait is None else {b"x-forebay-wait": wait}
        return cast(
            Exchange,
            SimpleNamespace(
                endpoint=Endpoint.CHAT, body=b'{"max_tokens":%d}' % max_tokens, body_bytes=size, model="m",
                estimate=None, reservation=None, key=entry, names_output=True, limit_headers="", sent=True,
                tokens=None, usage_source=UsageSource.NONE, status=200, throttles=(), asked_model="",
                cost_estimate=None, is_uncertain=False, hedged_tokens=0, waited_ns=0, queued_ns=0,
                kept=(), dialect=openai,
                state=SimpleNamespace(cells=cells), call=SimpleNamespace(headers=headers),
            ),
        )  # fmt: skip

    async def _acquire(
        self, name: str, wait: bytes | None, size: int, max_tokens: int, key: dict[str, Any]
    ) -> Exchange:
        exchange = self.make(name, wait, size, max_tokens, key)
        assert exchange.key is not None
        await self.quota.acquire(exchange, self.quota.find_plan(exchange.key, "m"))
        self.let_in.append(name)
        return exchange

    async def until_waiting(self, count: int) -> None:
        while self.waiting != count:
            await asyncio.sleep(0.002)

    async def until_all_know(self, tasks: list[asyncio.Task[Exchange]]) -> None:
        """Each has been let in, refused, or stands in line."""
        while sum(task.done() for task in tasks) + self.waiting < len(tasks):
            await asyncio.sleep(0.002)

    @property
    def waiting(self) -> int:
        return sum(self.quota.waits.counts)

    def end(self, exchange: Exchange) -> None:
        self.end_at(self.quota, exchange)

    def end_at(self, quota: Quota, exchange: Exchange) -> None:
        exchange.tokens, exchange.usage_source = Tokens(input=1, output=9), UsageSource.REPORTED
        quota.settle(exchange)

    async def serve_all(self) -> list[str]:
        """Ends those that were let in, one after the other, until nobody waits; their order."""
        done = 0
        while self.waiting or done < len(self.let_in):
            while done == len(self.let_in):
                await asyncio.sleep(0.002)
            self.end(await self.tasks[self.let_in[done]])
            done += 1
        return self.let_in

    def assert_nobody_waits(self) -> None:
        assert not self.quota.waits.lines
        assert self.quota.waits.counts == [0, 0, 0]

    async def left(self) -> dict[str, int]:
        self.quota._return(self.quota._leases.values())
        await asyncio.sleep(0.03)
        for _ in range(50):  # turns of the loop, which a process that stands still does not have
            await asyncio.sleep(0)
        return {limit.id: units for limit, units in self.server.list_left()}


@asynccontextmanager
async def stage(
    *limits: Limit, when_away: WhenAway = WhenAway.SHARE, workers: int = 1
) -> AsyncIterator[Stage]:
    with tempfile.TemporaryDirectory() as folder:
        made = Stage(Path(folder), limits)
        await made.start(when_away, workers)
        try:
            yield made
            made.assert_nobody_waits()
        finally:
            for task in made.tasks.values():
                task.cancel()
            await asyncio.gather(*made.tasks.values(), return_exceptions=True)
            for quota in made.quotas:
                quota.close()
            made.server.close()
            await asyncio.sleep(0.01)


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def inside() -> None:
        async with asyncio.timeout(60):
            await test()

    asyncio.run(inside())


async def refused(task: asyncio.Task[Exchange]) -> RateLimited:
    with pytest.raises(RateLimited) as caught:
        await task
    return caught.value
