"""Requests that wait for limits, with a real authority: in order, in time, bounded, without a leak."""

import asyncio
import re
import time
from contextlib import suppress

import pytest
from waiting_rig import MONTH, PLACE, RATE, TOKENS, refused, run, stage

from forebay.core.errors import Draining, QuotaUnavailable, RateLimited
from forebay.core.limits import Limit, Measure, QueueRules, WhenAway


def test_a_request_that_may_wait_is_let_in_as_soon_as_there_is_room() -> None:
    async def test() -> None:
        async with stage(RATE) as made:
            begun = time.monotonic()
            exchanges = await asyncio.gather(*(made.come(f"k:{number}") for number in range(30)))
            passed = time.monotonic() - begun
            assert passed >= 0.45, "twenty at once, and ten at twenty a second"
            assert made.waits["served"] >= 1
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
            assert 0.28 <= time.monotonic() - begun < 20
            for error in errors:
                waited = re.search(r"has waited (\d+\.\d) s", error.message)
                assert waited is not None
                assert 0.3 <= float(waited[1]) < 20
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
            assert 40 <= len(early) <= 85, "twenty fit into a second, more while this process stands still"
            assert all("no longer than 1 s" in error.message for error in early)
            ended = await asyncio.gather(*asked, return_exceptions=True)
            assert sum(not isinstance(one, BaseException) for one in ended) >= 5

    run(test)


def test_the_line_is_bounded_in_all_and_for_each_owner() -> None:
    async def test() -> None:
        async with stage(PLACE) as made:
            made.quota.waits.set_rules(QueueRules(requests_max=4, tenant_requests_max=2))
            holder = await made.come("holder")
            for name in ("a:1", "a:2", "b:1", "b:2"):
                made.come(name, project=name[0])
            await made.until_waiting(4)
            error = await refused(made.come("c:1", project="c"))
            assert "4 requests wait already (limits.queue.requests_max)" in error.message
            made.tasks["b:2"].cancel()
            await made.until_waiting(3)
            error = await refused(made.come("a:3", project="other"))
            assert "2 requests of the same owner wait for it already" in error.message
            error = await refused(made.come("d:1", project="a"))
            assert "2 requests of the same project wait already" in error.message
            assert made.waits == {"full": 3, "ended": 1}
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
            await asyncio.wait_for(asyncio.gather(*waiting), 30)

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
                assert passed < 9, "at once, and not at their deadline"
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
            made.end(await asyncio.wait_for(made.tasks["k:1"], 30))
            assert await made.left() == {"place": 1}

    run(test)
