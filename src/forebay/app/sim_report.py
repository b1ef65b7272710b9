"""What a simulation comes to, by tier and pool: the figures of `forebay bench`, shares, refusals,
and cost.  Pure."""

import math
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from forebay.app.bench_stats import MS, SLO_NAMES, Sample, collect, compute_figures, compute_percentile
from forebay.core.events import Tokens
from forebay.core.keys import TIERS
from forebay.core.prices import NANO_PER_USD, PriceBook
from forebay.core.routes import RouteTable
from forebay.sim.world import PoolUse, Trip

#: What an objective may speak of, and how it is computed from sorted seconds.
STATISTICS: Final = {"p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0}
REFUSED: Final = "refused"


class Row(msgspec.Struct, kw_only=True):
    """One pool in one tier, or all of them.

    Attributes:
        share: of the requests that came.
        figures: by the names of `forebay bench`; of requests that were answered, as their callers see it.
        cost_usd: None where some of it has no price.
        use: of the pool's engines.
    """

    tier: str = ""
    pool: str = ""
    requests: int
    share: float
    refused: int = 0
    waited: int = 0
    figures: dict[str, float]
    cost_usd: float | None = None
    use: PoolUse | None = None


class Report(msgspec.Struct, kw_only=True):
    """One run."""

    load: str
    duration_s: float
    rows: list[Row]
    total: Row


def make_report(load: str, trips: Sequence[Trip], uses: Mapping[str, PoolUse], prices: "Costing") -> Report:
    """Of all that came."""
    answered = [trip for trip in trips if not trip.is_refused]
    start = min((trip.ask.at_s for trip in trips), default=0.0)
    duration_s = max((trip.ask.at_s + trip.e2el_s for trip in answered), default=start) - start
    places = sorted({(trip.tier, trip.pool) for trip in answered}, key=_rank)
    rows = []
    for tier, pool in places:
        mine = [trip for trip in answered if (trip.tier, trip.pool) == (tier, pool)]
        row = _make_row(mine, len(trips), duration_s, prices)
        row.tier, row.pool, row.use = tier, pool, uses.get(pool)
        rows.append(row)
    total = _make_row(answered, len(trips), duration_s, prices)
    total.refused = len(trips) - len(answered)
    total.requests = len(trips)
    total.share = 1.0
    return Report(load=load, duration_s=duration_s, rows=rows, total=total)


def _rank(place: tuple[str, str]) -> tuple[int, str, str]:
    tier, pool = place
    return TIERS.index(tier) if tier in TIERS else len(TIERS), tier, pool


def _make_row(trips: Sequence[Trip], of: int, duration_s: float, prices: "Costing") -> Row:
    costs = [prices.compute_usd(trip) for trip in trips]
    return Row(
        requests=len(trips),
        share=len(trips) / of if of else 0.0,
        waited=sum(trip.waited_s > 0 for trip in trips),
        figures=compute_figures([to_sample(trip) for trip in trips], duration_s),
        cost_usd=None if None in costs else sum(cost for cost in costs if cost is not None),
    )


def to_sample(trip: Trip) -> Sample:
    return Sample(
        ttft_s=trip.ttft_s,
        e2el_s=trip.e2el_s,
        input_tokens=trip.ask.input_tokens,
        output_tokens=trip.ask.output_tokens,
    )


class Costing:
    """What requests cost: by the price book, else by `price_usd_per_mtok` of their target."""

    def __init__(self, book: PriceBook, table: RouteTable, at_ns: int) -> None:
        self._book, self._at_ns = book, at_ns
        self._targets = {target.id: target for route in table.routes for target in route.targets}

    def compute_usd(self, trip: Trip) -> float | None:
        """None where it has no price."""
        ask = trip.ask
        tokens = Tokens(input=ask.input_tokens, output=ask.output_tokens)
        place = trip.model, trip.target, trip.pool, trip.tier
        cost = self._book.compute_cost_at(place, self._at_ns, tokens, round(trip.e2el_s * 1e9))
        if cost.nano_usd is not None:
            return cost.nano_usd / NANO_PER_USD
        target = self._targets.get(trip.target)
        per_mtok = None if target is None else target.price_usd_per_mtok
        return None if per_mtok is None else per_mtok * (ask.input_tokens + ask.output_tokens) / 1e6


# --- service level objectives -------------------------------------------------------------------------------


class Objective(msgspec.Struct, frozen=True, kw_only=True):
    """The most that a figure of all requests may be: seconds, or of refusals a share."""

    name: str
    most: float


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Whether an objective is met, and what came instead."""

    objective: Objective
    found: float

    @property
    def is_met(self) -> bool:
        return self.found <= self.objective.most


def parse_objectives(text: str) -> list[Objective]:
    """`ttft_p99=500ms,tpot_p99=50ms,refused=1%`.  Raises ValueError."""
    return [_parse_objective(part.strip()) for part in text.split(",") if part.strip()]


def _parse_objective(text: str) -> Objective:
    name, _, amount = text.partition("=")
    metric, _, statistic = name.partition("_")
    if name == REFUSED and amount.endswith("%"):
        return Objective(name=name, most=_read(amount.removesuffix("%"), text) / 100)
    if metric not in SLO_NAMES or (statistic not in STATISTICS and statistic != "mean"):
        raise ValueError(
            f"{text!r} names nothing that is known; write METRIC_STATISTIC=TIME of {', '.join(SLO_NAMES)} "
            f"and mean, {', '.join(STATISTICS)}, such as ttft_p99=500ms, or refused=1%"
        )
    if amount.endswith("ms"):
        return Objective(name=name, most=_read(amount.removesuffix("ms"), text) / MS)
    if amount.endswith("s"):
        return Objective(name=name, most=_read(amount.removesuffix("s"), text))
    raise ValueError(f"{text!r} says no time; write {name}=500ms or {name}=2s")


def _read(number: str, text: str) -> float:
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise ValueError(f"{text!r} has no number that can be kept")
    return value


def judge(objectives: Sequence[Objective], trips: Sequence[Trip]) -> list[Verdict]:
    """All of them; where nothing is said of refusals, none may be."""
    values = {name: sorted(found) for name, found in collect(map(to_sample, _answered(trips))).items()}
    verdicts = []
    for each in objectives:
        if each.name == REFUSED:
            continue
        metric, _, statistic = each.name.partition("_")
        verdicts.append(Verdict(objective=each, found=_compute(values[metric], statistic)))
    refused = next((each for each in objectives if each.name == REFUSED), Objective(name=REFUSED, most=0.0))
    share = sum(trip.is_refused for trip in trips) / len(trips) if trips else 0.0
    return [*verdicts, Verdict(objective=refused, found=share)]


def _answered(trips: Sequence[Trip]) -> list[Trip]:
    return [trip for trip in trips if not trip.is_refused]


def _compute(values: Sequence[float], statistic: str) -> float:
    if not values:
        return 0.0
    return (
        sum(values) / len(values)
        if statistic == "mean"
        else compute_percentile(values, STATISTICS[statistic])
    )
