"""Tells people where a deployment stands.  Pure."""

from collections.abc import Sequence

from forebay.engines.deployment import (
    Deployment,
    DeploymentPhase,
    DeploymentStatus,
    ReplicaState,
    ReplicaStatus,
)
from forebay.engines.rollout_state import Phase, Track


def describe(
    track: Track,
    wanted: Deployment | None,
    replicas: Sequence[ReplicaStatus],
    count: int,
    waits: str = "",
) -> DeploymentStatus:
    """
    Args:
        replicas: all of it that runs.
        count: how many are to serve.
        waits: what a change waits for, and how long.
    """
    serving = track.serving.revision if track.serving else ""
    mine = [each for each in replicas if each.revision == serving and each.id not in track.leaving]
    ready = [each for each in mine if each.state is ReplicaState.READY]
    phase, message = _find_phase(track, wanted, mine, len(ready), count, waits)
    asked = wanted.revision if wanted else ""
    if track.candidate is None:
        share = 1.0 if asked == serving else 0.0
    else:
        share = track.share if track.candidate.revision == asked else 1.0 - track.share
    has_most = track.candidate is not None and track.share > 0.5
    return DeploymentStatus(
        name=track.name,
        phase=phase,
        message=message,
        revision=asked,
        serving_revision=track.candidate.revision if has_most and track.candidate else serving,
        share=share,
        replicas=tuple(replicas),
        since_s=track.since_s,
    )


def _find_phase(
    track: Track,
    wanted: Deployment | None,
    mine: Sequence[ReplicaStatus],
    ready: int,
    count: int,
    waits: str,
) -> tuple[DeploymentPhase, str]:
    if wanted is None:
        return DeploymentPhase.ENDING, "it is asked for no more; its replicas leave"
    if track.candidate is not None:
        what = {
            Phase.PREPARING: "gets ready",
            Phase.WATCHING: f"is watched at {track.share:.0%} of the requests",
        }.get(track.phase, "takes over")
        words = f"{what}: {waits} ({track.reason})" if waits else f"{what}: {track.reason}"
        return DeploymentPhase.ROLLING, f"revision {track.candidate.revision} {words}"
    if track.found:
        return DeploymentPhase.ROLLING, (
            f"revision {wanted.revision} takes over from {', '.join(track.found)}, which was found running: "
            "how far a change was is lost (run/deployer.json)"
        )
    ill = next((each for each in mine if each.state is not ReplicaState.READY), None)
    words = f"replica {ill.id} is {ill.state.value}: {ill.message}".rstrip(": ") if ill else ""
    if not ready and count:
        refused = [each for each in mine if each.state is ReplicaState.REFUSED]
        if refused:
            return DeploymentPhase.FAILED, f"replica {refused[0].id} refuses to start: {refused[0].message}"
        return DeploymentPhase.PENDING, words or "its replicas are being started"
    if track.stopped == wanted.revision:
        return DeploymentPhase.STOPPED, f"revision {track.stopped} was stopped: {track.reason}"
    if ready < count:
        return DeploymentPhase.DEGRADED, words or f"{ready} of {count} replicas are ready"
    words = "" if count else "no replica is needed now"
    return DeploymentPhase.READY, "; ".join(filter(None, (words, *track.unseen)))
