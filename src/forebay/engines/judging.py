"""Judges a new revision by its answers beside those of the old one.  Pure.

Good needs time and requests; bad is told as soon as it is certain.  What is not known is neither.
"""

from enum import StrEnum
from typing import Final

import msgspec

from forebay.engines.deployment import Rollout

FAILURES_MIN: Final = 3  #: fewer say nothing
SAMPLES_MIN: Final = 5  #: of times, on either side
SAMPLES_CERTAIN: Final = 20  #: of times, before the end of a step
PATIENCE: Final = 5  #: times `step_s`, after which few requests are enough


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Of one revision."""

    requests: int = 0  #: attempts that ended at its replicas
    failed: int = 0  #: of them
    first_token_s: float | None = None  #: the median of streams
    streams: int = 0
    answer_s: float | None = None  #: the median of whole answers
    answers: int = 0

    @property
    def failed_share(self) -> float:
        return self.failed / self.requests if self.requests else 0.0


class Verdict(StrEnum):
    OPEN = "open"
    GOOD = "good"
    BAD = "bad"


class Judgement(msgspec.Struct, frozen=True):
    verdict: Verdict
    reason: str  #: one line for people


def judge(new: Figures, old: Figures, rollout: Rollout, step_age_s: float) -> Judgement:
    """Of one step of a rollout, by the new revision's figures since its beginning."""
    allowed = old.failed_share + rollout.error_share_max
    if new.failed >= FAILURES_MIN and new.failed_share > allowed:
        return Judgement(
            Verdict.BAD,
            f"{new.failed} of its {new.requests} attempts failed: more than {allowed:.1%}, which the old "
            "revision's failures and rollout.error_share_max allow",
        )
    if slowness := _find_slowness(new, old, rollout, SAMPLES_CERTAIN):
        return Judgement(Verdict.BAD, slowness)
    if step_age_s < rollout.step_s:
        return Judgement(Verdict.OPEN, f"the step lasts {rollout.step_s:g} s")
    if new.requests < rollout.requests_min and step_age_s < PATIENCE * rollout.step_s:
        return Judgement(
            Verdict.OPEN, f"{new.requests} of {rollout.requests_min} requests have been answered"
        )
    if new.failed_share > allowed:
        return Judgement(Verdict.BAD, f"{new.failed} of its {new.requests} attempts failed")
    if slowness := _find_slowness(new, old, rollout, SAMPLES_MIN):
        return Judgement(Verdict.BAD, slowness)
    return Judgement(Verdict.GOOD, f"{new.requests} requests, {new.failed} failed")


def _find_slowness(new: Figures, old: Figures, rollout: Rollout, samples: int) -> str:
    """Of so many streams or answers at least; empty where it is not slower, or nobody can say."""
    for what, unit, mine, count, theirs, counted in (
        ("first token", "streams", new.first_token_s, new.streams, old.first_token_s, old.streams),
        ("whole answer", "answers", new.answer_s, new.answers, old.answer_s, old.answers),
    ):
        if mine is None or theirs is None or count < samples or counted < SAMPLES_MIN:
            continue
        if mine > theirs * rollout.latency_ratio_max:
            return (
                f"its {what} takes {mine:.3g} s at the median of {count} {unit}, the old revision's "
                f"{theirs:.3g} s: more than rollout.latency_ratio_max, {rollout.latency_ratio_max:g}, allows"
            )
    return ""
