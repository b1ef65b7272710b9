"""Crowds that wait for limits: in bounded lines, with few questions, over workers, and without a leak."""

import asyncio
import random
import time
from collections import Counter
from typing import Any

import pytest
from waiting_rig import PLACE, RATE, TOKENS, Stage, run, stage

from forebay.core.errors import ForebayError
from forebay.core.limits import Exceeded, Kind, Limit, Measure, Period, QueueRules, WhenAway
from forebay.gateway.model import Exchange
from forebay.gateway.quota import Quota


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
            assert made.waits["served"] >= 1

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
            took_s = time.monotonic() - begun
            assert took_s < 30
            served = Counter(name[0] for name in made.let_in)
            assert sum(served.values()) >= 40, "twenty at once, and twenty in each of two seconds"
            assert sum(served.values()) <= 20 + 20 * took_s + 15
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
