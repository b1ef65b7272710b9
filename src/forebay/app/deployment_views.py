"""What the admin API and the command line show of deployments, as types; and how they are made.  Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from forebay.app.config import Config
from forebay.app.control_schemas import View
from forebay.app.deployment_diff import DeploymentDiff
from forebay.app.deployment_records import DeploymentRecord
from forebay.engines.deployment import (
    Deployment,
    DeploymentPhase,
    DeploymentStatus,
    ReplicaState,
    ReplicaStatus,
)

Origin = Literal["file", "applied"]
NOT_LOOKED_AT = "it has not been looked at yet"


class ReplicaView(View):
    id: str
    revision: str
    state: ReplicaState
    url: str = Field(description="Empty while it has none.")
    node: str = Field(description="Machine, Ray node or Kubernetes node; empty where nobody says.")
    restarts: int
    since_s: float = Field(description="Unix time of the last change of its state.")
    reason: str = Field(description="Why it ended by itself the last time; empty if it has not.")
    message: str = Field(description="Its last words, or what it waits for.")


class DeploymentView(View):
    name: str
    origin: Origin = Field(description="Whether `forebay.yaml` holds it, or it was applied.")
    generation: int | None = Field(description="Goes up with each change; null for the file's.")
    model: str = Field(description="Public name.")
    version: str = Field(description="Of the model; empty where nobody says.")
    engine: str = Field(description="Kind and version of the engine.")
    hardware: str
    precision: str
    tier: str
    region: str
    launcher: str
    phase: DeploymentPhase
    message: str = Field(description="What is waited for, or why it stopped.")
    revision: str = Field(description="Names what its replicas are to be.")
    serving_revision: str = Field(description="That has most of the requests; empty: none.")
    share: float = Field(description="Of its requests, of the revision that was asked for.")
    replicas_ready: int = Field(description="Of any revision.")
    replicas_min: int
    replicas_max: int
    since_s: float = Field(description="Unix time of the last change of its phase; 0: none is known.")
    changed_at_s: float | None = Field(description="Unix time at which it was applied last.")
    changed_by: str | None = Field(description="Who did that.")
    replicas: list[ReplicaView]
    manifest: dict[str, Any] = Field(description="What was written, without defaults.")


class DeploymentList(View):
    data: list[DeploymentView] = Field(description="In the order of their names.")
    problems: list[str] = Field(description="Why some of what was applied does not run.")


class FieldChangeView(View):
    key: str
    before: Any = Field(description="Null where it was not there.")
    after: Any = Field(description="Null where it is not there any more.")


class ChangeView(View):
    """What a change does, or would do."""

    name: str
    outcome: Literal["created", "changed", "unchanged", "deleted"]
    dry_run: bool
    generation: int | None = Field(description="The new one; null for a dry run that would make one.")
    revision: str = Field(description="Empty for what is gone.")
    rolls: bool = Field(description="Whether replicas are replaced.")
    changes: list[FieldChangeView]
    unknown: list[str] = Field(description="What nobody has tried of it here.")


class GenerationView(View):
    generation: int
    deleted: bool
    at_s: float
    by: str
    note: str = Field(description="Such as `rollback to 3`.")
    manifest: dict[str, Any] | None


class GenerationList(View):
    data: list[GenerationView] = Field(description="The newest first; 100 are kept.")


def show_deployment(
    deployment: Deployment,
    record: DeploymentRecord | None,
    status: DeploymentStatus | None,
    manifest: Mapping[str, Any],
) -> DeploymentView:
    """
    Args:
        record: None for one of the file.
        status: None where nobody has looked yet.
    """
    spec = deployment.spec
    replicas = () if status is None else status.replicas
    is_looked_at = status is not None and status.revision in ("", deployment.revision)
    return DeploymentView(
        name=deployment.name,
        origin="file" if record is None else "applied",
        generation=None if record is None else record.generation,
        model=deployment.model,
        version=deployment.version,
        engine=f"{spec.kind} {spec.version}".strip(),
        hardware=deployment.hardware,
        precision=deployment.precision,
        tier=deployment.tier,
        region=deployment.region,
        launcher=deployment.launcher.value,
        phase=DeploymentPhase.PENDING if status is None or not is_looked_at else status.phase,
        message=NOT_LOOKED_AT if status is None or not is_looked_at else status.message,
        revision=deployment.revision,
        serving_revision="" if status is None else status.serving_revision,
        share=0.0 if status is None else status.share,
        replicas_ready=sum(each.state is ReplicaState.READY for each in replicas),
        replicas_min=deployment.replicas_min,
        replicas_max=deployment.replicas_max,
        since_s=0.0 if status is None else status.since_s,
        changed_at_s=None if record is None else record.at_ns / 1e9,
        changed_by=None if record is None else record.actor.name,
        replicas=[show_replica(each) for each in replicas],
        manifest=dict(manifest),
    )


def show_replica(status: ReplicaStatus) -> ReplicaView:
    return ReplicaView(
        id=status.id,
        revision=status.revision,
        state=status.state,
        url=status.url,
        node=status.node,
        restarts=status.restarts,
        since_s=status.since_s,
        reason=status.reason.value,
        message=status.message,
    )


def list_views(
    config: Config,
    deployments: Sequence[Deployment],
    records: Sequence[DeploymentRecord],
    statuses: Mapping[str, DeploymentStatus],
) -> list[DeploymentView]:
    """Of all that are to run, and of those that are just ending."""
    by_name = {record.name: record for record in records}
    views = []
    for each in deployments:
        of_file = config.deployments.get(each.name)
        record = None if of_file is not None else by_name.get(each.name)
        if of_file is not None:
            manifest: Mapping[str, Any] = of_file.model_dump(mode="json", exclude_unset=True)
        else:
            manifest = (record.manifest if record is not None else None) or {}
        views.append(show_deployment(each, record, statuses.get(each.name), manifest))
    return views


def show_change(
    diff: DeploymentDiff,
    *,
    outcome: Literal["created", "changed", "unchanged", "deleted"],
    generation: int | None,
    dry_run: bool = False,
    unknown: Sequence[str] = (),
) -> ChangeView:
    return ChangeView(
        name=diff.name,
        outcome=outcome,
        dry_run=dry_run,
        generation=generation,
        revision=diff.revision_after,
        rolls=diff.rolls,
        changes=[
            FieldChangeView(key=each.key, before=each.before, after=each.after) for each in diff.changes
        ],
        unknown=list(unknown),
    )


def show_generation(record: DeploymentRecord) -> GenerationView:
    return GenerationView(
        generation=record.generation,
        deleted=record.manifest is None,
        at_s=record.at_ns / 1e9,
        by=record.actor.name,
        note=record.note,
        manifest=None if record.manifest is None else dict(record.manifest),
    )
