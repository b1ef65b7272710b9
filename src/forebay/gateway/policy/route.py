"""Chooses where a request goes: filter, score, pick.  Pure: `now` and the draw are arguments.

1. Filter: what a place can't do, what does not fit its window, and what is out of service.
2. The tier: the first, less the share that spills (`spill`).
3. The group: by weights where the configuration names some; else the better of two that are drawn (power of
   two choices), by the time that an answer would take there.
4. The replica: the one that owns the request's beginning or session on a ring of consistent hashing, passed
   on while it is more than half full and fuller than `LOAD_CAP` times the mean (bounded loads); else the one
   with the fewest tokens in flight, of two that are drawn where there are many.  One in its slow start gets a
   part of that, and one whose engine says that it is full only what no other can take.

One draw serves all of it: what a comparison leaves of it is as random as before.  It must cost little, for
it is in every request's way: nothing here looks at all replicas unless some are out of service.
"""

from collections.abc import Container, Iterable, Iterator, Sequence

import msgspec

from forebay.core.keys import TIERS
from forebay.gateway.policy.better import FAR, is_better, is_far_quicker
from forebay.gateway.policy.better import NOMINAL_S as NOMINAL_S
from forebay.gateway.policy.better import compute_score as compute_score
from forebay.gateway.policy.fleet import (
    MIX,
    Fleet,
    Group,
    Member,
    Tier,
    make_tier,
    order_tiers,
)
from forebay.gateway.policy.load import PoolLoad
from forebay.gateway.policy.pick import find_unfit as find_unfit
from forebay.gateway.policy.pick import list_unfit, mix, pick_member
from forebay.gateway.policy.spill import OFFSET_MIN, compute_spill
from forebay.gateway.policy.want import PASSING
from forebay.gateway.policy.want import Reason as Reason
from forebay.gateway.policy.want import Want as Want

OFTEN = 0.2  #: share of failures of a pool that is no good for the last attempt
TRIAL_PRICE_MAX_S = 5.0  #: of a retry, up to which what is out of service may be tried


class Plan(msgspec.Struct, frozen=True):
    """Where a request goes.

    Attributes:
        order: places of targets in their route, in the order in which they are to be tried; empty if none
            can answer the request.
        rejected: groups that can't, with the reason.  `list_unfit` names single replicas.
    """

    order: tuple[int, ...]
    rejected: tuple[tuple[Group, Reason], ...] = ()


def choose(fleet: Fleet, want: Want, now: float, draw: float, limit: int, *, may_stray: bool = False) -> Plan:
    """The plan for one request.

    Args:
        draw: a random number from 0 up to but not including 1.
        limit: the most attempts there may be.
        may_stray: an attempt that may well fail can come before one at a place that is far slower.
    """
    tiers, rejected = _filter(fleet, want, now)
    if not tiers:
        return Plan((), rejected)
    if want.is_sticky and want.affinity is not None:
        draw = (want.affinity * MIX & 0xFFFFFFFF) / 0x100000000
    at, draw = _pick_tier(fleet, tiers, want, now, draw)
    groups = _rank_groups(fleet, tiers[at], want, now, draw)
    trial = _find_trial(fleet, rejected, groups[0], want, now) if may_stray and limit > 1 else None
    order = [] if trial is None else [trial]
    known = {member.index for member in order}
    if trial is not None:
        rejected = tuple(each for each in rejected if each[0] is not fleet.seats[trial.index][0])
    walk = _list_order(fleet, tiers, at, groups, want, now, draw, may_stray=may_stray and limit > 2)
    for member in walk:
        if member.index not in known:
            known.add(member.index)
            order.append(member)
            if len(order) >= limit:
                break
    if len(order) == limit > 1 and fleet.seats[order[-1].index][0].load.has_faults:
        order[-1] = _find_surest(order[-1], walk, fleet, known, now)
    return Plan(tuple([member.index for member in order]), rejected)


