"""Decides what comes after an attempt: send to the next target, send here again, or give up.  Pure.

One owner of retries: nothing else in the gateway sends a request a second time.  Once content has gone out
to the caller, nothing is sent again.
"""

from enum import Enum

import msgspec

from forebay.core.errors import Next, TargetError


class Step(Enum):
    """What to do next."""

    SAME = "same"  #: the same target, over a fresh connection
    NEXT = "next"  #: the next target of the plan
    STOP = "stop"  #: give the caller what we have


class Attempts(msgspec.Struct):
    """How far a request has come.

    Attributes:
        limit: the most attempts that may be begun.
        targets_left: targets of the plan that have not been tried.
        made: attempts begun.
        content_sent: whether the caller has seen content.
        resent: whether the current target has been tried twice already.
    """

    limit: int
    targets_left: int
    made: int = 0
    content_sent: bool = False
    resent: bool = False

    @property
    def has_alternative(self) -> bool:
        """Whether another target may still be tried; a first-token timeout may not cut the last one short."""
        return not self.content_sent and self.targets_left > 0 and self.made < self.limit

    def begin_next(self) -> None:
        """Counts an attempt at the next target of the plan."""
        self.made += 1
        self.targets_left -= 1


#: Statuses of a target that another one may do better on.  Every other answer goes to the caller.
ELSEWHERE_STATUSES = frozenset({401, 403, 408, 429, 500, 502, 503, 504, 529})


def choose_after_error(attempts: Attempts, error: TargetError) -> Step:
    """The step after an attempt that ended without an answer."""
    if attempts.content_sent or error.next is Next.STOP:
        return Step.STOP
    if error.next is Next.RETRY_HERE and not attempts.resent:
        return Step.SAME  # the target never saw the request, so this counts against nothing
    return Step.NEXT if attempts.has_alternative else Step.STOP


def choose_after_status(attempts: Attempts, status: int) -> Step:
    """The step after an answer with an error status."""
    if attempts.content_sent or status not in ELSEWHERE_STATUSES:
        return Step.STOP
    return Step.NEXT if attempts.has_alternative else Step.STOP
