"""Finds the profile of an engine under which the simulator gives what a benchmark has measured.  Pure.

Each level of a closed loop is simulated with the sizes of its own requests, and the logarithms of simulated
over measured figures (of the time to the first token and of the time of a token the median, and the mean
without what lies far out) are made small by least squares.  Where a level shows a bound on what runs at
once, that bound is tried too.
"""

from collections.abc import Sequence
from math import ceil, exp, floor, log
from statistics import fmean, median, quantiles

import msgspec

from forebay.sim.direct import Outcome, Run, Size, run_closed
from forebay.sim.engine import EngineProfile
from forebay.sim.least_squares import Vector, fit

LEVELS_MIN = 2
REQUESTS_MAX = 256  #: of a level, that are simulated in a fit
LEAST_S = 1e-7  #: less than that is nothing
HOLD = 0.02  #: how strongly an unknown that the figures leave open stays where it was guessed
PREFILL_SHARES = (0.5, 0.02)  #: of the time to the first token, that reading the prompt may be
FREE_SHARE = 0.9  #: of what is asked at once, that runs where nothing bounds it, at the least
SLOTS_GAIN = 0.7  #: of the sum of squares, that a bound on what runs must come below to be believed
SIGMA_MAX = 1.0


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """One level of a closed loop as it was measured, in the order in which requests ended."""

    concurrency: int
    replicas: int
    outcomes: Sequence[Outcome]
    output_tokens_per_s: float

    @property
    def streams(self) -> float:
        """At once on each replica."""
        return self.concurrency / self.replicas

    @property
    def sizes(self) -> list[Size]:
        return [(each.input_tokens, each.output_tokens) for each in self.outcomes]


def calibrate(levels: Sequence[Observed]) -> EngineProfile:
    """The profile under which these levels come out best.

    Raises:
        ValueError: they are too few, or say too little; says what is missing.
    """
    levels = [level for level in levels if level.outcomes]
    if len({level.concurrency for level in levels}) < LEVELS_MIN:
        raise ValueError(f"{LEVELS_MIN} levels of a closed loop are needed, such as --concurrency 1,4,16")
    if not any(each.output_tokens > 1 for level in levels for each in level.outcomes):
        raise ValueError("no answer has a second token, so nobody knows how long one takes")
    tried = [
        (share, _fit_from(_guess(levels, None, share), levels, _Known(waits_for_step=waits)))
        for share in PREFILL_SHARES
        for waits in (False, True)
    ]
    share, rough = min(tried, key=lambda each: each[1].total)
    quiet = min(levels, key=lambda level: level.streams)
    spread = _find_spread(rough, quiet)
    best = _fit_from(rough.at, levels, spread)  # in which requests that began together drift apart
    for slots in _guess_slots(levels):
        known = msgspec.structs.replace(spread, slots=slots)
        found = _fit_from(_guess(levels, slots, share), levels, known)
        if found.total < best.total * SLOTS_GAIN:
            best = found
    streams = max(1, int(max(level.streams for level in levels)))
    return msgspec.structs.replace(_make_profile(best.at, best.known), streams_measured=streams)


def simulate_level(profile: EngineProfile, level: Observed, seed: int = 0) -> Run:
    """A level as the simulator has it."""
    return run_closed(profile, level.sizes, level.concurrency, level.replicas, seed)


def _guess_slots(levels: Sequence[Observed]) -> list[int]:
    """Bounds on what runs at once that the highest level may show: by Little's law so many did, if each took
    as long to its first token as where nobody waits."""
    quickest = min(fmean(each.ttft_s for each in level.outcomes) for level in levels)
    most = max(levels, key=lambda level: level.streams)
    spent = sum(each.e2el_s - each.ttft_s + quickest for each in most.outcomes)
    tokens = sum(each.output_tokens for each in most.outcomes)
    running = spent * most.output_tokens_per_s / max(1, tokens) / most.replicas
    if running > FREE_SHARE * most.streams:
        return []
    return [slots for slots in range(floor(running), ceil(running) + 2) if 1 <= slots < most.streams]


# --- the fit ------------------------------------------------------------------------------------------------


class _Known(msgspec.Struct, frozen=True, kw_only=True):
    """What a fit leaves as it is."""

    waits_for_step: bool = False
    slots: int | None = None
    first_sigma: float = 0.0
    token_sigma: float = 0.0


