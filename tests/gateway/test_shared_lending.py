"""The script in Redis or Valkey decides as `policy.lending` does: one contract over both, to the unit.

A machine of random steps does each of them to a `Lender` and to the script, and compares all answers.
The script's clock is the test's: where it would ask the server for the time, it reads a key.
"""

import hashlib
import itertools
from typing import Any

import pytest
import redis
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from forebay.app.quota_script import (
    SCRIPT,
    Answer,
    Book,
    Done,
    Early,
    Lent,
    OtherPeriods,
    Short,
    Shown,
    Stranger,
    Ticked,
    make_prefix,
)
from forebay.core.limits import Exceeded, Kind, Limit, Measure, Period
from forebay.gateway.policy.lending import Lender, Shortage, Want
from forebay.gateway.policy.meter import Now
from forebay.gateway.quota_wire import Held
from redis_server import RedisServer

S = 1_000_000_000
START_NS = 1_790_000_000 * S
CLOCKED = SCRIPT.replace("redis.call('TIME')", "redis.call('HMGET', '{clock}', 's', 'us')")
assert CLOCKED != SCRIPT
FLEETS = itertools.count()


def make(name: str, amount: int, period: Period | None, kind: Kind = Kind.BUCKET, **more: Any) -> Limit:
    measure = Measure.CONCURRENT if period is None else Measure.REQUESTS
    return Limit(
        id=name,
        owner="team a",
        measure=more.pop("measure", measure),
        amount=amount,
        period=period,
        kind=kind,
        **more,
    )


LIMITS = (
    make("small", 3, Period.MINUTE),
    make("odd", 997, Period.SECOND),
    make("week", 123_456_789, Period.WEEK),
    make("cost", 10**15, Period.MONTH, measure=Measure.COST),
    make("none", 0, Period.DAY),
    make("hour", 500, Period.HOUR, Kind.CALENDAR, grace_units=50, grace_ns=60 * S),
    make("month", 7_777, Period.MONTH, Kind.CALENDAR, time_zone="Europe/Berlin", exceeded=Exceeded.DOWNGRADE),
    make("places", 5, None),
)
NAMES = [limit.id for limit in LIMITS]


