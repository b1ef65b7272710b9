"""How many replicas a deployment is to have, by how busy they are.  Pure.

Up comes soon and down comes late, and each has its own threshold, so that a constant load finds its number
and stays there: what called for one replica more can't call for one less.
"""

import math
from typing import Final

import msgspec

UP_AT: Final = 0.8  #: of the slots in use
DOWN_AT: Final = 0.6  #: of the slots that would be left
UP_AFTER_S: Final = 3.0  #: so long in one piece
DOWN_AFTER_S: Final = 60.0
GROWTH: Final = 2.0  #: times as many replicas in one step at the most


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of a deployment now."""

    busy: float  #: requests in its replicas, in progress and in their queues
    slots: int  #: that one replica works on at the same time
    is_missed: bool = (
        False  #: there is no replica, and requests wait, are refused or fill what comes before it
    )


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """How many there are to be, and since when that has been too few or too many."""

    count: int
    above_since_s: float | None = None
    below_since_s: float | None = None


def rescale(
    scale: Scale,
    demand: Demand | None,
    least: int,
    most: int,
    now_s: float,
    down_after_s: float = DOWN_AFTER_S,
) -> Scale:
    """The next one.  `demand` is None where nobody could say: then nothing changes but the bounds."""
    count = min(max(scale.count, least), most)
    if demand is None or count != scale.count:
        return Scale(count=count)
    if count == 0:
        above, fitting = demand.is_missed or demand.busy > 0, 1
    else:
        above = demand.busy > UP_AT * count * demand.slots
        fitting = math.ceil(demand.busy / (UP_AT * demand.slots))
    if above and count < most:
        since = _bound(scale.above_since_s, now_s)
        if now_s - since < UP_AFTER_S:
            return Scale(count=count, above_since_s=since)
        grown = min(fitting, max(count + 1, int(count * GROWTH)), most)
        return Scale(count=max(grown, count + 1))
    left = count - 1
    below = (
        demand.busy == 0 and not demand.is_missed
        if left == 0
        else demand.busy < DOWN_AT * left * demand.slots
    )
    if below and left >= least:
        since = _bound(scale.below_since_s, now_s)
        if now_s - since < down_after_s:
            return Scale(count=count, below_since_s=since)
        return Scale(count=left)
    return Scale(count=count)


def _bound(since_s: float | None, now_s: float) -> float:
    """Not later than now: a clock may be set back."""
    return now_s if since_s is None else min(since_s, now_s)
