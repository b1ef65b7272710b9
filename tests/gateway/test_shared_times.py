"""Over Redis or Valkey: clocks that go back, time zones, debts told again, what may be forgotten."""

import asyncio
from collections.abc import Iterable, Sequence

import msgspec
import pytest
import redis
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule, run_state_machine_as_test
from shared_lending import S, Shared, make
from test_shared_lending import Twins

from forebay.app.clock import SystemClock
from forebay.app.quota_redis import RedisAuthority
from forebay.app.quota_script import Done, Lent, make_prefix
from forebay.core.limits import Exceeded, Kind, Limit, Period
from forebay.gateway.policy.lending import Want
from forebay.gateway.quota_wire import Held
from redis_server import RedisServer

DAY_S = 86_400
MONTH = make("month", 100, Period.MONTH, Kind.CALENDAR)
BUCKET = make("bucket", 100, Period.HOUR)
PLACES = make("places", 5, None)


@pytest.fixture
def client(redis_server: RedisServer) -> "redis.Redis":
    client = redis_server.connect()
    client.flushall()
    return client


class CalendarTwins(Twins):
    """By clocks that go back and forward, and zones that are edited."""

    begun_with = (
        make("hour", 500, Period.HOUR, Kind.CALENDAR, grace_units=50, grace_ns=60 * S),
        make("day", 5000, Period.DAY, Kind.CALENDAR, time_zone="Asia/Tokyo"),
        make("month", 7_777, Period.MONTH, Kind.CALENDAR, exceeded=Exceeded.DOWNGRADE),
        PLACES,
    )

    def set_clock(self, now_ns: int) -> None:
        self.there.set_clock(now_ns)
        self.here.list_standings(self.there.now)
        self.there.call(self.there.book.touch(self.names, self.there.now))  # showing alone writes nothing

    @rule(us=st.integers(1, 3_600_000_000) | st.integers(0, 40 * 86_400_000_000))
    def time_passes(self, us: int) -> None:
        self.set_clock(self.there.now.wall_ns + us * 1000)

    @rule(us=st.integers(1, 900_000_000) | st.integers(0, 70 * 86_400_000_000), is_put_right=st.booleans())
    def the_clock_goes_back(self, us: int, is_put_right: bool) -> None:
        before_ns = self.there.now.wall_ns
        self.set_clock(before_ns - us * 1000)
        if is_put_right:
            self.set_clock(before_ns + 1_000_000)

    @precondition(lambda self: hasattr(self, "here"))
    @rule(
        name=st.sampled_from(["day", "month"]),
        zone=st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Asia/Tokyo"]),
    )
    def a_time_zone_is_edited(self, name: str, zone: str) -> None:
        self.limits[name] = msgspec.structs.replace(self.limits[name], time_zone=zone)
        self.here.set_limits(self.limits.values(), self.there.now)
        self.there.set_limits(tuple(self.limits.values()))


def test_both_decide_the_same_by_clocks_that_go_back(client: "redis.Redis") -> None:
    class Here(CalendarTwins):
        pass

    Here.client = client
    run_state_machine_as_test(
        Here,
        settings=settings(
            max_examples=40, stateful_step_count=40, deadline=None, phases=(Phase.reuse, Phase.generate)
        ),
    )


def lend(shared: Shared, worker: str, limit_id: str, units: int) -> int:
    answer = shared.ask(worker, Want(limit_id, units, units))
    return answer.loans[0].units if isinstance(answer, Lent) else 0


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_server_whose_clock_goes_back_and_is_put_right_gives_no_amount_again(
    client: "redis.Redis", is_lost: bool
) -> None:
    shared = Shared(client)
    shared.begin("w", limits=(MONTH,))
    right_ns = shared.now.wall_ns
    assert lend(shared, "w", "month", 90) == 90
    for days in (70, 35):
        shared.set_clock(right_ns - days * DAY_S * S)
        assert lend(shared, "w", "month", 1) == 1
        if is_lost:
            client.delete(f"{make_prefix(shared.fleet)}:limit:month")
    shared.set_clock(right_ns + S)
    assert shared.left() == {"month": 9}


@pytest.mark.parametrize(("limit", "left"), [(BUCKET, 88), (MONTH, 88)])
def test_a_debt_that_is_told_again_counts_once(client: "redis.Redis", limit: Limit, left: int) -> None:
    shared = Shared(client)
    shared.begin("w", limits=(limit,))

    def tell(worker: str, number: int, units: int) -> None:
        held = [Held(limit.id, 0, -units)]
        assert isinstance(shared.call(shared.book.give_back(worker, held, shared.now, "", number)), Done), (
            "also what counted before is noted"
        )

    tell("w", 3, 5)
    tell("w", 3, 5)
    shared.leave("w")
    tell("w", 3, 5)
    shared.join("w")
    tell("w", 4, 2)
    tell("w", 3, 5)
    tell("other", 3, 5)
    assert shared.left() == {limit.id: left}


def read_ttls(shared: Shared) -> dict[str, float]:
    """Seconds, by the end of a key's name; less than 0 of those that stay."""
    prefix = make_prefix(shared.fleet) + ":"
    keys = [key.decode() for key in shared.client.keys(f"{prefix}*")]
    return {key.removeprefix(prefix): shared.client.pttl(key) / 1000 for key in keys}


