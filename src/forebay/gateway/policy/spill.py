"""How much of the flow leaves a tier for the next one.  Pure.

A share, never all at once: it grows from nothing at `spill_at` of the capacity to all of it some way above.
The level that it follows rises quickly and falls slowly, and refusals count for a while after the last, so
that a constant load settles at a constant share.  Of the classes, interactive requests leave first, for they
can't wait; batch requests wait where it is cheap until the queue is long.  Replicas that are out of service
are no capacity, and what is still in flight there fills none.
"""

from collections.abc import Iterable
from typing import Final

from forebay.gateway.policy.fleet import Group

OVERSHOOT = 0.2  #: of the capacity: a use so far above the level counts at once, as in a herd

#: By class: where it begins, from `spill_at` on; over what width all of it goes; how far refusals count.
CURVES: Final = {
    "interactive": (-0.1, 0.25, 1.0),
    "standard": (0.0, 0.3, 1.0),
    "batch": (0.2, 0.5, 0.5),
}
OFFSET_MIN = min(offset for offset, _, _ in CURVES.values())  #: below that nobody spills


def compute_spill(groups: Iterable[Group], priority: str, spill_at: float, now: float) -> float:
    """The share of a class's requests that goes on, from 0 to 1.

    Args:
        groups: those of a tier that the request may be sent to.  A tier of which some capacity is unknown is
            full only where it says so itself.
        priority: one of `forebay.core.keys.PRIORITIES`.
    """
    size = fit = 0
    level = pressure = 0.0
    is_known = True
    for group in groups:
        load = group.load
        size += load.size
        left, lost = load.compute_fit(now)
        fit += left
        if load.pressure:
            pressure += load.compute_pressure(now) * load.size
        if not load.has_capacity:
            is_known = False
        elif is_known and (load.used or load.level > 0.001):
            used = max(load.compute_level(now), load.used_of_all - OVERSHOOT * left / load.size)
            level += max(0.0, used - lost) * load.size
    if not is_known:
        level = 0.0
    elif level == 0.0 and pressure == 0.0:
        return 0.0
    offset, width, counts = CURVES.get(priority, CURVES["standard"])
    by_level = (level / fit - spill_at - offset) / width
    by_pressure = pressure / size * counts
    return min(1.0, max(0.0, by_level, by_pressure))
