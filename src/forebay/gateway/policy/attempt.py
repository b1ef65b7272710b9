"""Decides what comes after an attempt: send elsewhere, here again, to another as well, or give up.  Pure.

One owner of retries: nothing else in the gateway sends a request a second time.  `TABLE` is the whole
decision; the first row that fits says the step.  Once content has gone out to the caller, nothing is sent
again.
"""

from enum import Enum
from typing import Final, NamedTuple

import msgspec

from forebay.core.errors import Next, TargetError, Untranslatable


class Happened(Enum):
    """What became of an attempt, as far as the next step depends on it."""

    STALE = "its connection was closed before the target saw the request"
    UNTOLD = "the target can't be told this, so nothing was sent"
    FAILED = "no answer, or one that another target may do better on"
    TOO_LONG = "the request is longer than the target's context window"
    SILENT = "no content after the time in which nearly all answers begin"
    ANSWERED = "an answer for the caller, good or bad"
    HOPELESS = "an end that would be the same at every target"


class Step(Enum):
    """What to do next."""

    SAME = "same"  #: the same target, over a fresh connection
    NEXT = "next"  #: the next target of the plan
    HEDGE = "hedge"  #: the next target of the plan, while this one goes on
    WAIT = "wait"  #: for what is under way
    STOP = "stop"  #: give the caller what we have
    SPENT = "spent"  #: likewise, though there is another target: the budget of retries has no room

    @property
    def is_end(self) -> bool:
        return self is Step.STOP or self is Step.SPENT


class Attempts(msgspec.Struct):
    """How far a request has come.

    Attributes:
        limit: the most attempts that may be begun.
        targets_left: targets of the plan that have not been tried.
        made: attempts begun.
        content_sent: whether the caller has seen content.
        resent: whether the current target has been tried twice already.
        has_other: whether another attempt is under way at the same time.
    """

    limit: int
    targets_left: int
    made: int = 0
    content_sent: bool = False
    resent: bool = False
    has_other: bool = False

    @property
    def has_alternative(self) -> bool:
        """Whether another target may still be tried."""
        return not self.content_sent and self.targets_left > 0 and self.made < self.limit

    def begin_next(self) -> None:
        """Counts an attempt at the next target of the plan."""
        self.made += 1
        self.targets_left -= 1


class Row(NamedTuple):
    """One line of the table; None stands for either.

    Attributes:
        content: the caller has seen content.
        other: another attempt is under way at the same time.
        resent: it was sent here twice already.
        place: there is another target in the plan, and an attempt left for it.
        budget: the budget of retries has room, or no target has seen the request yet.
    """

    happened: frozenset[Happened]
    content: bool | None
    other: bool | None
    resent: bool | None
    place: bool | None
    budget: bool | None
    step: Step


_ANY: Final = frozenset(Happened)
_ENDS: Final = frozenset({Happened.ANSWERED, Happened.HOPELESS})
_LOST: Final = frozenset({Happened.STALE, Happened.FAILED, Happened.TOO_LONG})
_STALE: Final = frozenset({Happened.STALE})
_UNTOLD: Final = frozenset({Happened.UNTOLD})
_SILENT: Final = frozenset({Happened.SILENT})

#: See the module.  `docs/routing.md` shows it.  What a place is depends on what happened: after TOO_LONG it
#: is one with a larger window, and after UNTOLD one that speaks something else.
TABLE: Final = (
    #   happened content other  resent place  budget step
    Row(_ANY,    True,   None,  None,  None,  None,  Step.STOP),
    Row(_SILENT, False,  False, None,  True,  True,  Step.HEDGE),
    Row(_SILENT, False,  None,  None,  None,  None,  Step.WAIT),
    Row(_ENDS,   False,  None,  None,  None,  None,  Step.STOP),
    Row(_LOST,   False,  True,  None,  None,  None,  Step.WAIT),
    Row(_UNTOLD, False,  True,  None,  None,  None,  Step.WAIT),
    Row(_STALE,  False,  False, False, None,  None,  Step.SAME),
    Row(_UNTOLD, False,  False, None,  True,  None,  Step.NEXT),
    Row(_LOST,   False,  False, None,  True,  True,  Step.NEXT),
    Row(_LOST,   False,  False, None,  True,  False, Step.SPENT),
    Row(_ANY,    False,  None,  None,  False, None,  Step.STOP),
)  # fmt: skip

#: Statuses of a target that another one may do better on.  Every other answer goes to the caller.
ELSEWHERE_STATUSES = frozenset({401, 403, 408, 429, 500, 502, 503, 504, 529})


def choose_step(attempts: Attempts, happened: Happened, *, has_budget: bool = True) -> Step:
    """The step that the table says."""
    now = attempts.content_sent, attempts.has_other, attempts.resent, attempts.has_alternative, has_budget
    for row in TABLE:
        if happened in row.happened and all(
            wanted is None or wanted is known for wanted, known in zip(row[1:6], now, strict=True)
        ):
            return row.step
    raise AssertionError((attempts, happened))  # the rows leave nothing out, as a test shows


def name_error(error: TargetError) -> Happened:
    """What an attempt that ended without an answer stands for."""
    if isinstance(error, Untranslatable):
        return Happened.UNTOLD
    if error.next is Next.RETRY_HERE:
        return Happened.STALE
    return Happened.HOPELESS if error.next is Next.STOP else Happened.FAILED


def name_status(status: int) -> Happened:
    """What an answer with an error status stands for."""
    return Happened.FAILED if status in ELSEWHERE_STATUSES else Happened.ANSWERED


def choose_after_error(attempts: Attempts, error: TargetError, *, has_budget: bool = True) -> Step:
    """The step after an attempt that ended without an answer."""
    return choose_step(attempts, name_error(error), has_budget=has_budget)


def choose_after_status(attempts: Attempts, status: int, *, has_budget: bool = True) -> Step:
    """The step after an answer with an error status."""
    return choose_step(attempts, name_status(status), has_budget=has_budget)
