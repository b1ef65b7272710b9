"""Requests that wait for limits, with a real authority: in order, in time, bounded, without a leak."""

import asyncio
import random
import re
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from forebay.app.clock import SystemClock
from forebay.app.quota_server import QuotaServer
from forebay.app.quota_state import QuotaState
from forebay.core.errors import Draining, ForebayError, QuotaUnavailable, RateLimited
from forebay.core.events import Tokens, UsageSource
from forebay.core.keys import KeyEntry
from forebay.core.limits import Exceeded, Kind, Limit, Measure, Period, QueueRules, WhenAway
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
        self.server.set_limits(self.limits)
        await self.server.start()
        self.server._ready_at = 0.0
        answer = self.server.answer

        def count(*args: Any) -> None:
            self.asks += 1
            answer(*args)

        self.server.answer = count  # type: ignore[method-assign]

    async def reconnect(self) -> None:
        for quota in self.quotas:
            while not quota._client.is_connected:
                quota._client._try_at = 0.0
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
                cost_estimate=None, is_uncertain=False, waited_ns=0, state=SimpleNamespace(cells=cells),
                call=SimpleNamespace(headers=headers),
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
        async with asyncio.timeout(40):
            await test()

    asyncio.run(inside())


async def refused(task: asyncio.Task[Exchange]) -> RateLimited:
    with pytest.raises(RateLimited) as caught:
        await task
    return caught.value


def test_a_request_that_may_wait_is_let_in_as_soon_as_there_is_room() -> None:
    async def test() -> None:
        async with stage(RATE) as made:
            begun = time.monotonic()
            exchanges = await asyncio.gather(*(made.come(f"k:{number}") for number in range(30)))
            passed = time.monotonic() - begun
            assert passed >= 0.45, "twenty at once, and ten at twenty a second"
            assert made.waits["served"] >= 5
            waited = [one for one in exchanges if "x-forebay-waited-ms" in one.limit_headers]
            assert len(waited) == made.waits["served"]
            assert all(one.waited_ns > 0 for one in waited)
            assert made.let_in == [f"k:{number}" for number in range(30)], "who came first"

    run(test)


def test_a_place_that_is_freed_goes_by_class_tenant_and_arrival() -> None:
    async def test() -> None:
        async with stage(PLACE) as made:
            await made.come("holder")
            for name, priority in (
                ("many:1", "standard"), ("many:2", "standard"), ("many:3", "standard"), ("one:1", "standard"),
                ("low:1", "batch"), ("high:1", "interactive"), ("high:2", "interactive"),
            ):  # fmt: skip
                made.come(name, priority=priority)
                await made.until_waiting(len(made.tasks) - 1)
            order = await made.serve_all()
            assert order == ["holder", "high:1", "high:2", "many:1", "one:1", "many:2", "many:3", "low:1"]
            assert await made.left() == {"place": 1}

    run(test)


def test_nobody_goes_before_those_of_its_class_that_wait_and_a_higher_class_does() -> None:
    async def test() -> None:
        async with stage(PLACE) as made:
            holder = await made.come("holder")
            made.come("waits", priority="standard")
            await made.until_waiting(1)
            newcomers = [made.make(name, None, 4, 9, {"priority": name}) for name in ("batch", "standard")]
            made.end(holder)
            for one in newcomers:  # in the same turn, before the one that waits could run
                assert one.key is not None
                assert not made.quota.reserve(one, made.quota.find_plan(one.key, "m"))
                with pytest.raises(RateLimited, match="concurrent requests"):
                    await made.quota.acquire(one, made.quota.find_plan(one.key, "m"))
            first = await made.tasks["waits"]
            made.come("waits again", priority="batch")
            await made.until_waiting(1)
            made.end(first)
            urgent = made.make("urgent", None, 4, 9, {"priority": "interactive"})
            assert urgent.key is not None
            assert made.quota.reserve(urgent, made.quota.find_plan(urgent.key, "m"))
            made.end(urgent)
            made.end(await made.tasks["waits again"])

    run(test)


