"""How the admin API shows what the control plane knows.  Pure: values in, views out."""

from collections.abc import Mapping
from typing import Any

from forebay.app.applied import Applied
from forebay.app.config import Config
from forebay.app.control_plane import ControlPlane
from forebay.app.control_schemas import (
    ConfigStateView,
    IngestView,
    ModelView,
    ProcessView,
    RemovedView,
    RetentionView,
    SnapshotView,
    StatusView,
    TargetView,
    WorkerView,
)
from forebay.app.retention import RetentionState
from forebay.app.supervisor_state import RunState
from forebay.core.routes import Route
from forebay.version import __version__


def show_status(
    plane: ControlPlane,
    state: RunState | None,
    applied: Mapping[str, Applied],
    *,
    started_ns: int,
    now_ns: int,
) -> StatusView:
    """What runs, and how well.

    Args:
        state: what the supervisor wrote last; None where the control plane runs without one.
        applied: what the workers wrote last, by name.
    """
    return StatusView(
        version=__version__,
        started_at_s=started_ns / 1e9,
        gateway_url=state.gateway_url if state else None,
        control_url=state.control_url if state else None,
        processes=show_processes(state),
        workers=show_workers(plane, state, applied),
        snapshot=show_snapshot(plane),
        config=show_config_state(plane),
        ingest=show_ingest(plane, now_ns),
        retention=show_retention(plane.keeper.state if plane.keeper else RetentionState()),
    )


def show_processes(state: RunState | None) -> list[ProcessView]:
    return [
        ProcessView(
            name=child.name,
            state=child.state.value,
            pid=child.pid,
            since_s=child.since_s,
            restarts=child.restarts,
            last_exit=child.last_exit,
        )
        for child in (state.children if state else ())
    ]


def show_workers(
    plane: ControlPlane, state: RunState | None, applied: Mapping[str, Applied]
) -> list[WorkerView]:
    """Each worker that the supervisor has, and what its present process runs."""
    written = plane.snapshot_state
    views = []
    for child in state.children if state else ():
        if not child.name.startswith("worker-"):
            continue
        told = applied.get(child.name)
        if told is not None and told.pid != child.pid:
            told = None  # of a process that is gone
        views.append(
            WorkerView(
                name=child.name,
                current=told is not None and written is not None and told.snapshot_hash == written.hash,
                snapshot_hash=told.snapshot_hash if told else None,
                refused=(told.refused or None) if told else None,
                problems=list(told.problems) if told else [],
            )
        )
    return views


def show_snapshot(plane: ControlPlane) -> SnapshotView:
    written = plane.snapshot_state
    return SnapshotView(
        hash=written.hash if written else "",
        route_hash=written.route_hash if written else "",
        written_at_s=written.written_ns / 1e9 if written else None,
        models=len(written.snapshot.table.routes) if written else 0,
        keys=len(written.snapshot.keys) if written else 0,
        error=plane.snapshot_error,
    )


def show_config_state(plane: ControlPlane) -> ConfigStateView:
    watch = plane.watch
    file = watch.file if watch.config.file or watch.problems else None
    return ConfigStateView(
        file=str(file) if file else None,
        valid=not plane.watch.problems,
        problems=list(plane.watch.problems),
        restart_needed=list(plane.restart_settings),
        engines_missing=list(plane.engines_missing),
    )


def show_ingest(plane: ControlPlane, now_ns: int) -> IngestView:
    ingest = plane.ingest_state
    last = ingest.last_success_ns
    return IngestView(
        last_success_s=None if last is None else last / 1e9,
        lag_s=None if last is None else max(0.0, (now_ns - last) / 1e9),
        lag_bytes=ingest.lag_bytes,
        records=ingest.records,
        set_aside=ingest.set_aside,
        error=ingest.error,
        problems=list(ingest.problems),
    )


def show_retention(state: RetentionState) -> RetentionView:
    return RetentionView(
        looked_at_s=None if state.looked_at_ns is None else state.looked_at_ns / 1e9,
        removed=[
            RemovedView(
                kind=kind.value,
                gone_before_s=mark.gone_before_ns / 1e9,
                rows=mark.removed,
                last_s=None if mark.removed_at_ns is None else mark.removed_at_ns / 1e9,
            )
            for kind, mark in state.marks.items()
            if mark.gone_before_ns
        ],
        error=state.error,
    )


def show_config(config: Config) -> Mapping[str, Any]:
    """The effective configuration.  It holds secrets as references, as the file does."""
    shown: Mapping[str, Any] = config.model_dump(mode="json")
    return shown


def show_model(route: Route) -> ModelView:
    return ModelView(
        name=route.model,
        endpoints=[endpoint.value for endpoint in route.endpoints],
        targets=[
            TargetView(
                id=target.id,
                pool=target.pool,
                tier=target.tier,
                region=target.region or None,
                version=target.version or None,
                url=target.url,
                model=target.model,
                api_key=target.api_key,
            )
            for target in route.targets
        ],
    )
