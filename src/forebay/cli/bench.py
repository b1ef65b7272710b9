"""`forebay bench`: measures a deployment, a pool, a model or an address, and compares two results."""

import asyncio
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from forebay.app.bench_files import BenchResult, find_bench, find_best, save_bench
from forebay.app.bench_plan import Arrival, Prompt, Wanted, load_prompts, make_prompts
from forebay.app.bench_plot import draw_plot
from forebay.app.bench_run import Level, Load, Settings, run_levels
from forebay.app.bench_stats import compare, parse_slo
from forebay.app.clock import SystemClock
from forebay.app.config import Config
from forebay.cli.bench_matrix import record_trial
from forebay.cli.bench_target import About, find_target
from forebay.cli.tables import Cell, Column, Table, print_table
from forebay.cli.terminal import BadOption, Failure, Outcome, is_plain, print_line, print_note
from forebay.cli.usable_config import load_usable_config
from forebay.core.errors import ConfigInvalid

LEVELS_MAX: Final = 32
_FIGURES: Final = (
    ("Requests/s", "requests_per_s", "{:.2f}"),
    ("Output tok/s", "output_tokens_per_s", "{:.1f}"),
    ("TTFT mean", "mean_ttft_ms", "{:.1f}"),
    ("median", "median_ttft_ms", "{:.1f}"),
    ("p99", "p99_ttft_ms", "{:.1f}"),
    ("TPOT mean", "mean_tpot_ms", "{:.2f}"),
    ("p99", "p99_tpot_ms", "{:.2f}"),
    ("ITL mean", "mean_itl_ms", "{:.2f}"),
    ("p99", "p99_itl_ms", "{:.2f}"),
    ("E2E mean", "mean_e2el_ms", "{:.0f}"),
    ("p99", "p99_e2el_ms", "{:.0f}"),
    ("Good/s", "goodput_per_s", "{:.2f}"),
)


class BenchOptions(msgspec.Struct, kw_only=True):
    """As they were given."""

    concurrency: str = ""
    rate: str = ""
    arrival: str = "poisson"
    requests: int | None = None
    warm_up: int | None = None
    input_tokens: int = 128
    output_tokens: int = 64
    prefix_tokens: int = 0
    spread: float = 0.0
    dataset: Path | None = None
    slo: Sequence[str] = ()
    seed: int = 0
    model: str | None = None
    key: str | None = None
    endpoint: str = "chat/completions"
    timeout_s: float = 600.0
    ignores_end: bool = True
    plot: Path | None = None
    saves: bool = True
    as_json: bool = False


def bench(file: Path | None, name: str, options: BenchOptions) -> Outcome:
    """Raises Failure, BadOption."""
    config = _find_config(file, name)
    loads, slo_s = _read_loads(options), _read_slo(options.slo)
    about = find_target(config, name, model=options.model, key=options.key, endpoint=options.endpoint)
    if options.ignores_end:
        about.target = msgspec.structs.replace(about.target, extra={"ignore_eos": True})
    count = options.requests or max(20, 4 * max(load.concurrency or 5 for load in loads))
    prompts = _find_prompts(options, count)
    widest = max((load.concurrency or 1 for load in loads), default=1)
    warm_up = min(widest, 16) if options.warm_up is None else options.warm_up
    settings = Settings(seed=options.seed, warm_up=warm_up, timeout_s=options.timeout_s, slo_s=slo_s)
    with show_progress(f"{about.name} ({about.target.model})", len(loads) * count) as on_progress:
        try:
            levels = asyncio.run(run_levels(about.target, loads, prompts, settings, on_progress))
        except ValueError as error:
            raise Failure(str(error)) from None
    result = _make_result(about, levels, options, slo_s, count)
    saved = _save(config, result) if options.saves else None
    if saved is not None:
        record_trial(file, about, result)
    if options.plot is not None:
        options.plot.write_text(draw_plot(result))
    _tell(result, saved, as_json=options.as_json)
    return Outcome.OK if all(not level.figures["errors"] for level in levels) else Outcome.PROBLEM


def compare_benches(file: Path | None, first: str, second: str, *, as_json: bool) -> Outcome:
    """Two saved results, level by level.  Raises Failure."""
    config = _find_config(file, first)
    folder = Path() if config is None else config.data_path
    try:
        results = [find_bench(folder, name) for name in (first, second)]
    except (OSError, ValueError) as error:
        raise Failure(str(error), hint="run `forebay bench` for both first, or name two files") from None
    pairs = _pair_levels(*results)
    if not pairs:
        raise Failure("the two results have no level in common", hint="measure both with the same load")
    rows, shown = [], []
    for ours, theirs in pairs:
        for each in compare(ours.samples, theirs.samples):
            mark = "" if each.is_certain else "no difference is certain"
            interval = f"{each.low:+.2f} to {each.high:+.2f}"
            change = f"{(each.second / each.first - 1):+.1%}" if each.first else ""
            rows.append(
                (
                    ours.load.describe(),
                    each.name,
                    f"{each.first:.2f}",
                    f"{each.second:.2f}",
                    change,
                    interval,
                    mark,
                )
            )
            shown.append(
                {"load": ours.load.describe(), **msgspec.to_builtins(each), "certain": each.is_certain}
            )
    if as_json:
        print_line(msgspec.json.encode({"first": first, "second": second, "differences": shown}).decode())
        return Outcome.OK
    titles = ("Load", "Figure", "First", "Second", "Change", "95 % interval", "Note")
    columns = tuple(
        Column(title=title, align="right" if 1 < at < 6 else "left") for at, title in enumerate(titles)
    )
    print_table(Table(columns=columns, rows=rows))
    return Outcome.OK


