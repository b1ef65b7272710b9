"""What a benchmark says to the version matrix: that the combination of a pool or of a deployment was tried,
and how it went.
"""

from pathlib import Path
from typing import Final

from forebay.app.bench_files import BenchResult, find_best
from forebay.cli.bench_target import About
from forebay.cli.matrix import name_engine, open_matrix
from forebay.cli.tenancy import find_actor
from forebay.cli.terminal import print_note
from forebay.core.errors import ForebayError
from forebay.engines.hardware import detect_hardware
from forebay.engines.matrix import NOTE_MAX, Combination, Trial, TrialOutcome

#: Of the figures, those by which combinations are told apart.
_KEPT: Final = (
    *("requests_per_s", "output_tokens_per_s", "goodput_per_s", "good_ratio", "mean_input_tokens"),
    *("mean_output_tokens", "median_ttft_ms", "p99_ttft_ms", "median_tpot_ms", "p99_tpot_ms", "p99_e2el_ms"),
)


def record_trial(file: Path | None, about: About, result: BenchResult) -> None:
    """Of an engine that is known; says so where the matrix takes none.

    Of a deployment the combination is the one that its manifest asks for, as `forebay apply` looks it up.
    """
    if not result.engine or not about.public:
        return
    asked = about.manifest_version
    best = find_best(result.levels)
    failed = int(sum(level.figures.get("errors", 0.0) for level in result.levels))
    notes = [best.load.describe()]
    if failed:
        notes.append(f"{failed} requests failed")
    if asked is not None and result.engine_version:
        notes.append(f"the engine says that it is {result.engine_version}")
    trial = Trial(
        combination=Combination(
            model=about.public,
            model_version=result.version,
            engine=name_engine(result.engine),
            engine_version=result.engine_version if asked is None else asked,
            hardware=result.hardware or detect_hardware(),
            precision=result.precision,
        ),
        outcome=TrialOutcome.FAILED if failed else TrialOutcome.PASSED,
        at_ns=result.at_ns,
        source="bench",
        figures={name: best.figures[name] for name in _KEPT if name in best.figures},
        note="; ".join(notes)[:NOTE_MAX],
    )
    try:
        with open_matrix(file) as matrix:
            matrix.record(trial, find_actor())
    except ForebayError as error:
        print_note(f"the version matrix takes no trial: {error.message}", "yellow")