class Shared:
    """The script with a clock of its own, and one control plane that calls it."""

    def __init__(self, client: "redis.Redis", fleet: str = "", name: str = "a") -> None:
        self.fleet = fleet or f"f{next(FLEETS)}"
        self.client = client
        self.book = Book(name)
        self.sha = hashlib.sha1(CLOCKED.encode(), usedforsecurity=False).hexdigest()
        self.set_clock(START_NS)

    def set_clock(self, now_ns: int) -> None:
        self.now = Now(now_ns, now_ns)
        seconds, rest = divmod(now_ns // 1000, 1_000_000)
        self.client.hset("{clock}", mapping={"s": seconds, "us": rest})

    def call(self, payload: bytes) -> Answer:
        key = make_prefix(self.fleet)
        try:
            reply = self.client.evalsha(self.sha, 1, key, payload)
        except redis.exceptions.NoScriptError:
            reply = self.client.eval(CLOCKED, 1, key, payload)
        return self.book.read(reply)

    def join(self, worker: str, *held: Held) -> None:
        assert isinstance(self.call(self.book.join(worker, held, self.now)), Done)

    def leave(self, worker: str) -> None:
        assert isinstance(self.call(self.book.leave(worker)), Done)

    def ask(self, worker: str, *wants: Want, final: bool = False) -> Answer:
        return self.call(self.book.ask(worker, wants, self.now, final=final))

    def give(self, worker: str, limit_id: str, epoch: int, units: int) -> None:
        assert isinstance(
            self.call(self.book.give_back(worker, [Held(limit_id, epoch, units)], self.now)), Done
        )

    def set_limits(self, limits: tuple[Limit, ...]) -> None:
        self.call(self.book.touch(self.book.set_limits(limits, self.now), self.now))

    def tick(self, *workers: str) -> Answer:
        return self.call(self.book.tick(workers, self.now))

    def left(self) -> dict[str, int]:
        shown = self.call(self.book.show(sorted(self.book.limits), self.now))
        assert isinstance(shown, Shown)
        return {each.limit.id: each.left for each in shown.standings}

    def begin(self, *workers: str, limits: tuple[Limit, ...] = LIMITS) -> None:
        self.book.set_limits(limits, self.now)
        for worker in workers:
            self.join(worker)
        self.set_clock(self.now.wall_ns + S)  # it settles after its first call ever


class Twins(RuleBasedStateMachine):
    """A lender here, and the script there."""

    client: "redis.Redis"

    @initialize()
    def start(self) -> None:
        self.limits = {limit.id: limit for limit in LIMITS}
        self.count = 0
        self.workers: list[str] = []
        self.held: dict[tuple[str, str], tuple[int, int]] = {}  # epoch and units, by worker and limit
        self.there = Shared(self.client)
        self.there.begin()
        self.there.join("first")
        self.there.leave("first")
        self.there.call(self.there.book.touch(NAMES, self.there.now))  # a limit is edited once it is known
        self.there.set_clock(self.there.now.wall_ns + S)
        self.here = Lender()
        self.here.set_limits(LIMITS, self.there.now)

    @rule()
    def a_worker_comes(self) -> None:
        if len(self.workers) < 4:
            self.count += 1
            self.workers.append(f"w{self.count}")
            self.here.join(self.workers[-1], [])
            self.there.join(self.workers[-1])

    @precondition(lambda self: self.workers)
    @rule(data=st.data())
    def a_worker_goes(self, data: st.DataObject) -> None:
        worker = self.workers.pop(data.draw(st.integers(0, len(self.workers) - 1)))
        self.here.leave(worker)
        self.there.leave(worker)
        self.held = {key: value for key, value in self.held.items() if key[0] != worker}

    @precondition(lambda self: self.workers)
    @rule(data=st.data())
    def a_worker_comes_again(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(self.workers))
        held = [Held(limit, *value) for (name, limit), value in sorted(self.held.items()) if name == worker]
        held = [each for each in held if each.units > 0]
        self.here.leave(worker)
        self.here.join(worker, [(each.limit_id, each.units) for each in held])
        self.there.join(worker, *held)

    @precondition(lambda self: self.workers)
    @rule(
        data=st.data(),
        names=st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True),
        final=st.booleans(),
    )
    def a_worker_asks(self, data: st.DataObject, names: list[str], final: bool) -> None:
        worker = data.draw(st.sampled_from(self.workers))
        wants = []
        for name in names:
            amount = max(1, self.limits[name].amount)
            need = data.draw(st.integers(1, max(1, amount // 3)) | st.integers(1, amount + 10))
            wants.append(Want(name, need, need + data.draw(st.integers(0, amount))))
        mine = self.here.ask(worker, wants, self.there.now, final=final)
        theirs = self.there.ask(worker, *wants, final=final)
        if isinstance(mine, Shortage):
            assert isinstance(theirs, Short)
            shortage = theirs.shortage
            assert (shortage.limit_id, shortage.left) == (mine.limit_id, mine.left)
            assert is_close(shortage.wait_ns, mine.wait_ns)
            assert sorted(theirs.holders) == sorted(self.here.list_holders(mine.limit_id, worker))
            return
        assert isinstance(theirs, Lent)
        for one, other in zip(mine, theirs.loans, strict=True):
            assert (one.limit_id, one.epoch, one.units) == (other.limit_id, other.epoch, other.units), (
                one,
                other,
            )
            assert (one.left, one.is_exceeded) == (other.left, other.is_exceeded)
            assert one.ends_in_ns == other.ends_in_ns
            assert is_close(one.full_in_ns, other.full_in_ns)
            epoch, units = self.held.get((worker, one.limit_id), (one.epoch, 0))
            self.held[worker, one.limit_id] = one.epoch, one.units + (units if epoch == one.epoch else 0)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), part=st.fractions(0, 1), beyond=st.integers(0, 10**6))
    def a_worker_returns(self, data: st.DataObject, part: Any, beyond: int) -> None:
        worker, name = data.draw(st.sampled_from(sorted(self.held)))
        epoch, units = self.held.pop((worker, name))
        back = int(units * part) if beyond % 2 or name == "places" else -beyond
        if name == "places" and back < units:
            self.held[worker, name] = epoch, units - back
        self.here.give_back(worker, name, epoch, back, self.there.now)
        self.there.give(worker, name, epoch, back)

    @rule(name=st.sampled_from(NAMES), amount=st.integers(0, 2000) | st.integers(0, 10**15))
    def an_amount_is_edited(self, name: str, amount: int) -> None:
        self.limits[name] = make_amount(self.limits[name], amount)
        self.here.set_limits(self.limits.values(), self.there.now)
        self.there.set_limits(tuple(self.limits.values()))

    @rule(us=st.integers(1, 5_000_000) | st.integers(0, 40 * 86_400_000_000))
    def time_passes(self, us: int) -> None:
        self.there.set_clock(self.there.now.wall_ns + us * 1000)

    @invariant()
    def both_say_the_same(self) -> None:
        if not hasattr(self, "here"):
            return
        mine = self.here.list_standings(self.there.now)
        shown = self.there.call(self.there.book.show(sorted(NAMES), self.there.now))
        assert isinstance(shown, Shown)
        for one, other in zip(mine, shown.standings, strict=True):
            assert (one.limit, one.left, one.lent) == (other.limit, other.left, other.lent)
            assert (one.epoch, one.exceeded_ns) == (other.epoch, other.exceeded_ns)
            assert is_close(one.full_in_ns, other.full_in_ns)


def make_amount(limit: Limit, amount: int) -> Limit:
    return make(
        limit.id, amount, limit.period, limit.kind, measure=limit.measure, time_zone=limit.time_zone,
        exceeded=limit.exceeded, grace_units=limit.grace_units, grace_ns=limit.grace_ns,
    )  # fmt: skip


def is_close(one: int | None, other: int | None) -> bool:
    """The script rounds waits up to a microsecond."""
    if one is None or other is None:
        return one is other
    return abs(one - other) < 1000 + 1e-9 * abs(one)


@pytest.fixture
def client(redis_server: RedisServer) -> "redis.Redis":
    client = redis_server.connect()
    client.flushall()
    return client


def test_both_decide_the_same(client: "redis.Redis") -> None:
    class Here(Twins):
        pass

    Here.client = client
    run_state_machine_as_test(
        Here,
        settings=settings(
            max_examples=40, stateful_step_count=40, deadline=None, phases=(Phase.reuse, Phase.generate)
        ),
    )


# --- single decisions ---------------------------------------------------------------------------------------

MONTH = make("month", 100, Period.MONTH, Kind.CALENDAR)
BUCKET = make("bucket", 100, Period.HOUR)
PLACES = make("places", 5, None)


def pair(client: "redis.Redis", *limits: Limit) -> tuple[Shared, Shared]:
    """Two control planes, with a worker each."""
    one = Shared(client)
    other = Shared(client, one.fleet, "b")
    one.begin("w1", limits=limits)
    other.book.set_limits(limits, one.now)
    other.join("w2")
    one.set_clock(one.now.wall_ns + 600 * S)
    other.now = one.now
    return one, other


def lend(shared: Shared, worker: str, limit_id: str, units: int) -> int:
    answer = shared.ask(worker, Want(limit_id, units, units))
    return answer.loans[0].units if isinstance(answer, Lent) else 0


def forget(shared: Shared) -> None:
    """The server starts anew, with nothing; its clients have said again who is there."""
    shared.client.delete(*shared.client.keys(f"{make_prefix(shared.fleet)}*"))


@pytest.mark.parametrize("limit", [MONTH, BUCKET])
def test_what_a_server_has_lost_each_control_plane_tells(client: "redis.Redis", limit: Limit) -> None:
    one, other = pair(client, limit)
    assert lend(one, "w1", limit.id, 30) == 30
    assert lend(other, "w2", limit.id, 20) == 20
    assert one.left() == {limit.id: 50}
    forget(one)
    one.join("w1")
    other.join("w2")
    one.set_clock(one.now.wall_ns + S)
    other.now = one.now
    assert lend(one, "w1", limit.id, 1) == 1
    assert lend(other, "w2", limit.id, 1) == 1
    assert one.left() == {limit.id: 48}, "neither what one lent nor what the other did is there again"
    assert lend(one, "w1", limit.id, 1) == 1
    assert other.left() == {limit.id: 47}, "it is told once"


def test_a_server_that_has_lost_its_last_second_goes_on_from_what_is_known(client: "redis.Redis") -> None:
    one, other = pair(client, MONTH)
    key = f"{make_prefix(one.fleet)}:limit:month"
    assert lend(one, "w1", "month", 30) == 30
    old = client.hgetall(key)
    assert lend(one, "w1", "month", 20) == 20
    assert lend(other, "w2", "month", 10) == 10
    client.hset(key, mapping=old)
    assert lend(one, "w1", "month", 1) == 1
    assert lend(other, "w2", "month", 1) == 1
    assert one.left() == {"month": 38}


def test_of_what_nobody_knows_any_more_nothing_is_made_up(client: "redis.Redis") -> None:
    one, _ = pair(client, MONTH)
    assert lend(one, "w1", "month", 30) == 30
    forget(one)
    new = Shared(client, one.fleet, "c")
    new.begin("w3", limits=(MONTH,))
    assert new.left() == {"month": 100}


def test_nothing_is_lent_right_after_the_first_call_ever(client: "redis.Redis") -> None:
    one = Shared(client)
    one.book.set_limits((PLACES,), one.now)
    one.join("w")
    early = one.ask("w", Want("places", 1, 1))
    assert isinstance(early, Early)
    one.set_clock(one.now.wall_ns + early.wait_ns)
    assert lend(one, "w", "places", 1) == 1


def test_whoever_is_not_seen_for_long_is_gone_and_a_server_that_was_away_blames_nobody(
    client: "redis.Redis",
) -> None:
    one, other = pair(client, PLACES, MONTH)
    assert lend(one, "w1", "places", 3) == lend(one, "w1", "month", 3) == 3
    for _ in range(3):
        one.set_clock(one.now.wall_ns + 3600 * S)  # nobody could say anything
        assert other.tick("w2") == Ticked(2, ())
    for _ in range(4):
        one.set_clock(one.now.wall_ns + S)
        other.tick("w2")
    assert one.left() == {"month": 97, "places": 5}
    assert other.tick("w2") == Ticked(1, ())
    assert one.tick("w1") == Ticked(1, ("w1",))
    assert isinstance(one.ask("w1", Want("places", 1, 1)), Stranger)
    one.join("w1", Held("places", 0, 3), Held("month", 0, 2))
    assert one.left() == {"month": 97, "places": 2}
    one.give("w1", "places", 0, 3)
    assert one.left() == {"month": 97, "places": 5}


def test_a_clock_that_goes_back_makes_no_unit(client: "redis.Redis") -> None:
    one, _ = pair(client, BUCKET, MONTH)
    assert lend(one, "w1", "bucket", 100) == lend(one, "w1", "month", 100) == 100
    for back_s in (1, 200, 86_400 * 40):
        one.set_clock(one.now.wall_ns - back_s * S)
        found = one.ask("w1", Want("bucket", 1, 1))
        if isinstance(found, OtherPeriods):
            found = one.ask("w1", Want("bucket", 1, 1))
        assert isinstance(found, Short)
        assert lend(one, "w1", "month", 1) == 0


def test_a_clock_of_the_server_that_is_years_ahead_is_the_one_that_counts(client: "redis.Redis") -> None:
    one, _ = pair(client, MONTH)
    assert lend(one, "w1", "month", 60) == 60
    here = one.now
    one.set_clock(one.now.wall_ns + 3 * 365 * 86_400 * S)
    one.now = here
    assert isinstance(one.ask("w1", Want("month", 1, 1)), OtherPeriods)
    assert lend(one, "w1", "month", 60) == 60, "another month has begun"


def test_places_of_a_limit_that_is_gone_are_given_back(client: "redis.Redis") -> None:
    one, _ = pair(client, PLACES)
    assert lend(one, "w1", "places", 3) == 3
    one.set_limits(())
    one.give("w1", "places", 0, 2)
    one.set_limits((PLACES,))
    assert one.left() == {"places": 4}


def test_of_two_amounts_the_later_edit_counts(client: "redis.Redis") -> None:
    one, other = pair(client, MONTH)
    assert lend(other, "w2", "month", 10) == 10
    one.set_clock(one.now.wall_ns + S)
    other.now = one.now
    one.set_limits((make_amount(MONTH, 200),))
    assert lend(other, "w2", "month", 10) == 10, "who has not heard of it changes nothing"
    assert one.left() == {"month": 180}
    one.set_clock(one.now.wall_ns + S)
    other.now = one.now
    other.set_limits((make_amount(MONTH, 50),))
    assert one.left() == {"month": 30}


def test_all_keys_lie_in_one_slot_of_a_cluster(client: "redis.Redis") -> None:
    one, _ = pair(client, MONTH, PLACES)
    lend(one, "w1", "places", 3)
    keys = client.keys(f"*{one.fleet}*")
    assert len(keys) > 4
    assert all(key.startswith(f"{{forebay:{one.fleet}}}:".encode()) for key in keys)
