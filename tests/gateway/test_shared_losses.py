"""A server of shared limits that goes back to an earlier state: what it lost is taken again, and once.

A machine of random steps keeps count of what was done, of what the server's state has of it, and of what each
control plane has heard of.  What is left is right to the unit for all that the server and whoever calls know.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
import redis
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from shared_lending import S, Shared, make, make_amount

from forebay.app.clock import SystemClock
from forebay.app.quota_redis import RedisAuthority
from forebay.app.quota_script import Done, Lent, Shown, make_prefix
from forebay.core.limits import Kind, Period
from forebay.gateway.policy.lending import Want
from forebay.gateway.quota_wire import Held
from redis_server import RedisServer

MONTH = make("month", 1000, Period.MONTH, Kind.CALENDAR)
BUCKET = make("bucket", 1000, Period.HOUR)
DAY_S = 86_400


@pytest.fixture
def client(redis_server: RedisServer) -> "redis.Redis":
    client = redis_server.connect()
    client.flushall()
    return client


class Plane:
    """A control plane, one worker of it, and which of all that was done it has heard of."""

    def __init__(self, client: "redis.Redis", fleet: str, name: str) -> None:
        self.shared = Shared(client, fleet, name)
        self.worker = f"worker of {name}"
        self.heard: dict[str, frozenset[int]] = {"month": frozenset(), "bucket": frozenset()}
        self.held = {"month": 0, "bucket": 0}


class Losses(RuleBasedStateMachine):
    """Three control planes over a server that forgets."""

    client: "redis.Redis"

    @initialize()
    def start(self) -> None:
        first = Shared(self.client)
        first.begin("first", limits=(MONTH, BUCKET))
        self.fleet, self.now_ns, self.count = first.fleet, first.now.wall_ns, 0
        self.amount = 1000
        self.done: list[tuple[int, int]] = []  # when, and units taken, by number
        self.here = {"month": frozenset[int](), "bucket": frozenset[int]()}  # what the server's state has
        self.kept: list[tuple[dict[bytes, bytes], dict[str, frozenset[int]]]] = [({}, dict(self.here))]
        self.planes = [self.make_plane() for _ in range(3)]

    def make_plane(self) -> Plane:
        self.count += 1
        plane = Plane(self.client, self.fleet, f"p{self.count}")
        plane.shared.set_clock(self.now_ns)
        plane.shared.book.set_limits((make_amount(MONTH, self.amount), BUCKET), plane.shared.now)
        plane.shared.join(plane.worker)
        return plane

    def note(self, plane: Plane, limit_id: str, units: int, is_heard: bool) -> None:
        self.done.append((self.now_ns, units))
        self.here[limit_id] |= plane.heard[limit_id] | {len(self.done) - 1}
        if is_heard:
            plane.heard[limit_id] = self.here[limit_id]

    def call(self, plane: Plane, payload: bytes, is_heard: bool) -> Any:
        book = plane.shared.book
        known = dict(book._known)
        answer = plane.shared.call(payload)
        if not is_heard:
            book._known = known
            book.rename()
        return answer

    names = st.sampled_from(["month", "bucket"])
    at = st.integers(0, 2)

    @rule(at=at, limit_id=names, units=st.integers(1, 120), is_heard=st.sampled_from([True, True, False]))
    def a_plane_asks(self, at: int, limit_id: str, units: int, is_heard: bool) -> None:
        plane = self.planes[at]
        payload = plane.shared.book.ask(plane.worker, [Want(limit_id, units, units)], plane.shared.now)
        answer = self.call(plane, payload, is_heard)
        if isinstance(answer, Lent):
            self.note(plane, limit_id, units, is_heard)
            plane.held[limit_id] += units if is_heard else 0

    @rule(at=at, limit_id=names, part=st.floats(0, 1), is_heard=st.sampled_from([True, True, False]))
    def a_worker_returns(self, at: int, limit_id: str, part: float, is_heard: bool) -> None:
        plane = self.planes[at]
        units, plane.held[limit_id] = int(plane.held[limit_id] * part), 0
        self.give(plane, limit_id, units, is_heard)

    @rule(at=at, limit_id=names, units=st.integers(1, 50), is_heard=st.sampled_from([True, True, False]))
    def a_worker_owes(self, at: int, limit_id: str, units: int, is_heard: bool) -> None:
        self.planes[at].held[limit_id] = 0
        self.give(self.planes[at], limit_id, -units, is_heard)

    def give(self, plane: Plane, limit_id: str, units: int, is_heard: bool) -> None:
        epoch = self.find_epoch(plane, limit_id)
        payload = plane.shared.book.give_back(plane.worker, [Held(limit_id, epoch, units)], plane.shared.now)
        assert isinstance(self.call(plane, payload, is_heard), Done)
        self.note(plane, limit_id, -units, is_heard)

    def find_epoch(self, plane: Plane, limit_id: str) -> int:
        return self.show(plane)[limit_id].epoch

    @rule()
    def the_server_keeps_a_copy(self) -> None:
        prefix = make_prefix(self.fleet)
        keys = self.client.keys(f"{prefix}:limit:*")
        self.kept.append(({key: self.client.dump(key) for key in keys}, dict(self.here)))

    @rule(which=st.integers(0, 3))
    def the_server_goes_back(self, which: int) -> None:
        copy, here = self.kept[-1 - which % len(self.kept)]
        keys = self.client.keys(f"{make_prefix(self.fleet)}:limit:*")
        if keys:
            self.client.delete(*keys)
        for key, value in copy.items():
            self.client.restore(key, 0, value)
        self.here = dict(here)

    @rule(at=at)
    def a_plane_is_started_anew(self, at: int) -> None:
        self.planes[at].shared.leave(self.planes[at].worker)
        self.planes[at] = self.make_plane()

    @rule(amount=st.integers(100, 2000), order=st.permutations([0, 1, 2]))
    def an_amount_is_edited(self, amount: int, order: list[int]) -> None:
        self.amount = amount
        self.wait(1)
        for at in order:
            shared, heard = self.planes[at].shared, self.planes[at].heard
            changed = shared.book.set_limits((make_amount(MONTH, amount), BUCKET), shared.now)
            shared.call(shared.book.touch(changed, shared.now))
            if changed:
                self.here["month"] |= heard["month"]
                heard["month"] = self.here["month"]

    def wait(self, seconds: int) -> None:
        self.now_ns += seconds * S
        for plane in self.planes:
            plane.shared.set_clock(self.now_ns)

    @rule(seconds=st.sampled_from([1, 60, 600, 3600, 7200]))
    def time_passes(self, seconds: int) -> None:
        self.wait(seconds)

    @rule()
    def a_month_passes(self) -> None:
        self.wait(32 * DAY_S)
        for plane in self.planes:
            plane.held["month"] = 0
            plane.heard["month"] = frozenset()
        self.here["month"] = frozenset()
        self.kept = [(copy, {**here, "month": frozenset()}) for copy, here in self.kept]

    def show(self, plane: Plane) -> Any:
        answer = plane.shared.call(plane.shared.book.show(["month", "bucket"], plane.shared.now))
        if not isinstance(answer, Shown):  # the clocks differed
            plane.shared.tick()
            answer = plane.shared.call(plane.shared.book.show(["month", "bucket"], plane.shared.now))
        return {each.limit.id: each for each in answer.standings}

    @invariant()
    def what_is_left_is_what_is_known(self) -> None:
        for plane in getattr(self, "planes", ()):
            shown = self.show(plane)
            done = self.here["month"] | plane.heard["month"]
            used = sum(self.done[number][1] for number in done)
            assert shown["month"].left == shown["month"].limit.amount - used
            assert shown["bucket"].left <= self.replay(self.here["bucket"] | plane.heard["bucket"])

    def replay(self, numbers: frozenset[int]) -> int:
        """A bucket's level, had all this been done when it was."""
        period_s, level, at_ns = 3600, 1000 * 3600, 0
        for when_ns, units in [*(self.done[number] for number in sorted(numbers)), (self.now_ns, 0)]:
            level = min(1000 * period_s, level + (when_ns - at_ns) // S * 1000) if at_ns else level
            level = min(1000 * period_s, level - units * period_s)
            at_ns = when_ns
        return level // period_s

    def teardown(self) -> None:
        """Once all have called, nothing more is lacking, and nothing counts that nobody used."""
        if not hasattr(self, "planes"):
            return
        known = self.here["month"].union(*(plane.heard["month"] for plane in self.planes))
        for plane in self.planes * 2:
            plane.shared.tick()
            plane.shared.call(plane.shared.book.touch(["month", "bucket"], plane.shared.now))
        used = sum(self.done[number][1] for number in known)
        assert self.show(self.planes[0])["month"].left == self.amount - used


def test_whatever_is_lost_is_taken_again_exactly(client: "redis.Redis") -> None:
    class Here(Losses):
        pass

    Here.client = client
    run_state_machine_as_test(
        Here,
        settings=settings(
            max_examples=60, stateful_step_count=40, deadline=None, phases=(Phase.reuse, Phase.generate)
        ),
    )


def test_totals_of_control_planes_that_are_gone_are_dropped_and_nothing_is_counted_twice(
    client: "redis.Redis",
) -> None:
    old = Plane(client, "dropped", "old")
    old.shared.begin(old.worker, limits=(MONTH,))

    def ask(plane: Plane) -> None:
        plane.shared.set_clock(old.shared.now.wall_ns)
        plane.shared.book.set_limits((MONTH,), plane.shared.now)
        plane.shared.join(plane.worker)
        assert isinstance(plane.shared.ask(plane.worker, Want("month", 1, 1)), Lent)

    key = f"{make_prefix('dropped')}:limit:month"
    planes = [Plane(client, "dropped", f"p{number}") for number in range(50)]
    for plane in planes:
        plane.shared.tick()
        ask(plane)
    assert sum(name.startswith(b"+") for name in client.hkeys(key)) == 50, (
        "each may come back from a failover"
    )
    copy = client.dump(key)
    for _ in range(2000):  # each counts for no more than two seconds
        old.shared.set_clock(old.shared.now.wall_ns + 2 * S)
        old.shared.tick()
    ask(old)
    assert [name for name in client.hkeys(key) if name.startswith(b"+")] == [b"+old-0"]
    assert old.shared.left() == {"month": 949}
    ask(planes[3])
    ask(planes[7])
    assert old.shared.left() == {"month": 947}
    client.restore(key, 0, copy, replace=True)
    for plane in (planes[7], old, planes[3]):
        plane.shared.call(plane.shared.book.touch(["month"], plane.shared.now))
        assert plane.shared.left()["month"] == 947


class OneLine:
    """The line to one worker, which comes again by itself."""

    def list_workers(self) -> Sequence[str]:
        return ("w",)

    def recall(self, limit_id: str, workers: Iterable[str]) -> None:
        pass

    def note_answer(self, worker: str, limit_id: str) -> None:
        pass

    def close_lines(self, workers: Iterable[str] | None = None) -> None:
        pass


def test_what_is_known_is_told_once_the_server_is_back_though_nobody_asks(client: "redis.Redis") -> None:
    """Of so many limits that they are told in parts."""
    url = f"unix://{client.connection_pool.connection_kwargs['path']}"
    limits = tuple(make(f"month {number}", 100, Period.MONTH, Kind.CALENDAR) for number in range(300))
    authority = RedisAuthority(lambda: url, "told", "a", SystemClock())

    def count_kept() -> int:
        return len(client.keys(f"{make_prefix('told')}:limit:*"))

    async def test() -> None:
        authority.set_limits(limits)
        authority.start(OneLine())
        try:
            async with asyncio.timeout(30):
                while not authority.is_there:
                    await asyncio.sleep(0.01)
                authority.join("w", (), is_first=True, then=lambda: None)
                for limit in limits:
                    wants = (Want(limit.id, 60, 60),)
                    authority.ask("w", wants, final=True, then=lambda *_: None)
                while len(authority._book.list_known()) < len(limits):
                    await asyncio.sleep(0.01)
                client.delete(*client.keys(f"{make_prefix('told')}:limit:*"))
                for kind in ("normal", "pubsub"):
                    client.client_kill_filter(_type=kind, skipme=True)
                while count_kept() < len(limits):
                    await asyncio.sleep(0.01)
        finally:
            authority.close()
            await asyncio.sleep(0)

    asyncio.run(test())
    for limit in limits:
        assert client.hget(f"{make_prefix('told')}:limit:{limit.id}", "units") == b"40"