def test_keys_of_limits_stay_as_long_as_they_matter(client: "redis.Redis") -> None:
    shared = Shared(client)
    second = make("second", 10, Period.SECOND)
    debtor = make("debtor", 10, Period.DAY)
    never = make("never", 0, Period.DAY)
    shared.begin("w", limits=(second, debtor, never, MONTH, BUCKET, PLACES))
    for limit_id in ("second", "debtor", "month", "bucket", "places"):
        assert lend(shared, "w", limit_id, 1) == 1
    shared.give("w", "debtor", 0, -1000)
    shared.give("w", "never", 0, -1)
    ttls = read_ttls(shared)
    assert 500 < ttls["limit:second"] <= 600
    assert ttls["lent:bucket"] > 7200
    assert 7200 < ttls["limit:bucket"] < 7300
    assert 102 * DAY_S < ttls["limit:debtor"] < 103 * DAY_S
    assert 30 * DAY_S < ttls["limit:month"] < 62 * DAY_S
    assert ttls["limit:never"] > 399 * DAY_S
    assert ttls["limit:places"] == ttls["lent:places"] == -0.001, "a place is held"
    shared.leave("w")
    assert 3600 < read_ttls(shared)["limit:places"] <= DAY_S
    shared.join("w")
    assert lend(shared, "w", "places", 1) == 1
    assert read_ttls(shared)["limit:places"] < 0, "one is held again"


def test_a_bucket_that_was_forgotten_once_it_was_full_is_a_full_one(client: "redis.Redis") -> None:
    """What two control planes knew of it long ago takes nothing from it."""
    one = Shared(client)
    other = Shared(client, one.fleet, "b")
    one.begin("w", limits=(BUCKET,))
    other.book.set_limits((BUCKET,), one.now)
    assert lend(one, "w", "bucket", 100) == 100
    one.set_clock(one.now.wall_ns + 1800 * S)
    other.now = one.now
    assert lend(other, "w", "bucket", 50) == 50
    client.delete(*(f"{make_prefix(one.fleet)}:{kind}:bucket" for kind in ("limit", "lent")))
    one.set_clock(one.now.wall_ns + 4 * 3600 * S)
    other.now = one.now
    assert lend(one, "w", "bucket", 1) == lend(other, "w", "bucket", 1) == 1
    assert one.left() == {"bucket": 98}


def test_a_worker_forgets_what_it_held_of_limits_that_are_gone(client: "redis.Redis") -> None:
    shared = Shared(client)
    shared.begin("w")
    prefix = make_prefix(shared.fleet)
    for number in range(100):
        limit = make(f"l{number}", 10, Period.MINUTE)
        shared.book.set_limits((limit,), shared.now)
        assert lend(shared, "w", limit.id, 1) == 1
        if number % 2:
            shared.book.set_limits((), shared.now)
            shared.give("w", limit.id, 0, 0)
        else:
            client.delete(f"{prefix}:lent:{limit.id}")  # as it is once that has expired
    assert client.scard(f"{prefix}:held:w") < 20


NEEDED = "evalsha script|load publish subscribe info time del pexpire persist @hash @set @sortedset"


class Nobody:
    """Lines to no worker."""

    def list_workers(self) -> Sequence[str]:
        return ()

    def recall(self, limit_id: str, workers: Iterable[str]) -> None:
        pass

    def note_answer(self, worker: str, limit_id: str) -> None:
        pass

    def close_lines(self, workers: Iterable[str] | None = None) -> None:
        pass


def test_a_user_needs_no_more_commands_than_the_docs_name(client: "redis.Redis") -> None:
    rights = [f"+{name}" for name in NEEDED.split()]
    client.execute_command("ACL", "SETUSER", "limited", "on", ">p", "~{forebay:*", "&{forebay:*", *rights)
    path = client.connection_pool.connection_kwargs["path"]
    url = f"unix://limited:p@{path}"

    async def test() -> None:
        authority = RedisAuthority(lambda: url, "limited", "a", SystemClock())
        authority.set_limits((MONTH, PLACES))
        authority.start(Nobody())
        try:
            async with asyncio.timeout(60):
                while not authority.is_there:
                    assert "permission" not in authority.trouble
                    await asyncio.sleep(0.02)
                joined, found, told, gone = (asyncio.Event() for _ in range(4))
                authority.join("w", (), is_first=True, then=joined.set)
                await joined.wait()
                wants = (Want("month", 1, 1), Want("places", 1, 1))
                authority.ask("w", wants, final=True, then=lambda *_: found.set())
                await found.wait()
                authority.give_back("w", (Held("month", 0, -1),), "month", 1, told.set)
                await told.wait()
                authority.leave("w")
                authority.join("w", (), is_first=True, then=gone.set)
                await gone.wait()
                assert [each.lent for each in await authority.fetch_standings()] == [0, 0]
                assert authority.is_there
        finally:
            authority.close()
            await asyncio.sleep(0)

    asyncio.run(test())
