"""Which replicas a rollout counts on: those of a revision, those that serve, and those found running.

Pure, and decides only who of several is to stay.
"""

from collections.abc import Collection, Iterable, Sequence

import msgspec

from forebay.engines.deployment import Deployment, ReplicaState, ReplicaStatus
from forebay.engines.rollout_state import Track, World


def pick(
    world: World, revision: str, leaving: Collection[str], states: Collection[ReplicaState] | None = None
) -> Sequence[ReplicaStatus]:
    """The replicas of a revision that are to stay, in any state or in one of these."""
    ended = (ReplicaState.STOPPING, ReplicaState.STOPPED)
    return [
        status
        for status in world.replicas or ()
        if status.revision == revision
        and status.id not in leaving
        and (status.state in states if states is not None else status.state not in ended)
    ]


def pick_old(track: Track, serving: Deployment, world: World) -> Sequence[ReplicaStatus]:
    """What has the requests until something else takes over."""
    revisions = (serving.revision, *track.found)
    return [status for each in revisions for status in pick(world, each, track.leaving, {ReplicaState.READY})]


def find_strangers(track: Track, world: World, *, is_new: bool) -> Track:
    """What runs though nothing is remembered of it: somebody lost that, and callers are not to notice."""
    if track.serving is None or not (is_new or track.found):
        return track
    there = {
        status.revision
        for status in world.replicas or ()
        if status.revision != track.serving.revision and pick(world, status.revision, track.leaving)
    }
    return msgspec.structs.replace(track, found=tuple(sorted(there if is_new else there & {*track.found})))


def list_replaced(track: Track, world: World) -> Iterable[str]:
    """Of those that were found: for each one asked for that is ready one of them may go."""
    if track.serving is None or not track.found:
        return ()
    found = [status for each in track.found for status in pick(world, each, track.leaving)]
    ready = len(pick(world, track.serving.revision, track.leaving, {ReplicaState.READY}))
    stay = max(0, world.count - ready) if ready or not world.count else len(found)
    return [status.id for status in sorted(found, key=rank)[stay:]]


def rank(status: ReplicaStatus) -> tuple[bool, bool, int]:
    """Who stays: what is ready, then what was there first."""
    is_ready = status.state is ReplicaState.READY
    return not is_ready, status.state is not ReplicaState.STARTING, status.index
