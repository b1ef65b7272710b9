"""Checks of deployments: whether what was asked for serves, as the control plane that runs here says."""

from collections.abc import Iterator, Sequence
from typing import Final

from forebay.app.config import Config
from forebay.app.config_running import load_live_state
from forebay.app.deployment_views import DeploymentList, DeploymentView
from forebay.cli.admin_client import fetch_admin
from forebay.cli.finding import Finding, Verdict
from forebay.cli.terminal import Failure
from forebay.engines.deployment import DeploymentPhase, ReplicaState

_FAILED: Final = frozenset({DeploymentPhase.FAILED, DeploymentPhase.STOPPED})
#: Of replicas that don't get ready by waiting alone.
_STUCK: Final = frozenset({ReplicaState.BACKOFF, ReplicaState.REFUSED})


def check_deployments(config: Config) -> Iterator[Finding]:
    if load_live_state(config.state_path) is None:
        return
    try:
        listed = DeploymentList.model_validate_json(fetch_admin(config, "/deployments"))
    except Failure:
        return  # its health is told already
    yield from examine_deployments(listed.data, listed.problems)


def examine_deployments(views: Sequence[DeploymentView], problems: Sequence[str]) -> Iterator[Finding]:
    """A finding for each, and for each that does not run although it was applied."""
    for problem in problems:
        yield Finding(name="deployments", verdict=Verdict.WARN, message=problem)
    for view in views:
        message = f"{view.phase.value}, {view.replicas_ready} of {view.replicas_min} replicas ready"
        if view.message:
            message += f": {view.message}"
        verdict = _judge(view)
        hint = (
            "" if verdict is Verdict.OK else f"`forebay deployments {view.name}` and `forebay logs` say more"
        )
        if view.phase is DeploymentPhase.STOPPED:
            hint = f"`forebay rollback {view.name}` asks for what serves; or apply what mends it"
        yield Finding(name=f"deployment {view.name}", verdict=verdict, message=message, hint=hint)


def _judge(view: DeploymentView) -> Verdict:
    is_stuck = any(each.state in _STUCK for each in view.replicas)
    if view.phase in _FAILED:
        return Verdict.FAIL
    if view.phase is DeploymentPhase.PENDING and is_stuck:
        return Verdict.FAIL  # nothing of it serves
    if view.phase is DeploymentPhase.DEGRADED or is_stuck:
        return Verdict.WARN
    return Verdict.OK
