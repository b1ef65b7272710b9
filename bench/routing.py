"""What choosing costs: CPU of a request with 4 tiers, 12 pools and 200 replicas against one with one target.

usage: python bench/routing.py [--seconds S] [--repeats N] [--quick]

Prints a table on stderr and one JSON line last on stdout; `docs/performance.md` says how it is measured.
"""

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

import measure
import peers
from admission import Fleet as Workers
from admission import run_fleet
from forebay.core.keys import TIERS
from forebay.core.routes import Affinity, Choosing, Endpoint, Order, Route, RouteTable, Snapshot, Target
from forebay.gateway.loads import Loads
from forebay.gateway.policy.fleet import Fleet
from forebay.gateway.policy.route import choose
from forebay.gateway.wants import read_want
from measure import BenchError, Figure
from workload import MODEL, build_request

POOLS, REPLICAS = 12, 200
ATTEMPTS = 3
DECISIONS = 2000
LEAD_IN_S = 1  #: of load before each window, that does not count


def build_route(port: int, affinity: Affinity) -> Route:
    """All of the fleet, each replica at a path of its own of the one upstream."""
    targets = []
    for pool in range(POOLS):
        for number in range(REPLICAS // POOLS + (pool < REPLICAS % POOLS)):
            targets.append(
                Target(
                    id=f"{MODEL}@p{pool}#{number}",
                    pool=f"p{pool}",
                    tier=TIERS[pool * len(TIERS) // POOLS],
                    region=f"region-{pool % 3}",
                    url=f"http://127.0.0.1:{port}/p{pool}/{number}/v1",
                    model=MODEL,
                    requests_max=16,
                    context_window=32_768,
                    capabilities=("tools",) if pool % 2 else ("tools", "images"),
                )
            )
    choosing = Choosing(order=Order.LOAD, affinity=affinity)
    return Route(model=MODEL, endpoints=(Endpoint.CHAT,), targets=tuple(targets), choosing=choosing)


def measure_decision(body: bytes, rounds: int) -> float:
    """Microseconds of CPU for reading what a request wants and choosing, the best of some rounds."""
    route = build_route(9, Affinity.PREFIX)
    parts = Loads().follow(RouteTable(routes=(route,)), 1)
    fleet = Fleet(parts.groups[MODEL], route.choosing)
    luck = random.Random(1)
    now = 1000.0
    members = [member for group in fleet.groups for member in group.members]
    for member in members:
        for _ in range(luck.randrange(14)):
            member.load.begin(luck.randrange(100, 4000), now)
        member.load.tell_first(luck.random(), now)
        member.load.tell_token(luck.random() / 50, now)
    for member in luck.sample(members, 5):  # some are out of service, as always
        member.load.refuse(now, 60)
    bodies = [body.replace(b"Hello", b"Hello %d" % luck.getrandbits(40)) for _ in range(DECISIONS)]
    key = SimpleNamespace(priority="standard")
    call = SimpleNamespace(headers={})
    exchanges: list[Any] = [
        SimpleNamespace(
            body=each,
            key=key,
            call=call,
            endpoint=Endpoint.CHAT,
            estimate=None,
            names_output=True,
        )
        for each in bodies
    ]
    draws = [luck.random() for _ in range(DECISIONS)]
    took = []
    for _ in range(rounds):
        begun = time.process_time()
        for exchange, draw in zip(exchanges, draws, strict=True):
            choose(fleet, read_want(exchange, fleet), now + 1, draw, ATTEMPTS)
        took.append((time.process_time() - begun) / DECISIONS * 1e6)
    return min(took)


def measure_path(upstream: peers.Upstream, cores: measure.Cores, seconds: int, repeats: int) -> list[Figure]:
    """CPU of a request to the fleet over that of one to a single target: in turn, the median of pairs.

    Without affinity, for all requests are the same: they are to go to all replicas of the first tier.
    """
    plain = peers.build_snapshot(upstream)
    table = RouteTable(routes=(build_route(upstream.json_port, Affinity.NONE),))
    body = build_request(MODEL, stream=False).decode()
    with ExitStack() as stack:

        def start(snapshot: Snapshot) -> Workers:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="forebay-bench-")))
            return stack.enter_context(run_fleet(folder, snapshot, 1, cores.server))[0]

        pair = [start(plain), start(msgspec.structs.replace(plain, table=table))]

        def ask(workers: Workers, length: int) -> measure.Load:
            url = f"http://127.0.0.1:{workers.port}{peers.CHAT}"
            return measure.run_wrk(
                url, "chat.lua", core=cores.load, seconds=length, script_args=(peers.KEY, body)
            )

        def take(workers: Workers, length: int) -> float:
            ask(workers, LEAD_IN_S)  # while the other one was asked, connections that lay idle were closed
            before = measure.read_cpu_s(workers.processes[0].pid)
            load = ask(workers, length)
            if load.errors or not load.requests:
                raise BenchError(f"{load.errors} of {load.requests} requests failed")
            return (measure.read_cpu_s(workers.processes[0].pid) - before) / load.requests * 1e6

        for workers in pair:
            take(workers, 2)
        rounds = [(take(pair[0], seconds), take(pair[1], seconds)) for _ in range(repeats)]
    ratio = statistics.median(full / single for single, full in rounds)
    single, full = (statistics.median(values) for values in zip(*rounds, strict=True))
    return [
        Figure(name="full_path_ratio", value=round(ratio, 3), unit="× one target", target=1.3),
        Figure(name="cpu_us_one_target", value=round(single, 2), unit="µs/request"),
        Figure(name="cpu_us_full_path", value=round(full, 2), unit="µs/request"),
    ]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What choosing a target costs.")
    parser.add_argument("--seconds", type=int, default=4, help="length of one window of load (4)")
    parser.add_argument("--repeats", type=int, default=5, help="rounds (5)")
    parser.add_argument("--quick", action="store_true", help="a small run, to see that it works")
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    seconds, repeats = (1, 1) if arguments.quick else (arguments.seconds, arguments.repeats)
    try:
        measure.require_commands(*peers.NEEDS["upstream"])
        cores = measure.choose_cores(os.sched_getaffinity(0))
        decision = measure_decision(build_request(MODEL, stream=False), 3 if arguments.quick else 20)
        figures = [Figure(name="decision_us", value=round(decision, 2), unit="µs", target=20.0)]
        with peers.run_upstream(cores) as upstream:
            figures += measure_path(upstream, cores, seconds, repeats)
    except BenchError as error:
        return measure.fail(error)
    measure.publish("routing", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