def test_a_deadline_ends_the_wait_and_tells_how_long_it_was() -> None:
    async def test() -> None:
        async with stage(PLACE) as made:
            holder = await made.come("holder")
            begun = time.monotonic()
            errors = await asyncio.gather(*(refused(made.come(f"late:{n}", b"0.3")) for n in range(3)))
            assert 0.28 <= time.monotonic() - begun < 3
            for error in errors:
                waited = re.search(r"has waited (\d+\.\d) s", error.message)
                assert waited is not None
                assert 0.3 <= float(waited[1]) < 3
                assert error.retry_after_s == 1
            assert made.waits == {"expired": 3}
            made.assert_nobody_waits()
            made.end(holder)
            made.end(await made.come("next", None))

    run(test)


def test_whoever_can_not_be_served_in_time_is_told_at_once() -> None:
    async def test() -> None:
        async with stage(MONTH) as made:
            await asyncio.gather(*(made.come(f"k:{number}") for number in range(3)))
            error = await refused(made.come("k:4", b"25"))
            assert "it may wait no longer than 25 s" in error.message
            assert error.retry_after_s is not None
            assert made.waits == {"too_long": 1}
        async with stage(RATE) as made:
            await asyncio.gather(*(made.come(f"k:{number}") for number in range(20)))
            asked = [made.come(f"k:late{number}", b"1") for number in range(100)]
            await made.until_all_know(asked)
            early = [await refused(task) for task in asked if task.done() and task.exception()]
            assert 60 <= len(early) <= 85, "twenty fit into a second"
            assert all("no longer than 1 s" in error.message for error in early)
            ended = await asyncio.gather(*asked, return_exceptions=True)
            assert sum(not isinstance(one, BaseException) for one in ended) >= 15

    run(test)


def test_the_line_is_bounded_in_all_and_for_each_owner() -> None:
    async def test() -> None:
        async with stage(PLACE) as made:
            made.quota.waits.set_rules(QueueRules(requests_max=4, tenant_requests_max=2))
            holder = await made.come("holder")
            for name in ("a:1", "a:2", "b:1", "b:2"):
                made.come(name)
            await made.until_waiting(4)
            error = await refused(made.come("c:1"))
            assert "4 requests wait already (limits.queue.requests_max)" in error.message
            made.tasks["b:2"].cancel()
            await made.until_waiting(3)
            error = await refused(made.come("a:3"))
            assert "2 requests of the same owner wait for it already" in error.message
            assert made.waits == {"full": 2, "ended": 1}
            made.end(holder)
            assert await made.serve_all() == ["holder", "a:1", "b:1", "a:2"]

    run(test)


@pytest.mark.parametrize(
    ("asked", "default", "waits"),
    [
        (None, 0.0, False), (b"0", 5.0, False), (b"2.5", 0.0, True), (None, 5.0, True), (b"soon", 5.0, False),
        (b"-1", 5.0, False), (b"nan", 5.0, False), (b"", 5.0, False), (b"999999999", 0.0, True),
    ],
)  # fmt: skip
def test_it_waits_if_the_caller_or_the_class_allows_it(
    asked: bytes | None, default: float, waits: bool
) -> None:
    async def test() -> None:
        async with stage(PLACE) as made:
            made.quota.waits.set_rules(QueueRules(wait_max_s=20, default_wait_s=(0.0, default, 0.0)))
            made.come("holder", None)
            await made.tasks["holder"]
            task = made.come("k", asked)
            if not waits:
                error = await refused(task)
                assert ("is not a number of seconds" in error.message) == (asked not in (None, b"0"))
                return
            await made.until_waiting(1)
            waiter = next(iter(made.quota.waits.lines.values())).first
            assert waiter is not None
            assert waiter.allowed_s == {b"2.5": 2.5, b"999999999": 20.0, None: 5.0}[asked]
            made.end(made.tasks["holder"].result())
            await task

    run(test)


