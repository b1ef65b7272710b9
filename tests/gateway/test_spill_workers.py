"""Several workers that hear of each other late spill a constant share of a constant flow together."""

import heapq
import random
from statistics import pstdev

import pytest
from routing_fleets import build_fleet, list_members, make_pool

from forebay.gateway.loads import Loads
from forebay.gateway.policy.merging import Merging
from forebay.gateway.policy.news import News, PlaceCount
from forebay.gateway.policy.route import Want, choose_first

WORKERS = 4
REPLICAS, REQUESTS_MAX = 8, 8
WANT = Want(tokens=100)
TELL_S = 0.2  #: between two times that a worker tells the board
HEAR_S = 0.1  #: between two times that the board tells the workers


class Machine:
    """Workers before one tier and the next, with a board between them."""

    def __init__(self, service_s: float) -> None:
        self.rng = random.Random(3)
        self.service_s = service_s
        self.merging = Merging()
        self.loads = [Loads() for _ in range(WORKERS)]
        pools = (
            make_pool("own", REPLICAS, tier="provisioned", requests_max=REQUESTS_MAX),
            make_pool("rented", 2, tier="provider"),
        )
        self.fleets = [build_fleet(*pools, loads=loads, workers=WORKERS) for loads in self.loads]
        self.members = [{each.index: each for each in list_members(fleet)} for fleet in self.fleets]
        for worker, loads in enumerate(self.loads):
            loads.see_workers(WORKERS)
            self.merging.join(str(worker))
        self.events = [(100 + TELL_S * at / WORKERS, at, "tell", at, 0) for at in range(WORKERS)]
        self.events.append((100.05, WORKERS, "hear", 0, 0))
        self.number = WORKERS
        self.now = 100.0
        self.own = 0  #: in flight

    def push(self, after_s: float, what: str, worker: int, place: int = 0) -> None:
        self.number += 1
        heapq.heappush(self.events, (self.now + after_s, self.number, what, worker, place))

    def run(self, rate: float, seconds: float) -> tuple[float, float]:
        """The share that was spilled, and the use of the first tier after that."""
        end, sent, spilled = self.now + seconds, 0, 0
        while True:
            arrival = self.now + self.rng.expovariate(rate)
            while self.events[0][0] <= arrival:
                self.now, _, what, worker, place = heapq.heappop(self.events)
                self.handle(what, worker, place)
            self.now = arrival
            if arrival >= end:
                return spilled / max(1, sent), self.own / (REPLICAS * REQUESTS_MAX)
            worker = self.rng.randrange(WORKERS)
            place = choose_first(self.fleets[worker], WANT, self.now, self.rng.random())
            assert place is not None
            self.members[worker][place].load.begin(WANT.tokens, self.now)
            self.push(self.service_s * self.rng.uniform(0.8, 1.2), "end", worker, place)
            sent += 1
            spilled += place >= REPLICAS
            self.own += place < REPLICAS

    def handle(self, what: str, worker: int, place: int) -> None:
        if what == "end":
            self.members[worker][place].load.end(WANT.tokens, self.now)
            self.own -= place < REPLICAS
        elif what == "tell":
            counts = tuple(
                PlaceCount(id, each.requests - each.others_requests, each.tokens - each.others_tokens)
                for id, each in self.loads[worker].by_id.items()
            )
            self.merging.note(str(worker), News(counts=counts), self.now)
            self.push(TELL_S, "tell", worker)
        else:
            for each, loads in enumerate(self.loads):
                for count in self.merging.take(str(each)).counts:
                    loads.set_others(count.place, count.requests, count.tokens, self.now)
                loads.relax(self.now)
            self.push(HEAR_S, "hear", 0)


@pytest.mark.parametrize(("times", "service_s"), [(4.0, 2.0), (2.0, 2.0), (1.2, 5.0)])
def test_the_share_of_a_constant_flow_is_constant(times: float, service_s: float) -> None:
    machine = Machine(service_s)
    rate = times * REPLICAS * REQUESTS_MAX / service_s
    machine.run(rate, 8)
    windows = [machine.run(rate, 0.5) for _ in range(40)]
    shares, uses = [share for share, _ in windows], [used for _, used in windows]
    assert sum(shares) / len(shares) == pytest.approx(1 - 1 / times, abs=0.1)
    assert pstdev(uses) < 0.2, uses
    assert min(uses) > 0.45, uses
    assert max(uses) < 1.3, uses


@pytest.mark.parametrize("times", [2.0, 4.0])
@pytest.mark.parametrize("service_s", [0.1, 0.2, 0.3])
def test_the_use_of_a_tier_does_not_swing_where_answers_take_less_than_news_do(
    times: float, service_s: float
) -> None:
    """By what was told alone it went from nothing to three times the capacity at 0.2 s."""
    machine = Machine(service_s)
    rate = times * REPLICAS * REQUESTS_MAX / service_s
    machine.run(rate, 4)
    uses = [machine.run(rate, 0.02)[1] for _ in range(150)]
    assert pstdev(uses) < 0.2, uses
    assert min(uses) > 0.45, uses
    assert max(uses) < 1.5, uses
