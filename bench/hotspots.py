"""Where the gateway's time goes under load: by library (perf) and by Python module (py-spy).

usage: python bench/hotspots.py [--seconds S] [--only json|stream]

A tool to read, not a promise: no figure has a target.  Prints tables on stderr and one JSON line last on
stdout; `docs/performance.md` says how to read it.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import measure
import peers
from measure import BenchError, Cores, Figure
from workload import MODEL, STREAMED_MODEL, build_request

KINDS = ("json", "stream")
LEAD_S = 2  #: load before and after the samples
RATE_HZ = 499
LINES_MAX = 25
PY_SPY = str(peers.PEER_COMMANDS / "py-spy")
NEEDS = (("perf", "apt-get install linux-perf"), (PY_SPY, "make setup-bench"))


def sample_under_load(
    gateway: peers.Gateway, kind: str, command: Sequence[str], *, cores: Cores, seconds: int
) -> None:
    """Runs a profiler for `seconds` while wrk keeps the gateway busy."""
    stream = kind == "stream"
    body = build_request(STREAMED_MODEL if stream else MODEL, stream=stream).decode()
    with ThreadPoolExecutor(1) as pool:
        load = pool.submit(
            measure.run_wrk,
            gateway.url(stream=stream),
            "chat.lua",
            core=cores.load,
            seconds=seconds + 2 * LEAD_S,
            script_args=(peers.KEY, body),
        )
        done = subprocess.run(["sh", "-c", f'sleep {LEAD_S}; exec "$@"', "sh", *command], capture_output=True)
        if load.result().errors:
            raise BenchError("requests failed under the profiler")
    if done.returncode != 0:
        raise BenchError(f"{command[0]} failed: {done.stderr.decode(errors='replace')[-500:]}")


def count_libraries(report: str) -> Counter[str]:
    """Samples by library out of `perf script -F ip,dso`."""
    libraries: Counter[str] = Counter()
    for line in report.splitlines():
        name = line.rpartition("(")[2].rstrip(") ").rpartition("/")[2].strip("[]")
        if name:
            libraries[name.partition(".")[0]] += 1
    return libraries


def count_modules(stacks: str) -> tuple[Counter[str], Counter[str]]:
    """Samples by module and by line out of py-spy's raw form: each one counts where the stack ends."""
    modules: Counter[str] = Counter()
    lines: Counter[str] = Counter()
    for row in stacks.splitlines():
        stack, _, count = row.rpartition(" ")
        leaf = stack.rpartition(";")[2]
        module = leaf.rpartition("(")[2].rpartition(":")[0] or "unknown"
        # Where the loop itself is the leaf, C code runs: polling, reading, and httptools' parser.
        modules["the loop" if module == "asyncio/runners.py" else module] += int(count)
        lines[leaf] += int(count)
    return modules, lines


def build_figures(kind: str, view: str, counts: Counter[str], top: int) -> list[Figure]:
    total = sum(counts.values())
    return [
        Figure(name=f"{kind}_{view}_{name}", value=round(100 * count / total, 1), unit="%")
        for name, count in counts.most_common(top)
    ]


def profile(gateway: peers.Gateway, kind: str, *, cores: Cores, seconds: int) -> list[Figure]:
    pid = str(measure.find_tree(gateway.pid)[-1])
    with tempfile.TemporaryDirectory(prefix="forebay-bench-") as folder:
        data, raw = f"{folder}/perf", Path(folder) / "stacks"
        perf = ["perf", "record", "-F", str(RATE_HZ), "-o", data, "-p", pid, "sleep", str(seconds)]
        sample_under_load(gateway, kind, perf, cores=cores, seconds=seconds)
        shown = subprocess.run(
            ["perf", "script", "-i", data, "-F", "ip,sym,dso"], capture_output=True, text=True
        )
        spy = [PY_SPY, "record", "--nonblocking", "-r", str(RATE_HZ), "-d", str(seconds), "-p", pid]
        sample_under_load(gateway, kind, [*spy, "-f", "raw", "-o", str(raw)], cores=cores, seconds=seconds)
        modules, lines = count_modules(raw.read_text())
    for line, count in lines.most_common(LINES_MAX):
        measure.console.print(f"{100 * count / sum(lines.values()):5.1f} %  {line}", style="dim")
    return [
        *build_figures(kind, "library", count_libraries(shown.stdout), 12),
        *build_figures(kind, "module", modules, 16),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="Where the gateway's time goes under load.")
    parser.add_argument("--seconds", type=int, default=5, help="length of one profile (5)")
    parser.add_argument("--only", choices=KINDS, help="one kind of answer (both)")
    arguments = parser.parse_args()
    figures: list[Figure] = []
    try:
        measure.require_commands(*peers.NEEDS["upstream"], *NEEDS)
        cores = measure.choose_cores(os.sched_getaffinity(0))
        with peers.run_upstream(cores) as upstream, peers.run_forebay(upstream, cores) as gateway:
            peers.check_answers(gateway)
            for kind in [arguments.only] if arguments.only else KINDS:
                figures += profile(gateway, kind, cores=cores, seconds=arguments.seconds)
    except BenchError as error:
        return measure.fail(error)
    measure.publish("hotspots", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
