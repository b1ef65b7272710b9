"""Machines that fill the same places: what each knows of the others is late, and all who wait have some."""

import heapq
import itertools
from collections.abc import Callable
from typing import Any

import pytest
from dealing_rig import TOKENS, Simulation, SimWorker
from hypothesis import given
from hypothesis import strategies as st

from forebay.gateway.policy.machines import Machines, Message
from forebay.gateway.policy.news import News
from forebay.gateway.policy.sharing import find_part

FLEET_TELL_S = 0.2


class World:
    """Machines in one time, and how many places are in use on all of them together."""

    def __init__(self, sites: int, workers: int, capacity: int) -> None:
        self.now = 0.0
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.busy = self.peak = 0
        self.sites = [Site(self, number, workers, capacity) for number in range(sites)]

    def count(self, more: int) -> None:
        self.busy += more
        self.peak = max(self.peak, self.busy)

    def run_until(self, until: float) -> None:
        while self.events and self.events[0][0] <= until:
            self.now, _, do = heapq.heappop(self.events)
            do()
        self.now = until


class Site(Simulation):
    """One machine: its workers and its board, which talks to the others."""

    def __init__(self, world: World, number: int, workers: int, capacity: int) -> None:
        self.world = world
        self.is_ready = False
        super().__init__(workers, capacity, number, 0.005)
        for event in self._events:
            heapq.heappush(world.events, (event[0], event[1] + number * 10**9, event[2]))
        self._events = world.events
        self._numbers = itertools.count(number * 10**9 + 10**6)
        self.machines = Machines(f"{number:016}", str(number), self.merging)
        self.is_ready = True
        self.after(FLEET_TELL_S * (1 + number / 7), self.tell_others)

    def __getattribute__(self, name: str) -> Any:
        return object.__getattribute__(self, "world").now if name == "now" else super().__getattribute__(name)

    def begin(self, tokens: int) -> None:
        super().begin(tokens)
        self.world.count(1)

    def end(self, tokens: int) -> None:
        super().end(tokens)
        self.world.count(-1)

    def tell_others(self) -> None:
        for message in self.machines.take(self.now, self.dealing.list_uses()):
            for site in self.world.sites:
                if site is not self:
                    self.after(
                        0.005, lambda site=site, message=message: site.machines.hear(message, site.now)
                    )
        self.after(FLEET_TELL_S, self.tell_others)

    def hear(self, message: Message) -> None:
        self.machines.hear(message, self.now)

    def _tell_forever(self) -> None:
        self.machines.sweep(self.now)
        uses = [(each.workers, each.pools) for each in self.machines.list_machines()]
        self.dealing.share_with(uses, self.merging.own_size, self.now)
        super()._tell_forever()

    def _tell(self, name: str) -> None:
        taken = self.merging.take(name)
        news = News(
            counts=taken.counts,
            workers=taken.workers,
            allotments=self.dealing.take(name),
            expected=taken.workers,
        )
        worker = self.by_name[name]
        self.send(f"to {name}", lambda: worker.hear(news))

    def keep_line(self, until: float) -> None:
        """From now on somebody always waits at its first worker."""
        worker = self.list_workers()[0]

        def fill() -> None:
            while len(worker.line) < 10:
                worker.come(0.3, TOKENS)
            if self.now < until:
                self.after(0.02, fill)

        fill()

    def list_workers(self) -> list[SimWorker]:
        return list(self.by_name.values())

    @property
    def served(self) -> int:
        return sum(worker.served for worker in self.by_name.values())


@pytest.mark.parametrize("capacity", [1, 2, 8, 33])
@pytest.mark.parametrize("sites", [2, 3])
def test_no_machine_starves_while_another_keeps_all_places_busy(sites: int, capacity: int) -> None:
    world = World(sites, 2, capacity)
    world.run_until(2.0)
    world.sites[0].keep_line(30.0)
    world.run_until(5.0)
    assert world.busy == capacity, "one alone has all"
    for site in world.sites[1:]:
        site.keep_line(30.0)
    world.run_until(9.0)
    world.peak = world.busy
    before = [site.served for site in world.sites]
    world.run_until(25.0)
    served = [site.served - since for site, since in zip(world.sites, before, strict=True)]
    most = 16 * capacity / 0.3
    assert sum(served) > (0.3 if capacity < sites else 0.75) * most
    assert min(served) > 0.4 * sum(served) / sites, served
    assert world.peak <= capacity + sites - 1


def test_a_herd_at_all_machines_at_once_overbooks_for_no_longer_than_news_take() -> None:
    world = World(2, 2, 16)
    world.run_until(2.0)
    for site in world.sites:
        site.keep_line(20.0)
    world.run_until(4.0)
    assert world.peak <= 2 * 16
    world.peak = world.busy
    world.run_until(12.0)
    assert world.peak <= 16 + 1


@given(
    st.integers(1, 50),
    st.lists(st.tuples(st.integers(1, 8), st.integers(0, 50)), min_size=2, max_size=6),
)
def test_parts_of_all_who_wait_are_no_more_than_there_is(
    capacity: int, machines: list[tuple[int, int]]
) -> None:
    whole = sum(workers for workers, _ in machines)
    given_out = 0
    for at, (workers, used) in enumerate(machines):
        part = find_part(capacity, workers, machines[:at] + machines[at + 1 :], has_had=used > 0)
        others_have_theirs = all(
            has >= max(1, capacity * theirs // whole)
            for other, (theirs, has) in enumerate(machines)
            if other != at
        )
        assert (part is None) == others_have_theirs
        given_out += 0 if part is None else int(capacity * part + 1e-9)
    assert given_out <= max(capacity, len(machines))
    assert find_part(capacity, 4, [], has_had=True) is None
    assert find_part(0, 4, machines, has_had=True) is None
