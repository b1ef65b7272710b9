"""What a request costs in the gateway, against two peers in the same run.

usage: python bench/gateway.py [--seconds S] [--repeats N] [--only json|stream] [--peers NAME...]

Prints a table on stderr and one JSON line last on stdout; `docs/performance.md` says how it is measured.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import measure
import peers
from measure import BenchError, Cores, Figure, Load
from workload import MODEL, STREAMED_MODEL, build_request

KINDS = ("json", "stream")
PEERS = ("vllm_router", "envoy")
TARGETS = {
    ("json", "vllm_router"): 0.5,
    ("json", "envoy"): 0.8,
    ("stream", "vllm_router"): 0.6,
}
WARM_UP_S = 2
CALM_MAX_CORES = 0.1  #: a window in which others used more of the machine is taken again
TRIES_MAX = 3  #: windows for one sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One gateway under load for one window."""

    cpu_us: float  #: for each request
    load: Load
    others_cores: float  #: CPU that nobody in this benchmark used, in cores


Round = dict[str, Sample]  #: one sample for each gateway, by its name


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What stays the same over all samples."""

    gateways: Sequence[peers.Gateway]
    upstream: peers.Upstream
    cores: Cores
    seconds: int
    repeats: int


def take_sample(plan: Plan, gateway: peers.Gateway, kind: str, seconds: int) -> Sample:
    """Raises `BenchError` if a single request failed: an error is cheaper than an answer."""
    stream = kind == "stream"
    body = build_request(STREAMED_MODEL if stream else MODEL, stream=stream).decode()

    def read_all() -> tuple[float, float, float, float]:
        load_s = sum(os.times()[:4]) + measure.read_cpu_s(plan.upstream.pid)
        return measure.read_cpu_s(gateway.pid), load_s, measure.read_machine_cpu_s(), time.monotonic()

    before = read_all()
    load = measure.run_wrk(
        gateway.url(stream=stream),
        "chat.lua",
        core=plan.cores.load,
        seconds=seconds,
        script_args=(peers.KEY, body),
    )
    server_s, load_s, machine_s, wall_s = (b - a for a, b in zip(before, read_all(), strict=True))
    if load.errors or not load.requests:
        raise BenchError(f"{gateway.name}, {kind}: {load.errors} of {load.requests} requests failed")
    return Sample(
        cpu_us=server_s / load.requests * 1e6,
        load=load,
        others_cores=max(0.0, machine_s - server_s - load_s) / wall_s,
    )


def take_calm_sample(plan: Plan, gateway: peers.Gateway, kind: str) -> Sample:
    """The first sample that others left alone, or the calmest of `TRIES_MAX`."""
    samples: list[Sample] = []
    for _ in range(TRIES_MAX):
        sample = take_sample(plan, gateway, kind, plan.seconds)
        samples.append(sample)
        measure.console.print(
            f"{kind}, {gateway.name}: {sample.cpu_us:.1f} µs/request,"
            f" {sample.load.requests / sample.load.duration_s:,.0f} requests/s,"
            f" others {sample.others_cores:.2f} cores",
            style="dim",
        )
        if sample.others_cores <= CALM_MAX_CORES:
            break
    return min(samples, key=lambda sample: sample.others_cores)


def measure_kind(plan: Plan, kind: str) -> list[Round]:
    """Rounds in which every gateway has its turn."""
    for gateway in plan.gateways:
        take_sample(plan, gateway, kind, WARM_UP_S)
    return [
        {gateway.name: take_calm_sample(plan, gateway, kind) for gateway in plan.gateways}
        for _ in range(plan.repeats)
    ]


def build_figures(kind: str, rounds: Sequence[Round]) -> list[Figure]:
    """Medians over the rounds; a ratio is taken within each round first, where both met the same noise."""

    def median(name: str, unit: str, values: Iterable[float], target: float | None = None) -> Figure:
        value = round(statistics.median(values), 3)
        return Figure(name=f"{kind}_{name}", value=value, unit=unit, target=target)

    figures = []
    names = list(rounds[0])
    for peer in names if "forebay" in names else []:
        if peer != "forebay":
            ratios = [taken["forebay"].cpu_us / taken[peer].cpu_us for taken in rounds]
            figures.append(median(f"cpu_ratio_{peer}", "ratio", ratios, TARGETS.get((kind, peer))))
    for name in names:
        samples = [taken[name] for taken in rounds]
        loads = [sample.load for sample in samples]
        rates = [load.requests / load.duration_s for load in loads]
        figures.append(median(f"cpu_us_{name}", "µs/request", [sample.cpu_us for sample in samples]))
        figures.append(median(f"requests_per_s_{name}", "1/s", rates))
        figures.append(median(f"p50_ms_{name}", "ms", [load.p50_ms for load in loads]))
        figures.append(median(f"p99_ms_{name}", "ms", [load.p99_ms for load in loads]))
    noise = max(sample.others_cores for taken in rounds for sample in taken.values())
    figures.append(Figure(name=f"{kind}_others_cores_max", value=round(noise, 3), unit="cores"))
    return figures


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="CPU cost of a request: Forebay and its peers.")
    parser.add_argument("--seconds", type=int, default=4, help="length of one window of load (4)")
    parser.add_argument("--repeats", type=int, default=7, help="rounds (7)")
    parser.add_argument("--only", choices=KINDS, help="one kind of answer (both)")
    choices = [name for name in peers.RUNNERS if name != "forebay"]
    parser.add_argument("--peers", nargs="*", choices=choices, default=PEERS, help=f"({' '.join(PEERS)})")
    parser.add_argument("--no-forebay", action="store_true", help="measure the peers alone")
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    names = [*([] if arguments.no_forebay else ["forebay"]), *arguments.peers]
    figures: list[Figure] = []
    try:
        needs = [need for name in ("upstream", *names) for need in peers.NEEDS.get(name, ())]
        measure.require_commands(*needs)
        cores = measure.choose_cores(os.sched_getaffinity(0))
        with peers.run_upstream(cores) as upstream, peers.run_gateways(names, upstream, cores) as gateways:
            plan = Plan(
                gateways=gateways,
                upstream=upstream,
                cores=cores,
                seconds=arguments.seconds,
                repeats=arguments.repeats,
            )
            for kind in [arguments.only] if arguments.only else KINDS:
                figures += build_figures(kind, measure_kind(plan, kind))
    except BenchError as error:
        return measure.fail(error)
    measure.publish("gateway", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
