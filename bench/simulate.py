"""Does the simulator tell the truth?  What it predicts of engines and of a fleet, and what was measured.

usage: python bench/simulate.py [--quick] [--only NAMES] [--seed N]

`scripted`: an engine that batches step by step (`simulate_engine`) is measured at 1, 2, 4 and 8 at once and
in an open loop; the simulator is calibrated without one of the levels, and predicts it, and the open loop.
`fleet`: two such engines, a small quick one and a large slow one, as tiers behind one gateway worker, with a
load that spills.  `llamacpp`: as `scripted`, with the embedded engine.  Of each level that is predicted there
is the relative error, and beside it how much two measurements of the same level differ.

Prints a table on stderr and one JSON line last on stdout; `docs/simulate.md` says what came out.
"""

import argparse
import asyncio
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import msgspec

import measure
import peers
from engines import run_engine
from forebay.app.bench_files import BenchResult, save_bench
from forebay.app.bench_plan import Wanted, make_prompts, plan_arrivals
from forebay.app.bench_run import Level, Load, Settings, Target, run_levels
from forebay.app.bench_stats import compute_figures
from forebay.app.sim_profiles import calibrate_result
from forebay.app.sim_report import to_sample
from forebay.core.limits import QueueRules
from forebay.core.routes import Affinity, Choosing, Endpoint, Order, Route, RouteTable
from forebay.core.routes import Target as Place
from forebay.engines.model import EngineSpec
from forebay.sim.engine import EngineProfile
from forebay.sim.load import Ask
from forebay.sim.world import World
from forebay.testing.gateway import GatewayProcess
from measure import BenchError, Figure
from simulate_engine import MODEL

