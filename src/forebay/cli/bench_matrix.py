"""What a benchmark of a pool says to the version matrix: that its combination was tried, and how it went."""

from pathlib import Path
from typing import Final

from forebay.app.bench_files import BenchResult, find_best
from forebay.cli.matrix import open_matrix
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


def record_trial(file: Path | None, public: str, result: BenchResult) -> None:
    """Of an engine that is known; says so where the matrix takes none.

    Args:
        public: the model's public name.
    """
    if not result.engine or not public:
        return
    best = find_best(result.levels)
    failed = int(sum(level.figures.get("errors", 0.0) for level in result.levels))
    trial = Trial(
        combination=Combination(
            model=public,
            model_version=result.version,
            engine=result.engine.replace("llama.cpp", "llamacpp"),  # as deployments name it
            engine_version=result.engine_version,
            hardware=result.hardware or detect_hardware(),
            precision=result.precision,
        ),
        outcome=TrialOutcome.FAILED if failed else TrialOutcome.PASSED,
        at_ns=result.at_ns,
        source="bench",
        figures={name: best.figures[name] for name in _KEPT if name in best.figures},
        note=f"{best.load.describe()}{f'; {failed} requests failed' if failed else ''}"[:NOTE_MAX],
    )
    try:
        with open_matrix(file) as matrix:
            matrix.record(trial, find_actor())
    except ForebayError as error:
        print_note(f"the version matrix takes no trial: {error.message}", "yellow")
