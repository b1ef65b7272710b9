"""How long callers wait for the first token when one of three regions is slow, fails, or comes and goes.

usage: python bench/regions.py [--seconds S] [--rate R] [--only NAMES] [--quick]

The same open-loop load goes at the same time to Forebay and to each peer, each in front of six replicas of
its own in three regions; `regions_upstream.py` says how a region is ill.  Envoy, with retries and outlier
detection, stands for round robin and for least request; vllm-router and smg run with their own policies,
retries and circuit breakers.  Prompts are drawn from many, so that no affinity sends all to one place.  A
request that brings no token within 10 s, or no whole answer, counts as one that took 10 s.

Prints a table on stderr and one JSON line last on stdout; `docs/performance.md` says how it is measured.
"""

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import uvloop
from rich.table import Table

import measure
import peers
from admission_fleet import run_fleet
from forebay.core.keys import KeyEntry, compute_key_digest
from forebay.core.routes import Affinity, Choosing, Endpoint, Order, Route, RouteTable, Snapshot, Target
from measure import BenchError, Figure
from workload import MODEL, build_request

LATE_S = 10.0
WARM_S = 4.0  #: at the beginning that do not count: nobody can know of a region before it has answered
REPLICAS = 2  #: of a region
PROMPTS = 200
SMG = str(peers.PEER_COMMANDS / "smg")

#: How each of the three regions is.
SCENARIOS = {
    "slow": ("well", "well", "slow"),
    "failing": ("well", "well", "failing"),
    "flapping": ("well", "well", "flapping"),
    "all": ("slow", "failing", "flapping"),
}


# --- gateways -----------------------------------------------------------------------------------------------


@contextmanager
def run_forebay(ports: Sequence[int], cores: measure.Cores) -> Iterator[int]:
    """One worker; a pool for each region, and nothing said of how any of them is."""
    targets = tuple(
        Target(
            id=f"r{number // REPLICAS}#{number % REPLICAS}",
            pool=f"r{number // REPLICAS}",
            region=f"region-{number // REPLICAS}",
            url=f"http://127.0.0.1:{port}/v1",
            model=MODEL,
            requests_max=16,
        )
        for number, port in enumerate(ports)
    )
    choosing = Choosing(order=Order.LOAD, affinity=Affinity.NONE)
    route = Route(model=MODEL, endpoints=(Endpoint.CHAT,), targets=targets, choosing=choosing)
    key = KeyEntry(id="bench", digest=compute_key_digest(peers.KEY), name="bench", prefix=peers.KEY[:7])
    snapshot = Snapshot(table=RouteTable(routes=(route,)), keys=(key,))
    with tempfile.TemporaryDirectory(prefix="forebay-bench-") as folder:
        with run_fleet(Path(folder), snapshot, 1, cores.server) as (workers, *_):
            yield workers.port


_ENVOY = """
static_resources:
  listeners:
  - address: {{ socket_address: {{ address: 127.0.0.1, port_value: {port} }} }}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": {types}.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: bench
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes:
              - match: {{ prefix: "/" }}
                route:
                  cluster: all
                  timeout: 0s
                  retry_policy:
                    retry_on: "5xx,reset,connect-failure,retriable-4xx"
                    num_retries: 2
                    retry_host_predicate: [ {{ name: envoy.retry_host_predicates.previous_hosts,
                      typed_config: {{ "@type": {retry}.host.previous_hosts.v3.PreviousHostsPredicate }} }} ]
                    host_selection_retry_max_attempts: 5
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {{ "@type": {types}.http.router.v3.Router }}
  clusters:
  - name: all
    type: STATIC
    connect_timeout: 1s
    lb_policy: {policy}
    outlier_detection: {{ consecutive_5xx: 5, base_ejection_time: 10s, max_ejection_percent: 60 }}
    load_assignment:
      cluster_name: all
      endpoints: [ {{ lb_endpoints: [ {endpoints} ] }} ]
"""
_ENDPOINT = "{{ endpoint: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {} }} }} }} }}"


@contextmanager
def run_envoy(ports: Sequence[int], cores: measure.Cores, policy: str) -> Iterator[int]:
    port = peers.pick_port()
    types = "type.googleapis.com/envoy.extensions.filters"
    text = _ENVOY.format(
        port=port,
        types=types,
        retry="type.googleapis.com/envoy.extensions.retry",
        policy=policy,
        endpoints=", ".join(_ENDPOINT.format(each) for each in ports),
    )
    with tempfile.TemporaryDirectory(prefix="forebay-bench-") as name:
        (Path(name) / "envoy.yaml").write_text(text)
        command = [str(peers.PEER_COMMANDS / "envoy"), "-c", f"{name}/envoy.yaml", "--concurrency", "1"]
        command += ["-l", "error", "--disable-hot-restart"]
        with run_router(command, port, cores, name):
            yield port


