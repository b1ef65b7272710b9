"""What is late, and how many may be sent twice: pure."""

import random
from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from forebay.gateway.policy.hedging import ALLOWANCE_MAX, TIMES_MAX, TIMES_MIN, Hedging, Times


@given(st.lists(st.floats(0, 1000), max_size=600), st.sampled_from([0.5, 0.9, 0.95, 0.999]))
def test_the_quantile_is_that_of_the_latest(seen: list[float], share: float) -> None:
    times = Times()
    for each in seen:
        times.see(each)
    latest = sorted(seen[-TIMES_MAX:])
    if len(latest) < TIMES_MIN:
        assert times.find_quantile(share) is None
    else:
        assert times.find_quantile(share) == latest[ceil(share * len(latest)) - 1]
    assert len(times._sorted) == len(times._latest) <= TIMES_MAX


def test_streams_and_whole_answers_are_apart_and_none_is_late_too_soon() -> None:
    known = Hedging()
    for _ in range(TIMES_MIN):
        known.first.see(0.1)
    assert known.find_delay(0.95, 0.0, stream=True) == 0.1
    assert known.find_delay(0.95, 0.5, stream=True) == 0.5
    assert known.find_delay(0.95, 0.0, stream=False) is None


@given(st.lists(st.booleans(), max_size=500), st.sampled_from([0.01, 0.05, 0.3, 1.0]))
def test_hedges_keep_to_their_share(late: list[bool], share: float) -> None:
    known, made = Hedging(), 0
    for number, is_late in enumerate(late, 1):
        known.begin(share)
        if is_late and known.has_allowance:
            known.spend()
            made += 1
        assert made <= share * number + 1e-6
    assert known.allowance <= ALLOWANCE_MAX


def test_a_quiet_time_saves_up_few() -> None:
    known, rng = Hedging(), random.Random(1)
    for _ in range(10_000):
        known.begin(rng.random())
    made = 0
    while known.has_allowance:
        known.spend()
        made += 1
    assert made == ALLOWANCE_MAX
