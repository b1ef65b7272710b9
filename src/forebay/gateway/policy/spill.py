"""How much of the flow leaves a tier for the next one.  Pure.

A share, never all at once: it grows from nothing at `spill_at` of the capacity to all of it some way above.
It goes by the use of this moment, without a memory: a mean over the last while comes later than what it is to
steer, and a tier would fill and empty in turns under a constant load.  Refusals count for a while after the
last.  Of the classes, interactive requests leave first, for they can't wait; batch requests wait where it is
cheap until the queue is long.  Replicas that are out of service are no capacity, and what is still in flight
there fills none.  Where weights say what each group gets, a group counts for as much as that, for what is
free in another is free for nobody.

What engines and providers say of themselves can make a tier fuller than counts do, never emptier: a full KV
cache, a queue, a quota that is nearly used up.  Where requests wait in engines, a class leaves as the wait
comes near to what it bears.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from forebay.core.keys import PRIORITIES
from forebay.core.routes import QUEUE_WAITS_S
from forebay.gateway.policy.fleet import Group

#: By class: where it begins, from `spill_at` on; over what width all of it goes; how far refusals count.
CURVES: Final = {
    "interactive": (-0.1, 0.25, 1.0),
    "standard": (0.0, 0.3, 1.0),
    "batch": (0.2, 0.5, 0.5),
}
OFFSET_MIN = min(offset for offset, _, _ in CURVES.values())  #: below that nobody spills
WAIT_FROM = 0.5  #: of the wait in engines that a class bears: there it begins to leave


def compute_spill(
    groups: Iterable[Group],
    priority: str,
    spill_at: float,
    now: float,
    waits_max_s: Sequence[float] = QUEUE_WAITS_S,
) -> float:
    """The share of a class's requests that goes on, from 0 to 1.

    Args:
        groups: those of a tier that the request may be sent to.  A tier of which some capacity is unknown is
            full only where it says so itself.
        priority: one of `forebay.core.keys.PRIORITIES`.
        waits_max_s: that requests of each class may wait in an engine, in the order of `PRIORITIES`.
    """
    size = fit = level = pressure = wait = 0.0
    is_known = True
    for group in groups:
        if group.weight == 0.0:
            continue  # it gets nothing, so it has no capacity for anybody
        load = group.load
        share = load.size if group.weight is None else group.weight  # of the tier's requests
        size += share
        left, lost = load.compute_fit(now)
        left *= share / load.size
        fit += left
        if load.is_pressed:
            pressure += load.compute_pressure(now) * share
            wait += load.told_wait_s * left
        told = 0.0 if load.told is None else load.told * left
        if load.has_capacity:
            level += max(told, (load.used_of_all - lost) * share)
        elif load.told is not None:
            level += told
        else:
            is_known = False
    if not is_known:
        level = 0.0
    if level == 0.0 and pressure == 0.0 and wait == 0.0:
        return 0.0
    offset, width, counts = CURVES.get(priority, CURVES["standard"])
    by_level = (level / fit - spill_at - offset) / width
    by_pressure = pressure / size * counts
    by_wait = 0.0 if wait == 0.0 else _compute_by_wait(wait / fit, priority, waits_max_s)
    return min(1.0, max(0.0, by_level, by_pressure, by_wait))


def _compute_by_wait(wait_s: float, priority: str, waits_max_s: Sequence[float]) -> float:
    most_s = waits_max_s[PRIORITIES.index(priority if priority in PRIORITIES else "standard")]
    return (wait_s / most_s - WAIT_FROM) / (1 - WAIT_FROM)