LEVELS = (1, 2, 4, 8)
HELD_OUT = (4, 8)  #: one between those that are fitted, and one beyond them
PROMPT_SEEDS = itertools.count()
OPEN_SHARE = 0.6  #: of the most requests a second in a closed loop
NAMES = ("mean_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "p99_tpot_ms", "output_tokens_per_s")
TARGETS = {"mean_tpot_ms": 0.1, "output_tokens_per_s": 0.1}  #: of the scripted engine, between fitted levels
OWN = (0.0004, 0.02, 0.005, 16)  #: seconds of a prompt's token, of a step, of each stream in it; slots
RENTED = (0.001, 0.03, 0.001, 64)
FLEET_SHARE = 0.9  #: of what the small pool alone gives, as the rate of the fleet
QUEUE = QueueRules(requests_max=500, tenant_requests_max=500, wait_max_s=10, default_wait_s=(5.0,) * 3)


@contextmanager
def run_scripted(facts: Sequence[float], core: int, folder: Path) -> Iterator[str]:
    """The base URL of one."""
    port, log = peers.pick_port(), folder / "engine.log"
    command = [sys.executable, str(Path(__file__).with_name("simulate_engine.py")), str(port)]
    with peers.run_pinned([*command, *map(str, facts)], core=core, log=log) as process:
        peers.wait_ready(process, log, partial(peers.answers, port, "/health"))
        yield f"http://127.0.0.1:{port}/v1"


def bench(target: Target, loads: Sequence[Load], wanted: Wanted, count: int, seed: int) -> list[Level]:
    settings = Settings(seed=seed, warm_up=4)
    levels: list[Level] = []
    for load in loads:  # each with prompts of its own, or an engine that caches them would not read them
        prompts = make_prompts(wanted, count, next(PROMPT_SEEDS))
        levels += asyncio.run(run_levels(target, [load], prompts, settings))
    for level in levels:
        if level.errors:
            raise BenchError(f"requests failed: {next(iter(level.errors))}")
        measure.console.print(
            f"  {level.load.describe()}: "
            + ", ".join(f"{name} {level.figures[name]:.1f}" for name in (*NAMES[:4], "requests_per_s"))
        )
    return levels


def make_result(name: str, levels: Sequence[Level], seed: int) -> BenchResult:
    return BenchResult(
        target=name, at_ns=time.time_ns(), model=MODEL, levels=list(levels), asked={"seed": seed}
    )


def compare_engine(
    name: str, target: Target, wanted: Wanted, count: int, seed: int, keep: Path | None
) -> list[Figure]:
    """Predictions of levels that were held out, and of an open loop."""
    measure.console.print(name)
    closed = bench(target, [Load(concurrency=each) for each in LEVELS], wanted, count, seed)
    again = bench(target, [Load(concurrency=each) for each in HELD_OUT], wanted, count, seed + 1)
    most = max(level.figures["requests_per_s"] for level in closed)
    rate = Load(rate_per_s=round(most * OPEN_SHARE, 2))
    opened = bench(target, [rate], wanted, 2 * count, seed)
    whole = make_result(name, [*closed, *opened], seed)
    if keep is not None:
        save_bench(keep, whole)
    figures = []
    for held, second in zip(HELD_OUT, again, strict=True):
        load = Load(concurrency=held)
        checks = {check.load: check for check in calibrate_result(whole, {load}).checks}
        figures += list_errors(f"{name}_held_out_{held}", checks[load].errors, is_promised=held == 4)
        first = next(level for level in closed if level.load == load)
        apart = {each: second.figures[each] / first.figures[each] - 1 for each in NAMES}
        figures += list_errors(f"{name}_measured_again_{held}", apart)
    calibration = calibrate_result(whole)
    measure.console.print(f"  {calibration.profile}")
    (check,) = [check for check in calibration.checks if check.load == rate]
    return figures + list_errors(f"{name}_open_loop", check.errors)


def list_errors(name: str, errors: dict[str, float], *, is_promised: bool = False) -> list[Figure]:
    """Absolute values, of `NAMES`."""
    return [
        Figure(
            name=f"{name}_{each}_error",
            value=round(abs(errors[each]), 4),
            unit="of it",
            target=TARGETS.get(each) if is_promised and name.startswith("scripted") else None,
        )
        for each in NAMES
    ]


# --- a fleet ------------------------------------------------------------------------------------------------


def make_fleet(own: str, rented: str) -> Route:
    """A small tier, and one that takes what spills."""
    make = partial(Place, model=MODEL, slow_start_s=0.0)
    targets = (
        make(id="m@own", pool="own", tier="provisioned", url=own, requests_max=8),
        make(id="m@rented", pool="rented", tier="provider", url=rented, requests_max=32),
    )
    choosing = Choosing(order=Order.LOAD, affinity=Affinity.NONE, queue=QUEUE)
    return Route(model=MODEL, endpoints=(Endpoint.CHAT,), targets=targets, choosing=choosing)


def compare_fleet(cores: measure.Cores, folder: Path, wanted: Wanted, count: int, seed: int) -> list[Figure]:
    """Shares and latencies of a load that spills: through a gateway, and simulated."""
    measure.console.print("fleet")
    loads = [Load(concurrency=each) for each in LEVELS]
    profiles: dict[str, EngineProfile] = {}
    with ExitStack() as stack:
        urls = {}
        for pool, facts in (("own", OWN), ("rented", RENTED)):
            (folder / pool).mkdir()
            urls[pool] = stack.enter_context(run_scripted(facts, cores.load, folder / pool))
            levels = bench(Target(urls=(urls[pool],), model=MODEL), loads, wanted, count, seed)
            profiles[pool] = calibrate_result(make_result(pool, levels, seed)).profile
            if pool == "own":
                most = levels[-1].figures["requests_per_s"]
        route = make_fleet(urls["own"], urls["rented"])
        rate = Load(rate_per_s=round(most * FLEET_SHARE, 2))
        with GatewayProcess([route], folder=folder / "gateway") as gateway:
            through = Target(urls=(gateway.url,), model=MODEL, secret=gateway.key)
            (level,) = bench(through, [rate], wanted, 4 * count, seed)
            records = gateway.until(lambda: found if len(found := gateway.records()) >= 4 * count else None)
    records = [record for record in records if record.status == 200][-4 * count :]
    measured = sum(record.pool == "rented" for record in records) / len(records)
    assert rate.rate_per_s is not None
    arrivals = plan_arrivals(rate.rate_per_s, 4 * count, seed, "poisson")
    sizes = [(sample.input_tokens, sample.output_tokens) for sample in level.samples]
    shares, runs = [], []
    for number in range(5):
        asks = [
            Ask(at_s=at, input_tokens=size[0], output_tokens=size[1])
            for at, size in zip(arrivals, sizes, strict=True)
        ]
        trips = World(RouteTable(routes=(route,)), profiles, seed=number).run(asks, MODEL)
        shares.append(sum(trip.pool == "rented" for trip in trips) / len(trips))
        duration_s = max(trip.ask.at_s + trip.e2el_s for trip in trips)
        runs.append(compute_figures([to_sample(trip) for trip in trips], duration_s))
    errors = {name: sum(run[name] for run in runs) / len(runs) / level.figures[name] - 1 for name in NAMES}
    figures = [
        Figure(name="fleet_spilled_measured", value=round(measured, 4), unit="of requests"),
        Figure(name="fleet_spilled_simulated", value=round(sum(shares) / len(shares), 4), unit="of requests"),
    ]
    return figures + list_errors("fleet", errors)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="smaller runs, to see that they work")
    parser.add_argument("--only", default="scripted,fleet", help="parts: scripted, fleet, llamacpp")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="a folder for what was measured of engines")
    args = parser.parse_args()
    count = 16 if args.quick else 40
    wanted = Wanted(input_tokens=120, output_tokens=24, spread=0.3)
    figures: list[Figure] = []
    try:
        measure.require_commands(("taskset", "apt-get install util-linux"))
        cores = measure.choose_cores(os.sched_getaffinity(0))
        for part in args.only.split(","):
            with tempfile.TemporaryDirectory(prefix="forebay-bench-") as name:
                folder = Path(name)
                if part == "scripted":
                    with run_scripted(OWN, cores.load, folder) as url:
                        target = Target(urls=(url,), model=MODEL)
                        figures += compare_engine(part, target, wanted, count, args.seed, args.keep)
                elif part == "fleet":
                    figures += compare_fleet(cores, folder, wanted, count, args.seed)
                elif part == "llamacpp":
                    spec = EngineSpec(name="engine", kind="llamacpp", context_tokens=512, slots=8)
                    with run_engine(spec, folder) as (url, _):
                        target = Target(urls=(url,), model="any", extra={"ignore_eos": True})
                        figures += compare_engine(part, target, wanted, count, args.seed, args.keep)
                else:
                    raise BenchError(f"--only {part!r}: scripted, fleet or llamacpp")
    except (BenchError, subprocess.SubprocessError, msgspec.MsgspecError) as error:
        return measure.fail(BenchError(str(error)))
    measure.publish("simulate", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
