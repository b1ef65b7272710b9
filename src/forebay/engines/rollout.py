"""Decides what is done next so that a deployment becomes what was asked for, and no caller notices.

Pure: what is asked, what is known and the time go in; what is remembered, what is to be done and what is to
serve come out.  It is called again and again, and what it could not do once it does the next time.  Where
nobody could say what runs, it does nothing.

A new revision gets ready beside the old one, takes a share of its requests that grows in steps, and is judged
at each.  The old one's replicas stay until the new one has passed them all, so that a stop, or a way back, is
one step: the new one loses its share at once and leaves.  Then one old replica goes for each new one that is
ready; to go back from there is the same the other way round.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from forebay.engines.deployment import Deployment, Replica, ReplicaState, Strategy
from forebay.engines.judging import Figures, Judgement, Verdict, judge
from forebay.engines.rollout_replicas import find_strangers, list_replaced, pick, pick_old, rank
from forebay.engines.rollout_state import (
    MOVES,
    Decision,
    Phase,
    Share,
    Start,
    Stop,
    Told,
    Track,
    Turn,
    World,
)

CRASHES_MAX: Final = 3  #: in a row, of a replica that gets ready; then its revision is stopped
PROVEN_MAX: Final = 5  #: revisions that served whole and are trusted when they are asked for again
TURNS_MAX: Final = 2  #: at once: withdrawn, and asked for something else
LEAVE_MAX_S: Final = 600.0  #: for requests in flight at a replica that leaves; then it is asked to end


def decide(track: Track, wanted: Deployment | None, world: World) -> Decision:
    """The next step.  `wanted` is None where the deployment is asked for no more."""
    if world.replicas is None:
        return Decision(track=track, serving=None)
    told: list[Told] = []
    is_new = track.serving is None
    track = _refresh(_bound_times(track, world.now_s), wanted)
    track = find_strangers(track, world, is_new=is_new)
    for _ in range(TURNS_MAX):
        turn = _find_turn(track, wanted, world)
        if turn is None:
            break
        track, move = _move(_note_unseen(track, turn[0], world), wanted, turn, world.now_s)
        told.append(move)
    track, starts = _staff(track, wanted, world)
    stops = _list_stops(track, world)
    known = {status.id for status in world.replicas}
    track = msgspec.structs.replace(
        track, leaving={id: since for id, since in track.leaving.items() if id in known}
    )
    return Decision(
        track=track,
        serving=_list_serving(track, world),
        actions=(*starts, *stops),
        told=tuple(told),
        waits=_explain_wait(track, world),
    )


def list_shares(deployment: Deployment) -> tuple[float, ...]:
    """The shares at which a new revision is judged, before it takes everything over."""
    if deployment.rollout.strategy is Strategy.BLUE_GREEN:
        return (1.0,)
    return tuple(share for share in deployment.rollout.steps if 0 < share <= 1) or (1.0,)


def count_for(share: float, count: int) -> int:
    """Replicas that a share of the requests of `count` needs."""
    return max(1, math.ceil(share * count - 1e-9))


# --- where the change stands --------------------------------------------------------------------------------


def _bound_times(track: Track, now_s: float) -> Track:
    """Nothing began later than now: else, after a clock was set back, it would last for so much longer."""
    if track.since_s <= now_s and all(since <= now_s for since in track.leaving.values()):
        return track
    leaving = {id: min(since, now_s) for id, since in track.leaving.items()}
    return msgspec.structs.replace(track, since_s=min(track.since_s, now_s), leaving=leaving)


def _refresh(track: Track, wanted: Deployment | None) -> Track:
    """What may change at any time, such as the number of replicas, is that of what is asked for now."""
    if wanted is None:  # asked for again, it is begun anew: of what was ended nothing comes back
        return Track(name=track.name, leaving=track.leaving)
    if track.serving is None:
        return msgspec.structs.replace(track, serving=wanted, proven=(), reason="it was asked for")
    if track.serving.revision == wanted.revision:
        stopped = track.stopped if track.candidate is not None else ""
        return msgspec.structs.replace(track, serving=wanted, stopped=stopped)
    if track.candidate is not None and track.candidate.revision == wanted.revision:
        step = min(track.step, len(list_shares(wanted)) - 1)  # there may be fewer steps by now
        return msgspec.structs.replace(track, candidate=wanted, step=step)
    return track


def _find_turn(track: Track, wanted: Deployment | None, world: World) -> tuple[Turn, str] | None:
    if wanted is None or track.serving is None:
        return None
    candidate = track.candidate
    if candidate is None:
        if wanted.revision in (track.serving.revision, track.stopped):
            return None
        return Turn.ASKED, f"revision {wanted.revision} was asked for"
    # Of a third one nothing is begun before this change is through: there are replicas of two already.
    is_free = track.phase is not Phase.REPLACING or wanted.revision == track.serving.revision
    if is_free and wanted.revision not in (candidate.revision, track.stopped):
        return Turn.WITHDRAWN, f"revision {wanted.revision} was asked for instead"
    # Back from what has failed there is no other way: if that fails as well, it is tried again, not told.
    is_way_back = track.phase is Phase.REPLACING and track.serving.revision == track.stopped
    if not is_way_back and (failure := _find_failure(track, candidate, world)):
        return Turn.FAILED, failure
    if track.phase is Phase.REPLACING:
        is_third = wanted.revision not in (track.serving.revision, candidate.revision)
        return _find_end(track, track.serving, candidate, world, is_third=is_third)
    return _find_progress(track, track.serving, candidate, world)


def _find_progress(
    track: Track, serving: Deployment, candidate: Deployment, world: World
) -> tuple[Turn, str] | None:
    ready = len(pick(world, candidate.revision, track.leaving, {ReplicaState.READY}))
    if track.phase is Phase.PREPARING:
        if track.is_trusted or not pick_old(track, serving, world):
            # There is nothing to compare it with, or no need to.
            return (Turn.TRUSTED, f"{ready} of its replicas are ready") if ready else None
        if ready < _count_candidates(track, candidate, world):
            return None
        return Turn.PREPARED, f"{ready} of its replicas are ready"
    judged = _judge(track, candidate, world)
    if judged.verdict is not Verdict.GOOD:
        return None
    is_last = track.step + 1 >= len(list_shares(candidate))
    return (Turn.PROVEN if is_last else Turn.PASSED), judged.reason


def _find_end(
    track: Track, serving: Deployment, candidate: Deployment, world: World, *, is_third: bool
) -> tuple[Turn, str] | None:
    """Of `replacing`.  `is_third`: neither of the two is asked for by now."""
    ready = pick(world, candidate.revision, track.leaving, {ReplicaState.READY})
    before = pick(world, serving.revision, track.leaving)
    if is_third and not ready and all(each.state is not ReplicaState.READY for each in before):
        return Turn.DONE, f"neither revision {serving.revision} nor {candidate.revision} serves"
    if len(ready) < min(world.count, 1) or any(each.state is not ReplicaState.REFUSED for each in before):
        return None
    return Turn.DONE, f"revision {candidate.revision} serves alone"


def _note_unseen(track: Track, turn: Turn, world: World) -> Track:
    """Remembers a step that is passed with too few requests: people are to know it."""
    if turn not in (Turn.PASSED, Turn.PROVEN) or track.candidate is None:
        return track
    judged = _judge(track, track.candidate, world)
    if not judged.is_unseen:
        return track
    return msgspec.structs.replace(track, unseen=(*track.unseen, f"at {track.share:.0%} {judged.reason}"))


def _explain_wait(track: Track, world: World) -> str:
    candidate, serving = track.candidate, track.serving
    if candidate is None or serving is None:
        return ""
    ready = len(pick(world, candidate.revision, track.leaving, {ReplicaState.READY}))
    if track.phase is Phase.WATCHING:
        return _judge(track, candidate, world).reason
    needed = _count_candidates(track, candidate, world)
    left_s = math.ceil(track.since_s + candidate.rollout.ready_timeout_s - world.now_s)
    words = f"{ready} of {needed} replicas are ready"
    if ready < needed and left_s > 0:
        words += f", for {left_s} s at most"
    if track.phase is Phase.REPLACING:
        words += f", {len(pick(world, serving.revision, track.leaving))} of {serving.revision} are left"
    return words


def _judge(track: Track, candidate: Deployment, world: World) -> Judgement:
    assert track.serving is not None
    new = world.figures.get(candidate.revision)
    if new is None:  # nobody could count: that is no answer
        return Judgement(Verdict.OPEN, "its figures are not known")
    old = world.figures.get(track.serving.revision, Figures())
    age_s = world.now_s - max(track.since_s, min(world.watched_since_s, world.now_s))
    return judge(new, old, candidate.rollout, age_s)


def _find_failure(track: Track, candidate: Deployment, world: World) -> str:
    """Why the candidate can't go on; empty where it can."""
    crashes_max = 1 if track.phase is Phase.WATCHING else CRASHES_MAX
    pending = ""
    for status in pick(world, candidate.revision, track.leaving):
        words = f": {status.message}" if status.message else ""
        if status.state is ReplicaState.REFUSED:
            return f"replica {status.id} refuses to start{words}"
        if status.failures >= crashes_max and status.state is not ReplicaState.READY:
            return f"replica {status.id} ended by itself ({status.reason.value}){words}"
        if status.state is not ReplicaState.READY:
            pending = f"; {status.id} is {status.state.value}{words}"
    if track.share > 0 and not track.is_trusted:
        judged = _judge(track, candidate, world)
        if judged.verdict is Verdict.BAD:
            return judged.reason
    if track.phase is not Phase.WATCHING and pending:
        waited_s = world.now_s - track.since_s
        if waited_s > candidate.rollout.ready_timeout_s:
            return f"its replicas were not ready within {candidate.rollout.ready_timeout_s:g} s{pending}"
    return ""