@contextmanager
def run_vllm_router(ports: Sequence[int], cores: measure.Cores, policy: str) -> Iterator[int]:
    port = peers.pick_port()
    command = [str(peers.PEER_COMMANDS / "vllm-router"), "--host", "127.0.0.1", "--port", str(port)]
    command += ["--policy", policy, "--worker-urls", *(f"http://127.0.0.1:{each}" for each in ports)]
    command += ["--prometheus-port", str(peers.pick_port()), "--prometheus-host", "127.0.0.1"]
    with tempfile.TemporaryDirectory(prefix="forebay-bench-") as name:
        with run_router([*command, "--log-level", "error"], port, cores, name):
            yield port


@contextmanager
def run_smg(ports: Sequence[int], cores: measure.Cores, policy: str) -> Iterator[int]:
    port = peers.pick_port()
    command = [SMG, "launch", "--host", "127.0.0.1", "--port", str(port), "--policy", policy]
    command += ["--worker-urls", *(f"http://127.0.0.1:{each}" for each in ports)]
    command += ["--prometheus-port", str(peers.pick_port()), "--prometheus-host", "127.0.0.1"]
    with tempfile.TemporaryDirectory(prefix="forebay-bench-") as name:
        with run_router([*command, "--log-level", "error"], port, cores, name):
            yield port


@contextmanager
def run_router(command: Sequence[str], port: int, cores: measure.Cores, folder: str) -> Iterator[None]:
    log = Path(folder) / "log"
    with peers.run_pinned(command, core=cores.server, log=log) as process:
        body = build_request(MODEL, stream=True)
        peers.wait_ready(process, log, lambda: peers.ask(port, "POST", peers.CHAT, body)[0] == 200)
        yield


GATEWAYS = {
    "forebay": run_forebay,
    "envoy round_robin": partial(run_envoy, policy="ROUND_ROBIN"),
    "envoy least_request": partial(run_envoy, policy="LEAST_REQUEST"),
    "vllm_router round_robin": partial(run_vllm_router, policy="round_robin"),
    "vllm_router power_of_two": partial(run_vllm_router, policy="power_of_two"),
    "vllm_router cache_aware": partial(run_vllm_router, policy="cache_aware"),
    "smg power_of_two": partial(run_smg, policy="power_of_two"),
    "smg least_load": partial(run_smg, policy="least_load"),
    "smg cache_aware": partial(run_smg, policy="cache_aware"),
}


