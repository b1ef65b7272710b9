"""`forebay deployments`: what is deployed, how much of it serves, and what was applied under a name.

Where Forebay runs it is asked; else the file and the database say what would run.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import yaml

from forebay.app.config import Config
from forebay.app.config_running import load_live_state
from forebay.app.deployment_environments import compile_here
from forebay.app.deployment_store import merge_manifests
from forebay.app.deployment_views import DeploymentList, DeploymentView, list_views, show_generation
from forebay.app.model_references import find_version
from forebay.cli.admin_client import fetch_admin
from forebay.cli.deploy import open_service
from forebay.cli.tables import Cell, Column, Table, print_table
from forebay.cli.tenancy import format_moment, print_json
from forebay.cli.terminal import BadOption, Failure, Outcome, paint, print_line, print_note
from forebay.cli.usable_config import load_usable_config
from forebay.engines.deployment import DeploymentPhase, ReplicaState

_STYLES: Final = {
    DeploymentPhase.READY: "green",
    DeploymentPhase.ROLLING: "cyan",
    DeploymentPhase.STOPPED: "red",
    DeploymentPhase.FAILED: "red",
    DeploymentPhase.DEGRADED: "yellow",
}
_REPLICA_STYLES: Final = {
    ReplicaState.READY: "green",
    ReplicaState.REFUSED: "red",
    ReplicaState.BACKOFF: "yellow",
}
NOT_RUNNING: Final = "Forebay does not run here"


def show_all(file: Path | None, *, as_json: bool) -> Outcome:
    listed, runs = _load(load_usable_config(file))
    if as_json:
        print_json(listed.model_dump(mode="json"))
        return Outcome.OK
    _tell_problems(listed, runs)
    if not listed.data:
        print_line("nothing is deployed: write `deployments:`, and `forebay apply -f FILE`")
        return Outcome.OK
    columns = [
        Column(title="Name", kind="whole"),
        Column(title="State", kind="whole"),
        Column(title="Ready", align="right", kind="whole"),
        Column(title="Model", rank=3),
        Column(title="Version", rank=4),
        Column(title="Engine", rank=5),
        Column(title="Where", rank=6),
        Column(title="Tier", rank=7),
        Column(title="Revision", rank=2),
        Column(title="Generation", align="right", rank=8),
        Column(title="For", align="right", rank=2),
        Column(title="Message", kind="prose", rank=1),
    ]
    print_table(Table(columns=columns, rows=[_row(view, runs) for view in listed.data]))
    return Outcome.OK


def show_one(file: Path | None, name: str, *, as_json: bool) -> Outcome:
    listed, runs = _load(load_usable_config(file))
    view = next((each for each in listed.data if each.name == name), None)
    if view is None:
        raise Failure(f"there is no deployment {name}", hint="`forebay deployments` lists all")
    if as_json:
        print_json(view.model_dump(mode="json"))
        return Outcome.OK
    _tell_problems(listed, runs)
    state = view.phase.value if runs else "unknown"
    print_line(f"{paint(view.name, 'bold')}: {paint(state, _STYLES.get(view.phase, 'dim'))}")
    if view.message and runs:
        print_line(f"  {view.message}")
    for label, value in (
        ("model", view.model),
        ("version", view.version),
        ("engine", view.engine),
        ("runs on", " ".join(filter(None, (view.launcher, view.hardware, view.precision)))),
        ("tier", " ".join(filter(None, (view.tier, view.region)))),
        ("revision", view.revision),
        ("serving", _describe_serving(view) if runs else ""),
        ("replicas", f"{view.replicas_min} to {view.replicas_max}, {view.replicas_ready} ready"),
        ("origin", _describe_origin(view)),
    ):
        if value:
            print_line(f"  {label:<9} {value}")
    print_line()
    print_line(yaml.safe_dump(view.manifest, sort_keys=False, allow_unicode=True, width=1000).rstrip())
    if view.replicas:
        print_line()
        _print_replicas(view)
    return Outcome.OK


def show_history(file: Path | None, name: str | None, *, as_json: bool) -> Outcome:
    if name is None:
        raise BadOption("--history is about one deployment", hint="`forebay deployments NAME --history`")
    with open_service(load_usable_config(file)) as (_, repo):
        found = [show_generation(record) for record in repo.load_history(name)]
    if as_json:
        print_json([each.model_dump(mode="json") for each in found])
        return Outcome.OK
    columns = [
        Column(title="Generation", align="right", kind="whole"),
        Column(title="At", kind="whole"),
        Column(title="By"),
        Column(title="Version", rank=2),
        Column(title="What", kind="prose"),
    ]
    rows = []
    for each in found:
        version = find_version(each.manifest or {})
        what = each.note or ("deleted" if each.deleted else "applied")
        rows.append((str(each.generation), format_moment(int(each.at_s * 1e9)), each.by, version, what))
    print_table(Table(columns=columns, rows=rows))
    return Outcome.OK


def _load(config: Config) -> tuple[DeploymentList, bool]:
    """What there is, and whether it runs."""
    if load_live_state(config.state_path) is not None:
        return DeploymentList.model_validate_json(fetch_admin(config, "/deployments")), True
    with open_service(config) as (_, repo):
        records = repo.list_current()
        manifests, problems = merge_manifests(config, records, repo.pin)
    deployments = [compile_here(name, manifests[name], config) for name in sorted(manifests)]
    return DeploymentList(data=list_views(config, deployments, records, {}), problems=list(problems)), False


def _tell_problems(listed: DeploymentList, runs: bool) -> None:
    if not runs:
        print_note(f"{NOT_RUNNING}: this is what would run")
    for problem in listed.problems:
        print_note(problem, "yellow")


def _row(view: DeploymentView, runs: bool) -> Sequence[str | Cell]:
    ready = f"{view.replicas_ready}/{_describe_range(view)}" if runs else _describe_range(view)
    state = Cell(text=view.phase.value, style=_STYLES.get(view.phase, "")) if runs else Cell(text="-")
    return (
        view.name,
        state,
        ready,
        view.model,
        view.version,
        view.engine,
        " ".join(filter(None, (view.launcher, view.hardware, view.precision))),
        view.tier,
        view.revision,
        "file" if view.generation is None else str(view.generation),
        format_age(time.time() - view.since_s) if view.since_s else "",
        view.message if runs else "",
    )


def _describe_range(view: DeploymentView) -> str:
    low, high = view.replicas_min, view.replicas_max
    return str(low) if low == high else f"{low}-{high}"


def _describe_serving(view: DeploymentView) -> str:
    if not view.serving_revision:
        return "nothing"
    if view.serving_revision == view.revision:
        return view.serving_revision
    return f"{view.serving_revision}, and {view.share:.0%} of requests {view.revision}"


def _describe_origin(view: DeploymentView) -> str:
    if view.changed_at_s is None:
        return "forebay.yaml"
    when = format_moment(int(view.changed_at_s * 1e9))
    return f"generation {view.generation}, applied {when} by {view.changed_by}"


def _print_replicas(view: DeploymentView) -> None:
    columns = [
        Column(title="Replica", kind="whole"),
        Column(title="State", kind="whole"),
        Column(title="Address", rank=3),
        Column(title="Node", rank=4),
        Column(title="Restarts", align="right", rank=2),
        Column(title="For", align="right", rank=2),
        Column(title="Message", kind="prose", rank=1),
    ]
    rows = []
    for each in view.replicas:
        words = ": ".join(filter(None, (each.reason.replace("_", " "), each.message)))
        state = Cell(text=each.state.value, style=_REPLICA_STYLES.get(each.state, ""))
        age = format_age(time.time() - each.since_s) if each.since_s else ""
        rows.append((each.id, state, each.url, each.node, str(each.restarts), age, words))
    print_table(Table(columns=columns, rows=rows))


def format_age(seconds: float) -> str:
    """`42s`, `7m`, `3h`, `12d`."""
    for limit, unit, word in ((120, 1, "s"), (7200, 60, "m"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{max(0, int(seconds // unit))}{word}"
    return f"{int(seconds // 86_400)}d"