def test_what_is_larger_than_the_limit_does_not_wait() -> None:
    async def test() -> None:
        async with stage(TOKENS) as made:
            error = await refused(made.come("k", max_tokens=5000))
            assert "too small for this request" in error.message
            assert error.retry_after_s is None
            assert not made.waits

    run(test)


def test_a_large_request_is_not_starved_by_small_ones() -> None:
    async def test() -> None:
        async with stage(TOKENS) as made:
            await made.come("k:first", max_tokens=998)
            large = made.come("k:large", max_tokens=700)
            await made.until_waiting(1)
            small = 0
            while not large.done():
                one = made.make("s", None, 4, 9, {})
                assert one.key is not None
                with suppress(RateLimited):
                    await made.quota.acquire(one, made.quota.find_plan(one.key, "m"))
                    small += 1
                await asyncio.sleep(0.002)
            assert large.result()
            assert small <= 20

    run(test)


def test_a_caller_that_leaves_hands_its_turn_on() -> None:
    async def test() -> None:
        async with stage(PLACE) as made:
            holder = await made.come("holder")
            for number in range(6):
                made.come(f"k:{number}")
                await made.until_waiting(number + 1)
            made.end(holder)
            made.tasks["k:0"].cancel()  # woken a moment ago, and not run yet
            made.tasks["k:2"].cancel()
            assert await made.serve_all() == ["holder", "k:1", "k:3", "k:4", "k:5"]
            assert made.waits == {"ended": 2, "served": 4}
            assert await made.left() == {"place": 1}

    run(test)


def test_a_drain_ends_all_waits_at_once_and_lets_none_begin() -> None:
    async def test() -> None:
        async with stage(PLACE, RATE) as made:
            holder = await made.come("holder")
            waiting = [made.come(f"k:{number}") for number in range(9)]
            await made.until_waiting(9)
            made.quota.waits.close()
            for task in waiting:
                with pytest.raises(Draining, match="send the request again"):
                    await task
            made.assert_nobody_waits()
            assert "has waited" not in (await refused(made.come("late"))).message
            made.end(holder)
            assert (await made.left())["place"] == 1

    run(test)


def test_a_limit_that_goes_lets_those_go_that_wait_for_it_and_the_others_wait_on() -> None:
    async def test() -> None:
        async with stage(PLACE, MONTH) as made:
            ids = {"limits": ("place",)}
            holder = await made.come("holder", **ids)
            waiting = [made.come(f"k:{number}", **ids) for number in range(5)]
            await made.until_waiting(5)
            made.quota.set_limits(made.limits, WhenAway.SHARE, 1)
            await asyncio.sleep(0.05)
            assert made.waiting == 5
            made.quota.set_limits((MONTH,), WhenAway.SHARE, 1)
            for _ in range(20):  # turns of the loop, not a time after which somebody looks anyway
                await asyncio.sleep(0)
            assert all(task.done() for task in waiting)
            await asyncio.gather(*waiting)
            made.end(holder)

    run(test)


def test_more_room_is_seen_when_the_limit_is_changed() -> None:
    async def test() -> None:
        async with stage(PLACE) as made:
            await made.come("holder")
            waiting = [made.come(f"k:{number}") for number in range(3)]
            await made.until_waiting(3)
            wider = (Limit(id="place", owner="project t/p", measure=Measure.CONCURRENT, amount=4),)
            made.server.set_limits(wider)
            made.quota.set_limits(wider, WhenAway.SHARE, 1)
            await asyncio.wait_for(asyncio.gather(*waiting), 5)

    run(test)


