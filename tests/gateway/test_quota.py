"""Workers and the authority over a real socket: limits hold over all of them, whoever comes and goes."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from forebay.app import quota_server
from forebay.app.quota_server import QuotaServer
from forebay.app.quota_state import QuotaState
from forebay.core.errors import QuotaUnavailable, RateLimited
from forebay.core.events import Tokens, UsageSource
from forebay.core.keys import KeyEntry
from forebay.core.limits import Exceeded, Kind, Limit, Measure, Period, WhenAway
from forebay.core.routes import Endpoint
from forebay.gateway import quota_client
from forebay.gateway.lease import REFUSED_S, format_seconds
from forebay.gateway.model import UNCERTAIN, Exchange
from forebay.gateway.needs import OUTPUT_GUESS
from forebay.gateway.quota import Quota
from forebay.providers import openai
from forebay.testing.clock import VirtualClock

DAY = {"period": Period.DAY, "kind": Kind.CALENDAR}
REQUESTS = Limit(id="requests", owner="team a", measure=Measure.REQUESTS, amount=100, **DAY)
TOKENS = Limit(id="tokens", owner="project p", measure=Measure.TOTAL_TOKENS, amount=10_000, **DAY)
PLACES = Limit(id="places", owner="key k", measure=Measure.CONCURRENT, amount=5)


LONG_GRACE_S = 2.0  #: after a start, so that a process may stand still for a while meanwhile

ALL = ("requests", "tokens", "places", "x")  #: ids of the limits of all tests here


class World:
    """An authority and its workers in one loop; periods pass by a virtual clock."""

    def __init__(self, folder: Path, limits: tuple[Limit, ...]) -> None:
        self.folder = folder
        self.limits = limits
        self.clock = VirtualClock()
        self.server: QuotaServer
        self.workers: list[Quota] = []

    async def start_server(self, *, grace: bool = False) -> None:
        self.server = QuotaServer(self.folder / "s", QuotaState(self.folder / "state"), self.clock)
        self.server._authority.recall_max_s = 5.0  # a process that stands still for 50 ms refuses nobody
        self.server._authority.grace_s = LONG_GRACE_S if grace else 0.0
        self.server.set_limits(self.limits)
        await self.server.start()

    def stop_server(self) -> None:
        """As `kill -9` does it: nothing is said, nothing more is written."""
        self.server.close()

    async def add_worker(self, when_away: WhenAway = WhenAway.SHARE, workers: int = 4) -> Quota:
        loop = asyncio.get_running_loop()
        quota = Quota(loop, self.folder / "s", f"w{len(self.workers)}", openai, self.clock)
        quota.set_limits(self.limits, when_away, workers)
        self.workers.append(quota)
        quota.sweep()
        await pause(0.01)
        return quota

    async def reconnect(self) -> None:
        await pause(0.01)
        for quota in self.workers:
            quota._client._line._try_at = 0.0
            quota.sweep()
        await pause(0.02)

    async def wait_for_lines(self) -> None:
        """Until all workers have one; a refused disk keeps them away for a moment."""
        while not all(quota._client.is_connected for quota in self.workers):
            for quota in self.workers:
                quota.sweep()
            await asyncio.sleep(0.02)


async def pause(seconds: float) -> None:
    """So long, and so many turns of the loop beside, that all which was said has been heard and answered.

    A process that stands still for a while has had the time, and not the turns.
    """
    await asyncio.sleep(seconds)
    for _ in range(50):
        await asyncio.sleep(0)


@asynccontextmanager
async def world(*limits: Limit, ask_max_s: float = 15.0) -> AsyncIterator[World]:
    """With workers that do not take a busy machine for an authority that is away."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(quota_client, "ASK_MAX_S", ask_max_s)
        made = World(Path(folder), limits)
        await made.start_server()
        try:
            yield made
        finally:
            for quota in made.workers:
                quota.close()
            made.stop_server()
            await pause(0.01)


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def inside() -> None:
        async with asyncio.timeout(60):
            await test()

    asyncio.run(inside())


