"""Tells of a choice what `route` decided and on what grounds: each candidate, its score, and why it is none.

Pure, and for people: it decides again with the same arguments, so that it tells what would happen, and costs
far more than the choice itself.
"""

from collections.abc import Iterable, Sequence

import msgspec

from forebay.core.engine_load import EngineLoad, EngineState
from forebay.core.keys import KeyEntry
from forebay.core.routes import CAPABILITIES, Target
from forebay.gateway.policy.fleet import Fleet, Group, Member
from forebay.gateway.policy.listed import Place, find_listed_ill, order_listed
from forebay.gateway.policy.load import ReplicaLoad
from forebay.gateway.policy.pace import STALE_S, Pace
from forebay.gateway.policy.pick import find_ill
from forebay.gateway.policy.route import NOMINAL_S, choose, compute_score
from forebay.gateway.policy.spill import compute_spill
from forebay.gateway.policy.want import Reason, Want


class EngineView(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine said of itself.  What it does not say is null."""

    state: EngineState
    age_s: float
    running: int | None
    waiting: int | None
    kv_cache_used: float | None
    queue_wait_s: float | None


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One target.  What is not known is null."""

    target: str
    pool: str
    tier: str
    region: str
    rank: int | None = None  #: 0 is tried first; null where it would not be tried at all
    rejected: Reason | None = None
    why: str = ""  #: the same in words
    score_s: float | None = None  #: of its pool: seconds that an answer costs there; less is better
    failing: float | None = None  #: share of the latest attempts at its pool, by this worker
    requests: int | None = None  #: in flight, this worker's and what it knows of the others'
    tokens: int | None = None
    others_requests: int | None = None  #: of these, the other workers'
    used: float | None = None  #: share of its pool's capacity, as counts, engines and providers say
    first_token_s: float | None = None
    token_s: float | None = None
    engine: EngineView | None = None  #: what its engine says, while that is fresh
    slow_start: float | None = None  #: the share of its requests that it gets, while that is less than all
    retry_after_s: float | None = None  #: until it is asked again, while it is left alone
    quota_used: float | None = None  #: share of its account's quota that is used up, as its provider said
    weight: float | None = None


class TierView(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    spill: float  #: the share of such requests that goes on to the next tier


class Explained(msgspec.Struct, frozen=True, kw_only=True):
    """Attributes:
    chosen_by: `load` or `listed`.
    needs: what the request needs beyond text.
    """

    chosen_by: str
    priority: str = ""
    tokens: int | None = None
    needs: list[str] = []
    tiers: list[TierView] = []
    candidates: list[Candidate] = []


def explain(
    fleet: Fleet, want: Want, now: float, draw: float, limit: int, groups: Iterable[Group] = ()
) -> Explained:
    """What `choose` makes of the same arguments.

    Args:
        groups: all of the route; those that are not in the fleet don't answer the endpoint.
    """
    plan = choose(fleet, want, now, draw, limit, may_stray=True)
    ranks = {index: rank for rank, index in enumerate(plan.order)}
    rejected = dict(plan.rejected)
    candidates = []
    for group in dict.fromkeys((*fleet.groups, *groups)):
        answer_s = group.load.estimate(want.output_tokens, now)
        score = compute_score(group, fleet, NOMINAL_S if answer_s is None else answer_s)
        score = group.load.add_faults(score, now)
        for member in group.members:
            reason = rejected.get(group)
            if group not in fleet.groups:
                reason = Reason.ENDPOINT
            elif reason not in (Reason.CAPABILITY, Reason.WINDOW) and member.index not in ranks:
                reason = find_ill(member.load, now)
            candidates.append(_describe(group, member, ranks.get(member.index), reason, want, now, score))
    candidates.sort(key=lambda each: (each.rank is None, each.rank or 0, each.rejected is not None))
    spill_at, waits_s = fleet.choosing.spill_at, fleet.choosing.queue_waits_max_s
    return Explained(
        chosen_by="load",
        priority=want.priority,
        tokens=want.tokens,
        needs=[name for at, name in enumerate(CAPABILITIES) if want.needs >> at & 1],
        tiers=[
            TierView(
                name=tier.name,
                spill=round(compute_spill(tier.groups, want.priority, spill_at, now, waits_s), 4),
            )
            for tier in fleet.tiers
        ],
        candidates=candidates,
    )


def explain_listed(places: Sequence[Place], limit: int, now: float) -> Explained:
    """Of a route whose targets are tried in their order."""
    candidates = []
    for rank, place in enumerate(order_listed(places, now)):
        candidate = _name(place.target, rank=rank if rank < limit else None)
        if place.problem is not None:
            candidate = msgspec.structs.replace(candidate, why=place.problem.message)
        elif place.load is not None:
            reason = find_listed_ill(place.load, now)
            why = _say_ill(reason, place.load, now)
            candidate = msgspec.structs.replace(candidate, rejected=reason, why=why)
        candidates.append(candidate if place.load is None else _tell_load(candidate, place.load, now))
    return Explained(chosen_by="listed", candidates=candidates)


def explain_barred(key: KeyEntry, targets: Iterable[Target]) -> list[Candidate]:
    """Targets that a key may not be sent to."""
    barred = []
    for target in targets:
        if key.allows_target(target.tier, target.region):
            continue
        if key.regions and target.region not in key.regions:
            why = f"the key is bound to the regions {', '.join(key.regions)}"
            barred.append(_name(target, rejected=Reason.REGION, why=why))
        else:
            why = f"the key goes no further than to the tier {key.tier_max}"
            barred.append(_name(target, rejected=Reason.TIER, why=why))
    return barred


def _name(
    target: Target, rank: int | None = None, rejected: Reason | None = None, why: str = ""
) -> Candidate:
    return Candidate(
        target=target.id,
        pool=target.pool,
        tier=target.tier,
        region=target.region,
        rank=rank,
        rejected=rejected,
        why=why,
        weight=target.weight,
    )


def _describe(
    group: Group,
    member: Member,
    rank: int | None,
    reason: Reason | None,
    want: Want,
    now: float,
    score: float,
) -> Candidate:
    load = member.load
    candidate = msgspec.structs.replace(
        _name(member.target, rank, reason, _say(reason, group, member, want, now)),
        score_s=round(score, 6),
        failing=_round(group.load.compute_lapses(now) or None),
        used=_round(group.load.used if group.load.has_capacity else group.load.told),
        slow_start=None if load.compute_share(now) == 1.0 else round(load.compute_share(now), 4),
    )
    return _tell_load(candidate, load, now)


def _tell_load(candidate: Candidate, load: ReplicaLoad, now: float) -> Candidate:
    first, token = _read_pace(load, now)
    return msgspec.structs.replace(
        candidate,
        requests=load.requests,
        tokens=load.tokens,
        first_token_s=first,
        token_s=token,
        others_requests=load.others_requests,
        engine=None if load.engine is None else _show_engine(load.engine, now - load.engine_at),
        retry_after_s=round(load.unfit_until - now, 3) if now < load.unfit_until else None,
        quota_used=_round(None if load.account is None else load.account.compute_used(now)),
    )


def _round(share: float | None) -> float | None:
    return None if share is None else round(share, 4)


def _show_engine(engine: EngineLoad, age_s: float) -> EngineView:
    return EngineView(
        state=engine.state,
        age_s=round(age_s, 3),
        running=engine.running,
        waiting=engine.waiting,
        kv_cache_used=engine.kv_cache_used,
        queue_wait_s=engine.queue_wait_s,
    )


def _read_pace(pace: Pace, now: float) -> tuple[float | None, float | None]:
    return (
        round(pace.first_s, 6) if now - pace.first_at <= STALE_S else None,
        round(pace.token_s, 6) if now - pace.token_at <= STALE_S else None,
    )


def _say(reason: Reason | None, group: Group, member: Member, want: Want, now: float) -> str:
    match reason:
        case Reason.CAPABILITY:
            lacks = want.needs & ~group.capabilities
            return f"lacks {', '.join(name for at, name in enumerate(CAPABILITIES) if lacks >> at & 1)}"
        case Reason.WINDOW:
            return f"about {want.tokens} tokens, and its context window holds {group.window}"
        case Reason.ENDPOINT:
            return f"its dialect, {member.target.dialect}, has no such endpoint"
        case _:
            return _say_ill(reason, member.load, now)


def _say_ill(reason: Reason | None, load: ReplicaLoad, now: float) -> str:
    match reason:
        case Reason.EJECTED if now >= load.ejected_until:
            return "it failed too often in a row; a request a second goes there until one is answered well"
        case Reason.EJECTED:
            # No count: an answer that was under way may have come since, and ended the row.
            return f"it failed too often in a row; back in {load.ejected_until - now:.1f} s"
        case Reason.BUSY:
            shared = " of its account" if now >= load.word.retry_at else ""
            return f"it refused requests{shared}; asked again in {load.unfit_until - now:.1f} s"
        case Reason.COLD:
            return "its engine is not warm yet"
        case Reason.DOWN:
            return "its engine says that it does not serve"
        case _:
            return ""