def _list_order(
    fleet: Fleet,
    tiers: Sequence[Tier],
    at: int,
    groups: Sequence[Group],
    want: Want,
    now: float,
    draw: float,
    *,
    may_stray: bool,
) -> Iterator[Member]:
    """One replica of each pool of the tier, one of each other tier, and then the rest."""
    first = groups[0]
    for group in groups:
        if group is not first and group.weight == 0.0:
            continue  # only when no other is left
        member = pick_member(group, want, now, draw)
        yield member
        if group is first and may_stray and _goes_there_again(groups, fleet, want, now):
            yield from [each for each in _list_well(first, now) if each is not member][:1]
    for tier in (*tiers[at + 1 :], *reversed(tiers[:at])):
        ranked = _rank_groups(fleet, tier, want, now, draw)
        if ranked[0].weight != 0.0:
            yield pick_member(ranked[0], want, now, draw)
    yield from _list_rest(groups, tiers, now)


def _goes_there_again(groups: Sequence[Group], fleet: Fleet, want: Want, now: float) -> bool:
    """Whether the second attempt goes to another replica of the first pool: the next pool is far slower."""
    if len(groups) == 1 or groups[0].size == 1:
        return False
    first, second = groups[:2]
    return is_far_quicker(first, second, fleet, want, now) and is_better(first, second, fleet, want, now)


def choose_first(fleet: Fleet, want: Want, now: float, draw: float) -> int | None:
    """What `choose` puts first, where nothing needs to be left out; None where all has to be looked at.

    With it a request that meets no trouble costs a fraction of a whole plan: every other place that the fleet
    has is an alternative.
    """
    if want.needs & fleet.lacking or want.tokens > fleet.window_min:
        return None
    if want.is_sticky and want.affinity is not None:
        draw = (want.affinity * MIX & 0xFFFFFFFF) / 0x100000000
    tiers = fleet.tiers
    tier = tiers[0]
    # Of `_pick_tier` and `_draw_two` what most requests need is written out here, for it is in their way.
    idle = fleet.choosing.spill_at + OFFSET_MIN
    for load in tier.loads:
        if load.used > idle or load.is_pressed:
            at, left = _pick_tier(fleet, tiers, want, now, draw)
            tier = tiers[at]
            break
    else:
        left = draw
    if now < fleet.trouble.until:
        for each in tiers[:1] if left is draw else tiers:
            for load in each.loads:
                if now < load.unfit_until:
                    return None
    groups = tier.groups
    count = len(groups)
    if tier.is_weighted or count == 1 or want.is_sticky:
        group = _rank_groups(fleet, tier, want, now, left)[0]
    else:
        point = left * count
        one = int(point)
        other = int((point - one) * (count - 1))
        if other >= one:
            other += 1
        group = groups[other] if is_better(groups[other], groups[one], fleet, want, now) else groups[one]
        load = group.load
        if load.has_faults or now < load.slow_until:
            group = groups[_draw_two(fleet, groups, want, now, left)[0]]
    return pick_member(group, want, now, left).index


def count_fit(fleet: Fleet, now: float) -> int:
    """How many places are in service."""
    if now >= fleet.trouble.until:
        return fleet.size
    return fleet.size - sum(
        len(find_unfit(group, now)) for group in fleet.groups if now < group.load.unfit_until
    )


# --- filter -------------------------------------------------------------------------------------------------


def find_lack(group: Group, want: Want) -> Reason | None:
    """Why no replica of a group can answer a request, whatever its state."""
    if want.needs & ~group.capabilities:
        return Reason.CAPABILITY
    return Reason.WINDOW if want.tokens > group.window else None


