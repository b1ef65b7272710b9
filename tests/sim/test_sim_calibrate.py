"""Calibration: from what was measured back to the engine, and on to what was not measured."""

import random
from statistics import fmean

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sim_fleets import PLAIN, observe

from forebay.sim.calibrate import calibrate, simulate_level
from forebay.sim.engine import EngineProfile
from forebay.sim.least_squares import fit, solve


@settings(max_examples=50)
@given(st.integers(1, 6), st.integers())
def test_equations_are_solved(size: int, seed: int) -> None:
    draw = random.Random(seed)
    matrix = [
        [draw.uniform(-1, 1) + 3 * size * (row == column) for column in range(size)] for row in range(size)
    ]
    right = [draw.uniform(-1, 1) for _ in range(size)]
    found = solve(matrix, right)
    for row, value in zip(matrix, right, strict=True):
        assert sum(a * b for a, b in zip(row, found, strict=True)) == pytest.approx(value, abs=1e-9)


def test_least_squares_find_a_curve() -> None:
    points = [(x / 4, 3 * 2.0 ** (-x / 4) + 0.5) for x in range(20)]

    def compute(at: list[float]) -> list[float]:
        return [at[0] * 2.0 ** (-at[1] * x) + at[2] - y for x, y in points]

    found, total = fit(compute, [1.0, 0.3, 0.0])
    assert found == pytest.approx([3, 1, 0.5], rel=0.01)
    assert total < 1e-4


@pytest.mark.parametrize("levels", [(1, 2, 4, 16), (1, 8)])
def test_an_engine_is_found_again_by_its_levels(levels: tuple[int, ...]) -> None:
    true = msgspec.structs.replace(PLAIN, first_sigma=0.1, token_sigma=0.05)
    found = calibrate([observe(true, level) for level in levels])
    assert found.step_s == pytest.approx(true.step_s, rel=0.1)
    assert found.step_per_stream_s == pytest.approx(true.step_per_stream_s, rel=0.1)
    assert found.slots is None
    assert found.streams_measured == max(levels)
    assert found.token_sigma == pytest.approx(0.05, rel=0.4)
    for other in (2, 4, 8, 16):
        expect_alike(found, true, other)


def expect_alike(found: EngineProfile, true: EngineProfile, level: int) -> None:
    """Means over three runs, for each of them differs by chance."""
    measured = [observe(true, level, seed=seed) for seed in range(3)]
    simulated = [simulate_level(found, each, seed=9 + at) for at, each in enumerate(measured)]
    ours = [each for run in simulated for each in run.outcomes]
    theirs = [each for run in measured for each in run.outcomes]
    for get, most in ((lambda each: each.ttft_s, 0.2), (lambda each: each.tpot_s, 0.1)):
        assert fmean(map(get, ours)) == pytest.approx(fmean(map(get, theirs)), rel=most), level


def test_a_bound_on_what_runs_at_once_is_seen() -> None:
    true = EngineProfile(first_s=0.2, step_s=0.025, slots=4, first_sigma=0.02, token_sigma=0.02)
    found = calibrate([observe(true, level) for level in (1, 4, 8)])
    assert found.slots == 4
    expect_alike(found, true, 16)


def test_levels_of_several_replicas_are_of_one_each() -> None:
    found = calibrate([observe(PLAIN, level, replicas=2) for level in (2, 8, 16)])
    assert found.step_per_stream_s == pytest.approx(PLAIN.step_per_stream_s, rel=0.1)
    assert found.streams_measured == 8


def test_what_says_too_little_is_refused() -> None:
    with pytest.raises(ValueError, match="2 levels of a closed loop"):
        calibrate([observe(PLAIN, 4), observe(PLAIN, 4)])
