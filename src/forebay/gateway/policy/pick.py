"""Picks a replica of a pool: who is out of service, who owns a request's beginning, who has the least.  Pure.

One that is out of service is taken only where all are; one in its slow start gets a growing part of what
would be its own; one whose engine says that it is full gets only what no other can take; and where the model
is a LoRA adapter, those that hold it come before those that would have to load it.  It must cost little, for
it is in every request's way.
"""

from collections.abc import Sequence

from forebay.core.engine_load import EngineState
from forebay.gateway.policy.fleet import MIX, Group, Member
from forebay.gateway.policy.load import ReplicaLoad
from forebay.gateway.policy.pool_load import PoolLoad, Replica
from forebay.gateway.policy.want import Reason, Want

LOAD_CAP = 1.25  #: times the mean of tokens in flight, up to which a replica keeps what is its own
ADAPTER_REQUESTS = 8  #: of an adapter that a replica of unknown capacity keeps before another has to load it
SMALL_GROUP = 4  #: replicas of which all are looked at


def find_ill(load: ReplicaLoad, now: float) -> Reason | None:
    """Why a replica is out of service."""
    if now >= load.unfit_until:
        return None
    if now < load.ejected_until:
        return Reason.EJECTED
    if now < load.out_until and load.engine is not None:
        return Reason.COLD if load.engine.state is EngineState.COLD else Reason.DOWN
    return Reason.BUSY


def list_unfit(group: Group, now: float) -> list[tuple[Member, Reason]]:
    """The replicas of a group that are out of service."""
    ill = find_unfit(group, now)
    reasons = [(member, find_ill(member.load, now)) for member in group.members if member.load in ill]
    return [(member, reason) for member, reason in reasons if reason is not None]


def find_unfit(group: Group, now: float) -> Sequence[Replica]:
    """The same, as loads."""
    if now >= group.load.unfit_until:
        return ()
    return [load for load in group.load.unfit if now < load.unfit_until]


def pick_member(group: Group, want: Want, now: float, draw: float) -> Member:
    """The replica of a group; one that is out of service only where all are."""
    members = group.members
    count = group.size
    if count == 1:
        return members[0]
    load = group.load
    ill = find_unfit(group, now) if now < load.unfit_until else ()
    if ill and len(ill) >= count:
        ill = ()
    if load.slow or load.saturated:
        ill = _pass_over(load, ill, want, now, draw)
    if load.holders:
        ill = _prefer_holders(group, ill, want)
    if want.affinity is not None:
        owner = _find_owner(group, want, ill)
        if owner is not None:
            return owner
    at = int(draw * 0x100000) * MIX & 0xFFFFFFFF
    if count > SMALL_GROUP:
        first = at % count
        one = members[first]
        other = members[(first + 1 + (at >> 16) % (count - 1)) % count]
        if not ill or (one.load not in ill and other.load not in ill):
            return one if one.load.tokens <= other.load.tokens else other
    first = at % count
    turned = (*members[first:], *members[:first])
    well = [member for member in turned if member.load not in ill]
    return min(well or turned, key=_count_tokens)  # replicas at one address are ill together


def _pass_over(
    load: PoolLoad, ill: Sequence[Replica], want: Want, now: float, draw: float
) -> Sequence[Replica]:
    """Those out of service, and others that are to get nothing of this request while there is one left: whose
    engines are full, and of those in their slow start whose share the draw exceeds.  A session stays."""
    if want.is_sticky:
        return ill
    for more in (load.saturated, _list_slow(load, now, draw)):
        both = {*ill, *more}
        if len(both) < load.size:
            ill = tuple(both)
    return ill


def _prefer_holders(group: Group, ill: Sequence[Replica], want: Want) -> Sequence[Replica]:
    """The same, and those that would have to load the adapter, while one that holds it is not too full."""
    load = group.load
    cap = LOAD_CAP * load.tokens / group.size
    for member in group.members:
        own = member.load
        if own in load.holders and own not in ill:
            easy = int((member.easy_requests or ADAPTER_REQUESTS) * load.part)
            if own.tokens <= cap or own.requests < easy or want.is_sticky:
                return (*ill, *(each.load for each in group.members if each.load not in load.holders))
    return ill


def _list_slow(load: PoolLoad, now: float, draw: float) -> Sequence[Replica]:
    if now >= load.slow_until:
        return ()
    luck = mix(draw)
    return [each for each in load.slow if luck >= each.compute_share(now)]


def _count_tokens(member: Member) -> int:
    return member.load.tokens


def _find_owner(group: Group, want: Want, ill: Sequence[Replica]) -> Member | None:
    """Who owns the request's affinity, or takes it over; None if all are too full."""
    assert want.affinity is not None
    ring = group.ring
    owners = ring.owners
    at = ring.find(want.affinity)
    cap = LOAD_CAP * group.load.tokens / group.size
    part = group.load.part
    least = ADAPTER_REQUESTS if want.is_adapter else 0.0
    for _ in owners:
        member = owners[at]
        load = member.load
        easy = int((member.easy_requests or least) * part)
        keeps = load.tokens <= cap or load.requests < easy or want.is_sticky
        if keeps and load not in ill:
            return member
        at = at + 1 if at + 1 < len(owners) else 0
    return None


def mix(draw: float) -> float:
    """Another number from 0 up to 1 that is as random, for what a draw has decided already."""
    return (int(draw * 0x100000000) * MIX >> 7 & 0xFFFFFF) / 0x1000000
