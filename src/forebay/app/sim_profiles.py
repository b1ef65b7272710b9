"""From the results of `forebay bench` to profiles for the simulator, and how well these tell what was
measured.  Pure: the results are handed in.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Final

import msgspec

from forebay.app.bench_files import BenchResult
from forebay.app.bench_plan import plan_arrivals
from forebay.app.bench_run import Level, Load
from forebay.app.bench_stats import Sample, compute_figures
from forebay.sim.calibrate import Observed, calibrate
from forebay.sim.direct import Outcome, run_closed, run_open
from forebay.sim.engine import EngineProfile

#: Of these the error is told.
COMPARED: Final = (
    *("mean_ttft_ms", "median_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "p99_tpot_ms"),
    *("output_tokens_per_s", "requests_per_s"),
)
REPEATS: Final = 5  #: runs by other seeds, of which a prediction is the mean


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One level as it was measured and as it is simulated.

    Attributes:
        is_held_out: the profile was found without it.
        figures: by name, measured and simulated.
    """

    load: Load
    is_held_out: bool
    figures: dict[str, tuple[float, float]]

    @property
    def errors(self) -> dict[str, float]:
        """Relative: 0.1 where what is simulated is 10 % more."""
        return {name: simulated / measured - 1 for name, (measured, simulated) in self.figures.items()}


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """What a result comes to."""

    profile: EngineProfile
    checks: list[Check]


def calibrate_result(result: BenchResult, held_out: Collection[Load] = ()) -> Calibration:
    """The profile by the levels of a closed loop, and how all levels compare with it.

    Args:
        held_out: levels of which the profile must know nothing; those of an open loop are, all of them.

    Raises:
        ValueError: the result says too little.
    """
    fitted = [
        level for level in result.levels if level.load.concurrency is not None and level.load not in held_out
    ]
    try:
        profile = calibrate([_observe(level, result.replicas) for level in fitted])
    except ValueError as error:
        raise ValueError(f"the result of {result.target} can't be calibrated with: {error}") from None
    checks = [
        check_level(profile, level, result, is_held_out=level not in fitted)
        for level in result.levels
        if _list_well(level)
    ]
    return Calibration(profile=profile, checks=checks)


def check_level(profile: EngineProfile, level: Level, result: BenchResult, *, is_held_out: bool) -> Check:
    """A level that was measured against the same load in the simulator."""
    runs = [_simulate(profile, level, result, seed) for seed in range(REPEATS)]
    figures = {}
    for name in COMPARED:
        found = [run[name] for run in runs if name in run]
        measured = level.figures.get(name)
        if found and measured:
            figures[name] = measured, sum(found) / len(found)
    return Check(load=level.load, is_held_out=is_held_out, figures=figures)


def _simulate(profile: EngineProfile, level: Level, result: BenchResult, seed: int) -> dict[str, float]:
    sizes = [(each.input_tokens, each.output_tokens) for each in _list_well(level)]
    if level.load.concurrency is not None:
        run = run_closed(profile, sizes, level.load.concurrency, result.replicas, seed)
    else:
        assert level.load.rate_per_s is not None
        asked = int(result.asked.get("seed", 0))
        plan = plan_arrivals(level.load.rate_per_s, len(sizes), asked, level.load.arrival)
        run = run_open(profile, sizes, plan, result.replicas, seed)
    return compute_figures([to_sample(each) for each in run.outcomes], run.duration_s)


def _observe(level: Level, replicas: int) -> Observed:
    assert level.load.concurrency is not None
    outcomes = [
        Outcome(
            ttft_s=each.ttft_s,
            e2el_s=each.e2el_s,
            input_tokens=each.input_tokens,
            output_tokens=each.output_tokens,
        )
        for each in _list_well(level)
    ]
    return Observed(
        concurrency=level.load.concurrency,
        replicas=replicas,
        outcomes=outcomes,
        output_tokens_per_s=level.figures.get("output_tokens_per_s", 0.0),
    )


def _list_well(level: Level) -> Sequence[Sample]:
    return [each for each in level.samples if not each.error and each.output_tokens]


def to_sample(outcome: Outcome) -> Sample:
    return Sample(
        ttft_s=outcome.ttft_s,
        e2el_s=outcome.e2el_s,
        input_tokens=outcome.input_tokens,
        output_tokens=outcome.output_tokens,
    )


def find_profiles(
    pools: Collection[str], find_result: Callable[[str], BenchResult], known: dict[str, EngineProfile]
) -> dict[str, EngineProfile]:
    """Of each pool.  Raises ValueError, OSError."""
    return {
        pool: known.get(pool) or calibrate_result(find_result(pool)).profile for pool in sorted(set(pools))
    }
