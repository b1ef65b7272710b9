"""What admission costs a request, and whether limits hold: over workers, with workers killed, to the unit.

usage: python bench/admission.py [--seconds S] [--repeats N] [--quick]

Prints a table on stderr and one JSON line last on stdout; `docs/performance.md` says how it is measured.
"""

import argparse
import asyncio
import os
import random
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import measure
import peers
from admission_fleet import Fleet, count_admitted, kill_workers, limit_keys, make_limit, run_fleet
from admission_hosts import measure_over_hosts
from forebay.app.clock import SystemClock
from forebay.app.quota_server import QuotaServer
from forebay.app.quota_state import QuotaState
from forebay.core.limits import Limit, Measure, Period
from ledger_difference import measure_ledger_difference
from measure import BenchError, Figure
from workload import MODEL, build_request

PLENTY = 10**12
#: What a production key has at once: requests and tokens on three levels, and places.
USUAL = (
    *(
        Limit(id=f"{owner}/{what.value}", owner=owner, measure=what, amount=PLENTY, period=Period.MINUTE)
        for owner in ("team bench", "project bench", "key bench")
        for what in (Measure.REQUESTS, Measure.TOTAL_TOKENS)
    ),
    Limit(id="places", owner="key bench", measure=Measure.CONCURRENT, amount=10_000),
)


class Authority:
    """The authority of a data folder, in a thread of this process: what it costs is not the workers'."""

    def __init__(self, folder: Path, limits: Sequence[Limit]) -> None:
        self._folder = folder
        self._limits = limits
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> "Authority":
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)
        return self

    async def _start(self) -> None:
        path = self._folder / "run" / "quota.sock"
        self._server = QuotaServer(path, QuotaState(self._folder / "quota.state"), SystemClock())
        self._server.set_limits(self._limits)
        await self._server.start()

    def read_left(self) -> dict[str, int]:
        async def read() -> dict[str, int]:
            return {limit.id: units for limit, units in self._server.list_left()}

        return asyncio.run_coroutine_threadsafe(read(), self._loop).result(10)

    def __exit__(self, *_: object) -> None:
        async def stop() -> None:
            self._server.close()

        asyncio.run_coroutine_threadsafe(stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


# --- what it costs ------------------------------------------------------------------------------------------


def measure_cost(upstream: peers.Upstream, cores: measure.Cores, seconds: int, repeats: int) -> list[Figure]:
    """CPU of a request with all usual limits less that of one with none: in turn, the median of pairs."""
    plain = peers.build_snapshot(upstream)
    body = build_request(MODEL, stream=False).decode()
    with ExitStack() as stack:
        pairs = []
        for limits in ((), USUAL):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="forebay-bench-")))
            (folder / "run").mkdir()
            stack.enter_context(Authority(folder, limits))
            fleet, _ = stack.enter_context(run_fleet(folder, limit_keys(plain, limits, 1), 1, cores.server))
            pairs.append(fleet)

        def take(fleet: Fleet, length: int) -> float:
            before = measure.read_cpu_s(fleet.processes[0].pid)
            load = measure.run_wrk(
                f"http://127.0.0.1:{fleet.port}{peers.CHAT}",
                "chat.lua",
                core=cores.load,
                seconds=length,
                script_args=(peers.KEY, body),
            )
            if load.errors or not load.requests:
                raise BenchError(f"{load.errors} of {load.requests} requests failed")
            return (measure.read_cpu_s(fleet.processes[0].pid) - before) / load.requests * 1e6

        for fleet in pairs:
            take(fleet, 2)
        rounds = [(take(pairs[0], seconds), take(pairs[1], seconds)) for _ in range(repeats)]
    added = statistics.median(limited - free for free, limited in rounds)
    return [
        Figure(name="added_cpu_us", value=round(added, 2), unit="µs/request", target=25.0),
        Figure(
            name="cpu_us_without", value=round(statistics.median(r[0] for r in rounds), 2), unit="µs/request"
        ),
        Figure(
            name="cpu_us_with", value=round(statistics.median(r[1] for r in rounds), 2), unit="µs/request"
        ),
    ]


# --- whether limits hold ------------------------------------------------------------------------------------


