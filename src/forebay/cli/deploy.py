"""`forebay apply`, `diff`, `rollback`, `delete`: changes of what is deployed, and a look at them first.

They work straight on the database, so they do whether Forebay runs or not; a running control plane sees the
change and rolls it out.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from forebay.app.clock import SystemClock
from forebay.app.config import Config
from forebay.app.config_running import load_live_state
from forebay.app.database import open_database
from forebay.app.deployment_diff import DeploymentDiff, FieldChange
from forebay.app.deployment_records import DeploymentNotFound, DeploymentsRefused
from forebay.app.deployment_repo import DeploymentRepo
from forebay.app.deployment_service import DeploymentService, Plan
from forebay.app.manifest_files import load_manifests
from forebay.app.matrix import load_trials
from forebay.cli.deploy_wait import Awaited, wait_for
from forebay.cli.tenancy import find_actor, print_json
from forebay.cli.terminal import Failure, Outcome, paint, print_line, print_note
from forebay.cli.usable_config import load_usable_config

_STYLES: Final = {"created": "green", "changed": "yellow", "unchanged": "dim", "deleted": "red"}
VALUE_SHOWN_MAX: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyOptions:
    dry_run: bool = False
    allow_untested: bool = False
    wait: bool = False
    timeout_s: float = 900.0
    as_json: bool = False


@contextmanager
def open_service(config: Config) -> Iterator[tuple[DeploymentService, DeploymentRepo]]:
    """What changes deployments in the data folder of a configuration."""
    config.data_path.mkdir(mode=0o700, parents=True, exist_ok=True)
    database = open_database(config)
    try:
        database.migrate()
        repo = DeploymentRepo(database, SystemClock())
        yield DeploymentService(repo, lambda: config, lambda: load_trials(database)), repo
    finally:
        database.close()


def apply(file: Path | None, places: Sequence[str], options: ApplyOptions) -> Outcome:
    config = load_usable_config(file)
    manifests = load_manifests(places, config)
    for warning in manifests.warnings:
        print_note(f"warning: {warning.render()}", "yellow")
    with open_service(config) as (service, _):
        plan = service.plan(manifests.deployments)
        _tell_unknown(plan)
        if options.dry_run:
            if not options.allow_untested:
                plan.check_tested()
            _print_plan(plan, as_json=options.as_json)
            return Outcome.OK
        applied = service.apply(plan, find_actor(), allow_untested=options.allow_untested)
    shown = [
        {"name": each.record.name, "outcome": each.outcome.value, "generation": each.record.generation}
        for each in applied
    ]
    if options.as_json:
        print_json(shown)
    else:
        for each in shown:
            told = paint(str(each["outcome"]), _STYLES[str(each["outcome"])])
            print_line(f"{each['name']}: {told}, generation {each['generation']}")
    revisions = {diff.name: diff.revision_after for diff in plan.diffs}
    awaited = {
        each.record.name: Awaited(generation=each.record.generation, revision=revisions[each.record.name])
        for each in applied
    }
    return _end(config, awaited, wait=options.wait, timeout_s=options.timeout_s)


def diff(file: Path | None, places: Sequence[str], *, as_json: bool) -> Outcome:
    config = load_usable_config(file)
    manifests = load_manifests(places, config)
    with open_service(config) as (service, _):
        plan = service.plan(manifests.deployments)
    if as_json:
        print_json([_describe(each) for each in plan.diffs])
    else:
        for each in plan.diffs:
            if not each.is_empty:
                _print_diff(each)
    return Outcome.OK if plan.is_empty else Outcome.PROBLEM


def roll_back(file: Path | None, name: str, *, to: int | None, wait: bool, timeout_s: float) -> Outcome:
    config = load_usable_config(file)
    with open_service(config) as (service, repo):
        before = {record.name: record for record in repo.list_current()}
        try:
            applied = service.roll_back(name, find_actor(), to=to)
        except (DeploymentNotFound, DeploymentsRefused) as error:
            raise Failure(error.message) from None
        found = service.compare(before.get(name), applied.record)
    record = applied.record
    why = f", {record.note}" if record.note else ""
    print_line(f"{name}: {applied.outcome.value}, generation {record.generation}{why}")
    for change in found.changes:
        _print_change(change)
    awaited = Awaited(generation=record.generation, revision=found.revision_after)
    return _end(config, {name: awaited}, wait=wait, timeout_s=timeout_s)


def delete(file: Path | None, name: str) -> Outcome:
    config = load_usable_config(file)
    with open_service(config) as (service, _):
        try:
            record = service.delete(name, find_actor())
        except (DeploymentNotFound, DeploymentsRefused) as error:
            raise Failure(error.message) from None
    print_line(f"{name}: {paint('deleted', 'red')}, generation {record.generation}")
    return Outcome.OK


def _end(config: Config, awaited: Mapping[str, Awaited], *, wait: bool, timeout_s: float) -> Outcome:
    if load_live_state(config.state_path) is not None:
        return wait_for(config, awaited, timeout_s=timeout_s) if wait else Outcome.OK
    if wait:
        raise Failure(
            "it is applied, and Forebay does not run here: nothing is rolled out",
            hint="start it with `forebay up`",
        )
    print_note("Forebay does not run here: it is rolled out when `forebay up` starts")
    return Outcome.OK


# --- what is shown ------------------------------------------------------------------------------------------


def _tell_unknown(plan: Plan) -> None:
    for name in sorted(plan.unknown):
        for line in plan.unknown[name]:
            print_note(f"{name}: untested: {line}", "yellow")


def _print_plan(plan: Plan, *, as_json: bool) -> None:
    if as_json:
        print_json([_describe(each) for each in plan.diffs])
        return
    for each in plan.diffs:
        _print_diff(each)
    print_note("dry run: nothing was changed")


def _print_diff(found: DeploymentDiff) -> None:
    outcome = _name_outcome(found)
    words = paint(outcome, _STYLES[outcome])
    if not found.revision_before:
        print_line(f"{paint(found.name, 'bold')}: {words}, revision {found.revision_after}")
    elif found.rolls:
        revisions = f"revision {found.revision_before} → {found.revision_after}"
        print_line(f"{paint(found.name, 'bold')}: {words}, {revisions}: replicas are replaced")
    else:
        stays = ": no replica is replaced" if found.changes else ""
        print_line(f"{paint(found.name, 'bold')}: {words}, revision {found.revision_after}{stays}")
    for change in found.changes:
        _print_change(change)


def _print_change(change: FieldChange) -> None:
    if change.was_there:
        print_line(paint(f"- {change.key}: {_show(change.before)}", "red"))
    if change.is_there:
        print_line(paint(f"+ {change.key}: {_show(change.after)}", "green"))


def _name_outcome(found: DeploymentDiff) -> str:
    if not found.revision_before:
        return "created"
    return "unchanged" if found.is_empty else "changed"


def _show(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= VALUE_SHOWN_MAX else f"{text[:VALUE_SHOWN_MAX]}…"


def _describe(found: DeploymentDiff) -> dict[str, object]:
    return {
        "name": found.name,
        "outcome": _name_outcome(found),
        "revision_before": found.revision_before,
        "revision_after": found.revision_after,
        "changes": [{"key": each.key, "before": each.before, "after": each.after} for each in found.changes],
    }
