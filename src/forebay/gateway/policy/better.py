"""Which of two pools is the better one for a request: time of an answer, queue for it, failures, price.

Pure, and in each request's way: it decides nothing but that.
"""

from forebay.gateway.policy.faults import RETRY_S
from forebay.gateway.policy.fleet import NOMINAL_REQUESTS, Fleet, Group
from forebay.gateway.policy.load import STALE_S, PoolLoad
from forebay.gateway.policy.want import Want

NOMINAL_S = 1.0  #: of an answer, where the time is not known of both that are compared
FAR = 2.0  #: times the time of another place: far slower


def is_better(one: Group, other: Group, fleet: Fleet, want: Want, now: float) -> bool:
    """Whether the first of two is to be taken.  A time that is known of only one of them says nothing."""
    old = now - STALE_S
    pace, against = one.load, other.load
    one_s = other_s = NOMINAL_S
    if (pace.first_at >= old and against.first_at >= old) or _hold_still(
        pace, pace.first_s, pace.first_at, against, against.first_s, against.first_at, old
    ):
        one_s, other_s = pace.first_s, against.first_s
    if (pace.token_at >= old and against.token_at >= old) or (
        (pace.token_s or against.token_s)
        and _hold_still(pace, pace.token_s, pace.token_at, against, against.token_s, against.token_at, old)
    ):
        one_s += pace.token_s * want.output_tokens
        other_s += against.token_s * want.output_tokens
    if pace.told is not None and against.told is not None:
        one_s, other_s = one_s + pace.told_wait_s, other_s + against.told_wait_s
    # `compute_score` is written out here: this is in each request's way.
    busy = pace.used if pace.has_capacity else _compute_busy(pace)
    against_busy = against.used if against.has_capacity else _compute_busy(against)
    price_s = fleet.choosing.price_s_per_usd
    one_s = one.distance_s + one_s * (1 + busy) + one.price * price_s
    other_s = other.distance_s + other_s * (1 + against_busy) + other.price * price_s
    if pace.has_faults or against.has_faults:
        return pace.add_faults(one_s, now) < against.add_faults(other_s, now)
    return one_s < other_s


def _hold_still(
    pace: PoolLoad,
    one_s: float,
    one_at: float,
    against: PoolLoad,
    other_s: float,
    other_at: float,
    old: float,
) -> bool:
    """Whether times count of which one is old, or both are.

    An old time is to be seen again, and one request is enough for that: else all who come before its first
    token would go to the same place as well.  Until then a place that was slower counts as slower still; one
    that was faster does not, for it may be the one that hangs.
    """
    if one_at >= old:
        return other_s > one_s and against.asked_at >= old
    if other_at >= old:
        return one_s > other_s and pace.asked_at >= old
    return one_s > 0.0 < other_s and pace.asked_at >= old and against.asked_at >= old


def is_far_quicker(one: Group, other: Group, fleet: Fleet, want: Want, now: float) -> bool:
    """Whether the first of two brings an answer, if it brings one, in a fraction of the time that the other
    takes with its failures, and by more than a retry is worth.

    Only where the times of both are known, or of the first how soon its failures are seen: this is for what
    is better left alone if there is a choice.
    """
    one_s, other_s = (group.load.estimate(want.output_tokens, now) for group in (one, other))
    if one_s is None and one.load.has_faults:
        one_s = one.load.lost_s
    if one_s is None or other_s is None:
        return False
    other_s = other.load.add_faults(compute_score(other, fleet, other_s), now)
    one_s = compute_score(one, fleet, one_s) * FAR + one.load.compute_break_s(now)
    return one_s + RETRY_S < other_s


def compute_score(group: Group, fleet: Fleet, answer_s: float) -> float:
    """What an answer costs there, in seconds: the network, the answer, the queue for it, and its price."""
    load = group.load
    busy = load.used if load.has_capacity else _compute_busy(load)
    return group.distance_s + answer_s * (1 + busy) + group.price * fleet.choosing.price_s_per_usd


def _compute_busy(load: PoolLoad) -> float:
    """Of unknown capacity: what engines and providers say, or so many requests as a replica often serves."""
    return max(load.used, load.requests / (load.size * NOMINAL_REQUESTS))