@pytest.mark.parametrize("when_away", list(WhenAway))
def test_an_authority_that_goes_away_ends_or_moves_each_wait(when_away: WhenAway) -> None:
    async def test() -> None:
        async with stage(RATE, when_away=when_away) as made:
            await asyncio.gather(*(made.come(f"k:{number}") for number in range(20)))
            waiting = [made.come(f"k:w{number}") for number in range(10)]
            await made.until_waiting(10)
            begun = time.monotonic()
            made.server.close()
            ended = await asyncio.gather(*waiting, return_exceptions=True)
            passed = time.monotonic() - begun
            failed = [one for one in ended if isinstance(one, BaseException)]
            match when_away:
                case WhenAway.OPEN:
                    assert not failed
                case WhenAway.CLOSED:
                    assert {type(one) for one in failed} == {QuotaUnavailable}
                case WhenAway.SHARE:
                    assert not failed
                    assert passed > 0.3, "this worker's share is all of it, and fills at its rate"
            if when_away is not WhenAway.SHARE:
                assert passed < 3, "at once, and not at their deadline"
            made.assert_nobody_waits()

    run(test)


def test_an_authority_that_comes_back_finds_those_that_wait() -> None:
    async def test() -> None:
        async with stage(PLACE) as made:
            holder = await made.come("holder")
            made.come("k:1")
            await made.until_waiting(1)
            made.server.close()
            await asyncio.sleep(0.05)
            assert made.waiting == 1
            await made.start_server()
            await made.reconnect()
            made.end(holder)
            made.end(await asyncio.wait_for(made.tasks["k:1"], 3))
            assert await made.left() == {"place": 1}

    run(test)


def test_a_request_that_lacks_several_limits_gets_past_each_in_turn() -> None:
    async def test() -> None:
        async with stage(PLACE, RATE, TOKENS) as made:
            await made.come("k:0")
            for number in range(1, 60):
                made.come(f"{'ab'[number % 2]}:{number}", max_tokens=39)
            await made.until_waiting(59)
            assert len(await made.serve_all()) == 60
            assert made.waits["served"] >= 55
            assert (await made.left())["place"] == 1

    run(test)


def test_requests_wait_for_the_slower_rate_of_a_limit_that_is_exceeded() -> None:
    async def test() -> None:
        budget = Limit(
            id="budget", owner="team t", measure=Measure.REQUESTS, amount=1, period=Period.MONTH,
            kind=Kind.CALENDAR, exceeded=Exceeded.THROTTLE, throttle="slow",
        )  # fmt: skip
        slow = Limit(
            id="slow", owner="team t, now", measure=Measure.REQUESTS, amount=10, period=Period.SECOND
        )
        async with stage(budget, slow) as made:
            asked = [made.come(f"k:{number}", limits=("budget",)) for number in range(16)]
            begun = time.monotonic()
            assert len(await asyncio.gather(*asked)) == 16
            assert time.monotonic() - begun >= 0.4, "one, ten at once, and five at ten a second"
            assert made.waits["served"] >= 4

    run(test)


def test_a_place_goes_round_between_workers_whose_requests_wait_for_it() -> None:
    async def test() -> None:
        async with stage(PLACE, workers=2) as made:
            order: list[str] = []

            async def serve(quota: Quota, name: str) -> None:
                exchange = made.make(name, b"20", 4, 9, {})
                assert exchange.key is not None
                await quota.acquire(exchange, quota.find_plan(exchange.key, "m"))
                order.append(name[0])
                await all_are_there.wait()
                await asyncio.sleep(0.005)
                made.end_at(quota, exchange)

            all_are_there = asyncio.Event()
            first, second = made.quotas
            begun = [asyncio.ensure_future(serve(first, f"a:{number}")) for number in range(90)]
            await made.until_waiting(89)
            begun += [asyncio.ensure_future(serve(second, f"b:{number}")) for number in range(5)]
            while sum(second.waits.counts) < 5:
                await asyncio.sleep(0.002)
            all_are_there.set()
            await asyncio.gather(*begun)
            assert order.count("b") == 5
            served_before = [order[:at].count("a") for at in range(len(order)) if order[at] == "b"]
            assert served_before[0] <= 50, "it does not wait until nobody waits at the other worker"
            assert not second.waits.lines

    run(test)