def _move(
    track: Track, wanted: Deployment | None, turned: tuple[Turn, str], now_s: float
) -> tuple[Track, Told]:
    turn, reason = turned
    change = msgspec.structs.replace
    candidate = track.candidate or wanted
    assert candidate is not None
    revision = candidate.revision
    before = track.phase
    track = change(track, phase=MOVES[before, turn], since_s=now_s, reason=reason)
    match turn:
        case Turn.ASKED:
            is_trusted = revision in track.proven
            track = change(
                track,
                candidate=candidate,
                step=0,
                share=0.0,
                is_trusted=is_trusted,
                began_s=now_s,
                stopped="",
                unseen=(),
            )
        case Turn.PREPARED:
            track = change(track, share=list_shares(candidate)[track.step])
        case Turn.PASSED:
            track = change(track, step=track.step + 1)
        case Turn.TRUSTED | Turn.PROVEN:
            track = change(track, share=1.0)
        case Turn.DONE:
            proven = [each for each in (*track.proven, *_name(track.serving)) if each != revision]
            proven = [each for each in proven if each != track.stopped]
            track = change(
                track,
                serving=candidate,
                candidate=None,
                share=0.0,
                proven=tuple([*dict.fromkeys(proven), revision][-PROVEN_MAX:]),
            )
        case _:
            stopped = revision if turn is Turn.FAILED else track.stopped
            if before is Phase.REPLACING:
                track = change(
                    track, serving=candidate, candidate=track.serving, is_trusted=True, stopped=stopped
                )
            else:
                track = change(track, candidate=None, share=0.0, stopped=stopped)
    return track, Told(turn, revision, reason)


