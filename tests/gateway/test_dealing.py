"""Places that are dealt out to workers: never more in use than there are, hardly fewer, a turn for each."""

from random import Random

import pytest
from dealing_rig import TOKENS, Simulation
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.gateway.policy.dealing import POOLS_MAX, Dealing, share_out
from forebay.gateway.policy.news import Claim, Need

UNKNOWN = Need(0.0, 0, 0, 0)


def send_crowd(
    sim: Simulation, shares: list[int], rate: float, service_s: float, names: list[str] | None = None
) -> None:
    """Requests for ever, of which each worker gets a share; lines stay short, as by early refusal."""
    random, to = Random(7), names or sorted(sim.by_name)

    def come() -> None:
        worker = sim.by_name.get(random.choices(to, shares)[0])
        if worker is not None and len(worker.line) < 40:
            worker.come(service_s * (0.5 + random.random()), TOKENS)
        sim.after(random.expovariate(rate), come)

    come()


@settings(max_examples=25, deadline=None)
@given(
    st.integers(2, 16), st.integers(1, 40), st.integers(0, 1 << 20), st.floats(0.0, 0.3), st.floats(0.1, 3.0),
    st.floats(0.2, 4.0), st.data(),
)  # fmt: skip
def test_no_more_is_in_use_than_there_is_however_late_news_are(
    workers: int, capacity: int, seed: int, delay_s: float, service_s: float, load: float, data: st.DataObject
) -> None:
    shares = data.draw(st.lists(st.integers(1, 20), min_size=workers, max_size=workers))
    sim = Simulation(workers, capacity, seed, delay_s)
    sim.run_until(2.0)
    send_crowd(sim, shares, load * capacity / service_s, service_s)
    for _ in range(data.draw(st.integers(0, 2))):  # and a herd that comes to all of them at once
        sim.run_until(sim.now + data.draw(st.floats(0.0, 2.0)))
        for worker in sim.by_name.values():
            for _ in range(capacity):
                worker.come(service_s, TOKENS)
    sim.run_until(8.0)
    assert 0 < sim.peak <= capacity


@pytest.mark.parametrize("shares", [[1, 1, 1, 1], [50, 1, 1, 1], [1, 0, 0, 0]], ids=["even", "skewed", "one"])
@pytest.mark.parametrize("capacity", [2, 8, 64])
def test_under_too_high_a_load_hardly_any_place_is_idle_and_nobody_waits_for_ever(
    capacity: int, shares: list[int]
) -> None:
    sim = Simulation(4, capacity, 1, delay_s=0.005)
    sim.run_until(2.0)
    send_crowd(sim, shares, 4 * capacity / 0.3, 0.3)
    sim.run_until(4.0)
    assert sim.measure_use(15, capacity) >= 0.9
    assert sim.peak <= capacity
    line_s = 45 * 4 * 0.3 / capacity  # in which all that wait are served
    for worker, share in zip(sim.by_name.values(), shares, strict=True):
        assert not share or worker.served >= 3
        assert max(worker.waits, default=0.0) < 3 * line_s + 2


def test_one_worker_alone_has_all_soon_and_the_next_one_gets_its_part_back() -> None:
    sim = Simulation(4, 8, 1)
    sim.run_until(2.0)
    one, other, *_ = sim.by_name.values()
    for _ in range(60):
        one.come(1.0, TOKENS)
    assert sim.busy == 2
    sim.run_until(2.2)
    assert sim.busy == 8
    other.come(1.0, TOKENS)
    sim.run_until(3.5)
    assert other.waits
    assert other.waits[0] < 1.3
    sim.run_until(30)
    assert sim.peak == 8
    assert one.served == 60


def test_fewer_places_than_workers_go_round() -> None:
    sim = Simulation(4, 1, 3)
    sim.run_until(2.0)
    for worker in sim.by_name.values():
        for _ in range(8):
            worker.come(0.2, TOKENS)
    sim.run_until(6.0)
    assert sim.peak == 1
    assert min(worker.served for worker in sim.by_name.values()) >= 2
    sim.run_until(12.0)
    assert [worker.served for worker in sim.by_name.values()] == [8] * 4