def _filter(fleet: Fleet, want: Want, now: float) -> tuple[Sequence[Tier], tuple[tuple[Group, Reason], ...]]:
    """The tiers with those of their groups that may answer."""
    is_plain = not want.needs & fleet.lacking and want.tokens <= fleet.window_min
    if is_plain and not any([now < load.unfit_until for load in fleet.loads]):  # noqa: C419 - faster
        return fleet.tiers, ()
    if is_plain and not any(_is_out(group, now) for group in fleet.groups):
        return fleet.tiers, ()
    reasons = {group: _find_reason(group, want, now) for group in fleet.groups}
    if all(reasons.values()):
        reasons = _relent(reasons, now)
    tiers = []
    for tier in fleet.tiers:
        groups = tuple(group for group in tier.groups if reasons[group] is None)
        if groups:
            tiers.append(make_tier(tier.name, groups))
    return order_tiers(tiers), tuple(
        (group, reason) for group, reason in reasons.items() if reason is not None
    )


def _is_out(group: Group, now: float) -> bool:
    """Whether no replica of a group is in service."""
    load = group.load
    return (
        now < load.unfit_until and len(load.unfit) >= group.size and len(find_unfit(group, now)) >= group.size
    )


def _find_reason(group: Group, want: Want, now: float) -> Reason | None:
    lack = find_lack(group, want)
    if lack is not None:
        return lack
    return list_unfit(group, now)[0][1] if _is_out(group, now) else None


def _relent(reasons: dict[Group, Reason | None], now: float) -> dict[Group, Reason | None]:
    """Where nothing is left: those out of service are tried rather than none, for they may be well again; and
    if the request fits nowhere, the widest, for its length is an estimate."""
    relented = [group for group, reason in reasons.items() if reason in PASSING]
    if not relented:
        narrow = [group for group, reason in reasons.items() if reason is Reason.WINDOW]
        widest = max((group.window for group in narrow), default=0)
        relented = [group for group in narrow if group.window == widest]
        fit = [group for group in relented if not _is_out(group, now)]
        relented = fit or relented
    return {group: None if group in relented else reason for group, reason in reasons.items()}


# --- tier and group -----------------------------------------------------------------------------------------


def _pick_tier(fleet: Fleet, tiers: Sequence[Tier], want: Want, now: float, draw: float) -> tuple[int, float]:
    """Which tier, and what is left of the draw."""
    spill_at = fleet.choosing.spill_at
    idle = spill_at + OFFSET_MIN
    for load in tiers[0].loads:
        if load.used > idle or load.is_pressed:
            break
    else:
        return 0, draw
    last = len(tiers) - 1
    while last > 0 and tiers[last].is_reserve:
        last -= 1
    at = 0
    while at < last:
        for load in tiers[at].loads:
            if load.used > idle or load.is_pressed:
                break
        else:
            return at, draw
        choosing = fleet.choosing
        share = compute_spill(tiers[at].groups, want.priority, spill_at, now, choosing.queue_waits_max_s)
        if draw >= share:
            return at, (draw - share) / (1 - share)
        draw /= share
        at += 1
    return at, draw


def _rank_groups(fleet: Fleet, tier: Tier, want: Want, now: float, draw: float) -> Sequence[Group]:
    """The groups of a tier, the chosen one first."""
    groups = tier.groups
    count = len(groups)
    if count == 1:
        return groups
    if want.is_sticky and want.affinity is not None:
        key, is_weighted = want.affinity, tier.is_weighted
        return sorted(
            groups, key=lambda group: (is_weighted and not group.weight, group.rank_for(key), group.pool)
        )
    if tier.is_weighted:
        first = _draw_by_weight(groups, draw)
        return (groups[first], *groups[first + 1 :], *groups[:first])
    one, other = _draw_two(fleet, groups, want, now, draw)
    rest = [group for at, group in enumerate(groups) if at not in (one, other)]
    return groups[one], groups[other], *rest


