"""Waits until a change of deployments has ended or was stopped, and tells of it meanwhile.

Asks the control plane again and again, for a bounded time.  It changes nothing: whoever stops waiting stops
nothing else.
"""

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from rich.console import Console
from rich.status import Status

from forebay.app.config import Config
from forebay.app.deployment_views import DeploymentList, DeploymentView
from forebay.cli.admin_client import fetch_admin
from forebay.cli.terminal import Failure, Outcome, is_plain, paint, print_line, print_note
from forebay.engines.deployment import SETTLED, DeploymentPhase

INTERVAL_S: Final = 0.5
SILENT_S: Final = 30.0  #: of a control plane that is starting again


@dataclass(frozen=True, slots=True, kw_only=True)
class Awaited:
    """What was applied."""

    generation: int
    revision: str


def wait_for(config: Config, awaited: Mapping[str, Awaited], *, timeout_s: float) -> Outcome:
    """Until each of these deployments has come to its revision, or was stopped on the way.

    Raises:
        Failure: the time is over, or the control plane is silent for too long.
    """
    deadline = time.monotonic() + timeout_s
    told: dict[str, str] = {}
    with ExitStack() as stack:
        spinner: Status | None = None
        if not is_plain():
            spinner = stack.enter_context(Console().status("waiting"))
        while True:
            views = _fetch(config)
            waiting = []
            for name, wanted in awaited.items():
                view = views.get(name)
                words = describe_progress(view, wanted)
                if spinner is None and told.get(name) != words:
                    print_line(f"{name}: {words}")
                told[name] = words
                if not has_settled(view, wanted):
                    waiting.append(f"{name}: {words}")
            if not waiting:
                break
            if spinner is not None:
                spinner.update("; ".join(waiting))
            if time.monotonic() >= deadline:
                raise Failure(
                    f"after {timeout_s:g} s it has not ended: {'; '.join(waiting)}",
                    hint="it goes on; `forebay deployments` shows how far it is",
                )
            time.sleep(INTERVAL_S)
    return _conclude(awaited, views)


def is_seen(view: DeploymentView | None, wanted: Awaited) -> bool:
    """Whether the control plane knows of it already."""
    return view is not None and (view.generation or 0) >= wanted.generation


def is_overtaken(view: DeploymentView | None, wanted: Awaited) -> bool:
    """Whether somebody has changed it since."""
    return view is not None and (view.generation or 0) > wanted.generation


def has_settled(view: DeploymentView | None, wanted: Awaited) -> bool:
    """Whether nothing more happens by itself."""
    if view is None or not is_seen(view, wanted):
        return False
    if is_overtaken(view, wanted):
        return True
    is_whole = view.phase is not DeploymentPhase.READY or view.replicas_ready >= view.replicas_min
    return view.revision == wanted.revision and view.phase in SETTLED and is_whole


def describe_progress(view: DeploymentView | None, wanted: Awaited) -> str:
    if view is None or not is_seen(view, wanted):
        return "waits for the control plane to see it"
    if is_overtaken(view, wanted):
        return f"was changed again by {view.changed_by}: generation {view.generation}"
    parts = [view.phase.value, f"{view.replicas_ready} of {view.replicas_min} replicas ready"]
    if view.phase is DeploymentPhase.ROLLING:
        parts.append(f"{view.share:.0%} of requests to revision {view.revision}")
    if view.message:
        parts.append(view.message)
    return ", ".join(parts)


def _conclude(awaited: Mapping[str, Awaited], views: Mapping[str, DeploymentView]) -> Outcome:
    outcome = Outcome.OK
    for name, wanted in awaited.items():
        view = views[name]
        if view.phase is DeploymentPhase.READY and not is_overtaken(view, wanted):
            print_line(f"{name}: {paint('ready', 'green')}, revision {view.revision}")
            continue
        outcome = Outcome.PROBLEM
        print_line(f"{name}: {paint(describe_progress(view, wanted), 'red')}")
        if view.phase is DeploymentPhase.STOPPED:
            print_note(f"what served before serves on; `forebay rollback {name}` asks for that again")
    return outcome


def _fetch(config: Config) -> dict[str, DeploymentView]:
    deadline = time.monotonic() + SILENT_S
    while True:
        try:
            body = fetch_admin(config, "/deployments")
        except Failure:
            if time.monotonic() >= deadline:
                raise
            time.sleep(INTERVAL_S)
            continue
        return {view.name: view for view in DeploymentList.model_validate_json(body).data}