def make_request(size: int = 400, body: bytes = b"{}") -> Exchange:
    """A request as far as a quota looks at it."""
    return cast(
        Exchange,
        SimpleNamespace(
            endpoint=Endpoint.CHAT, body=body, body_bytes=size, model="m", estimate=None, reservation=None,
            key=KeyEntry(id="k", digest=b"", name="k", prefix="", limits=ALL), names_output=True,
            limit_headers="", sent=True, tokens=None, usage_source=UsageSource.NONE, status=200,
            throttles=(), kept=(), asked_model="", cost_estimate=None, is_uncertain=False,
            hedged_tokens=0, dialect=openai,
        ),
    )  # fmt: skip


def end(
    quota: Quota, request: Exchange, tokens: Tokens | None, source: UsageSource = UsageSource.REPORTED
) -> None:
    request.tokens, request.usage_source = tokens, source
    quota.settle(request)


async def try_many(made: World, count: int, quotas: list[Quota], **request: Any) -> list[Exchange]:
    """Requests over workers in turn, all at once; those that were let in."""

    async def ask(quota: Quota) -> Exchange | None:
        one = make_request(**request)
        try:
            await quota.acquire(one, quota.find_plan(key(made), "m"))
        except RateLimited:
            return None
        return one

    asked = await asyncio.gather(*(ask(quotas[number % len(quotas)]) for number in range(count)))
    return [one for one in asked if one is not None]


def key(made: World) -> KeyEntry:
    return KeyEntry(id="k", digest=b"", name="k", prefix="", limits=tuple(limit.id for limit in made.limits))


@pytest.mark.parametrize("workers", [1, 4, 16])
@pytest.mark.parametrize("amount", [1, 10, 1000])
def test_exactly_the_amount_is_let_in_over_all_workers(workers: int, amount: int) -> None:
    async def test() -> None:
        limit = Limit(id="x", owner="team a", measure=Measure.REQUESTS, amount=amount, **DAY)
        async with world(limit) as made:
            quotas = [await made.add_worker() for _ in range(workers)]
            let_in = 0
            for _ in range(4):
                let_in += len(await try_many(made, amount, quotas))
            assert let_in == amount
            made.clock.advance(86_400)
            await pause(2 * REFUSED_S)
            assert len(await try_many(made, 2 * amount, quotas)) == amount, "and again on the next day"

    run(test)


def test_units_that_one_worker_does_not_use_are_there_for_another() -> None:
    async def test() -> None:
        async with world(TOKENS) as made:
            idle, busy = await made.add_worker(), await made.add_worker()
            assert await try_many(made, 1, [idle], size=4, body=b'{"max_tokens":99}')
            for lease in idle._leases.values():
                lease.spent = 10**6  # it expects to need much
            assert await try_many(made, 1, [idle], size=4, body=b'{"max_tokens":99}')
            assert idle._leases["tokens"].left > 500, "so much is lent to it beside what it used"
            let_in = await try_many(made, 200, [busy], size=4, body=b'{"max_tokens":99}')
            assert len(let_in) == 98, "10,000 tokens are 100 requests of 100"

    run(test)


def test_what_is_settled_comes_back_and_what_nobody_counted_does_not() -> None:
    async def test() -> None:
        async with world(TOKENS) as made:
            quota = await made.add_worker()

            async def spend(
                tokens: Tokens | None, source: UsageSource, *, sent: bool = True, status: int = 200
            ) -> int:
                (request,) = await try_many(made, 1, [quota], size=400, body=b'{"max_tokens":900}')
                assert request.estimate == Tokens(input=100, output=900)
                request.sent, request.status = sent, status
                request.is_uncertain = status in UNCERTAIN  # type: ignore[misc]
                end(quota, request, tokens, source)
                quota._return(quota._leases.values())
                await pause(0.02)
                left = made.server.list_left()[0][1]
                used, made.used = made.used - left, left  # type: ignore[attr-defined]
                return cast(int, used)

            made.used = 10_000  # type: ignore[attr-defined]
            assert await spend(Tokens(input=50, output=20), UsageSource.REPORTED) == 70
            assert await spend(Tokens(input=150, output=1000), UsageSource.REPORTED) == 1150, (
                "more than reserved"
            )
            assert await spend(Tokens(input=100, output=3), UsageSource.ESTIMATED) == 1000
            assert await spend(Tokens(input=100, output=1100), UsageSource.ESTIMATED) == 1200
            assert await spend(None, UsageSource.NONE, sent=False) == 0
            assert await spend(None, UsageSource.NONE, status=429) == 0
            assert await spend(None, UsageSource.NONE, status=500) == 1000, "nobody knows what it did"

    run(test)


