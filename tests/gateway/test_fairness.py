"""Who is next of those that wait: nobody starves, tenants share evenly, the queue stays within its bounds."""

import time
from collections import Counter, deque
from copy import deepcopy
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from forebay.gateway.policy.fairness import FACTORS, WEIGHTS, Entry, FairQueue, Full

TENANTS = ("a", "b", "c", "d")
UNITS = st.integers(1, 50)


def fill(queue: FairQueue, *parts: tuple[int, str, int, int]) -> None:
    """So many requests of a class and a tenant, each of so many units."""
    numbers = count(len(queue))
    for rank, tenant, requests, units in parts:
        for _ in range(requests):
            assert queue.add(Entry(rank, tenant, units, next(numbers))) is None


def serve(queue: FairQueue) -> Entry:
    entry = queue.first()
    assert entry is not None
    queue.take(entry)
    return entry


def make_queue(entries_max: int = 100_000, tenant_max: int = 100_000) -> FairQueue:
    return FairQueue(entries_max=entries_max, tenant_max=tenant_max)


def test_a_tenant_with_a_thousand_requests_does_not_hold_up_one_with_one() -> None:
    queue = make_queue()
    fill(queue, (1, "many", 1000, 3))
    for _ in range(100):
        serve(queue)
    fill(queue, (1, "one", 1, 3))
    assert "one" in [serve(queue).tenant for _ in range(2)]


def test_leaving_and_coming_again_gives_no_other_turn() -> None:
    queue = make_queue()
    fill(queue, (1, "patient", 100, 1))
    served = Counter[str]()
    for number in range(60):
        again = Entry(1, "again", 1, 1000 + number)
        assert queue.add(again) is None
        served[serve(queue).tenant] += 1
        queue.remove(again)
    assert served["patient"] >= 29


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_what_two_tenants_got_while_both_waited_differs_by_one_request_of_each(data: st.DataObject) -> None:
    queue = make_queue()
    numbers = count()
    largest = {tenant: data.draw(st.integers(1, 40)) for tenant in TENANTS}
    got = dict.fromkeys(TENANTS, 0)
    for tenant in TENANTS:
        for _ in range(60):
            queue.add(Entry(1, tenant, data.draw(st.integers(1, largest[tenant])), next(numbers)))
    while all(queue._classes[1].tenants.get(tenant) for tenant in TENANTS):
        entry = serve(queue)
        got[entry.tenant] += entry.units
        for one in TENANTS:
            for other in TENANTS:
                assert got[one] - got[other] <= largest[one] + largest[other]


@settings(max_examples=60, deadline=None)
@given(st.tuples(UNITS, UNITS, UNITS))
def test_classes_share_by_their_weights_while_all_of_them_wait(units: tuple[int, int, int]) -> None:
    queue = make_queue()
    fill(queue, *((rank, "t", 400, units[rank]) for rank in range(3)))
    got = [0, 0, 0]
    while all(each.count for each in queue):
        entry = serve(queue)
        got[entry.rank] += entry.units
    normal = [got[rank] * FACTORS[rank] for rank in range(3)]
    slack = sum(units[rank] * FACTORS[rank] for rank in range(3))
    assert max(normal) - min(normal) <= slack


def test_a_higher_class_goes_first_when_it_comes_and_the_lowest_has_its_part() -> None:
    queue = make_queue()
    fill(queue, (2, "b", 100, 1), (1, "s", 100, 1), (0, "i", 200, 1))
    order = [serve(queue).rank for _ in range(2 * sum(WEIGHTS))]
    assert order[:4] == [0] * 4
    assert Counter(order) == {0: 32, 1: 8, 2: 2}


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 30), st.integers(1, 30), st.integers(0, 2))
def test_nobody_starves_whoever_keeps_coming(patient: int, other: int, rank: int) -> None:
    queue = make_queue()
    waiting = Entry(2, "patient", patient, 0)
    queue.add(waiting)
    numbers = count(1)
    passed = 0
    while waiting.is_waiting:
        number = next(numbers)
        queue.add(Entry(rank, f"t{number % 5}", other, number))
        passed += serve(queue).units
        assert passed <= patient * FACTORS[2] + 6 * other + patient


def test_a_newcomer_passes_only_lower_classes_and_those_no_further_than_by_their_part() -> None:
    queue = make_queue()
    assert queue.lets_pass(2, 1), "nobody waits"
    fill(queue, (1, "a", 5, 10))
    assert not queue.lets_pass(1, 1)
    assert not queue.lets_pass(2, 1)
    passed = 0
    while queue.lets_pass(0, 1):
        queue.charge(0, 1)
        passed += 1
        assert passed <= 1000
    assert passed == 10 * WEIGHTS[0] // WEIGHTS[1]
    serve(queue)
    assert queue.lets_pass(0, 1)
    fill(queue, (0, "b", 1, 1))
    assert not queue.lets_pass(0, 1)


def test_bounds_hold_in_all_and_for_each_tenant() -> None:
    queue = make_queue(entries_max=5, tenant_max=3)
    fill(queue, (1, "a", 3, 1))
    refused = Entry(1, "a", 1, 9)
    assert queue.add(refused) is Full.TENANT
    assert not refused.is_waiting
    queue.remove(refused)
    fill(queue, (1, "b", 2, 1))
    assert queue.add(Entry(1, "c", 1, 10)) is Full.ALL
    assert len(queue) == 5
    serve(queue)
    assert queue.add(Entry(0, "c", 1, 11)) is None


