"""What others have by now, of which they told a moment ago: a constant load stays one, whatever is told."""

from itertools import pairwise
from statistics import pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.gateway.policy.load import ReplicaLoad
from forebay.gateway.policy.pool_load import PoolLoad
from forebay.gateway.policy.relaxing import MEAN_S, NEWS_AGE_S, Flow

STEP_S = 0.1


def feed(flow: Flow, own: int, stay_s: float, others: list[tuple[int, int]], now: float = 0.0) -> list[float]:
    """What it makes of a constant load of this worker, and of what others tell in turns."""
    begun, found = 0.0, []
    for told in others:
        now += STEP_S
        begun += own / stay_s * STEP_S
        flow.update(own, int(begun), told, now)
        found.append(flow.estimate_others(told)[0])
    return found


@given(st.integers(1, 40), st.floats(0.05, 20.0), st.integers(0, 500), st.integers(0, 10**6))
def test_a_constant_load_is_told_as_it_is(own: int, stay_s: float, requests: int, tokens: int) -> None:
    flow = Flow(0, 0.0, (requests, tokens))
    assert feed(flow, own, stay_s, [(requests, tokens)] * 80) == pytest.approx([requests] * 80)


@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 10**6)), min_size=1, max_size=100),
    st.floats(0.02, 30),
)
def test_it_is_never_beyond_what_was_told(others: list[tuple[int, int]], stay_s: float) -> None:
    flow = Flow(0, 0.0, others[0])
    found = feed(flow, 8, stay_s, others)
    told = [requests for requests, _ in others]
    assert all(min(told) - 1e-6 <= each <= max(told) + 1e-6 for each in found)


@given(st.floats(0.05, 0.2), st.integers(10, 50), st.integers(1, 10))
def test_of_short_answers_what_swings_around_a_mean_hardly_swings(
    stay_s: float, mean: int, period: int
) -> None:
    told = [(0, 0) if at // period % 2 else (2 * mean, 0) for at in range(200)]
    found = feed(Flow(0, 0.0, (mean, 0)), 12, stay_s, told)[100:]
    assert pstdev(found) < 0.45 * mean, "of the told ones it is the mean itself"
    assert all(abs(one - other) < 0.4 * mean for one, other in pairwise(found))


def test_of_long_answers_what_was_told_counts_as_it_is() -> None:
    told = [(10 * (at // 40), 0) for at in range(120)]  # others come all at once, and stay
    found = feed(Flow(0, 0.0, (0, 0)), 12, 30.0, told)
    assert found[45] == pytest.approx(10, abs=1.0)
    assert found[-1] == pytest.approx(20, abs=0.5)


def test_who_has_no_requests_there_takes_what_was_told_as_it_is() -> None:
    flow = Flow(0, 0.0, (0, 0))
    for at in range(1, 30):
        told = (at % 7, at % 5)
        flow.update(0, 0, told, at * STEP_S)
        assert flow.estimate_others(told) == told


def test_of_those_who_left_nothing_is_left_soon() -> None:
    pool, replica = PoolLoad(1, requests_max=10), ReplicaLoad()
    replica.pools = [pool]
    now = 0.0
    replica.set_others(8, 800, now)
    for at in range(200):  # its own requests stay for a tenth of a second
        now += STEP_S / 10
        replica.begin(100, now)
        if at >= 10:
            replica.end(100, now)
        if at % 10 == 0:
            pool.relax(now)
    assert pool.used == pytest.approx((8 + 10) / 10)
    assert pool.requests == 18, "what is counted is as it was told"
    replica.set_others(0, 0, now)
    pool.relax(now)
    assert 1.0 < pool.used <= 1.8, "the others are believed to come again, for a moment"
    for _ in range(int(6 * (MEAN_S + NEWS_AGE_S) / STEP_S)):
        now += STEP_S
        replica.begin(100, now)
        replica.end(100, now)
        pool.relax(now)
    assert pool.flow is None
    assert pool.used == pytest.approx(10 / 10)
