"""Checks of what runs: the ports, the processes that the supervisor's state names, and their health."""

import http.client
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Final
from urllib.parse import urlsplit

from forebay.app.config import Config
from forebay.app.supervisor_policy import ChildState
from forebay.app.supervisor_state import ChildStatus, RunState, load_run_state
from forebay.cli.finding import Finding, Verdict
from forebay.store.database import Database
from forebay.store.errors import StoreError, StoreMissing, StoreOutdated

HEALTH_TIMEOUT_S: Final = 5.0


def check_ports(config: Config) -> Iterator[Finding]:
    """Whether the ports are free to listen on, or held by the Forebay of this data folder."""
    state = _running(config)
    ours = {urlsplit(url).port for url in (state.gateway_url, state.control_url)} if state else set()
    for name, host, port in (
        ("gateway", config.gateway.host, config.gateway.port),
        ("control", config.control.host, config.control.port),
    ):
        what = f"{name} port"
        if port == 0:
            yield Finding(name=what, verdict=Verdict.OK, message="any free one")
        elif port in ours:
            yield Finding(
                name=what, verdict=Verdict.OK, message=f"{port}, held by the Forebay that runs here"
            )
        elif (reason := find_listen_problem(host, port)) is None:
            yield Finding(name=what, verdict=Verdict.OK, message=f"{port} is free")
        else:
            yield Finding(
                name=what,
                verdict=Verdict.FAIL,
                message=f"can't listen on {host} port {port}: {reason}",
                hint=f"set {name}.port to another, or end the program that holds it",
            )


def find_listen_problem(host: str, port: int) -> str | None:
    """Why nobody can listen there now; None when one can."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
    except OSError as error:
        return error.strerror or str(error)
    return None


def check_running(config: Config) -> Iterator[Finding]:
    yield _check_database(config)
    state = _running(config)
    if state is None:
        yield Finding(name="processes", verdict=Verdict.OK, message="Forebay does not run here now")
        return
    yield Finding(
        name="supervisor",
        verdict=Verdict.WARN if state.stopping else Verdict.OK,
        message=f"pid {state.pid}{', stopping' if state.stopping else ''}",
        hint="wait until it has ended" if state.stopping else "",
    )
    for child in state.children:
        yield _check_child(child, config)
    for name, url in (("gateway", state.gateway_url), ("control", state.control_url)):
        yield _check_health(name, url)


def _running(config: Config) -> RunState | None:
    """The state, if its supervisor still lives."""
    state = load_run_state(config.state_path)
    if state is None:
        return None
    with suppress(ProcessLookupError):
        with suppress(PermissionError):  # it lives, and belongs to somebody else
            os.kill(state.pid, 0)
        return state
    return None


def _check_child(child: ChildStatus, config: Config) -> Finding:
    name = f"process {child.name}"
    log = config.logs_path / f"{child.name}.log"
    again = f", started again {child.restarts} times" if child.restarts else ""
    message = f"{child.state}, pid {child.pid}{again}" if child.pid else f"{child.state}{again}"
    if child.state is ChildState.READY:
        return Finding(name=name, verdict=Verdict.WARN if child.failures else Verdict.OK, message=message)
    verdict = Verdict.FAIL if child.failures else Verdict.WARN
    ended = f"; the last one ended: {child.last_exit}" if child.last_exit else ""
    return Finding(name=name, verdict=verdict, message=message + ended, hint=f"see {log}")


def _check_health(name: str, url: str) -> Finding:
    parts = urlsplit(url)
    what = f"health of {name}"
    connection = http.client.HTTPConnection(
        parts.hostname or "127.0.0.1", parts.port, timeout=HEALTH_TIMEOUT_S
    )
    try:
        connection.request("GET", "/readyz")
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        message = f"{url} does not answer: {error}"
        return Finding(name=what, verdict=Verdict.FAIL, message=message, hint=f"see the log of {name}")
    finally:
        connection.close()
    if status == 200:
        return Finding(name=what, verdict=Verdict.OK, message=f"{url} is ready")
    return Finding(
        name=what,
        verdict=Verdict.FAIL,
        message=f"{url} is not ready: HTTP {status}",
        hint="wait, or see the log",
    )


def _check_database(config: Config) -> Finding:
    try:
        database = Database.open(config.database_path, create=False)
        try:
            return Finding(
                name="database", verdict=Verdict.OK, message=f"tables of version {database.check_revision()}"
            )
        finally:
            database.close()
    except StoreMissing:
        return Finding(name="database", verdict=Verdict.OK, message="will be made at first start")
    except StoreOutdated:
        return Finding(
            name="database", verdict=Verdict.OK, message="will be brought up to date at next start"
        )
    except StoreError as error:
        return Finding(
            name="database", verdict=Verdict.FAIL, message=error.message, hint=f"see {config.database_path}"
        )
