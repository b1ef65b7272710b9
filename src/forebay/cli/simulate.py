"""`forebay simulate`: how a fleet would do under a load, and how well the simulator tells a benchmark."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from forebay.app.bench_files import BenchResult, find_bench
from forebay.app.bench_plot import draw_plot
from forebay.app.bench_run import Level, Load
from forebay.app.clock import SystemClock
from forebay.app.config import Config
from forebay.app.sim_profiles import calibrate_result, find_profiles
from forebay.app.sim_report import (
    Costing,
    Objective,
    Report,
    Verdict,
    judge,
    make_report,
    parse_objectives,
)
from forebay.app.sim_trace import load_trace
from forebay.app.snapshot import compile_snapshot
from forebay.app.watched import list_replicas
from forebay.cli.bench import show_progress
from forebay.cli.simulate_tables import encode, print_calibration, print_reports, tell
from forebay.cli.terminal import BadOption, Failure, Outcome, print_line
from forebay.cli.usable_config import load_usable_config
from forebay.core.keys import PRIORITIES
from forebay.core.routes import RouteTable
from forebay.sim.engine import EngineProfile
from forebay.sim.load import REQUESTS_MAX, Ask, Lengths, plan_load
from forebay.sim.sizing import find_least, resize
from forebay.sim.world import Trip, World

LEVELS_MAX: Final = 32
REPLICAS_MAX: Final = 1024  #: of a pool
PROGRESS_EVERY: Final = 256  #: requests


class SimulateOptions(msgspec.Struct, kw_only=True):
    """As they were given."""

    rate: str = ""
    duration_s: float = 60.0
    ramp_s: float = 0.0
    trace: Path | None = None
    input_tokens: int = 128
    output_tokens: int = 64
    spread: float = 0.0
    priority: str = "standard"
    profile: Sequence[str] = ()
    replicas: Sequence[str] = ()
    slo: str = ""
    find_replicas: str | None = None
    seed: int = 0
    plot: Path | None = None
    as_json: bool = False


class Scene(msgspec.Struct, frozen=True, kw_only=True):
    """All that a run needs but its load.

    Attributes:
        tells: pools whose engines are asked for their load.
    """

    model: str
    table: RouteTable
    profiles: dict[str, EngineProfile]
    tells: frozenset[str]
    costing: Costing
    seed: int


class LoadPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One load, which may be gone through again."""

    words: str
    rate_per_s: float | None
    count: int  #: of requests, roughly
    begin: Callable[[], Iterable[Ask]]


def simulate(file: Path | None, model: str, options: SimulateOptions) -> Outcome:
    """Raises Failure, BadOption."""
    if options.priority not in PRIORITIES:
        raise BadOption(f"--class {options.priority!r} is none of {', '.join(PRIORITIES)}")
    objectives = _read_objectives(options)
    loads = _read_loads(options)
    config = load_usable_config(file)
    scene = _make_scene(config, model, loads, options)
    if options.find_replicas is not None:
        return _find_replicas(scene, loads, objectives, options)
    reports, verdicts = [], []
    with show_progress(f"{model}, simulated", sum(load.count for load in loads)) as on_progress:
        done = 0
        for load in loads:
            trips, report = _run(scene, load, lambda count, done=done: on_progress(done + count, 0))  # type: ignore[misc]
            done += load.count
            reports.append(report)
            verdicts.append(judge(objectives, trips) if objectives else [])
    if options.plot is not None:
        options.plot.write_text(draw_plot(_to_result(model, loads, reports)))
    tell(model, reports, verdicts, as_json=options.as_json)
    is_met = all(verdict.is_met for each in verdicts for verdict in each)
    return Outcome.OK if is_met else Outcome.PROBLEM


def calibrate(file: Path | None, name: str, *, hold_out: str, as_json: bool) -> Outcome:
    """What a result comes to as a profile, and how well that tells what was measured.  Raises Failure."""
    levels = {Load(concurrency=int(each)) for each in _read_numbers("--hold-out", hold_out)}
    result = _find_result(file, name)
    lacking = levels - {level.load for level in result.levels}
    if lacking:
        raise BadOption(f"--hold-out: {name} has no level {', '.join(each.describe() for each in lacking)}")
    try:
        found = calibrate_result(result, levels)
    except ValueError as error:
        raise Failure(str(error)) from None
    if as_json:
        told = msgspec.to_builtins(found)
        for shown, check in zip(told["checks"], found.checks, strict=True):
            shown["errors"] = check.errors
        print_line(msgspec.json.encode({"target": result.target, **told}).decode())
    else:
        print_calibration(found)
    return Outcome.OK


