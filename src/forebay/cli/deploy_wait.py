"""Waits until a change of deployments has ended or was stopped, and tells of it meanwhile.

Asks the control plane again and again, for a bounded time.  It changes nothing: whoever stops waiting stops
nothing else.
"""

import time
from collections.abc import Mapping
from contextlib import ExitStack
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


def wait_for(config: Config, revisions: Mapping[str, str], *, timeout_s: float) -> Outcome:
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
            for name, revision in revisions.items():
                view = views.get(name)
                words = describe_progress(view)
                if spinner is None and told.get(name) != words:
                    print_line(f"{name}: {words}")
                told[name] = words
                if not has_settled(view, revision):
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
    return _conclude(revisions, views)


def has_settled(view: DeploymentView | None, revision: str) -> bool:
    """Whether nothing more happens by itself; one that is gone has settled too."""
    return view is None or (view.revision == revision and view.phase in SETTLED)


def describe_progress(view: DeploymentView | None) -> str:
    if view is None:
        return "is gone"
    parts = [view.phase.value, f"{view.replicas_ready} of {view.replicas_min} replicas ready"]
    if view.phase is DeploymentPhase.ROLLING:
        parts.append(f"{view.share:.0%} of requests to revision {view.revision}")
    if view.message:
        parts.append(view.message)
    return ", ".join(parts)


def _conclude(revisions: Mapping[str, str], views: Mapping[str, DeploymentView]) -> Outcome:
    outcome = Outcome.OK
    for name in revisions:
        view = views.get(name)
        if view is not None and view.phase is DeploymentPhase.READY:
            print_line(f"{name}: {paint('ready', 'green')}, revision {view.revision}")
            continue
        outcome = Outcome.PROBLEM
        print_line(f"{name}: {paint(describe_progress(view), 'red')}")
        if view is not None and view.phase is DeploymentPhase.STOPPED:
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
