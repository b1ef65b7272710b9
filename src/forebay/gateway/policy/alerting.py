"""Decides who is told what of a limit: its use has reached a part of the amount, or there was no room.  Pure.

What was told before is handed in as marks, so that nothing is told twice in a period, whoever asks and
however often.  Of parts that are reached together the highest is told, and tells of the others.
"""

from collections.abc import Collection, Iterable
from enum import StrEnum
from typing import Final

import msgspec

from forebay.core.limits import Limit
from forebay.gateway.policy.lending import Standing

WHOLE: Final = 1000  #: shares are in thousandths of the amount
RAISED_PERCENT: Final = 110  #: an amount that was raised to so much of the one before is told of anew


class AlertKind(StrEnum):
    """What has happened to a limit."""

    SHARE_REACHED = "share_reached"  #: its use has reached a part of the amount
    EXCEEDED = "exceeded"  #: for the first time in a period a request found no room
    GRACE_ENTERED = "grace_entered"  #: the same, of a limit that allows more for a time
    GRACE_ENDED = "grace_ended"  #: of which either the time is over or all is used

    __hash__ = str.__hash__


#: How far the excess has come.  What was told of a later stage is not told of an earlier one.
_STAGES: Final = {AlertKind.GRACE_ENTERED: 1, AlertKind.EXCEEDED: 2, AlertKind.GRACE_ENDED: 2}


class Mark(msgspec.Struct, frozen=True):
    """What was told of a limit in one of its periods.

    Attributes:
        share: thousandths; 0 where the kind has none.
        amount: the limit's at that time.
        at_ns: when (wall).
    """

    kind: AlertKind
    share: int
    amount: int
    at_ns: int


class Due(msgspec.Struct, frozen=True):
    """Something to tell.

    Attributes:
        share: thousandths; 0 where the kind has none.
        passed: lower shares that nobody was told of, which were reached as well.
    """

    kind: AlertKind
    share: int = 0
    passed: tuple[int, ...] = ()


def choose_due(standing: Standing, marks: Collection[Mark], now_ns: int) -> tuple[Due, ...]:
    """What is to be told of a limit.

    Only what was used for certain counts.  What was told is told again only of an amount that was raised by a
    tenth or more since, so that one that goes up and down with the load is not told of all the time.

    Args:
        marks: what was told of it in this period.
        now_ns: by the wall clock.
    """
    limit = standing.limit
    marks = [mark for mark in marks if not _is_raised(limit, mark)]
    return (*_choose_share(limit, standing.used, marks), *_choose_excess(standing, marks, now_ns))


def may_be_due(standing: Standing) -> bool:
    """Whether there could be anything to tell, if nothing was told before and all that is lent was used."""
    limit = standing.limit
    if standing.exceeded_ns:
        return True
    return (limit.amount - standing.left) * WHOLE >= min(limit.alert_at, default=0) * limit.amount > 0


def is_uncertain(standing: Standing, marks: Collection[Mark], now_ns: int) -> bool:
    """Whether workers should say what they have not used: more may be due, or what is has a truer figure."""
    if standing.lent <= 0:
        return False
    due = choose_due(standing, marks, now_ns)
    at_most = msgspec.structs.replace(standing, lent=0)
    return bool(due) or choose_due(at_most, marks, now_ns) != due


def _is_raised(limit: Limit, mark: Mark) -> bool:
    return limit.amount > mark.amount and limit.amount * 100 >= mark.amount * RAISED_PERCENT


def _choose_share(limit: Limit, used: int, marks: Iterable[Mark]) -> Iterable[Due]:
    if used <= 0 or limit.amount <= 0:
        return
    told = max((mark.share for mark in marks if mark.kind is AlertKind.SHARE_REACHED), default=0)
    part = used * WHOLE // limit.amount
    reached = sorted({share for share in limit.alert_at if told < share <= part})
    if reached:
        yield Due(AlertKind.SHARE_REACHED, reached[-1], tuple(reached[:-1]))


def _choose_excess(standing: Standing, marks: Iterable[Mark], now_ns: int) -> Iterable[Due]:
    if not standing.exceeded_ns:
        return
    kind = _find_stage(standing, now_ns)
    told = max((_STAGES.get(mark.kind, 0) for mark in marks), default=0)
    if told < _STAGES[kind]:
        yield Due(kind)


def _find_stage(standing: Standing, now_ns: int) -> AlertKind:
    limit = standing.limit
    if limit.grace_units <= 0 or limit.grace_ns <= 0:
        return AlertKind.EXCEEDED
    has_time = now_ns < standing.exceeded_ns + limit.grace_ns
    has_units = standing.used < limit.amount + limit.grace_units
    return AlertKind.GRACE_ENTERED if has_time and has_units else AlertKind.GRACE_ENDED