# --- what is asked ------------------------------------------------------------------------------------------


def _read_loads(options: SimulateOptions) -> list[LoadPlan]:
    if (options.trace is None) == (not options.rate):
        raise BadOption("one of --rate and --trace says what comes", hint="--rate 5 --duration-s 60")
    if options.trace is not None:
        try:
            asks = load_trace(options.trace, options.priority)
        except (OSError, ValueError) as error:
            raise Failure(f"--trace: {error}") from None
        words = f"{options.trace.name}, {len(asks)} requests in {asks[-1].at_s:.0f} s"
        return [LoadPlan(words=words, rate_per_s=None, count=len(asks), begin=lambda: asks)]
    rates = _read_numbers("--rate", options.rate)
    if len(rates) > LEVELS_MAX:
        raise BadOption(f"{len(rates)} levels are more than {LEVELS_MAX}")
    return [_plan_rate(rate, options) for rate in rates]


def _plan_rate(rate: float, options: SimulateOptions) -> LoadPlan:
    count = rate * (options.duration_s - min(options.ramp_s, options.duration_s) / 2)
    if count > REQUESTS_MAX:
        raise BadOption(
            f"{count:,.0f} requests are more than {REQUESTS_MAX:,}", hint="a shorter --duration-s"
        )
    lengths = Lengths(
        input_tokens=options.input_tokens, output_tokens=options.output_tokens, spread=options.spread
    )

    def begin() -> Iterable[Ask]:
        return plan_load(
            rate,
            options.duration_s,
            lengths,
            ramp_s=options.ramp_s,
            priority=options.priority,
            seed=options.seed,
        )

    ramp = f", from none in {options.ramp_s:g} s" if options.ramp_s else ""
    return LoadPlan(words=f"{rate:g}/s{ramp}", rate_per_s=rate, count=int(count), begin=begin)


def _read_numbers(option: str, text: str) -> list[float]:
    found = []
    for part in filter(None, (each.strip() for each in text.split(","))):
        try:
            number = float(part)
        except ValueError:
            number = -1.0
        if not 0 < number <= 100_000 or (option == "--hold-out" and number != int(number)):
            raise BadOption(f"{option} {part!r} is no level", hint=f"{option} 1,4,16")
        found.append(number)
    return found


def _read_objectives(options: SimulateOptions) -> list[Objective]:
    try:
        objectives = parse_objectives(options.slo)
    except ValueError as error:
        raise BadOption(f"--slo: {error}") from None
    if options.find_replicas is not None and not objectives:
        raise BadOption("--find-replicas needs to know what is enough", hint="--slo ttft_p99=500ms")
    return objectives


def _read_pairs(option: str, given: Sequence[str], known: Iterable[str]) -> dict[str, str]:
    pairs = {}
    for each in given:
        pool, _, value = each.partition("=")
        if not value:
            raise BadOption(f"{option} {each!r} is not POOL=VALUE")
        if pool not in known:
            raise BadOption(f"{option}: the model has no pool {pool!r}", hint=f"pools: {', '.join(known)}")
        pairs[pool] = value
    return pairs


# --- the fleet ----------------------------------------------------------------------------------------------