def test_all_limits_hold_at_once_and_nothing_is_kept_of_those_that_would_have_done() -> None:
    async def test() -> None:
        async with world(REQUESTS, TOKENS, PLACES) as made:
            quotas = [await made.add_worker() for _ in range(3)]
            first = await try_many(made, 20, quotas, body=b'{"max_tokens":10}')
            assert len(first) == 5, "so many at a time"
            for number, request in enumerate(first):
                quotas[number % 3].settle(request)
            for quota in quotas:
                quota._return(quota._leases.values())
            await pause(0.02)
            left = {limit.id: units for limit, units in made.server.list_left()}
            assert left == {"requests": 95, "tokens": 10_000, "places": 5}

    run(test)


def test_a_refusal_names_the_limit_its_owner_and_the_time() -> None:
    async def test() -> None:
        minute = Limit(id="x", owner="team growth", measure=Measure.REQUESTS, amount=2, period=Period.MINUTE)
        async with world(minute) as made:
            quota = await made.add_worker()
            assert len(await try_many(made, 2, [quota])) == 2
            request = make_request()
            leases = quota.find_plan(key(made), "m")
            for _ in range(2):  # told by the authority, and from memory
                with pytest.raises(
                    RateLimited, match=r"limit of 2 requests a minute of team growth.* in 30 s"
                ) as refused:
                    await quota.acquire(request, leases)
                assert refused.value.retry_after_s == 30
                assert request.reservation is None
                assert "x-ratelimit-limit-requests: 2\r\n" in request.limit_headers
                assert "x-ratelimit-remaining-requests: 0\r\n" in request.limit_headers

    run(test)


def test_a_refusal_tells_a_long_time_in_hours_and_of_places_what_to_wait_for() -> None:
    async def test() -> None:
        day = Limit(id="x", owner="team growth", measure=Measure.REQUESTS, amount=2, period=Period.DAY)
        for limit, used, words, retry_after_s in (
            (day, 2, "in 12h0m0s", 43_200),
            (PLACES, 5, "5 concurrent requests at a time of key k is reached; try again when one of them", 1),
        ):
            async with world(limit) as made:
                quota = await made.add_worker()
                assert len(await try_many(made, used, [quota])) == used
                with pytest.raises(RateLimited, match=words) as refused:
                    await quota.acquire(make_request(), quota.find_plan(key(made), "m"))
                assert refused.value.retry_after_s == retry_after_s

    run(test)


def test_a_request_that_no_time_makes_room_for_is_told_so() -> None:
    async def test() -> None:
        async with world(TOKENS) as made:
            quota = await made.add_worker()
            leases = quota.find_plan(key(made), "m")
            with pytest.raises(
                RateLimited, match="too small for this request, which may take 10001"
            ) as refused:
                await quota.acquire(make_request(size=4, body=b'{"max_tokens":10000}'), leases)
            assert refused.value.retry_after_s is None
            with pytest.raises(RateLimited, match="too small for this request, which may take 10001"):
                await quota.acquire(make_request(size=4 * 10_001), leases)

    run(test)


# --- an authority that goes and comes -----------------------------------------------------------------------


def test_a_restart_of_the_authority_forgets_nothing() -> None:
    async def test() -> None:
        async with world(REQUESTS, PLACES) as made:
            quotas = [await made.add_worker() for _ in range(2)]
            held = await try_many(made, 3, quotas)
            made.stop_server()
            await made.start_server()
            await made.reconnect()
            left = {limit.id: units for limit, units in made.server.list_left()}
            assert left["places"] == 2
            assert left["requests"] <= 97
            more = await try_many(made, 10, quotas)
            assert len(more) == 2
            for request, number in zip([*held, *more], [0, 1, 0, 0, 1], strict=True):
                quotas[number].settle(request)
            let_in = 5
            for _ in range(1000):  # after a refusal nobody asks for a moment
                if let_in >= 100:
                    break
                now = await try_many(made, 5, quotas)
                let_in += len(now)
                for request in now:
                    owner = next(
                        q
                        for q in quotas
                        if any(lease is q._leases["places"] for lease, _, _ in request.reservation or ())
                    )
                    owner.settle(request)
            assert let_in == 100
            await pause(2 * REFUSED_S)
            assert not await try_many(made, 5, quotas)

    run(test)


