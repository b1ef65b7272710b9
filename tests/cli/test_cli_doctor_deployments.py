"""What `forebay doctor` says of deployments: which phases are well, to look at, or broken."""

from typing import Any

import pytest

from forebay.app.config_deployments import DeploymentConfig, LaunchersConfig
from forebay.app.deployment_compile import compile_deployment
from forebay.app.deployment_views import show_deployment
from forebay.cli.doctor_deployments import examine_deployments
from forebay.cli.finding import Verdict
from forebay.engines.deployment import DeploymentPhase, DeploymentStatus, ReplicaState, ReplicaStatus

MANIFEST = DeploymentConfig.model_validate({"engine": {"kind": "minilm"}})
WANTED = compile_deployment("a", MANIFEST, LaunchersConfig())


def show(phase: DeploymentPhase, *states: ReplicaState) -> Any:
    replicas = tuple(
        ReplicaStatus(id=f"a-x-{index}", deployment="a", revision="x", index=index, state=state)
        for index, state in enumerate(states)
    )
    status = DeploymentStatus(
        name="a", phase=phase, message="why", revision=WANTED.revision, replicas=replicas
    )
    return show_deployment(WANTED, None, status, {})


@pytest.mark.parametrize(
    ("phase", "states", "verdict"),
    [
        (DeploymentPhase.READY, [ReplicaState.READY], Verdict.OK),
        (DeploymentPhase.READY, [ReplicaState.READY, ReplicaState.BACKOFF], Verdict.WARN),
        (DeploymentPhase.PENDING, [ReplicaState.STARTING], Verdict.OK),
        (DeploymentPhase.PENDING, [ReplicaState.BACKOFF], Verdict.FAIL),
        (DeploymentPhase.ROLLING, [ReplicaState.READY, ReplicaState.STARTING], Verdict.OK),
        (DeploymentPhase.DEGRADED, [ReplicaState.READY], Verdict.WARN),
        (DeploymentPhase.STOPPED, [ReplicaState.READY], Verdict.FAIL),
        (DeploymentPhase.FAILED, [ReplicaState.REFUSED], Verdict.FAIL),
    ],
)
def test_each_phase_has_its_verdict(
    phase: DeploymentPhase, states: list[ReplicaState], verdict: Verdict
) -> None:
    (found,) = examine_deployments([show(phase, *states)], [])
    assert found.verdict is verdict
    assert "why" in found.message
    assert bool(found.hint) is (verdict is not Verdict.OK)


def test_what_was_applied_and_does_not_run_is_told() -> None:
    (found,) = examine_deployments([], ["deployment b was applied too"])
    assert (found.verdict, found.message) == (Verdict.WARN, "deployment b was applied too")