def _make_scene(config: Config, model: str, loads: Sequence[LoadPlan], options: SimulateOptions) -> Scene:
    urls = {name: f"http://{name}.simulated/v1" for name in config.engines}
    snapshot = compile_snapshot(config, (), urls)
    wanted = {
        model,
        *(ask.model for load in loads if load.rate_per_s is None for ask in load.begin() if ask.model),
    }
    known = {route.model: route for route in snapshot.table.routes if route.targets}
    for name in sorted(wanted):
        if name not in known:
            raise BadOption(
                f"{name!r} is no model with a target", hint=f"models: {', '.join(sorted(known)) or 'none'}"
            )
    table = RouteTable(routes=tuple(known[name] for name in sorted(wanted)))
    told = list_replicas(snapshot, config, urls)
    tells = frozenset(each.target.pool for each in told if each.metrics_url is not None)
    pools = sorted({target.pool for route in table.routes for target in route.targets})
    if options.find_replicas is not None and options.find_replicas not in pools:
        raise BadOption(
            f"--find-replicas: the model has no pool {options.find_replicas!r}",
            hint=f"pools: {', '.join(pools)}",
        )
    for pool, count in _read_pairs("--replicas", options.replicas, pools).items():
        if not count.isdecimal() or not 1 <= int(count) <= REPLICAS_MAX:
            raise BadOption(f"--replicas {pool}={count}: from 1 to {REPLICAS_MAX}")
        table = resize(table, pool, int(count))
    named = _read_pairs("--profile", options.profile, pools)

    def find_result(pool: str) -> BenchResult:
        try:
            return find_bench(config.data_path, named.get(pool, pool))
        except ValueError as error:
            hint = f"run `forebay bench {pool} --concurrency 1,4,16`, or give --profile {pool}=RESULT"
            raise Failure(f"how fast is the pool {pool}? {error}", hint=hint) from None

    try:
        profiles = find_profiles(pools, find_result, {})
    except (OSError, ValueError) as error:
        raise Failure(str(error)) from None
    costing = Costing(config.prices.price_book, table, SystemClock().wall_ns())
    return Scene(model=model, table=table, profiles=profiles, tells=tells, costing=costing, seed=options.seed)


def _find_result(file: Path | None, name: str) -> BenchResult:
    """A file, for which no configuration is needed, or the newest result of a target."""
    folder = Path() if Path(name).is_file() else load_usable_config(file).data_path
    try:
        return find_bench(folder, name)
    except (OSError, ValueError) as error:
        raise Failure(str(error), hint="run `forebay bench` first, or name a file") from None


def _run(scene: Scene, load: LoadPlan, on_progress: Callable[[int], None]) -> tuple[list[Trip], Report]:
    world = World(scene.table, scene.profiles, scene.tells, scene.seed)
    done = 0

    def count(_: Trip) -> None:
        nonlocal done
        done += 1
        if done % PROGRESS_EVERY == 0:
            on_progress(done)

    trips = world.run(load.begin(), scene.model, count)
    return trips, make_report(load.words, trips, world.uses, scene.costing)


def _find_replicas(
    scene: Scene, loads: Sequence[LoadPlan], objectives: Sequence[Objective], options: SimulateOptions
) -> Outcome:
    """The least replicas of a pool with which all loads meet all objectives."""
    pool = options.find_replicas
    assert pool is not None
    tried: dict[int, list[tuple[Report, list[Verdict]]]] = {}

    def is_enough(count: int) -> bool:
        sized = resize(scene.table, pool, count)
        here = msgspec.structs.replace(scene, table=sized)
        found = []
        with show_progress(f"{count} replicas of {pool}", sum(load.count for load in loads)) as on_progress:
            for load in loads:
                trips, report = _run(here, load, lambda done: on_progress(done, 0))
                found.append((report, judge(objectives, trips)))
        tried[count] = found
        return all(verdict.is_met for _, verdicts in found for verdict in verdicts)

    least = find_least(is_enough, REPLICAS_MAX)
    shown = tried[REPLICAS_MAX if least is None else least]
    if options.as_json:
        told = [encode(report, verdicts) for report, verdicts in shown]
        line = {"model": scene.model, "pool": pool, "replicas": least, "tried": sorted(tried), "loads": told}
        print_line(msgspec.json.encode(line).decode())
    elif least is None:
        print_line(f"{REPLICAS_MAX} replicas of {pool} are not enough")
    else:
        print_line(f"{least} {'replica' if least == 1 else 'replicas'} of {pool}")
    if not options.as_json:
        print_reports([report for report, _ in shown], [verdicts for _, verdicts in shown])
    return Outcome.PROBLEM if least is None else Outcome.OK


def _to_result(model: str, loads: Sequence[LoadPlan], reports: Sequence[Report]) -> BenchResult:
    """As if it had been measured, for the plot."""
    levels = [
        Level(load=Load(rate_per_s=load.rate_per_s or 1.0), figures=report.total.figures, samples=[])
        for load, report in zip(loads, reports, strict=True)
    ]
    return BenchResult(target=f"{model}, simulated", at_ns=0, model=model, levels=levels)