class _Fit(msgspec.Struct, frozen=True, kw_only=True):
    """What a fit has found, and the sum of the squares that is left."""

    at: Vector
    known: _Known
    total: float


def _fit_from(start: Vector, levels: Sequence[Observed], known: _Known) -> _Fit:
    targets = [_measure(level.outcomes) for level in levels]
    short = [msgspec.structs.replace(level, outcomes=level.outcomes[: _count(level)]) for level in levels]

    def compute(at: Vector) -> Vector:
        profile = _make_profile(at, known)
        errors = [HOLD * (x - first) for x, first in zip(at, start, strict=True)]
        for level, target in zip(short, targets, strict=True):
            run = simulate_level(profile, level)
            found = _measure(run.outcomes)
            errors += [log(new / old) for new, old in zip(found, target, strict=True)]
        return errors

    at, total = fit(compute, start)
    return _Fit(at=at, known=known, total=total)


def _count(level: Observed) -> int:
    return max(REQUESTS_MAX, 4 * level.concurrency)


def _make_profile(at: Vector, known: _Known) -> EngineProfile:
    first, prefill, step, per_stream, overlap = at
    return EngineProfile(
        first_s=_exp(first),
        prefill_s_per_token=_exp(prefill),
        step_s=_exp(step),
        step_per_stream_s=_exp(per_stream),
        overlap=1 / (1 + _exp(-overlap)),
        waits_for_step=known.waits_for_step,
        slots=known.slots,
        first_sigma=known.first_sigma,
        token_sigma=known.token_sigma,
    )


def _exp(x: float) -> float:
    return exp(min(30.0, max(-30.0, x)))


def _measure(outcomes: Sequence[Outcome]) -> Vector:
    """Figures that a few requests which the machine held up do not move."""
    firsts = sorted(each.ttft_s for each in outcomes)
    tokens = sorted(each.tpot_s for each in outcomes if each.tpot_s is not None) or [LEAST_S]
    found = _find_middle(firsts), median(firsts), _find_middle(tokens), median(tokens)
    return [max(LEAST_S, value) for value in found]


def _find_middle(values: Sequence[float]) -> float:
    """The mean, less a twentieth at each end."""
    cut = len(values) // 20
    return fmean(values[cut : len(values) - cut])


def _guess(levels: Sequence[Observed], slots: int | None, prefill_share: float) -> Vector:
    """Where to begin: a straight line through the times of a token, and the first token in two parts."""
    firsts, inputs, points = [], [], []
    for level in levels:
        first, _, token, _ = _measure(level.outcomes)
        firsts.append(first)
        inputs.append(fmean(max(1, each.input_tokens) for each in level.outcomes))
        points.append((min(level.streams, slots or level.streams), token))
    middle_x, middle_y = (fmean(values) for values in zip(*points, strict=True))
    spread = sum((x - middle_x) ** 2 for x, _ in points)
    slope = sum((x - middle_x) * (y - middle_y) for x, y in points) / spread if spread else 0.0
    slope = max(slope, 0.01 * middle_y)
    step = max(middle_y - slope * middle_x, 0.05 * middle_y)
    quickest = min(firsts)
    prefill = quickest * prefill_share / fmean(inputs)
    guessed = quickest * (1 - prefill_share), prefill, step, slope
    return [log(max(LEAST_S, x)) for x in guessed] + [0.0]


def _find_spread(found: _Fit, level: Observed) -> _Known:
    """By how much more requests differ than the simulator explains, at the least load."""
    run = simulate_level(_make_profile(found.at, found.known), level)
    sigmas = []
    for measured, simulated in zip(_list_logs(level.outcomes), _list_logs(run.outcomes), strict=True):
        more = _find_width(measured) ** 2 - _find_width(simulated) ** 2
        sigmas.append(min(SIGMA_MAX, max(0.0, more) ** 0.5))
    return msgspec.structs.replace(found.known, first_sigma=sigmas[0], token_sigma=sigmas[1])


def _find_width(values: Sequence[float]) -> float:
    """The standard deviation by the middle two thirds, which outliers do not move."""
    return (quantiles(values, n=6)[4] - quantiles(values, n=6)[0]) / 1.935 if len(values) > 1 else 0.0


def _list_logs(outcomes: Sequence[Outcome]) -> tuple[list[float], list[float]]:
    return (
        [log(max(LEAST_S, each.ttft_s)) for each in outcomes],
        [log(max(LEAST_S, each.tpot_s)) for each in outcomes if each.tpot_s is not None],
    )