def test_a_worker_that_dies_leaves_what_it_had_and_one_that_comes_gets_its_part() -> None:
    sim = Simulation(4, 8, 2)
    sim.run_until(2.0)
    send_crowd(sim, [1, 1, 1, 1], 100, 0.3)
    sim.run_until(4.0)
    sim.kill("w00")
    sim.run_until(5.0)  # the four are three: each keeps its share of the whole
    assert sum(worker.pool.allowed_requests for worker in sim.by_name.values()) == 6
    came = sim.join("w00")
    sim.run_until(8.0)
    assert came.served > 5
    assert sum(worker.pool.allowed_requests for worker in sim.by_name.values()) == 8
    assert sim.peak <= 8


def test_a_rolling_restart_never_overfills() -> None:
    sim = Simulation(3, 6, 5)
    sim.run_until(2.0)
    names = sorted(sim.by_name)
    send_crowd(sim, [1, 1, 1], 100, 0.3, names=names)
    for number, name in enumerate(tuple(names)):
        sim.run_until(sim.now + 1.0)
        sim.join(f"new{number}")
        names[number] = f"new{number}"
        sim.by_name[name].line.clear()  # they are told to go elsewhere
        sim.run_until(sim.now + 1.0)
        assert sim.by_name[name].pool.requests == sim.by_name[name].pool.others_requests
        sim.kill(name)
    sim.run_until(8.0)
    assert sim.measure_use(5, 6) > 0.9
    assert sim.peak <= 6 + 2  # a worker has its share in the moment before it hears of the others


@pytest.mark.parametrize("tokens_max", [1000, 10_000])
def test_tokens_are_dealt_like_requests_but_for_the_request_that_fills_a_part(tokens_max: int) -> None:
    sim = Simulation(4, None, 1, tokens_max=tokens_max)
    sim.run_until(2.0)
    random = Random(3)

    def come() -> None:
        worker = sim.random.choice(tuple(sim.by_name.values()))
        if len(worker.line) < 20:
            worker.come(0.3, random.randrange(100, 400))
        sim.after(0.001, come)

    come()
    sim.run_until(10.0)
    assert sim.tokens_peak <= tokens_max + 4 * 400
    assert sim.tokens_peak >= tokens_max * 0.9
    assert min(worker.served for worker in sim.by_name.values()) > 10


@given(st.integers(1, 100), st.lists(st.integers(0, 60), min_size=1, max_size=16), st.integers(0, 99))
def test_all_is_shared_out_and_nobody_who_wants_any_is_left_without(
    units: int, wanted: list[int], turn: int
) -> None:
    parts = share_out(units, wanted, turn)
    assert sum(parts) == units
    is_scarce = sum(wanted) > units
    for part, want in zip(parts, wanted, strict=True):
        assert part <= want if is_scarce else part >= want
        assert part >= min(1, want) or units < len(wanted)


def test_what_a_worker_says_has_a_bound_and_what_it_forgets_is_forgotten() -> None:
    dealing = Dealing()
    known = Need(4.0, 0, 0, 0)
    dealing.note("a", [Claim(1, known, UNKNOWN)])
    assert dealing.deal(1.0) == ("a",)
    (allotment,) = dealing.take("a")
    assert (allotment.pool, allotment.requests) == (1, 4)
    dealing.note("a", [Claim(1, UNKNOWN, UNKNOWN)])
    dealing.note("b", [Claim(1, known, UNKNOWN)])
    dealing.deal(1.1)
    assert [each.requests for each in dealing.take("b")] == [4]
    with pytest.raises(ValueError, match="20000 pools"):
        dealing.note("a", [Claim(id, known, UNKNOWN) for id in range(POOLS_MAX + 1)])


def test_who_does_not_answer_is_told_again() -> None:
    dealing = Dealing()
    dealing.note("a", [Claim(1, Need(4.0, 0, 0, 0), UNKNOWN)])
    dealing.deal(1.0)
    assert len(dealing.take("a")) == 1
    dealing.deal(1.6)
    assert dealing.take("a") == ()
    dealing.deal(2.6)
    assert len(dealing.take("a")) == 1