def _name(deployment: Deployment | None) -> tuple[str, ...]:
    return () if deployment is None else (deployment.revision,)


# --- which replicas there are to be -------------------------------------------------------------------------


def _count_candidates(track: Track, candidate: Deployment, world: World) -> int:
    """Replicas of the candidate that are to be ready for what comes next."""
    if world.count == 0:
        return 1  # it is seen to work, or not, before it takes over; then it goes as well
    if track.phase is Phase.REPLACING or track.is_trusted:
        return world.count
    return count_for(list_shares(candidate)[track.step], world.count)


def _staff(track: Track, wanted: Deployment | None, world: World) -> tuple[Track, tuple[Start, ...]]:
    """Starts what is missing and has leave what is too much."""
    starts: list[Start] = []
    leaving = dict(track.leaving)
    plan = _plan_staff(track, wanted, world)
    assert world.replicas is not None
    for status in world.replicas:
        if status.revision not in plan and status.revision not in track.found:
            leaving.setdefault(status.id, world.now_s)
    leaving |= dict.fromkeys(list_replaced(track, world), world.now_s)
    for revision, (deployment, count) in plan.items():
        there = pick(world, revision, leaving)
        for status in sorted(there, key=rank)[count:]:
            leaving[status.id] = world.now_s
        taken = {status.index for status in world.replicas if status.revision == revision}
        waits = sum(status.state is ReplicaState.PENDING for status in there)
        for _ in range(count - len(there) if not waits else 0):  # one that waits for room has others wait
            index = next(number for number in range(len(taken) + 1) if number not in taken)
            taken.add(index)
            starts.append(
                Start(
                    Replica(
                        deployment=track.name,
                        revision=revision,
                        index=index,
                        spec=deployment.spec,
                        environment=deployment.environment,
                        resources=deployment.resources,
                    )
                )
            )
    return msgspec.structs.replace(track, leaving=leaving), tuple(starts)


