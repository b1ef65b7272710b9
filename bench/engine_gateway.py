"""What one gateway worker adds before a real engine: throughput, and the time to the first token.

Engine on one core, gateway and callers on another, whether requests go through the gateway or not: a gateway
does not run on the cores that its engine computes with.  No prompt is asked twice, for an engine that finds
one in its cache has half of the work, whichever way the second request came.
"""

import asyncio
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import fmean, median, stdev

import measure
from forebay.app.bench_client import BenchClient
from forebay.app.bench_plan import Wanted, make_prompts
from forebay.app.bench_run import Load, Settings, Target, encode_body, run_levels
from forebay.app.bench_stats import Sample
from forebay.core.events import Finished
from forebay.testing.gateway import GatewayProcess, make_route
from measure import BenchError, Cores, Figure
from real_engine import Engine, pin_tree

STREAMS = 16
MODEL = "bench"
RATIO_MIN, TTFT_ADDED_MAX_MS = 0.98, 2.0
INPUT, OUTPUT, FIRST_OUTPUT = 24, 12, 4  #: tokens
CALM_MAX_CORES = 0.1  #: that other programs may use while a round counts
AGAIN_MAX = 2  #: rounds that are taken again because they used more


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much is asked: rounds of so many requests each way."""

    rounds: int
    requests: int


@dataclass(frozen=True, kw_only=True)
class Run:
    """What came of one load, one way; microseconds of processor time are for an output token."""

    tokens_per_s: float
    engine_us: float
    worker_us: float
    caller_us: float
    others_cores: float


Pair = dict[str, Run]  #: `direct` and `through`, one right after the other


class Scene:
    """An engine and a gateway worker in front of it.

    Attributes:
        targets: the two ways to the engine.
    """

    def __init__(self, engine: Engine, gateway: GatewayProcess, model: str) -> None:
        extra = {"ignore_eos": True}
        self.targets = {
            "direct": Target(urls=(engine.url,), model=model, extra=extra),
            "through": Target(urls=(gateway.url,), model=MODEL, secret=gateway.key, extra=extra),
        }
        self._engine, self._gateway = engine, gateway
        self._seeds = count()
        self.asked_through = 0

    def make_bodies(self, requests: int) -> list[bytes]:
        """Of prompts that were never asked, by turns for the two ways."""
        prompts = make_prompts(
            Wanted(input_tokens=INPUT, output_tokens=FIRST_OUTPUT), requests, next(self._seeds)
        )
        self.asked_through += requests // 2
        return [
            encode_body(self.targets["through" if at % 2 else "direct"], prompt)
            for at, prompt in enumerate(prompts)
        ]

    def run(self, way: str, requests: int) -> Run:
        """One load of 16 streams; raises `BenchError` where a request fails."""
        prompts = make_prompts(Wanted(input_tokens=INPUT, output_tokens=OUTPUT), requests, next(self._seeds))
        before = self._read()
        (level,) = asyncio.run(
            run_levels(self.targets[way], [Load(concurrency=STREAMS)], prompts, Settings())
        )
        engine_s, worker_s, caller_s, machine_s, wall_s = (
            b - a for a, b in zip(before, self._read(), strict=True)
        )
        if level.errors:
            raise BenchError(f"requests failed: {next(iter(level.errors))}")
        if way == "through":
            self.asked_through += requests
        tokens = sum(sample.output_tokens for sample in level.samples)
        return Run(
            tokens_per_s=level.figures["output_tokens_per_s"],
            engine_us=engine_s / tokens * 1e6,
            worker_us=worker_s / tokens * 1e6,
            caller_us=caller_s / tokens * 1e6,
            others_cores=max(0.0, machine_s - engine_s - worker_s - caller_s) / wall_s,
        )

    def _read(self) -> tuple[float, float, float, float, float]:
        return (
            measure.read_cpu_s(self._engine.pid),
            measure.read_cpu_s(self._gateway.process.pid),
            time.process_time(),
            measure.read_machine_cpu_s(),
            time.monotonic(),
        )

    def read_records(self) -> Sequence[Finished]:
        """Of all that went through the gateway."""
        wanted = self.asked_through
        return self._gateway.until(lambda: found if len(found := self._gateway.records()) >= wanted else None)


def measure_pairs(scene: Scene, size: Size) -> list[Pair]:
    """Rounds of one load each way; where others used the cores, more are taken, and the calmest count."""
    pairs: list[Pair] = []
    for number in range(size.rounds + AGAIN_MAX):
        calm = [pair for pair in pairs if compute_others(pair) <= CALM_MAX_CORES]
        if len(calm) >= size.rounds:
            break
        ways = list(scene.targets)
        pair = {way: scene.run(way, size.requests) for way in (ways if number % 2 else reversed(ways))}
        pairs.append(pair)
        told = ", ".join(f"{way} {run.tokens_per_s:.1f} tokens/s" for way, run in sorted(pair.items()))
        measure.console.print(f"{told}, others {compute_others(pair):.2f} cores", style="dim")
    return sorted(pairs, key=compute_others)[: size.rounds]


def compute_others(pair: Pair) -> float:
    return max(run.others_cores for run in pair.values())


async def measure_first_tokens(scene: Scene, requests: int) -> tuple[list[float], list[float]]:
    """Milliseconds to the first token, direct and through the gateway; half of one load goes each way."""
    clients = [
        BenchClient(target.urls[0], target.secret, target.endpoint, 600.0)
        for target in scene.targets.values()
    ]
    waiting = iter(list(enumerate(scene.make_bodies(requests))))
    found: tuple[list[float], list[float]] = ([], [])

    async def work() -> None:
        for at, body in waiting:
            sample: Sample = await clients[at % 2].ask(body)
            if sample.error:
                raise BenchError(f"a request failed: {sample.error}")
            found[at % 2].append(sample.ttft_s * 1000)

    async with asyncio.TaskGroup() as group:
        for _ in range(STREAMS):
            group.create_task(work())
    for client in clients:
        client.close()
    return found


@contextmanager
def keep_off(core: int, cores: Cores) -> Iterator[None]:
    """This process runs on another core meanwhile."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cores.load if core == cores.server else cores.server})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def compare_with_gateway(
    name: str, engine: Engine, model: str, folder: Path, cores: Cores, size: Size
) -> list[Figure]:
    """The engine runs on `cores.server`; all else goes to the other."""
    route = make_route(MODEL, engine.url, target_model=model)
    with keep_off(cores.server, cores), GatewayProcess([route], folder=folder) as gateway:
        pin_tree(gateway.process.pid, cores.load)
        scene = Scene(engine, gateway, model)
        for way in scene.targets:
            scene.run(way, STREAMS)  # a warm-up
        pairs = measure_pairs(scene, size)
        own, others = asyncio.run(measure_first_tokens(scene, 2 * size.requests))
        records = scene.read_records()
    return build_figures(name, pairs, own, others, records)