@pytest.mark.parametrize("when_away", list(WhenAway))
def test_without_an_authority_workers_do_as_they_were_told(when_away: WhenAway) -> None:
    async def test() -> None:
        async with world(REQUESTS) as made:
            quotas = [await made.add_worker(when_away, workers=4) for _ in range(4)]
            assert len(await try_many(made, 20, quotas)) == 20
            made.stop_server()
            await pause(0.02)
            if when_away is WhenAway.CLOSED:
                with pytest.raises(QuotaUnavailable):
                    await try_many(made, 40, quotas)
                let_in = 0
            else:
                let_in = len(await try_many(made, 200, quotas))
                # A share is a part of what each last heard to be left, and each heard it at its own time.
                assert let_in == 200 if when_away is WhenAway.OPEN else 80 <= let_in <= 100
            await made.start_server()
            await made.reconnect()
            assert made.server.list_left()[0][1] <= 80 - let_in, "what was let in meanwhile counts"

    run(test)


def test_an_authority_that_never_came_is_not_waited_for_for_ever() -> None:
    async def test() -> None:
        async with world(REQUESTS) as made:
            made.stop_server()
            (made.folder / "s").unlink(missing_ok=True)
            quota = await made.add_worker(workers=4)
            assert len(await try_many(made, 100, [quota])) == 25

    run(test)