@contextmanager
def run_upstreams(groups: dict[str, Sequence[str]], cores: measure.Cores) -> Iterator[dict[str, list[int]]]:
    """The replicas of each gateway, in one process; their ports."""
    script = str(peers.ROOT / "bench" / "regions_upstream.py")
    process = subprocess.Popen(
        ["taskset", "-c", str(cores.load), sys.executable, script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps({name: list(kinds) for name, kinds in groups.items()}) + "\n")
        process.stdin.flush()
        ports: dict[str, list[int]] = json.loads(process.stdout.readline())
        yield ports
    finally:
        process.kill()
        process.wait()


# --- load ---------------------------------------------------------------------------------------------------


async def ask(port: int, request: bytes) -> float:
    """Seconds to the first token of one request; `LATE_S` where none came."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    writer = None
    try:
        async with asyncio.timeout(LATE_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request)
            status = await reader.readline()
            took = LATE_S
            while status.split(b" ")[1:2] == [b"200"] and (line := await reader.readline()):
                if took == LATE_S and b'"content"' in line:
                    took = loop.time() - begun
                if line.startswith(b"data: [DONE]"):
                    return took  # an answer that breaks off in the middle counts as none
    except (OSError, TimeoutError):
        pass
    finally:
        if writer is not None:
            writer.close()
    return LATE_S


def make_request(number: int) -> bytes:
    """Of a conversation of its own from the first word on."""
    body = build_request(MODEL, stream=True, prompt=f"{number:x} " * 40)
    lines = (
        f"POST {peers.CHAT} HTTP/1.1",
        "host: a",
        f"authorization: Bearer {peers.KEY}",
        "connection: close",
        "content-type: application/json",
        f"content-length: {len(body)}",
    )
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def load(ports: dict[str, int], rate: float, seconds: float) -> dict[str, list[float]]:
    """The same arrivals for all gateways: at random, `rate` a second."""
    luck = random.Random(1)
    requests = [make_request(luck.getrandbits(64)) for _ in range(PROMPTS)]
    loop = asyncio.get_running_loop()
    found: dict[str, list[float]] = {name: [] for name in ports}
    tasks: set[asyncio.Task[None]] = set()

    async def one(name: str, request: bytes, *, counts: bool) -> None:
        took = await ask(ports[name], request)
        if counts:
            found[name].append(took)

    begun = at = loop.time()
    while at < begun + WARM_S + seconds:
        at += luck.expovariate(rate)
        await asyncio.sleep(max(0.0, at - loop.time()))
        request = luck.choice(requests)
        for name in ports:
            task = loop.create_task(one(name, request, counts=at > begun + WARM_S))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
    await asyncio.gather(*tasks)
    return found


def measure_scenario(
    kinds: Sequence[str], names: Sequence[str], rate: float, seconds: float, cores: measure.Cores
) -> dict[str, list[float]]:
    groups = {name: [kind for kind in kinds for _ in range(REPLICAS)] for name in names}
    with ExitStack() as stack:
        upstreams = stack.enter_context(run_upstreams(groups, cores))
        ports = {name: stack.enter_context(GATEWAYS[name](upstreams[name], cores)) for name in names}
        return uvloop.run(load(ports, rate, seconds))


def tabulate(results: dict[str, dict[str, list[float]]]) -> Table:
    """Milliseconds to the first token, for people."""
    table = Table(title="first token, ms: p50 / p99, and requests that failed", title_justify="left")
    table.add_column("gateway")
    for scenario in results:
        table.add_column(scenario, justify="right")
    for name in next(iter(results.values())):
        cells = []
        for found in results.values():
            values = found[name]
            p50, p99 = (measure.compute_quantile(values, q) * 1e3 for q in (0.5, 0.99))
            failed = sum(value == LATE_S for value in values) / len(values)
            cells.append(f"{p50:,.0f} / {p99:,.0f}  {failed:.1%}")
        table.add_row(name, *cells)
    return table


def make_figures(results: dict[str, dict[str, list[float]]]) -> list[Figure]:
    figures = []
    for scenario, found in results.items():
        p99 = {name: measure.compute_quantile(values, 0.99) for name, values in found.items()}
        failed = {name: sum(v == LATE_S for v in values) / len(values) for name, values in found.items()}
        others = [name for name in p99 if name != "forebay"]
        if others:
            best = min(others, key=lambda name: p99[name])
            ratio = p99["forebay"] / p99[best]
            target = 0.5 if scenario == "slow" else None
            what = "three_ill_regions" if scenario == "all" else f"{scenario}_region"
            name = f"{what}_p99_ttft_ratio_best_peer"
            figures.append(Figure(name=name, value=round(ratio, 3), unit=f"× {best}", target=target))
        figures += [
            Figure(name=f"{scenario} p99, {name}", value=round(value * 1e3, 1), unit="ms")
            for name, value in p99.items()
        ]
        figures += [
            Figure(name=f"{scenario} failed, {name}", value=round(value, 4), unit="of requests")
            for name, value in failed.items()
        ]
    return figures


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="First tokens while a region is ill.")
    parser.add_argument(
        "--seconds", type=float, default=40, help="of load that count, for each scenario (40)"
    )
    parser.add_argument("--rate", type=float, default=40, help="requests a second for each gateway (40)")
    parser.add_argument("--only", nargs="*", choices=sorted(GATEWAYS), help="these gateways alone")
    parser.add_argument("--scenario", nargs="*", choices=sorted(SCENARIOS), help="these scenarios alone")
    parser.add_argument("--quick", action="store_true", help="a small run, to see that it works")
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    seconds = 3.0 if arguments.quick else arguments.seconds
    names = arguments.only or list(GATEWAYS)
    scenarios = {name: SCENARIOS[name] for name in arguments.scenario or SCENARIOS}
    try:
        measure.require_commands(*peers.NEEDS["vllm_router"], *peers.NEEDS["envoy"], (SMG, peers.SETUP))
        cores = measure.choose_cores(os.sched_getaffinity(0))
        results = {}
        for scenario, kinds in scenarios.items():
            measure.console.print(f"{scenario}: {', '.join(kinds)}")
            results[scenario] = measure_scenario(kinds, names, arguments.rate, seconds, cores)
    except BenchError as error:
        return measure.fail(error)
    measure.console.print(tabulate(results))
    measure.publish("regions", make_figures(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