def measure_over_admission(
    upstream: peers.Upstream, amount: int, workers: Sequence[int], asked: int, *, kills: bool
) -> float:
    """The worst excess over a limit of so many requests in one period, in percent of it."""
    worst = 0.0
    for count in workers:
        limit = make_limit(amount)
        with tempfile.TemporaryDirectory(prefix="forebay-bench-") as name:
            folder = Path(name)
            (folder / "run").mkdir()
            snapshot = limit_keys(peers.build_snapshot(upstream), (limit,), count)
            with Authority(folder, (limit,)), run_fleet(folder, snapshot, count, None) as (fleet, listener):
                killer = threading.Event()
                thread = (
                    threading.Thread(target=kill_workers, args=(fleet, listener, killer)) if kills else None
                )
                if thread is not None:
                    thread.start()
                admitted = count_admitted([("127.0.0.1", fleet.port)], asked, 16)
                killer.set()
                if thread is not None:
                    thread.join()
        over = 100.0 * (admitted - amount) / amount
        who = f"{count} workers{', killed' if kills else ''}"
        measure.console.print(f"{amount} requests, {who}: {admitted} of {asked} admitted", style="dim")
        worst = max(worst, over)
    return max(0.0, worst)


# --- whether anything leaks ---------------------------------------------------------------------------------


def measure_leaks(upstream: peers.Upstream, disconnects: int) -> list[Figure]:
    """Places and units that are missing after callers have left at random moments."""
    amount = 10**9
    limits = (
        Limit(id="places", owner="key bench", measure=Measure.CONCURRENT, amount=64),
        make_limit(amount),
    )
    body = build_request(MODEL, stream=False)
    head = (
        f"POST {peers.CHAT} HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {peers.KEY}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    ).encode()
    luck = random.Random(1)
    with tempfile.TemporaryDirectory(prefix="forebay-bench-") as name:
        folder = Path(name)
        (folder / "run").mkdir()
        snapshot = limit_keys(peers.build_snapshot(upstream), limits, 2)
        with Authority(folder, limits) as authority, run_fleet(folder, snapshot, 2, None) as (fleet, _):
            for _ in range(disconnects):
                with socket.create_connection(("127.0.0.1", fleet.port)) as caller:
                    caller.sendall(
                        (head + body)[: luck.choice([len(head) // 2, len(head), len(head) + len(body)])]
                    )
                    wait = luck.random() * 0.002
                    if wait > 0.0005:
                        time.sleep(wait)
            deadline = time.monotonic() + 10
            records = 0
            while time.monotonic() < deadline:
                left, records = authority.read_left(), fleet.read_records()
                if left["places"] == 64:
                    break
                time.sleep(0.1)
            used = amount - left["x"]
    return [
        Figure(name="leaked_reservations", value=64 - left["places"], unit="places", target=0.0),
        Figure(name="unaccounted_requests", value=max(0, used - records), unit="requests", target=0.0),
    ]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What admission costs, and whether limits hold.")
    parser.add_argument("--seconds", type=int, default=4, help="length of one window of load (4)")
    parser.add_argument("--repeats", type=int, default=5, help="rounds (5)")
    parser.add_argument("--quick", action="store_true", help="a small run, to see that it works")
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    try:
        measure.require_commands(*peers.NEEDS["upstream"])
        cores = measure.choose_cores(os.sched_getaffinity(0))
        workers = (1, 4) if arguments.quick else (1, 4, 16)
        with peers.run_upstream(cores) as upstream:
            seconds, repeats = (1, 1) if arguments.quick else (arguments.seconds, arguments.repeats)
            figures = measure_cost(upstream, cores, seconds, repeats)
            for amount, target, asked in ((10, 0.0, 300), (1000, 2.0, 3000), (100_000, 1.0, 110_000)):
                if arguments.quick and amount > 1000:
                    continue
                over = max(
                    # Long ones with workers killed take minutes: over the most workers alone.
                    measure_over_admission(
                        upstream,
                        amount,
                        workers[-1:] if kills and amount >= 100_000 else workers,
                        asked,
                        kills=kills,
                    )
                    for kills in (False, True)
                )
                over = max(over, measure_over_hosts(amount, workers, asked))
                figures.append(
                    Figure(name=f"over_admission_{amount}_pct", value=round(over, 3), unit="%", target=target)
                )
            figures += measure_leaks(upstream, 300 if arguments.quick else 10_000)
        figures += measure_ledger_difference(3000 if arguments.quick else 100_000)
    except BenchError as error:
        return measure.fail(error)
    measure.publish("admission", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