def _pair_levels(first: BenchResult, second: BenchResult) -> list[tuple[Level, Level]]:
    known = {level.load: level for level in second.levels}
    return [(level, known[level.load]) for level in first.levels if level.load in known]


# --- what was asked -----------------------------------------------------------------------------------------


def _find_config(file: Path | None, name: str) -> Config | None:
    """None where there is none that can be read, which does for an address."""
    try:
        return load_usable_config(file)
    except ConfigInvalid:
        if name.startswith(("http://", "https://")):
            return None
        raise


def _read_loads(options: BenchOptions) -> list[Load]:
    if options.arrival not in ("poisson", "constant"):
        raise BadOption(f"--arrival {options.arrival!r} is neither poisson nor constant")
    arrival: Arrival = "constant" if options.arrival == "constant" else "poisson"
    levels = [Load(concurrency=int(each)) for each in _read_numbers("--concurrency", options.concurrency)]
    rates = _read_numbers("--rate", options.rate)
    levels += [Load(rate_per_s=each, arrival=arrival) for each in rates]
    if len(levels) > LEVELS_MAX:
        raise BadOption(f"{len(levels)} levels are more than {LEVELS_MAX}")
    return levels or [Load(concurrency=each) for each in (1, 4, 16)]


def _read_numbers(option: str, text: str) -> list[float]:
    found = []
    for part in filter(None, (each.strip() for each in text.split(","))):
        try:
            number = float(part)
        except ValueError:
            number = -1.0
        if not 0 < number <= 100_000 or (option == "--concurrency" and number != int(number)):
            raise BadOption(f"{option} {part!r} is no level", hint=f"{option} 1,4,16")
        found.append(number)
    return found


def _read_slo(given: Sequence[str]) -> dict[str, float]:
    try:
        return dict(parse_slo(each) for each in given)
    except ValueError as error:
        raise BadOption(f"--slo {error}") from None


def _find_prompts(options: BenchOptions, count: int) -> list[Prompt]:
    if options.dataset is not None:
        try:
            return load_prompts(options.dataset, options.output_tokens, count, options.seed)
        except (OSError, ValueError) as error:
            raise Failure(f"--dataset: {error}") from None
    if options.prefix_tokens >= options.input_tokens:
        raise BadOption("--prefix-tokens must be less than --input-tokens, or all prompts are the same")
    wanted = Wanted(
        input_tokens=options.input_tokens,
        output_tokens=options.output_tokens,
        prefix_tokens=options.prefix_tokens,
        spread=options.spread,
    )
    return make_prompts(wanted, count, options.seed)


# --- what came of it ----------------------------------------------------------------------------------------


def _make_result(
    about: About, levels: list[Level], options: BenchOptions, slo_s: dict[str, float], count: int
) -> BenchResult:
    asked: dict[str, Any] = {
        "seed": options.seed,
        "requests": count,
        "endpoint": options.endpoint,
        "output_tokens": options.output_tokens,
    }
    if options.dataset is None:
        asked |= {"input_tokens": options.input_tokens, "prefix_tokens": options.prefix_tokens}
        asked |= {"spread": options.spread}
    else:
        asked["dataset"] = options.dataset.name
    return BenchResult(
        target=about.name,
        at_ns=SystemClock().wall_ns(),
        model=about.target.model,
        version=about.version,
        engine=about.engine,
        engine_version=about.engine_version,
        hardware=about.hardware,
        precision=about.precision,
        figures=find_best(levels).figures,
        slo_s=slo_s,
        asked=asked,
        replicas=len(about.target.urls),
        levels=levels,
    )


def _save(config: Config | None, result: BenchResult) -> Path | None:
    if config is None:
        return None
    try:
        return save_bench(config.data_path, result)
    except OSError as error:
        print_note(f"the result can't be saved: {error}", "yellow")
        return None


def _tell(result: BenchResult, saved: Path | None, *, as_json: bool) -> None:
    if as_json:
        print_line(encode_line(result, saved))
    else:
        _print(result)
        if saved is not None:
            print_note(f"saved as {saved}")
    for level in result.levels:
        for warning in level.warnings:
            print_note(f"{level.load.describe()}: {warning}", "yellow")
        for words, count in level.errors.items():
            print_note(f"{level.load.describe()}: {count} × {words}", "red")


def encode_line(result: BenchResult, saved: Path | None) -> str:
    """One line: all but the samples."""
    told = msgspec.to_builtins(result)
    for level in told["levels"]:
        del level["samples"]
    return msgspec.json.encode(told | {"file": None if saved is None else str(saved)}).decode()


def _print(result: BenchResult) -> None:
    shown = [each for each in _FIGURES if any(each[1] in level.figures for level in result.levels)]
    columns = [Column(title="Load"), Column(title="Errors", align="right", kind="whole")]
    columns += [Column(title=title, align="right", kind="whole") for title, _, _ in shown]
    rows: list[list[str | Cell]] = []
    for level in result.levels:
        errors = int(level.figures["errors"])
        cells = [form.format(level.figures[name]) if name in level.figures else "" for _, name, form in shown]
        rows.append([level.load.describe(), Cell(text=str(errors), style="red" if errors else ""), *cells])
    print_table(Table(columns=columns, rows=rows))
    print_note("times in ms; TTFT, TPOT, ITL and E2E as `vllm bench serve` defines them")


@contextmanager
def show_progress(what: str, total: int) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr, where that is a terminal."""
    if is_plain(sys.stderr):
        yield lambda done, total: None
        return
    parts = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*parts, console=Console(stderr=True), transient=True, refresh_per_second=4) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done, total: bar.update(task, completed=done)