def test_what_goes_before_is_seen_for_own_requests_other_tenants_and_classes() -> None:
    queue = make_queue()
    fill(queue, (1, "a", 10, 5))
    assert queue.count_before(1, "a", 5) == 50
    assert queue.count_before(1, "b", 5) == 5, "one of `a`, which waits longer, then one of `b`"
    fill(queue, (0, "i", 4, 5))
    assert queue.count_before(1, "b", 5) == 5 + 20
    assert queue.count_before(0, "j", 5) == 5
    assert queue.count_before(2, "z", 5) == 20 + 20, "a quarter as much as goes to standard"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(TENANTS)), max_size=60), st.integers(0, 30))
def test_at_least_as_many_go_before_as_was_said(waiting: list[tuple[int, str]], already: int) -> None:
    queue = make_queue()
    for number, (rank, tenant) in enumerate(waiting):
        queue.add(Entry(rank, tenant, 7, number))
    for _ in range(min(already, len(waiting))):
        serve(queue)
    for rank in range(3):
        said = queue.count_before(rank, "a", 7)
        mine = Entry(rank, "a", 7, 1000 + rank)
        probe = deepcopy(queue)
        probe.add(mine)
        before = 0
        while serve(probe).number != mine.number:
            before += 7
        round_of_others = 7 * (len(TENANTS) - 1)
        assert said <= before <= said + round_of_others * (1 + FACTORS[rank])


@pytest.mark.parametrize("tenants", [1, 7, 100_000])
def test_the_work_for_each_request_does_not_grow_with_the_queue(tenants: int) -> None:
    def measure(requests: int) -> float:
        queue = make_queue()
        begun = time.process_time()
        entries = [Entry(i % 3, f"t{i % tenants}", 1 + i % 9, i) for i in range(requests)]
        for entry in entries:
            queue.count_before(entry.rank, entry.tenant, entry.units)
            queue.add(entry)
            queue.first()
        for entry in entries[::2]:
            queue.remove(entry)
        while (first := queue.first()) is not None:
            queue.take(first)
        return (time.process_time() - begun) / requests

    few, many = min(measure(1000) for _ in range(3)), min(measure(8000) for _ in range(2))
    assert many < 5 * few, "quadratic would be eight times as much for each"


class Waiting(RuleBasedStateMachine):
    """Against a list of all that wait: exact in number, order and removal."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = FairQueue(entries_max=40, tenant_max=15)
        self.number = 0
        self.waiting: dict[tuple[int, str], deque[Entry]] = {
            (rank, tenant): deque() for rank in range(3) for tenant in TENANTS
        }

    def all(self) -> list[Entry]:
        return [entry for entries in self.waiting.values() for entry in entries]

    @rule(rank=st.integers(0, 2), tenant=st.sampled_from(TENANTS), units=UNITS, many=st.integers(1, 6))
    def come(self, rank: int, tenant: str, units: int, many: int) -> None:
        for _ in range(many):
            self.number += 1
            entry = Entry(rank, tenant, units, self.number)
            mine = self.waiting[rank, tenant]
            full = Full.ALL if len(self.all()) >= 40 else Full.TENANT if len(mine) >= 15 else None
            assert self.queue.add(entry) is full
            if full is None:
                mine.append(entry)

    @precondition(lambda self: self.all())
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from(self.all()))
        self.queue.remove(entry)
        self.queue.remove(entry)  # a second time does nothing
        self.waiting[entry.rank, entry.tenant].remove(entry)

    @precondition(lambda self: self.all())
    @rule(data=st.data())
    def move(self, data: st.DataObject) -> None:
        """To the queue of another limit and back: it keeps its place among its own."""
        old = data.draw(st.sampled_from(self.all()))
        self.queue.remove(old)
        new = Entry(old.rank, old.tenant, old.units, old.number)
        assert self.queue.add(new) is None
        mine = self.waiting[old.rank, old.tenant]
        mine[mine.index(old)] = new

    @precondition(lambda self: self.all())
    @rule()
    def let_in(self) -> None:
        entry = self.queue.first()
        assert entry is not None
        assert entry is self.waiting[entry.rank, entry.tenant][0], "of one tenant who came first"
        self.queue.take(entry)
        self.waiting[entry.rank, entry.tenant].popleft()

    @rule(rank=st.integers(0, 2), units=UNITS)
    def pass_by(self, rank: int, units: int) -> None:
        if self.queue.lets_pass(rank, units):
            assert not any(entry.rank <= rank for entry in self.all())
            self.queue.charge(rank, units)

    @invariant()
    def counts_are_exact(self) -> None:
        waiting = self.all()
        assert len(self.queue) == len(waiting)
        assert (self.queue.first() is None) == (not waiting)
        for rank, each in enumerate(self.queue):
            mine = [entry for entry in waiting if entry.rank == rank]
            assert each.count == len(mine)
            assert each.units == sum(entry.units for entry in mine)
            assert set(each.tenants) == {entry.tenant for entry in mine}
            assert len(each._heap) <= 2 * len(each.tenants) + 17
            for tenant in each.tenants.values():
                assert len(tenant._heap) <= 2 * tenant.count + 17


TestWaiting = Waiting.TestCase
