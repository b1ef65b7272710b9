"""A thundering herd: what is left of the goodput when a crowd comes at once that is far too large.

usage: python bench/herd.py [--seconds S] [--workers N] [--plot FILE.svg] [--quick]

Callers come at 1, 5 and 20 times what the engine serves, from none to all within a second, and leave after a
deadline: an answer that comes later is none.  Measured are answers in time, with requests waiting at the
gateway, one worker and several, and without, and through vLLM's router.  Prints a table on stderr and one
JSON line last on stdout; `docs/performance.md` says how it is measured.
"""

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import uvloop

import measure
import peers
from admission_fleet import run_fleet
from forebay.core.keys import KeyEntry, compute_key_digest
from forebay.core.limits import QueueRules
from forebay.core.routes import Choosing, Endpoint, GatewayLimits, Order, Route, RouteTable, Snapshot, Target
from herd_callers import Crowd, Herd
from measure import BenchError, Figure
from workload import MODEL, build_request

PLACES, SERVICE_S = 10, 0.25  #: of the engine: 40 requests a second
DEADLINE_S = 2.0  #: of callers, for the whole answer
WAIT_S = 1.5  #: in line: the deadline less an answer, and some time to spare
RAMP_S = 1.0
TIMES = (1, 5, 20)
QUEUE = QueueRules(requests_max=1000, tenant_requests_max=1000, wait_max_s=60, default_wait_s=(WAIT_S,) * 3)


@contextmanager
def run_engine(core: int, folder: Path) -> Iterator[int]:
    """The port of an engine that serves `PLACES` at once."""
    port = peers.pick_port()
    command = [sys.executable, str(Path(__file__).with_name("herd_engine.py")), str(port)]
    log = folder / "engine.log"
    with peers.run_pinned([*command, str(PLACES), str(SERVICE_S)], core=core, log=log) as process:
        peers.wait_ready(process, log, partial(peers.answers, port, "/health"))
        yield port


@contextmanager
def run_board(folder: Path, core: int) -> Iterator[None]:
    """Between the workers whose data is in a folder."""
    path, log = folder / "run" / "board.sock", folder / "board.log"
    path.parent.mkdir(parents=True)
    command = [sys.executable, str(Path(__file__).with_name("herd_board.py")), str(path)]
    with peers.run_pinned(command, core=core, log=log) as process:
        peers.wait_ready(process, log, path.exists)
        yield


def build_snapshot(port: int, queue: QueueRules | None, workers: int) -> Snapshot:
    target = Target(
        id=MODEL, pool="bench", url=f"http://127.0.0.1:{port}/v1", model=MODEL, requests_max=PLACES,
        connections_max=8192, slow_start_s=0.0,
    )  # fmt: skip
    choosing = Choosing(order=Order.LOAD, queue=queue)
    route = Route(model=MODEL, endpoints=(Endpoint.CHAT,), targets=(target,), choosing=choosing)
    key = KeyEntry(id="bench", digest=compute_key_digest(peers.KEY), name="bench", prefix=peers.KEY[:7])
    limits = GatewayLimits(connections_max=20_000)
    table = RouteTable(routes=(route,))
    return Snapshot(table=table, keys=(key,), limits=limits, quota_workers=workers)


@contextmanager
def run_router(port: int, core: int, folder: Path) -> Iterator[int]:
    """vLLM's router, told how much the engine serves at once, with a queue of its own."""
    own, log = peers.pick_port(), folder / "router.log"
    command = [f"{peers.PEER_COMMANDS}/vllm-router", "--host", "127.0.0.1", "--port", str(own)]
    command += ["--policy", "round_robin", "--worker-urls", f"http://127.0.0.1:{port}"]
    command += ["--prometheus-port", str(peers.pick_port()), "--prometheus-host", "127.0.0.1"]
    command += ["--log-level", "error", "--max-concurrent-requests", str(PLACES)]
    command += ["--queue-size", "1000", "--queue-timeout-secs", "1"]  # whole seconds: the deadline bears one
    with peers.run_pinned(command, core=core, log=log) as process:
        peers.wait_ready(process, log, partial(peers.answers, own, "/health"))
        yield own


def send_herd(port: int, times: int, seconds: float) -> Herd:
    body = build_request(MODEL, stream=False)
    head = (
        f"POST {peers.CHAT} HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {peers.KEY}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )

    async def run() -> Herd:
        crowd = Crowd(port, head.encode() + body, DEADLINE_S)
        return await crowd.run(times * PLACES / SERVICE_S, RAMP_S, seconds)

    return uvloop.run(run())


def measure_all(
    cores: measure.Cores, seconds: float, names: Sequence[str], workers: int
) -> dict[tuple[str, int], Herd]:
    """Every gateway under every load, each with an engine of its own that starts idle."""
    herds = {}
    for name in names:
        for times in TIMES:
            with ExitStack() as stack:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="forebay-bench-")))
                engine = stack.enter_context(run_engine(cores.load, folder))
                if name == "vllm_router":
                    port = stack.enter_context(run_router(engine, cores.server, folder))
                else:
                    count = workers if name == "forebay_workers" else 1
                    queue = None if name == "forebay_without_queue" else QUEUE
                    snapshot = build_snapshot(engine, queue, count)
                    data = folder / "data"
                    if count > 1:
                        stack.enter_context(run_board(data, cores.server))
                    fleet, *_ = stack.enter_context(run_fleet(data, snapshot, count, cores.server))
                    port = fleet.port
                measure.console.print(f"{name}: {times} × capacity")
                herds[name, times] = send_herd(port, times, seconds)
    return herds


