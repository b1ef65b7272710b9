"""`forebay matrix`: which combinations were tried, for people and programs.

Works straight on the database, as `keys` does.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from forebay.app.bench_files import BenchResult, find_bench
from forebay.app.clock import SystemClock
from forebay.app.database import open_database
from forebay.app.matrix import MatrixRepo
from forebay.cli.tables import Cell, Column, Table, print_table
from forebay.cli.tenancy import find_actor, format_moment, print_json
from forebay.cli.terminal import BadOption, Outcome, print_line, print_note
from forebay.cli.usable_config import load_usable_config
from forebay.core.errors import InvalidValue
from forebay.engines.hardware import detect_hardware
from forebay.engines.load_names import EngineKind
from forebay.engines.matrix import Combination, Trial, TrialOutcome, explain_unknown, find_newest

_COLUMNS: Final = (
    Column(title="Model"),
    Column(title="Version"),
    Column(title="Engine"),
    Column(title="Hardware"),
    Column(title="Precision", rank=3),
    Column(title="Outcome", kind="whole"),
    Column(title="When", kind="whole", rank=2),
    Column(title="By", kind="whole", rank=4),
    Column(title="Figures", kind="prose", rank=5),
    Column(title="Note", kind="prose", rank=1),
)


@contextmanager
def open_matrix(file: Path | None) -> Iterator[MatrixRepo]:
    """The matrix of the data folder; made where there is none yet.  Raises StoreError."""
    database = open_database(load_usable_config(file))
    try:
        database.migrate()
        yield MatrixRepo(database, SystemClock())
    except InvalidValue as error:
        raise BadOption(error.message) from None
    finally:
        database.close()


def make_combination(
    model: str,
    model_version: str,
    engine: str | None,
    engine_version: str,
    hardware: str | None,
    precision: str,
) -> Combination:
    if not engine:
        raise BadOption("--engine is missing", hint="such as `--engine vllm`")
    return Combination(
        model=model,
        model_version=model_version,
        engine=engine,
        engine_version=engine_version,
        hardware=hardware or detect_hardware(),
        precision=precision,
    )


def name_engine(said: str) -> str:
    """As deployments name it, and so the matrix: pools say `llama.cpp` where they say `llamacpp`."""
    return "llamacpp" if said == EngineKind.LLAMA_CPP.value else said


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What `forebay matrix record` was told."""

    model: str
    outcome: str | None
    bench: str | None
    engine: str | None
    model_version: str
    engine_version: str
    hardware: str | None
    precision: str
    figures: tuple[str, ...]
    environment: str
    note: str


def make_trial(given: Given, bench: BenchResult | None) -> Trial:
    """What is given comes before what a benchmark says of itself.  Raises BadOption."""
    has_failed = bench is not None and any(level.figures.get("errors", 0.0) for level in bench.levels)
    outcome = given.outcome or (("failed" if has_failed else "passed") if bench else None)
    if outcome not in list(TrialOutcome):
        raise BadOption(
            f"can't understand --outcome {outcome or ''}".rstrip(), hint="give `passed` or `failed`"
        )
    measured = {} if bench is None else bench.figures
    known = bench or BenchResult(target="", at_ns=0, model="")
    return Trial(
        combination=make_combination(
            given.model,
            given.model_version or known.version,
            given.engine or name_engine(known.engine),
            given.engine_version or known.engine_version,
            given.hardware or known.hardware,
            given.precision or known.precision,
        ),
        outcome=TrialOutcome(outcome),
        at_ns=known.at_ns,
        source="manual" if bench is None else "bench",
        figures={**measured, **dict(map(_parse_figure, given.figures))},
        environment=given.environment,
        note=given.note,
    )


def _parse_figure(text: str) -> tuple[str, float]:
    name, _, number = text.partition("=")
    try:
        return name.strip(), float(number) if name.strip() else float("")
    except ValueError:
        raise BadOption(
            f"can't understand --figure {text}", hint="such as `output_tokens_per_s=120.5`"
        ) from None


def list_trials(file: Path | None, *, model: str | None, is_every: bool, as_json: bool) -> Outcome:
    with open_matrix(file) as repo:
        found: Sequence[Trial] = repo.list(model)
    if not is_every:
        newest = find_newest(found)
        found = [trial for trial in found if newest[trial.combination] is trial]
    if as_json:
        print_json([describe_trial(trial) for trial in found])
        return Outcome.OK
    print_table(Table(columns=_COLUMNS, rows=[_make_row(trial) for trial in found]))
    if not found:
        print_note(
            "nothing was tried yet: `forebay env build`, `forebay bench` and `forebay matrix record` do"
        )
    return Outcome.OK


def show(file: Path | None, wanted: Combination, *, as_json: bool) -> Outcome:
    with open_matrix(file) as repo:
        trials = repo.list()
    unknown = explain_unknown(wanted, trials)
    own = [trial for trial in trials if trial.combination == wanted]
    if as_json:
        print_json(
            {
                "tested": unknown is None,
                "unknown": [] if unknown is None else list(unknown.describe()),
                "trials": [describe_trial(trial) for trial in own],
            }
        )
        return Outcome.OK if unknown is None else Outcome.PROBLEM
    for line in (f"{wanted.describe()} is tested",) if unknown is None else unknown.describe():
        print_line(line)
    if own:
        print_line()
        print_table(Table(columns=_COLUMNS, rows=[_make_row(trial) for trial in own]))
    return Outcome.OK if unknown is None else Outcome.PROBLEM


def record(file: Path | None, given: Given) -> Outcome:
    bench = None
    if given.bench is not None:
        try:
            bench = find_bench(load_usable_config(file).data_path, given.bench)
        except ValueError as error:
            raise BadOption(f"--bench: {error}") from None
    trial = make_trial(given, bench)
    with open_matrix(file) as repo:
        kept = repo.record(trial, find_actor())
    print_line(f"{kept.combination.describe()}: {kept.outcome}")
    return Outcome.OK


def forget(file: Path | None, model: str) -> Outcome:
    with open_matrix(file) as repo:
        count = repo.forget(model, find_actor())
    print_line(f"{model}: {count} trials removed")
    return Outcome.OK


def describe_trial(trial: Trial) -> dict[str, object]:
    found: dict[str, object] = msgspec.to_builtins(trial)
    combination = found.pop("combination")
    assert isinstance(combination, dict)
    at_ns = found.pop("at_ns")
    assert isinstance(at_ns, int)
    return {**combination, "at": format_moment(at_ns), **found}


def _make_row(trial: Trial) -> tuple[str | Cell, ...]:
    each = trial.combination
    style = "green" if trial.outcome is TrialOutcome.PASSED else "red"
    return (
        each.model,
        each.model_version,
        f"{each.engine} {each.engine_version}".strip(),
        each.hardware,
        each.precision,
        Cell(text=trial.outcome.value, style=style),
        format_moment(trial.at_ns),
        trial.source,
        ", ".join(f"{name} {value:g}" for name, value in sorted(trial.figures.items())),
        trial.note,
    )
