"""Checks of what runs: the ports, the processes that the supervisor's state names, their health, and whether
each engine's model answers."""

import asyncio
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from forebay.app.config import Config
from forebay.app.config_running import load_live_state
from forebay.app.database import open_database
from forebay.app.supervisor_policy import SERVING
from forebay.app.supervisor_socket import AddressUnavailable, open_listener
from forebay.app.supervisor_state import ChildStatus, RunState
from forebay.app.up_children import load_last_engine_urls, name_engine_child, plan_launch
from forebay.cli.finding import Finding, Verdict
from forebay.cli.fleet import fetch_fleet
from forebay.cli.terminal import Failure
from forebay.engines.health import probe_generation
from forebay.net.probe import Healthy, Unhealthy, probe
from forebay.store.errors import StoreError, StoreMissing, StoreOutdated

HEALTH_TIMEOUT_S: Final = 5.0


def check_ports(config: Config) -> Iterator[Finding]:
    """Whether the ports are free to listen on, or held by the Forebay of this data folder."""
    state = load_live_state(config.state_path)
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
        else:
            yield _check_port(what, name, host, port)


def _check_port(what: str, section: str, host: str, port: int) -> Finding:
    try:
        open_listener(host, port, section=section).close()
    except AddressUnavailable as error:
        return Finding(name=what, verdict=Verdict.FAIL, message=error.message)
    return Finding(name=what, verdict=Verdict.OK, message=f"{port} is free")


def check_running(config: Config) -> Iterator[Finding]:
    yield _check_database(config)
    state = load_live_state(config.state_path)
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
    yield from _check_models(state, config)
    yield from check_fleet(config)


def _check_child(child: ChildStatus, config: Config) -> Finding:
    name = f"process {child.name}"
    log = config.logs_path / f"{child.name}.log"
    again = f", started again {child.restarts} times" if child.restarts else ""
    message = f"{child.state}, pid {child.pid}{again}" if child.pid else f"{child.state}{again}"
    if child.state in SERVING:
        return Finding(name=name, verdict=Verdict.WARN if child.failures else Verdict.OK, message=message)
    verdict = Verdict.FAIL if child.failures else Verdict.WARN
    ended = f"; the last one ended: {child.last_exit}" if child.last_exit else ""
    return Finding(name=name, verdict=verdict, message=message + ended, hint=f"see {log}")


def _check_health(name: str, url: str) -> Finding:
    what = f"health of {name}"
    match asyncio.run(probe(f"{url}/readyz", timeout_s=HEALTH_TIMEOUT_S)):
        case Healthy():
            return Finding(name=what, verdict=Verdict.OK, message=f"{url} is ready")
        case Unhealthy(reason=reason):
            hint = f"wait, or see the log of {name}"
            return Finding(name=what, verdict=Verdict.FAIL, message=reason, hint=hint)


def check_fleet(config: Config) -> Iterator[Finding]:
    """Where engines say otherwise than the configuration, and which answer and do not generate."""
    try:
        fleet = fetch_fleet(config)
    except Failure:
        return  # its health is told already
    for replica in fleet.data:
        what = f"engine of {replica.model} at {replica.url}"
        if replica.generates is False:
            message = f"answers and does not generate: {replica.generation_error}"
            yield Finding(name=what, verdict=Verdict.FAIL, message=message, hint="see its own log")
        for said in replica.contradictions:
            message, _, mend = said.partition("; ")
            yield Finding(name=what, verdict=Verdict.WARN, message=message, hint=mend)


def _check_models(state: RunState, config: Config) -> Iterator[Finding]:
    """Whether each engine that is up gives an answer: a process may be ready, and its model stuck."""
    ready = {child.name for child in state.children if child.state in SERVING}
    for name, url in load_last_engine_urls(config).items():
        port = urlsplit(url).port
        if name not in config.engines or port is None or name_engine_child(name) not in ready:
            continue
        what = f"model of {name}"
        match asyncio.run(probe_generation(plan_launch(config, name, port))):
            case Healthy(elapsed_s=elapsed_s):
                message = f"answers, in {elapsed_s * 1000:.0f} ms"
                yield Finding(name=what, verdict=Verdict.OK, message=message)
            case Unhealthy(reason=reason):
                hint = f"wait if it is busy, or see {config.logs_path / name_engine_child(name)}.log"
                yield Finding(name=what, verdict=Verdict.FAIL, message=reason, hint=hint)


def _check_database(config: Config) -> Finding:
    try:
        database = open_database(config, create=False)
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
            name="database",
            verdict=Verdict.FAIL,
            message=error.message,
            hint=f"see {config.data.database or config.database_path}",
        )
