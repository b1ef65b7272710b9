"""The script in Redis or Valkey decides as `policy.lending` does: one contract over both, to the unit.

A machine of random steps does each of them to a `Lender` and to the script, and compares all answers.
The script's clock is the test's: where it would ask the server for the time, it reads a key.
"""

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
from shared_lending import LIMITS, S, Shared, make_amount

from forebay.app.quota_script import (
    Lent,
    Short,
    Shown,
)
from forebay.core.limits import Limit
from forebay.gateway.policy.lending import Lender, Shortage, Want
from forebay.gateway.quota_wire import Held
from redis_server import RedisServer


class Twins(RuleBasedStateMachine):
    """A lender here, and the script there."""

    client: "redis.Redis"
    begun_with: tuple[Limit, ...] = LIMITS

    @initialize()
    def start(self) -> None:
        self.limits = {limit.id: limit for limit in self.begun_with}
        self.names = sorted(self.limits)
        self.count = 0
        self.workers: list[str] = []
        self.held: dict[tuple[str, str], tuple[int, int]] = {}  # epoch and units, by worker and limit
        self.there = Shared(self.client)
        self.there.begin(limits=self.begun_with)
        self.there.join("first")
        self.there.leave("first")
        # A limit is edited once it is known.
        self.there.call(self.there.book.touch(self.names, self.there.now))
        self.there.set_clock(self.there.now.wall_ns + S)
        self.here = Lender()
        self.here.set_limits(self.begun_with, self.there.now)

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
    @rule(data=st.data(), final=st.booleans())
    def a_worker_asks(self, data: st.DataObject, final: bool) -> None:
        worker = data.draw(st.sampled_from(self.workers))
        names = data.draw(st.lists(st.sampled_from(self.names), min_size=1, max_size=4, unique=True))
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

    @rule(data=st.data(), amount=st.integers(0, 2000) | st.integers(0, 10**15))
    def an_amount_is_edited(self, data: st.DataObject, amount: int) -> None:
        name = data.draw(st.sampled_from(self.names))
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
        shown = self.there.call(self.there.book.show(self.names, self.there.now))
        assert isinstance(shown, Shown)
        for one, other in zip(mine, shown.standings, strict=True):
            assert (one.limit, one.left, one.lent) == (other.limit, other.left, other.lent)
            assert (one.epoch, one.exceeded_ns) == (other.epoch, other.exceeded_ns)
            assert is_close(one.full_in_ns, other.full_in_ns)


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
