"""The version matrix: which combinations of model version, engine, hardware and precision were tried, and
how it went.

Pure: decides from trials that it is given whether a combination is tested, and says what is unknown of one
that is not.  Reads no table and no clock.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from forebay.engines.deployment import Deployment

FIELDS: Final = ("model", "model_version", "engine", "engine_version", "hardware", "precision")
NEIGHBOURS_MAX: Final = 3
NOTE_MAX: Final = 1000  #: characters
FIGURES_MAX: Final = 64  #: of a trial
TEXT_MAX: Final = 200  #: characters of a field of a combination
_WORDS: Final = {
    "model": "model",
    "model_version": "model version",
    "engine": "engine",
    "engine_version": "engine version",
    "hardware": "hardware",
    "precision": "precision",
}


class Combination(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """What runs on what.  A field that is empty is not known, and differs from every other."""

    model: str  #: its public name
    model_version: str = ""
    engine: str = ""  #: such as `vllm`
    engine_version: str = ""
    hardware: str = "cpu"  #: class of hardware, as `hardware.detect_hardware` names it
    precision: str = ""  #: such as `bf16` or `q4_1`

    def describe(self) -> str:
        engine = " ".join(part for part in (self.engine, self.engine_version) if part) or "no known engine"
        model = " ".join(part for part in (self.model, self.model_version) if part)
        precision = f" in {self.precision}" if self.precision else ""
        return f"{model} on {engine}, {self.hardware}{precision}"


class TrialOutcome(StrEnum):
    PASSED = "passed"
    FAILED = "failed"


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One try of a combination.  A later one counts instead of it."""

    combination: Combination
    outcome: TrialOutcome
    at_ns: int  #: wall clock
    source: str  #: `smoke`, `bench` or `manual`
    figures: Mapping[str, float] = {}  #: by names with their units, such as `output_tokens_per_s`
    environment: str = ""  #: digest of the engine's environment
    note: str = ""


class Neighbour(msgspec.Struct, frozen=True, kw_only=True):
    """A combination that passed, and the fields in which it differs from the one that was asked for."""

    trial: Trial
    differs: tuple[str, ...]


class Unknown(msgspec.Struct, frozen=True, kw_only=True):
    """What is not known of a combination."""

    combination: Combination
    failed: Trial | None  #: the newest trial of just this combination, which failed
    neighbours: tuple[Neighbour, ...]  #: the nearest first

    def describe(self) -> tuple[str, ...]:
        """Lines for people; the first says what is wrong."""
        what = self.combination.describe()
        if self.failed is not None:
            why = f": {self.failed.note}" if self.failed.note else ""
            lines = [f"{what} was tested and failed{why}"]
        else:
            lines = [f"{what} was never tested"]
        lines.extend(self._tell_neighbour(each) for each in self.neighbours)
        if not self.neighbours:
            lines.append("nothing like it has passed: neither this model elsewhere nor this engine's version")
        return tuple(lines)

    def _tell_neighbour(self, neighbour: Neighbour) -> str:
        tried = neighbour.trial.combination
        changes = ", ".join(
            f"{_WORDS[field]} {getattr(tried, field) or 'unknown'} instead of "
            f"{getattr(self.combination, field) or 'unknown'}"
            for field in neighbour.differs
        )
        return f"passed: the same with {changes}"


def combine(deployment: Deployment) -> Combination:
    """What a deployment runs on what."""
    return Combination(
        model=deployment.model,
        model_version=deployment.version,
        engine=deployment.spec.kind,
        engine_version=deployment.spec.version,
        hardware=deployment.hardware,
        precision=deployment.precision,
    )


def find_newest(trials: Iterable[Trial]) -> dict[Combination, Trial]:
    """The trial that counts, of each combination; of two at the same time one that failed."""
    newest: dict[Combination, Trial] = {}
    for trial in trials:
        known = newest.get(trial.combination)
        if known is None or _rank(trial) > _rank(known):
            newest[trial.combination] = trial
    return newest


def is_tested(combination: Combination, trials: Iterable[Trial]) -> bool:
    """Whether the newest trial of just this combination passed."""
    trial = find_newest(trials).get(combination)
    return trial is not None and trial.outcome is TrialOutcome.PASSED


def explain_unknown(combination: Combination, trials: Iterable[Trial]) -> Unknown | None:
    """What is unknown of a combination; None where it is tested."""
    newest = find_newest(trials)
    own = newest.get(combination)
    if own is not None and own.outcome is TrialOutcome.PASSED:
        return None
    passed = [
        Neighbour(trial=trial, differs=find_differences(combination, trial.combination))
        for trial in newest.values()
        if trial.outcome is TrialOutcome.PASSED and _is_related(combination, trial.combination)
    ]
    passed.sort(key=lambda each: (len(each.differs), -each.trial.at_ns, each.trial.combination))
    return Unknown(combination=combination, failed=own, neighbours=tuple(passed[:NEIGHBOURS_MAX]))


def find_differences(one: Combination, other: Combination) -> tuple[str, ...]:
    return tuple(field for field in FIELDS if getattr(one, field) != getattr(other, field))


def check_trial(trial: Trial) -> Sequence[str]:
    """What is wrong with a trial that is to be recorded."""
    problems = [
        f"{_WORDS[field]}: longer than {TEXT_MAX} characters"
        for field in FIELDS
        if len(getattr(trial.combination, field)) > TEXT_MAX
    ]
    problems += [
        f"{_WORDS[field]}: must be given"
        for field in ("model", "engine", "hardware")
        if not getattr(trial.combination, field)
    ]
    if len(trial.note) > NOTE_MAX:
        problems.append(f"note: longer than {NOTE_MAX} characters")
    if len(trial.figures) > FIGURES_MAX:
        problems.append(f"figures: more than {FIGURES_MAX}")
    problems += [
        f"figure {name}: {value} is no finite number"
        for name, value in trial.figures.items()
        if value != value or value in (float("inf"), float("-inf"))
    ]
    return problems


def _rank(trial: Trial) -> tuple[int, bool]:
    return (trial.at_ns, trial.outcome is TrialOutcome.FAILED)


def _is_related(wanted: Combination, tried: Combination) -> bool:
    """What another model did on another engine tells nothing."""
    return tried.model == wanted.model or (tried.engine, tried.engine_version) == (
        wanted.engine,
        wanted.engine_version,
    )
