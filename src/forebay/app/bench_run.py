"""Runs a benchmark: the load, level by level, and what came of it.

In a closed loop so many requests are in progress at any time; in an open loop requests are sent at times
that were planned beforehand and wait for no answer, however late those are.  Warm-up requests come before
and count nowhere.  Every request ends in exactly one sample.
"""

import asyncio
import gc
from collections.abc import Callable, Sequence
from itertools import cycle
from time import perf_counter, process_time
from typing import Any, Final

import msgspec

from forebay.app.bench_client import BenchClient
from forebay.app.bench_plan import Arrival, Prompt, plan_arrivals
from forebay.app.bench_stats import Sample, compute_figures

IN_FLIGHT_MAX: Final = 20_000  #: in an open loop; a request beyond is not sent and counts as an error
WARM_UP_WIDTH: Final = 4  #: requests at once before an open loop
BUSY_SHARE: Final = 0.8  #: of a core, from which on the figures may be the generator's own
LAG_WARNED_MS: Final = 20.0
CHAT: Final = "chat/completions"


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured.

    Attributes:
        urls: of its replicas, each up to and including `/v1`; requests go to them in turn.
        model: its name there.
        extra: fields for every request.
    """

    urls: tuple[str, ...]
    model: str
    secret: str = ""
    endpoint: str = CHAT
    extra: dict[str, Any] = {}


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """One level: closed with a concurrency, open with a rate."""

    concurrency: int | None = None
    rate_per_s: float | None = None
    arrival: Arrival = "poisson"

    def describe(self) -> str:
        return f"{self.concurrency} at once" if self.concurrency else f"{self.rate_per_s:g}/s {self.arrival}"


class Level(msgspec.Struct, kw_only=True):
    """What came of one."""

    load: Load
    figures: dict[str, float]
    samples: list[Sample]
    generator_cpu_share: float = 0.0  #: of one core
    warnings: list[str] = []
    errors: dict[str, int] = {}  #: each kind, by its words


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    seed: int = 0
    warm_up: int = 0  #: requests before the first level
    timeout_s: float = 600.0
    slo_s: dict[str, float] = {}


Progress = Callable[[int, int], None]  #: of how many requests so many have ended


async def run_levels(
    target: Target,
    loads: Sequence[Load],
    prompts: Sequence[Prompt],
    settings: Settings,
    on_progress: Progress = lambda done, total: None,
) -> list[Level]:
    """Each level, one after the other, with the same prompts.  Raises ValueError for what is no address."""
    clients = [BenchClient(url, target.secret, target.endpoint, settings.timeout_s) for url in target.urls]
    bodies = [encode_body(target, prompt) for prompt in prompts]
    total, done = len(loads) * len(bodies), 0

    def count(_: Sample) -> None:
        nonlocal done
        done += 1
        on_progress(done, total)

    try:
        if settings.warm_up:
            # As many at once as there are to be, so that no connection is made while it counts.
            widest = max(load.concurrency or WARM_UP_WIDTH for load in loads)
            await _run_closed(
                clients, (bodies * settings.warm_up)[: settings.warm_up], widest, lambda _: None
            )
        levels = []
        for load in loads:
            gc.collect()
            began, cpu = perf_counter(), process_time()
            if load.concurrency is not None:
                samples = await _run_closed(clients, bodies, load.concurrency, count)
            else:
                assert load.rate_per_s is not None
                plan = plan_arrivals(load.rate_per_s, len(bodies), settings.seed, load.arrival)
                samples = await _run_open(clients, bodies, plan, count)
            duration_s = perf_counter() - began
            levels.append(_make_level(load, samples, duration_s, process_time() - cpu, settings))
        return levels
    finally:
        for client in clients:
            client.close()


def encode_body(target: Target, prompt: Prompt) -> bytes:
    asked: dict[str, Any] = {"model": target.model, "stream": True, "stream_options": {"include_usage": True}}
    asked |= {"max_tokens": prompt.output_tokens, "temperature": 0.0}
    if target.endpoint == CHAT:
        asked["messages"] = prompt.messages
    else:
        asked["prompt"] = prompt.text
    return msgspec.json.encode(asked | target.extra)


async def _run_closed(
    clients: Sequence[BenchClient],
    bodies: Sequence[bytes],
    concurrency: int,
    on_end: Callable[[Sample], None],
) -> list[Sample]:
    samples: list[Sample] = []
    waiting = iter(list(zip(bodies, cycle(clients), strict=False)))

    async def work() -> None:
        for body, client in waiting:
            sample = await client.ask(body)
            samples.append(sample)
            on_end(sample)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(concurrency, len(bodies))):
            group.create_task(work())
    return samples


async def _run_open(
    clients: Sequence[BenchClient],
    bodies: Sequence[bytes],
    plan: Sequence[float],
    on_end: Callable[[Sample], None],
) -> list[Sample]:
    samples: list[Sample] = []
    in_flight = 0

    async def send(client: BenchClient, body: bytes, lag_s: float) -> None:
        nonlocal in_flight
        try:
            sample = await client.ask(body)
        finally:
            in_flight -= 1
        sample.lag_s = lag_s
        samples.append(sample)
        on_end(sample)

    began = perf_counter()
    async with asyncio.TaskGroup() as group:
        for at, body, client in zip(plan, bodies, cycle(clients), strict=False):
            left_s = began + at - perf_counter()
            await asyncio.sleep(max(0.0, left_s))  # also where it is late: those before have to go out
            lag_s = max(0.0, perf_counter() - began - at)
            if in_flight >= IN_FLIGHT_MAX:
                samples.append(Sample(lag_s=lag_s, error=f"not sent: {IN_FLIGHT_MAX} were in flight"))
                on_end(samples[-1])
                continue
            in_flight += 1
            group.create_task(send(client, body, lag_s))
    return samples


def _make_level(
    load: Load, samples: list[Sample], duration_s: float, cpu_s: float, settings: Settings
) -> Level:
    figures = compute_figures(samples, duration_s, settings.slo_s or None)
    share = cpu_s / duration_s if duration_s else 0.0
    warnings = []
    if share > BUSY_SHARE:
        warnings.append(
            f"the generator used {share:.0%} of a core: the figures may be its own; run it on another "
            "machine, or with less load"
        )
    if figures.get("p99_lag_ms", 0.0) > LAG_WARNED_MS:
        warnings.append(
            f"1 % of the requests were sent {figures['p99_lag_ms']:.0f} ms late or more: the load was not "
            "what was planned; lower the rate, or run it on a machine that is less busy"
        )
    errors: dict[str, int] = {}
    for sample in samples:
        if sample.error:
            errors[sample.error] = errors.get(sample.error, 0) + 1
    return Level(
        load=load,
        figures=figures,
        samples=samples,
        generator_cpu_share=share,
        warnings=warnings,
        errors=dict(sorted(errors.items(), key=lambda item: -item[1])[:10]),
    )
