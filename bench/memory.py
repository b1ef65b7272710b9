"""Whether one gateway worker keeps its size: resident memory over requests that are all different.

usage: python bench/memory.py [--requests N] [--quick]

Prints a table on stderr and one JSON line last on stdout; `docs/performance.md` says how it is measured.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import measure
import peers
from measure import BenchError, Cores, Figure
from workload import MODEL, STREAMED_MODEL

REQUESTS = 300_000
QUICK_REQUESTS = 30_000
WINDOW_S = 1
NUMBERS_EACH = 1_000_000  #: bodies that a window may number
SLOPE_MAX_PCT = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Resident memory after so many requests."""

    requests: int
    rss_mib: float


def sample_memory(gateway: peers.Gateway, *, cores: Cores, requests: int) -> list[Point]:
    """Windows of load, each on new connections whose last requests are given up; the size after each."""
    points = [Point(requests=0, rss_mib=measure.read_rss_mib(gateway.pid))]
    while points[-1].requests < requests:
        first = len(points) * NUMBERS_EACH
        load = measure.run_wrk(
            gateway.url(stream=False),
            "unique.lua",
            core=cores.load,
            seconds=WINDOW_S,
            script_args=(peers.KEY, MODEL, STREAMED_MODEL, str(first)),
        )
        if load.errors or not 0 < load.requests < NUMBERS_EACH:
            raise BenchError(f"{load.errors} of {load.requests} requests failed")
        done = points[-1].requests + load.requests
        points.append(Point(requests=done, rss_mib=measure.read_rss_mib(gateway.pid)))
        measure.console.print(f"{done:,} requests: {points[-1].rss_mib:.2f} MiB", style="dim")
    return points


def build_figures(points: Sequence[Point]) -> list[Figure]:
    """The growth of the fitted line over the last two thirds, as a share of its start."""
    settled = [point for point in points if point.requests * 3 >= points[-1].requests]
    slope, intercept = measure.compute_slope(
        [float(point.requests) for point in settled], [point.rss_mib for point in settled]
    )
    start_mib = intercept + slope * settled[0].requests
    growth_pct = slope * (settled[-1].requests - settled[0].requests) / start_mib * 100
    return [
        Figure(name="rss_slope_pct", value=round(growth_pct, 3), unit="%", target=SLOPE_MAX_PCT),
        Figure(name="rss_start_mib", value=round(settled[0].rss_mib, 2), unit="MiB"),
        Figure(name="rss_end_mib", value=round(settled[-1].rss_mib, 2), unit="MiB"),
        Figure(name="rss_idle_mib", value=round(points[0].rss_mib, 2), unit="MiB"),
        Figure(name="requests", value=points[-1].requests, unit="requests"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="Resident memory over unique requests.")
    parser.add_argument("--requests", type=int, default=REQUESTS, help=f"({REQUESTS})")
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"{QUICK_REQUESTS} requests",
    )
    arguments = parser.parse_args()
    requests = QUICK_REQUESTS if arguments.quick else arguments.requests
    try:
        measure.require_commands(*peers.NEEDS["upstream"])
        cores = measure.choose_cores(os.sched_getaffinity(0))
        with peers.run_upstream(cores) as upstream, peers.run_forebay(upstream, cores) as gateway:
            peers.check_answers(gateway)
            points = sample_memory(gateway, cores=cores, requests=requests)
    except BenchError as error:
        return measure.fail(error)
    measure.publish("memory", build_figures(points))
    return 0


if __name__ == "__main__":
    sys.exit(main())