def test_a_worker_that_dies_frees_its_places(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with world(PLACES) as made:
            dying, living = await made.add_worker(), await made.add_worker()
            assert len(await try_many(made, 5, [dying])) == 5
            assert not await try_many(made, 1, [living])
            monkeypatch.setattr(quota_server, "LINGER_S", 60.0)
            dying.close()
            await pause(0.01)
            assert not await try_many(made, 1, [living]), "it may only have lost its line"
            (timer,) = made.server._leaving.values()
            assert 0 < timer.when() - asyncio.get_running_loop().time() <= 60
            timer.cancel()
            made.server._end_worker("w0")  # as the timer does it
            await pause(2 * REFUSED_S)
            assert len(await try_many(made, 9, [living])) == 5

    run(test)


def test_a_worker_that_is_given_up_while_it_waits_loses_no_unit() -> None:
    async def test() -> None:
        async with world(REQUESTS) as made:
            quota = await made.add_worker()
            leases = quota.find_plan(key(made), "m")
            for _ in range(50):
                request = make_request()
                waiting = asyncio.ensure_future(quota.acquire(request, leases))
                await asyncio.sleep(0)
                waiting.cancel()
                request.sent = False
                quota.settle(request)
            await pause(0.05)
            quota._return(quota._leases.values())
            await pause(0.02)
            assert made.server.list_left()[0][1] == 100

    run(test)


def test_after_a_start_workers_have_time_to_say_what_they_hold() -> None:
    async def test() -> None:
        async with world(PLACES) as made:
            holder = await made.add_worker()
            assert len(await try_many(made, 5, [holder])) == 5
            made.stop_server()
            await made.start_server(grace=True)
            early = await made.add_worker()
            asking = asyncio.ensure_future(try_many(made, 1, [early]))
            await pause(0.1)
            await made.reconnect()
            assert not await asking, "the places are all in use"

    run(test)


def test_a_limit_that_goes_and_comes_again_goes_on_where_it_was() -> None:
    async def test() -> None:
        async with world(REQUESTS) as made:
            quota = await made.add_worker()
            assert len(await try_many(made, 60, [quota])) == 60
            quota._return(quota._leases.values())
            await pause(0.02)
            made.server.set_limits([])
            made.server.set_limits(made.limits)
            assert made.server.list_left()[0][1] == 40
            assert len(await try_many(made, 60, [quota])) == 40

    run(test)


def test_a_limit_that_the_authority_does_not_know_yet_holds_nobody_up() -> None:
    async def test() -> None:
        async with world(REQUESTS, PLACES) as made:
            quota = await made.add_worker()
            made.server.set_limits([])
            assert len(await try_many(made, 3, [quota])) == 3
            made.server.set_limits(made.limits)
            quota.sweep()
            await pause(0.02)
            assert made.server.list_left()[0][1] <= 97, "what passed meanwhile is told"

    run(test)


def test_nothing_is_lent_to_a_worker_that_has_gone_while_it_waited() -> None:
    async def test() -> None:
        async with world(REQUESTS) as made:
            made.stop_server()
            await made.start_server(grace=True)
            quota = await made.add_worker()
            waiting = asyncio.ensure_future(try_many(made, 1, [quota]))
            await pause(0.1)
            waiting.cancel()
            quota._client._line._is_closing = True
            quota._client._line.drop()
            await pause(1.2 * LONG_GRACE_S)
            assert made.server.list_left()[0][1] == 100

    run(test)


# --- what goes on meanwhile ---------------------------------------------------------------------------------


def test_a_line_that_breaks_frees_no_place_of_a_request_that_goes_on() -> None:
    async def test() -> None:
        async with world(PLACES) as made:
            holder, other = await made.add_worker(), await made.add_worker()
            held = await try_many(made, 5, [holder])
            for _ in range(3):
                holder._client._line.drop()
                await made.reconnect()
                assert not await try_many(made, 1, [other])
            holder.settle(held[0])
            await pause(3 * REFUSED_S)
            assert len(await try_many(made, 5, [other])) == 1

    run(test)


def test_a_key_of_an_older_snapshot_makes_no_plan_for_the_newer_one() -> None:
    async def test() -> None:
        async with world(REQUESTS) as made:
            quota = await made.add_worker()
            old = KeyEntry(id="k", digest=b"", name="k", prefix="")
            quota.set_limits(made.limits, WhenAway.SHARE, 4)
            assert not quota.find_plan(old, "m").leases
            assert len(await try_many(made, 200, [quota])) == 100

    run(test)


def test_a_limit_that_goes_while_a_request_waits_for_it_lets_it_go() -> None:
    async def test() -> None:
        async with world(REQUESTS) as made:
            made.server._ready_at = asyncio.get_running_loop().time() + 0.2
            quota = await made.add_worker()
            waiting = asyncio.ensure_future(try_many(made, 1, [quota]))
            await pause(0.05)
            quota.set_limits((), WhenAway.SHARE, 4)
            assert len(await asyncio.wait_for(waiting, 2)) == 1
            assert made.server.list_left()[0][1] >= 99

    run(test)


def test_a_guess_takes_little_of_a_limit_and_is_of_the_keys_own_answers() -> None:
    async def test() -> None:
        async with world(TOKENS) as made:
            quota = await made.add_worker()
            stranger = make_request()
            stranger.key = KeyEntry(id="other", digest=b"", name="o", prefix="")
            for _ in range(100):
                end(quota, stranger, Tokens(input=5, output=30_000))
                stranger.reservation = []
            (first,) = await try_many(made, 1, [quota], size=400)
            assert first.estimate == Tokens(input=100, output=OUTPUT_GUESS)
            for _ in range(100):
                first.reservation = []
                end(quota, first, Tokens(input=5, output=30_000))
            (second,) = await try_many(made, 1, [quota], size=400)
            assert second.reservation is not None
            assert second.reservation[0][1] == 2500, "a quarter of the limit at most"

    run(test)


def test_a_debt_that_was_not_written_down_is_told_again() -> None:
    async def test() -> None:
        async with world(TOKENS) as made:
            quota = await made.add_worker()
            (request,) = await try_many(made, 1, [quota], size=4, body=b'{"max_tokens":9}')
            end(quota, request, Tokens(input=1, output=4999))
            made.server.take_back = lambda *_: None  # type: ignore[method-assign]  # it hangs
            quota.sweep()
            await pause(0.02)
            quota._client._line.drop()
            del made.server.take_back
            await made.reconnect()
            await pause(0.02)
            assert made.server.list_left()[0][1] == 5000

    run(test)


def test_a_recall_that_comes_with_a_loan_brings_the_loan_back() -> None:
    async def test() -> None:
        async with world(REQUESTS) as made:
            one, other = await made.add_worker(), await made.add_worker()
            for _ in range(20):
                one._leases["requests"].spent = 50  # it likes to have much
                first, second = await asyncio.gather(try_many(made, 1, [one]), try_many(made, 1, [other]))
                assert len(first) == len(second) == 1
            rest = await try_many(made, 100, [other])
            assert len(rest) == 60

    run(test)


def test_what_a_request_of_an_earlier_period_gives_back_is_void() -> None:
    async def test() -> None:
        async with world(TOKENS) as made:
            quota = await made.add_worker()
            late = await try_many(made, 1, [quota], size=4, body=b'{"max_tokens":8999}')
            lease = quota._leases["tokens"]
            lease.ends_at = 0.0  # midnight
            made.clock.advance(86_400)
            quota.reserve(make_request(size=4, body=b'{"max_tokens":10}'), quota.find_plan(key(made), "m"))
            end(quota, late[0], Tokens(input=1, output=0))
            assert lease.left <= 0
            assert len(await try_many(made, 20, [quota], size=4, body=b'{"max_tokens":999}')) == 10

    run(test)


def test_a_limit_that_is_lowered_while_nobody_lends_lowers_the_share() -> None:
    async def test() -> None:
        async with world(REQUESTS) as made:
            quota = await made.add_worker(workers=4)
            made.stop_server()
            await pause(0.02)
            lower = msgspec.structs.replace(REQUESTS, amount=8)
            quota.set_limits([lower], WhenAway.SHARE, 4)
            assert len(await try_many(made, 50, [quota])) == 2

    run(test)


def test_an_authority_that_never_answers_is_asked_less_and_less() -> None:
    async def test() -> None:
        async with world(REQUESTS, ask_max_s=1.0) as made:
            made.server.join = lambda *_: None  # type: ignore[method-assign]
            quota = await made.add_worker(WhenAway.OPEN)
            begun = asyncio.get_running_loop().time()
            assert len(await try_many(made, 150, [quota])) == 150
            assert asyncio.get_running_loop().time() - begun < 15
            assert quota._client._line._wait_s >= 1.0 or not quota._client.is_connected

    run(test)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0ms"),
        (0.1204, "120ms"),
        (1.5, "1.5s"),
        (59.9, "59.9s"),
        (60, "1m0s"),
        (3661, "1h1m1s"),
        (400, "6m40s"),
    ],
)
def test_durations_are_written_as_openai_does(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize("is_away", [False, True])
def test_a_limit_that_is_exceeded_throttles_and_counts_on(is_away: bool) -> None:
    soft = Limit(
        id="requests", owner="team a", measure=Measure.REQUESTS, amount=4, exceeded=Exceeded.THROTTLE,
        throttle="x", **DAY,
    )  # fmt: skip
    slow = Limit(id="x", owner="team a", measure=Measure.REQUESTS, amount=2, **DAY)

    async def test() -> None:
        async with world(soft, slow) as made:
            quota = await made.add_worker(workers=1)
            key = make_request().key
            assert key is not None
            limited = msgspec.structs.replace(key, limits=("requests",))

            words: list[str] = []

            async def ask() -> bool:
                request = make_request()
                request.key = limited
                try:
                    await quota.acquire(request, quota.find_plan(limited, "m"))
                except RateLimited as error:
                    words.append(str(error))
                    return False
                end(quota, request, None)
                return True

            assert [await ask() for _ in range(4)] == [True] * 4
            if is_away:
                made.stop_server()
                await pause(0.05)
            assert [await ask() for _ in range(4)] == [True, True, False, False]
            assert all("the limit of 2 requests a day" in each for each in words)
            if is_away:
                await made.start_server()
                await made.reconnect()
            quota._return(quota._leases.values())
            await pause(0.05)
            assert {each.limit.id: each.left for each in made.server.list_standings()} == {
                "requests": -2,
                "x": 0,
            }

    run(test)