def _plan_staff(
    track: Track, wanted: Deployment | None, world: World
) -> Mapping[str, tuple[Deployment, int]]:
    """How many of each revision."""
    if wanted is None or track.serving is None:
        return {}
    serving, candidate = track.serving, track.candidate
    if candidate is None:
        return {serving.revision: (serving, world.count)}
    new = _count_candidates(track, candidate, world)
    old = world.count
    if track.phase is Phase.REPLACING:
        ready = len(pick(world, candidate.revision, track.leaving, {ReplicaState.READY}))
        # For each new one that is ready, one old one may go: together there are never fewer.
        old = max(0, world.count - ready) if ready else len(pick(world, serving.revision, track.leaving))
        new = max(new, min(ready, world.count))
    return {serving.revision: (serving, old), candidate.revision: (candidate, new)}


def _list_stops(track: Track, world: World) -> Iterable[Stop]:
    assert world.replicas is not None
    for status in world.replicas:
        since = track.leaving.get(status.id)
        if since is None or status.state in (ReplicaState.STOPPING, ReplicaState.STOPPED):
            continue
        answers_nobody = status.state is not ReplicaState.READY or status.id in world.free
        if answers_nobody or world.now_s - since > LEAVE_MAX_S:
            yield Stop(status.id)


# --- what serves --------------------------------------------------------------------------------------------


def _list_serving(track: Track, world: World) -> tuple[Share, ...]:
    if track.serving is None:
        return ()
    old = pick_old(track, track.serving, world)
    candidate = track.candidate
    if candidate is None:
        return tuple(map(Share, old))
    new = pick(world, candidate.revision, track.leaving, {ReplicaState.READY})
    if track.phase is Phase.REPLACING:
        return tuple(map(Share, (*old, *new)))
    if track.share == 0.0 or not new:
        return tuple(map(Share, old))
    if track.share >= 1.0 or not old:
        return tuple(map(Share, new))
    return (
        *(Share(status, (1.0 - track.share) / len(old)) for status in old),
        *(Share(status, track.share / len(new)) for status in new),
    )