def build_figures(
    name: str,
    pairs: Sequence[Pair],
    own: Sequence[float],
    others: Sequence[float],
    records: Sequence[Finished],
) -> list[Figure]:
    worked = [record.overhead_ns / 1e6 for record in records if record.overhead_ns is not None]
    spread = 1.25 * 1.96 * ((stdev(own) ** 2) / len(own) + (stdev(others) ** 2) / len(others)) ** 0.5
    ratios = [pair["through"].tokens_per_s / pair["direct"].tokens_per_s for pair in pairs]
    engine = [pair["through"].engine_us / pair["direct"].engine_us for pair in pairs]
    values = (
        ("throughput_ratio", median(ratios), "ratio", RATIO_MIN),
        ("throughput_ratio_least", min(ratios), "ratio", None),
        ("throughput_ratio_most", max(ratios), "ratio", None),
        ("engine_cpu_ratio", median(engine), "ratio", None),
        ("others_cores_max", max(map(compute_others, pairs)), "cores", None),
        ("direct_tokens_per_s", median(pair["direct"].tokens_per_s for pair in pairs), "1/s", None),
        ("engine_us_per_token", median(pair["direct"].engine_us for pair in pairs), "µs", None),
        ("worker_us_per_token", median(pair["through"].worker_us for pair in pairs), "µs", None),
        ("caller_us_per_token", fmean(run.caller_us for pair in pairs for run in pair.values()), "µs", None),
        ("ttft_added_ms", median(worked), "ms", TTFT_ADDED_MAX_MS),
        ("ttft_added_p99_ms", measure.compute_quantile(worked, 0.99), "ms", None),
        ("ttft_difference_ms", median(others) - median(own), "ms", None),
        ("ttft_difference_uncertain_ms", spread, "ms", None),
        ("ttft_direct_ms", median(own), "ms", None),
    )
    return [
        Figure(
            name=f"{name}_{what}",
            value=round(value, 4),
            unit=unit,
            target=target,
            is_least=what == "throughput_ratio",
        )
        for what, value, unit, target in values
    ]