def test_a_herd_meets_a_bounded_line_early_refusals_and_few_questions() -> None:
    async def test() -> None:
        async with stage(RATE) as made:
            made.quota.waits.set_rules(QueueRules(requests_max=100, tenant_requests_max=60))
            looks, reserve = 0, made.quota.reserve

            def count(*args: Any) -> bool:
                nonlocal looks
                looks += 1
                return reserve(*args)

            made.quota.reserve = count  # type: ignore[method-assign]
            herd = [made.come(f"{'abcd'[number % 4]}:{number}", b"2") for number in range(20 * RATE.amount)]
            begun = time.monotonic()
            await made.until_all_know(herd)
            early = sum(task.done() for task in herd)
            assert early >= 20 * RATE.amount - 100 - 20
            assert made.waiting <= 100
            assert looks <= 4 * len(herd), "not each of them at each answer of the authority"
            await asyncio.gather(*herd, return_exceptions=True)
            assert time.monotonic() - begun < 8
            served = Counter(name[0] for name in made.let_in)
            assert 40 <= sum(served.values()) <= 75, "twenty at once, and twenty in each of two seconds"
            assert max(served.values()) - min(served.values()) <= 4
            assert made.asks <= 4 * len(made.let_in) + 20

    run(test)


def test_however_many_wait_one_asks() -> None:
    async def test() -> None:
        async with stage(PLACE) as made:
            holder = await made.come("holder")
            waiting = [made.come(f"k:{number}", b"0.5") for number in range(400)]
            await made.until_waiting(400)
            made.asks = 0
            await asyncio.gather(*waiting, return_exceptions=True)
            assert made.waits == {"expired": 400}
            assert made.asks <= 2 * 0.5 / 0.05 + 30, "one look in each 50 ms"
            made.end(holder)

    run(test)


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_each_wait_ends_once_and_no_unit_is_lost(seed: int) -> None:
    async def test() -> None:
        draw = random.Random(seed)
        limits = (Limit(id="place", owner="project t/p", measure=Measure.CONCURRENT, amount=3), RATE, TOKENS)
        async with stage(*limits) as made:
            running: list[Exchange] = []
            for number in range(250):
                match draw.randrange(10):
                    case 0 if made.tasks:
                        made.tasks[draw.choice(list(made.tasks))].cancel()
                    case 1:
                        kept = draw.sample(limits, draw.randint(2, 3))
                        made.quota.set_limits(kept, WhenAway.SHARE, 1)
                        made.quota.set_limits(limits, WhenAway.SHARE, 1)
                    case 2 if draw.random() < 0.2:
                        made.server.close()
                        await made.start_server()
                        await made.reconnect()
                    case 3 | 4:
                        await asyncio.sleep(draw.random() * 0.02)
                    case _:
                        priority = draw.choice(("interactive", "standard", "batch"))
                        wait = draw.choice((None, b"0.2", b"1", b"5"))
                        name = f"{draw.choice('abc')}:{number}"
                        made.come(name, wait, max_tokens=draw.choice((9, 99)), priority=priority)
                running += [_take(made, name) for name in tuple(made.tasks) if _is_in(made, name)]
                while running and draw.random() < 0.7:
                    made.end(running.pop(draw.randrange(len(running))))
            while made.tasks:
                await asyncio.sleep(0.01)
                for name in tuple(made.tasks):
                    if _is_in(made, name):
                        made.end(_take(made, name))
                    elif made.tasks[name].done():
                        task = made.tasks.pop(name)
                        assert task.cancelled() or isinstance(task.exception(), ForebayError), task
                while running:
                    made.end(running.pop())
            made.assert_nobody_waits()
            for lease in made.quota._leases.values():
                assert lease.in_use == 0
            left = await made.left()
            assert left["place"] == 3

    run(test)


def _is_in(made: Stage, name: str) -> bool:
    task = made.tasks[name]
    return task.done() and not task.cancelled() and task.exception() is None


def _take(made: Stage, name: str) -> Exchange:
    return made.tasks.pop(name).result()
