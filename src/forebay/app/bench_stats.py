"""What the samples of a benchmark come to: latencies, throughput, goodput, how sure a difference is.  Pure.

Definitions are those of `vllm bench serve`, so that both agree on the same server: TTFT is the time from
where a request begins, before it has a connection, to the first event with choices, ITL the gaps between
such events after it, E2EL the time to the last event, and TPOT, of answers of two tokens or more, E2EL less
TTFT, for each token but the first.  Percentiles are interpolated between neighbours.
"""

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, median, stdev
from typing import Final

import msgspec

MS: Final = 1000.0
SLO_NAMES: Final = ("ttft", "tpot", "e2el")
RESAMPLES: Final = 1000
RESAMPLED_MAX: Final = 2000  #: values of one side, of which more would make no interval narrower that matters
CONFIDENCE: Final = 0.95


class Sample(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One request.  Times in seconds; `ttft_s` and `e2el_s` from when it began."""

    lag_s: float = 0.0  #: by which it was sent later than planned
    ttft_s: float = 0.0
    e2el_s: float = 0.0
    itl_s: list[float] = []
    input_tokens: int = 0
    output_tokens: int = 0
    error: str = ""

    @property
    def tpot_s(self) -> float | None:
        """None where there was no token after the first."""
        if self.output_tokens < 2:
            return None
        return (self.e2el_s - self.ttft_s) / (self.output_tokens - 1)


def compute_percentile(values: Sequence[float], percent: float) -> float:
    """Of values that are sorted; between two of them in a straight line.  NaN of none."""
    if not values:
        return math.nan
    at = (len(values) - 1) * percent / 100.0
    below = math.floor(at)
    above = min(below + 1, len(values) - 1)
    return values[below] + (values[above] - values[below]) * (at - below)


def compute_figures(
    samples: Sequence[Sample], duration_s: float, slo_s: Mapping[str, float] | None = None
) -> dict[str, float]:
    """The figures of one run, by names that end in their units.

    Args:
        duration_s: from sending the first to the end of the last.
        slo_s: the most that each of `SLO_NAMES` may take; a request counts as good if it keeps all of them.
    """
    well = [sample for sample in samples if not sample.error]
    figures: dict[str, float] = {
        "requests": float(len(samples)),
        "errors": float(len(samples) - len(well)),
        "duration_s": duration_s,
    }
    if duration_s > 0:
        inputs = sum(sample.input_tokens for sample in well)
        outputs = sum(sample.output_tokens for sample in well)
        figures |= {
            "requests_per_s": len(well) / duration_s,
            "input_tokens_per_s": inputs / duration_s,
            "output_tokens_per_s": outputs / duration_s,
            "total_tokens_per_s": (inputs + outputs) / duration_s,
        }
        if slo_s:
            good = sum(is_good(sample, slo_s) for sample in well)
            figures |= {"goodput_per_s": good / duration_s, "good_ratio": good / max(1, len(samples))}
    for name, values in collect(well).items():
        figures |= _summarise(name, values)
    lags = sorted(sample.lag_s for sample in samples)
    if lags and lags[-1] > 0:
        figures |= {"p99_lag_ms": compute_percentile(lags, 99) * MS, "max_lag_ms": lags[-1] * MS}
    if well:
        figures["mean_input_tokens"] = fmean(sample.input_tokens for sample in well)
        figures["mean_output_tokens"] = fmean(sample.output_tokens for sample in well)
    return figures


def collect(samples: Iterable[Sample]) -> dict[str, list[float]]:
    """Seconds of all samples that went well, by metric."""
    well = [sample for sample in samples if not sample.error]
    return {
        "ttft": [sample.ttft_s for sample in well],
        "tpot": [tpot for sample in well if (tpot := sample.tpot_s) is not None],
        "itl": [gap for sample in well for gap in sample.itl_s],
        "e2el": [sample.e2el_s for sample in well],
    }


def is_good(sample: Sample, slo_s: Mapping[str, float]) -> bool:
    """Whether a request keeps every limit; one of a single token has no TPOT that could be too long."""
    told = {"ttft": sample.ttft_s, "tpot": sample.tpot_s or 0.0, "e2el": sample.e2el_s}
    return not sample.error and all(told[name] <= most for name, most in slo_s.items())


def _summarise(name: str, values: list[float]) -> dict[str, float]:
    if not values:
        return {}
    values = sorted(values)
    return {
        f"mean_{name}_ms": fmean(values) * MS,
        f"median_{name}_ms": median(values) * MS,
        f"p90_{name}_ms": compute_percentile(values, 90) * MS,
        f"p99_{name}_ms": compute_percentile(values, 99) * MS,
    }


# --- two runs -----------------------------------------------------------------------------------------------


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """Of one figure between two runs: that of the second less that of the first.

    Attributes:
        low, high: between which the true difference lies, with a confidence of 95 %.
    """

    name: str
    first: float
    second: float
    low: float
    high: float

    @property
    def is_certain(self) -> bool:
        """Whether there is a difference at all, by this evidence."""
        return self.low > 0 or self.high < 0


def compare(first: Sequence[Sample], second: Sequence[Sample], seed: int = 0) -> list[Difference]:
    """Means and 99th percentiles of the latencies, in milliseconds; intervals by bootstrap, repeatable."""
    draw = random.Random(seed)
    ours, theirs = collect(first), collect(second)
    found = []
    for metric in ("ttft", "tpot", "itl", "e2el"):
        a, b = (_thin(side[metric], draw) for side in (ours, theirs))
        if not a or not b:
            continue
        for prefix, statistic in (("mean", fmean), ("p99", _p99)):
            low, high = _bootstrap(a, b, statistic, draw)
            found.append(
                Difference(
                    name=f"{prefix}_{metric}_ms",
                    first=statistic(a) * MS,
                    second=statistic(b) * MS,
                    low=low * MS,
                    high=high * MS,
                )
            )
    return found


def _thin(values: list[float], draw: random.Random) -> list[float]:
    return values if len(values) <= RESAMPLED_MAX else draw.sample(values, RESAMPLED_MAX)


def _p99(values: Sequence[float]) -> float:
    return compute_percentile(sorted(values), 99)


def _bootstrap(
    first: list[float],
    second: list[float],
    statistic: Callable[[Sequence[float]], float],
    draw: random.Random,
) -> tuple[float, float]:
    if statistic is fmean:  # whose distribution is known well enough, at a fraction of the cost
        spread = math.sqrt(sum(_variance(values) / len(values) for values in (first, second)))
        middle = fmean(second) - fmean(first)
        return middle - 1.96 * spread, middle + 1.96 * spread
    differences = sorted(
        statistic(draw.choices(second, k=len(second))) - statistic(draw.choices(first, k=len(first)))
        for _ in range(RESAMPLES)
    )
    edge = (1 - CONFIDENCE) / 2 * 100
    return compute_percentile(differences, edge), compute_percentile(differences, 100 - edge)


def _variance(values: Sequence[float]) -> float:
    return stdev(values) ** 2 if len(values) > 1 else 0.0


# --- service level objectives -------------------------------------------------------------------------------


def parse_slo(text: str) -> tuple[str, float]:
    """`ttft=500ms` or `e2el=2s`.  Raises ValueError."""
    name, _, amount = text.partition("=")
    unit = 1.0 if amount.endswith("s") and not amount.endswith("ms") else 1 / MS
    number = amount.removesuffix("ms").removesuffix("s")
    if name not in SLO_NAMES:
        raise ValueError(f"{text!r} names none of {', '.join(SLO_NAMES)}; write ttft=500ms")
    try:
        seconds = float(number) * unit
    except ValueError:
        seconds = math.nan
    if not (0 < seconds < math.inf) or number == amount:
        raise ValueError(f"{text!r} says no time; write {name}=500ms or {name}=2s")
    return name, seconds
