"""What every benchmark shares: cores, the cost of a process tree, a run of wrk, and the form of the figures.

Costs are CPU seconds (user + system) and not wall time, because they hold still on a machine that does other
things too.  Nothing here knows which server is measured.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
MIB = 1024 * 1024
SCRIPTS = Path(__file__).parent / "wrk"


class BenchError(Exception):
    """The benchmark can't be run, or what it measured is not valid.  The message says how to mend it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cores:
    """One core for the server that is measured, another for the load and the upstream."""

    server: int
    load: int


def choose_cores(available: Iterable[int]) -> Cores:
    """The last core serves and the first one loads; raises `BenchError` where there is only one."""
    cores = sorted(available)
    if len(cores) < 2:
        raise BenchError("the benchmarks need two cores: one for the server, one for the load")
    return Cores(server=cores[-1], load=cores[0])


# --- what a process tree costs ------------------------------------------------------------------------------


def parse_cpu_ticks(stat: str) -> int:
    """User + system ticks out of `/proc/PID/stat`; a process may have `)` and blanks in its name."""
    fields = stat.rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def find_tree(pid: int) -> list[int]:
    """A process and all that descend from it; those that end meanwhile are left out."""
    found = [pid]
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += find_tree(int(child))
    except (FileNotFoundError, ProcessLookupError):
        pass
    return found


def read_cpu_s(pid: int) -> float:
    """CPU seconds that a living process tree has used up to now."""
    return sum(parse_cpu_ticks(Path(f"/proc/{p}/stat").read_text()) for p in find_tree(pid)) / TICKS_PER_S


def read_machine_cpu_s() -> float:
    """CPU seconds that the whole machine has used up to now, and those that its host took."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split(maxsplit=9)[1:9]]
    idle, waiting = fields[3], fields[4]
    return (sum(fields) - idle - waiting) / TICKS_PER_S


def read_rss_mib(pid: int) -> float:
    """Resident memory of a process tree."""
    pages = sum(int(Path(f"/proc/{p}/statm").read_text().split()[1]) for p in find_tree(pid))
    return pages * PAGE_BYTES / MIB


# --- load ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What wrk saw in one run."""

    requests: int
    duration_s: float
    p50_ms: float
    p99_ms: float
    errors: int  #: answers other than 2xx or 3xx, and broken or silent connections


def run_wrk(
    url: str,
    script: str,
    *,
    core: int,
    seconds: int,
    connections: int = 32,
    script_args: Sequence[str] = (),
) -> Load:
    """One run of wrk on one core.  Raises `BenchError` if wrk fails."""
    command = ["taskset", "-c", str(core), "wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout=10s"]
    command += ["-s", str(SCRIPTS / script), url, "--", *script_args]
    # wrk's threads find what the script requires (report.lua) beside it.
    environment = os.environ | {"LUA_PATH": f"{SCRIPTS}/?.lua;;"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    report = next((line for line in done.stdout.splitlines() if line.startswith("{")), None)
    if done.returncode != 0 or report is None:
        raise BenchError(f"wrk failed: {done.stderr.strip() or done.stdout.strip()}")
    return Load(**json.loads(report))


def require_commands(*pairs: tuple[str, str]) -> None:
    """Raises `BenchError` naming the command that installs what is missing.  Pairs: command, installer."""
    missing = [(command, mend) for command, mend in pairs if find_command(command) is None]
    if missing:
        what = ", ".join(command for command, _ in missing)
        how = ", ".join(dict.fromkeys(mend for _, mend in missing))
        raise BenchError(f"not installed: {what}. Install with: {how}")


def find_command(command: str) -> str | None:
    """The path of a command; Debian keeps servers in a folder that is not on everybody's PATH."""
    return shutil.which(command, path=os.environ.get("PATH", "") + os.pathsep + "/usr/sbin")


# --- figures ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured number.  `target` is the most it may be, or the least; None where nothing is promised."""

    name: str
    value: float
    unit: str
    target: float | None = None
    is_least: bool = False

    @property
    def holds(self) -> bool | None:
        if self.target is None:
            return None
        return self.value >= self.target if self.is_least else self.value <= self.target


def compute_slope(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float]:
    """Slope and intercept of the least-squares line through the points; two points at least."""
    x_mean, y_mean = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - x_mean) ** 2 for x in xs)
    slope = sum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys, strict=True)) / spread
    return slope, y_mean - slope * x_mean


def compute_quantile(values: Sequence[float], quantile: float) -> float:
    """Nearest-rank quantile, so that the answer is a value that was measured."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(quantile * len(ordered)))]


console = Console(stderr=True, soft_wrap=True, highlight=False)


def publish(bench: str, figures: Sequence[Figure]) -> None:
    """A table for people on stderr, then the one JSON line on stdout."""
    console.print()
    table = Table(title=f"Forebay bench: {bench}", title_justify="left")
    for heading in ("figure", "value", "unit", "at most", "holds"):
        table.add_column(heading, justify="right" if heading in ("value", "at most") else "left")
    marks = {None: "", True: "[green]yes[/green]", False: "[red]no[/red]"}
    for figure in figures:
        target = "" if figure.target is None else f"{'≥ ' if figure.is_least else ''}{figure.target:g}"
        table.add_row(figure.name, f"{figure.value:,.6g}", figure.unit, target, marks[figure.holds])
    console.print(table)
    rows = [asdict(figure) | {"holds": figure.holds} for figure in figures]
    for row in rows:
        if not row["is_least"]:
            del row["is_least"]
    print(json.dumps({"bench": bench, "figures": rows}), flush=True)


def fail(error: BenchError) -> int:
    """Says on stderr why there are no figures; the exit status for it."""
    print(f"bench: {error}", file=sys.stderr)
    return 1
