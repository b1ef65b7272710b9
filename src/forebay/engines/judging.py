"""Judges a new revision by its answers beside those of the old one.  Pure.

Good needs time and requests; bad is told as soon as it is certain.  What is not known is neither.
"""

import math
from enum import StrEnum
from typing import Final

import msgspec

from forebay.engines.deployment import Rollout, Unseen

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
    is_unseen: bool = False  #: it is good for nothing was seen of it, or too little


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
    is_unseen = new.requests < rollout.requests_min
    answered = f"{new.requests} of {rollout.requests_min} requests have been answered"
    if step_age_s < rollout.step_s:
        left_s = math.ceil(rollout.step_s - step_age_s)
        words = f"for {left_s} s more at least"
        return Judgement(Verdict.OPEN, f"{words}, {answered}" if is_unseen else words)
    if is_unseen and rollout.unseen is Unseen.WAIT:
        return Judgement(Verdict.OPEN, f"{answered}, and it waits for them (rollout.unseen)")
    if is_unseen and step_age_s < PATIENCE * rollout.step_s:
        left_s = math.ceil(PATIENCE * rollout.step_s - step_age_s)
        return Judgement(Verdict.OPEN, f"{answered}; in {left_s} s fewer are enough")
    if new.failed_share > allowed:
        return Judgement(Verdict.BAD, f"{new.failed} of its {new.requests} attempts failed")
    if slowness := _find_slowness(new, old, rollout, SAMPLES_MIN):
        return Judgement(Verdict.BAD, slowness)
    count = f"{new.requests} of {rollout.requests_min}" if is_unseen else f"{new.requests}"
    words = "passed by time alone: " if is_unseen else ""
    return Judgement(Verdict.GOOD, f"{words}{count} requests, {new.failed} failed", is_unseen)


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
