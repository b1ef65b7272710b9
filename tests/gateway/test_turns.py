"""One request at a time asks for a limit: in order of arrival, whoever leaves, and nobody is stuck."""

import asyncio
import random
from collections.abc import Awaitable, Callable

from forebay.core.keys import KeyEntry
from forebay.core.limits import Limit, Measure, Period
from forebay.gateway.lease import Lease
from forebay.gateway.line import Waiter
from forebay.gateway.turns import Turns

LEASES = [
    Lease(Limit(id=name, owner="team t", measure=Measure.REQUESTS, amount=1, period=Period.SECOND))
    for name in "abc"
]


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def inside() -> None:
        async with asyncio.timeout(60):
            await test()

    asyncio.run(inside())


def make_waiter() -> Waiter:
    return Waiter(KeyEntry(id="k", digest=b"", name="k", prefix=""))


def test_turns_come_in_order_and_those_that_left_have_none() -> None:
    async def test() -> None:
        turns = Turns(asyncio.get_running_loop())
        first, order = make_waiter(), []
        assert await turns.begin(first, LEASES[:1])
        assert await turns.begin(first, LEASES[:2]), "its own turn is no obstacle"

        async def come(number: int) -> None:
            waiter = make_waiter()
            try:
                assert not await turns.begin(waiter, LEASES[:1])
                order.append(number)
                assert await turns.begin(waiter, LEASES[:1])
            finally:
                turns.end(waiter)

        tasks = [asyncio.ensure_future(come(number)) for number in range(6)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        turns.end(first)
        tasks[0].cancel()  # its turn has come, and it has not run yet
        await asyncio.gather(*tasks, return_exceptions=True)
        assert order == [2, 3, 4, 5]
        assert not turns._asking
        assert not turns._next

    run(test)


def test_however_they_come_and_go_one_asks_for_each_and_all_have_their_turn() -> None:
    async def test() -> None:
        for seed in range(20):
            draw = random.Random(seed)
            turns = Turns(asyncio.get_running_loop())
            asking: set[Lease] = set()
            ended = 0

            async def come(
                leases: list[Lease], draw: random.Random = draw, turns: Turns = turns,
                asking: set[Lease] = asking,
            ) -> None:  # fmt: skip
                nonlocal ended
                waiter = make_waiter()
                try:
                    while not await turns.begin(waiter, leases):
                        await asyncio.sleep(0)
                    assert not asking & set(leases)
                    asking.update(leases)
                    await asyncio.sleep(draw.random() * 0.002)
                finally:
                    if set(leases) <= set(waiter.turns):
                        asking.difference_update(leases)
                    turns.end(waiter)
                ended += 1

            tasks = [asyncio.ensure_future(come(draw.sample(LEASES, draw.randint(1, 3)))) for _ in range(40)]
            gone = draw.sample(tasks, 8)
            for task in gone:
                await asyncio.sleep(0)
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(one is None or isinstance(one, asyncio.CancelledError) for one in results), results
            assert ended >= 32
            assert not turns._asking
            assert not turns._next

    run(test)