def compute_figures(herds: dict[tuple[str, int], Herd], seconds: float, names: Sequence[str]) -> list[Figure]:
    since = RAMP_S + DEADLINE_S  # when the first of the whole crowd have had their answers or not
    goodput = {at: herd.count_goodput(since, seconds) for at, herd in herds.items()}
    last = TIMES[-1]
    refused = herds["forebay", last]
    figures = [
        Figure(
            name=f"goodput_at_20x_{label}ratio",
            value=round(goodput[name, last] / max(goodput[name, times] for times in TIMES), 3),
            unit="of the best",
            target=0.9,
            is_least=True,
        )
        for name, label in (("forebay", ""), ("forebay_workers", "workers_"))
        if name in names
    ]
    figures += [
        Figure(
            name="refused_at_20x_p50_ms",
            value=round(statistics.median(refused.refused_s or [0.0]) * 1000, 2),
            unit="ms",
        ),
        Figure(name="refused_without_retry_after", value=refused.without_retry, unit="", target=0),
        Figure(name="late_at_20x_share", value=round(refused.late / refused.came, 4), unit="of callers"),
    ]
    for name in names:
        for times in TIMES:
            value = round(goodput[name, times], 2)
            figures.append(Figure(name=f"goodput_{name}_{times}x", value=value, unit="answers/s in time"))
    return figures


def plot(herds: dict[tuple[str, int], Herd], seconds: float, names: Sequence[str]) -> str:
    """Goodput over time as SVG: a row for each load, a line for each gateway."""
    width, height, left, top = 640, 150, 60, 34
    colors = dict(zip(names, ("#0b6", "#a60", "#c33", "#36c"), strict=False))
    most = PLACES / SERVICE_S * 1.5
    total = len(TIMES) * (height + 40) + top
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 20}" height="{total}" '
        'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>'
    ]
    for number, name in enumerate(names):
        parts.append(f'<text x="{left + number * 150}" y="16" fill="{colors[name]}">{name}</text>')
    for row, times in enumerate(TIMES):
        y = top + row * (height + 40)
        base = y + height
        full = base - height * (PLACES / SERVICE_S) / most
        parts.append(f'<text x="{left}" y="{y - 3}">{times} × capacity: answers in time, each second</text>')
        parts.append(f'<path d="M{left} {y}V{base}H{left + width}" fill="none" stroke="#888"/>')
        parts.append(f'<path d="M{left} {full}H{left + width}" stroke="#ccc" stroke-dasharray="4"/>')
        parts.append(f'<text x="{left - 34}" y="{full + 4}">{PLACES / SERVICE_S:g}</text>')
        parts.append(f'<text x="{left + width - 30}" y="{base + 14}">{seconds:g} s</text>')
        for name in names:
            points = []
            for step in range(int(seconds * 2)):
                value = herds[name, times].count_goodput(step / 2, step / 2 + 0.5)
                x, up = left + (step + 0.5) / 2 / seconds * width, min(1.0, value / most) * height
                points.append(f"{x:.1f},{base - up:.1f}")
            line = f'fill="none" stroke="{colors[name]}" stroke-width="2"'
            parts.append(f'<polyline points="{" ".join(points)}" {line}/>')
    return "\n".join([*parts, "</svg>\n"])


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What a crowd leaves of the goodput.")
    parser.add_argument("--seconds", type=float, default=10.0, help="for which each crowd comes (10)")
    parser.add_argument("--workers", type=int, default=4, help="that serve beside one alone (4)")
    parser.add_argument("--plot", type=Path, help="an SVG with goodput over time")
    parser.add_argument("--quick", action="store_true", help="a small run without peers")
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    seconds = 4.0 if arguments.quick else max(5.0, arguments.seconds)
    names = ["forebay", "forebay_workers", "forebay_without_queue", "vllm_router"]
    names = names[: 2 if arguments.quick else 4]
    try:
        measure.require_commands(("taskset", "apt-get install util-linux"))
        if not arguments.quick:
            measure.require_commands(*peers.NEEDS["vllm_router"])
        cores = measure.choose_cores(os.sched_getaffinity(0))
        herds = measure_all(cores, seconds, names, max(2, arguments.workers))
    except BenchError as error:
        return measure.fail(error)
    if arguments.plot:
        arguments.plot.write_text(plot(herds, seconds, names), "utf-8")
    measure.publish("herd", compute_figures(herds, seconds, names))
    return 0


if __name__ == "__main__":
    sys.exit(main())
