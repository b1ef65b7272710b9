"""What a request costs in the gateway, against two peers in the same run.

usage: python bench/gateway.py [--seconds S] [--repeats N] [--only json|stream] [--peers vllm_router envoy]

Prints a table on stderr and one JSON line last on stdout; `docs/performance.md` says how it is measured.
"""

import argparse
import os
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import measure
import peers
from measure import BenchError, Cores, Figure, Load
from workload import MODEL, STREAMED_MODEL, build_request

TARGETS = {
    ("json", "vllm_router"): 0.5,
    ("json", "envoy"): 0.8,
    ("stream", "vllm_router"): 0.6,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One gateway under load for one window."""

    cpu_us: float
    load: Load


def take_sample(gateway: peers.Gateway, kind: str, *, cores: Cores, seconds: int) -> Sample:
    """Raises `BenchError` if a single request failed: an error is cheaper than an answer."""
    stream = kind == "stream"
    body = build_request(STREAMED_MODEL if stream else MODEL, stream=stream).decode()
    before_s = measure.read_cpu_s(gateway.pid)
    load = measure.run_wrk(
        gateway.url(stream=stream),
        "chat.lua",
        core=cores.load,
        seconds=seconds,
        script_args=(peers.KEY, body),
    )
    cpu_s = measure.read_cpu_s(gateway.pid) - before_s
    if load.errors or not load.requests:
        raise BenchError(f"{gateway.name}, {kind}: {load.errors} of {load.requests} requests failed")
    return Sample(cpu_us=cpu_s / load.requests * 1e6, load=load)


def measure_kind(
    gateways: Sequence[peers.Gateway], kind: str, *, cores: Cores, seconds: int, repeats: int
) -> dict[str, list[Sample]]:
    """Rounds in which every gateway has its turn, so that a noisy minute hits them all."""
    samples: dict[str, list[Sample]] = {gateway.name: [] for gateway in gateways}
    for gateway in gateways:
        take_sample(gateway, kind, cores=cores, seconds=2)
    for turn in range(repeats):
        for gateway in gateways:
            sample = take_sample(gateway, kind, cores=cores, seconds=seconds)
            samples[gateway.name].append(sample)
            measure.console.print(
                f"{kind} {turn + 1}/{repeats} {gateway.name}: {sample.cpu_us:.0f} µs,"
                f" {sample.load.requests / sample.load.duration_s:,.0f} requests/s",
                style="dim",
            )
    return samples


def build_figures(kind: str, samples: dict[str, list[Sample]]) -> list[Figure]:
    """Ratios are taken within a round, and the median over the rounds is told."""
    figures = []
    for peer, taken in samples.items():
        if peer == "forebay" or "forebay" not in samples:
            continue
        ratio = statistics.median(
            ours.cpu_us / theirs.cpu_us for ours, theirs in zip(samples["forebay"], taken, strict=True)
        )
        name, target = f"{kind}_cpu_ratio_{peer}", TARGETS.get((kind, peer))
        figures.append(Figure(name=name, value=round(ratio, 3), unit="ratio", target=target))
    for name, taken in samples.items():
        loads = [sample.load for sample in taken]
        values = {
            ("cpu_us", "µs/request"): [sample.cpu_us for sample in taken],
            ("requests_per_s", "1/s"): [load.requests / load.duration_s for load in loads],
            ("p50_ms", "ms"): [load.p50_ms for load in loads],
            ("p99_ms", "ms"): [load.p99_ms for load in loads],
        }
        figures += [
            Figure(name=f"{kind}_{quantity}_{name}", value=round(statistics.median(of), 2), unit=unit)
            for (quantity, unit), of in values.items()
        ]
    return figures


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="CPU cost of a request: Forebay and its peers.")
    parser.add_argument("--seconds", type=int, default=4, help="length of one window of load (4)")
    parser.add_argument("--repeats", type=int, default=7, help="windows for each server and kind (7)")
    parser.add_argument("--only", choices=["json", "stream"], help="one kind of answer (both)")
    parser.add_argument(
        "--peers", nargs="*", choices=sorted(peers.RUNNERS), default=["vllm_router", "envoy"], help="(all)"
    )
    parser.add_argument("--no-forebay", action="store_true", help="measure the peers alone")
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    names = ([] if arguments.no_forebay else ["forebay"]) + [p for p in arguments.peers if p != "forebay"]
    kinds = [arguments.only] if arguments.only else ["json", "stream"]
    try:
        measure.require_commands(
            *(need for name in ("upstream", *names) for need in peers.NEEDS.get(name, ()))
        )
        cores = measure.choose_cores(os.sched_getaffinity(0))
        figures: list[Figure] = []
        with peers.run_upstream(cores) as upstream, peers.run_gateways(names, upstream, cores) as gateways:
            for kind in kinds:
                samples = measure_kind(
                    gateways, kind, cores=cores, seconds=arguments.seconds, repeats=arguments.repeats
                )
                figures += build_figures(kind, samples)
    except BenchError as error:
        return measure.fail(error)
    measure.publish("gateway", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