def _draw_two(fleet: Fleet, groups: Sequence[Group], want: Want, now: float, draw: float) -> tuple[int, int]:
    """Two of at least two groups, the better one first."""
    count = len(groups)
    draw *= count
    one = int(draw)
    other = int((draw - one) * (count - 1))
    if other >= one:
        other += 1
    if is_better(groups[other], groups[one], fleet, want, now):
        one, other = other, one
    if count > 2 and groups[one].load.has_faults:  # what fails is taken only if a third is no better
        third = int(mix(draw) * (count - 2))
        third += third >= min(one, other)
        third += third >= max(one, other)
        if is_better(groups[third], groups[one], fleet, want, now):
            one, other = third, one
    better, worse = groups[one], groups[other]
    if (
        now < better.load.slow_until
        and _is_passed_over(better.load, worse.load, draw, now)
        and not is_far_quicker(better, worse, fleet, want, now)
    ):
        return other, one
    return one, other


def _is_passed_over(load: PoolLoad, other: PoolLoad, draw: float, now: float) -> bool:
    """Whether the better of two pools, which comes back slowly, leaves a request to the other."""
    share = load.compute_share(now)
    return share < other.compute_share(now) and mix(draw) >= share


def _draw_by_weight(groups: Sequence[Group], draw: float) -> int:
    total = sum(group.weight or 0.0 for group in groups)
    if total == 0.0:
        return int(draw * len(groups))
    point = draw * total
    for at, group in enumerate(groups):
        point -= group.weight or 0.0
        if point < 0:
            return at
    return max(at for at, group in enumerate(groups) if group.weight)  # for what rounding lost


def _find_surest(
    last: Member, others: Iterable[Member], fleet: Fleet, known: Container[int], now: float
) -> Member:
    """Who is to have the last attempt: the first in order, or where that fails often one that does less."""
    least = fleet.seats[last.index][0].load.compute_lapses(now)
    if least < OFTEN:
        return last
    for member in others:
        lapses = fleet.seats[member.index][0].load.compute_lapses(now)
        if lapses < least and member.index not in known and member.target.weight != 0.0:
            last, least = member, lapses
            if least < OFTEN:
                break
    return last


def _find_trial(
    fleet: Fleet, rejected: Sequence[tuple[Group, Reason]], than: Group, want: Want, now: float
) -> Member | None:
    """A place that is out of service for its failures, and yet worth a try before the one chosen: that is so
    much slower that an attempt which fails costs less.  One attempt at a time shows how it is."""
    if want.is_sticky or than.weight is not None or fleet.trouble.retry_s > TRIAL_PRICE_MAX_S:
        return None
    for group, reason in rejected:
        if reason is not Reason.EJECTED or now < group.load.trial_at or not _is_as_near(group, than):
            continue
        if is_far_quicker(group, than, fleet, want, now) and group.load.lost_s * FAR < than.load.first_s:
            for member in group.members:
                if member.load.may_be_tried(now):
                    return member
    return None


def _is_as_near(group: Group, than: Group) -> bool:
    """Whether a tier comes as early as another."""
    if group.tier == than.tier:
        return True
    return group.tier in TIERS and than.tier in TIERS and TIERS.index(group.tier) < TIERS.index(than.tier)


# --- what is left ------------------------------------------------------------------------------------------


def _list_rest(groups: Sequence[Group], tiers: Sequence[Tier], now: float) -> Iterator[Member]:
    """What is left when a place of each kind has been tried: those in service, the fullest last.

    Groups that are to get nothing come after all others.
    """
    rest = [*groups, *(group for tier in tiers for group in tier.groups if group not in groups)]
    rest.sort(key=lambda group: group.weight == 0.0)
    for group in rest:
        yield from _list_well(group, now)


def _list_well(group: Group, now: float) -> list[Member]:
    """Its replicas in service, or all where none is, the fullest last."""
    ill = find_unfit(group, now)
    if len(ill) >= group.size:
        ill = ()
    well = (member for member in group.members if member.load not in ill)
    return sorted(well, key=lambda member: (member.load.tokens, member.index))
