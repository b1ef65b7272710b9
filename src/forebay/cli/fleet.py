"""`forebay fleet`: replicas, what their engines say of their load, and their warm-up, for people."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from forebay.app.config import Config
from forebay.cli.admin_client import fetch_admin
from forebay.cli.tables import Cell, Column, Table, print_table
from forebay.cli.terminal import Failure, Outcome, is_plain, print_line, print_note
from forebay.cli.usable_config import load_usable_config

WATCH_INTERVAL_S: Final = 1.0
_CLEAR: Final = "\x1b[H\x1b[2J"
_STYLES: Final = {"ready": "green", "cold": "cyan", "down": "red", "unknown": "yellow"}
ADAPTERS_SHOWN: Final = 3
FULL_SHARE: Final = 0.9  #: of a cache, from which on it is shown in yellow
_COLUMNS: Final = (
    Column(title="Pool"),
    Column(title="Tier", kind="whole", rank=5),
    Column(title="Region", rank=4),
    Column(title="Replica"),
    Column(title="Model", rank=6),
    Column(title="State", kind="whole"),
    Column(title="Running", align="right", kind="whole"),
    Column(title="Waiting", align="right", kind="whole"),
    Column(title="Here", align="right", kind="whole", rank=7),
    Column(title="Elsewhere", align="right", kind="whole", rank=8),
    Column(title="KV cache", align="right", kind="whole"),
    Column(title="Queue wait", align="right", kind="whole", rank=2),
    Column(title="Adapters", rank=3),
    Column(title="Age", align="right", kind="whole", rank=1),
    Column(title="Note", kind="prose"),
)


class _WarmUp(msgspec.Struct, kw_only=True):
    state: str
    answered: int
    requests: int
    error: str | None


class _Replica(msgspec.Struct, kw_only=True):
    pool: str
    tier: str
    region: str | None
    model: str
    url: str
    state: str
    running: int | None
    waiting: int | None
    kv_cache_used: float | None
    queue_wait_s: float | None
    adapters: list[str]
    age_s: float | None
    error: str | None
    requests: int = 0
    requests_elsewhere: int = 0
    ejected_by: int = 0
    warm_up: _WarmUp | None
    engine_version: str | None = None
    generates: bool | None = None
    generation_error: str | None = None
    contradictions: list[str] = []


class _Machine(msgspec.Struct, kw_only=True):
    name: str
    workers: int
    requests: int
    age_s: float


class _Sharing(msgspec.Struct, kw_only=True):
    connected: bool
    trouble: str | None
    machines: list[_Machine]


class Fleet(msgspec.Struct, kw_only=True):
    """Of `GET /admin/v1/fleet`."""

    data: list[_Replica]
    sharing: _Sharing | None = None


def show_fleet(file: Path | None, *, is_watched: bool, as_json: bool) -> Outcome:
    config = load_usable_config(file)
    while True:
        body = fetch_admin(config, "/fleet")
        fleet = _read(body)
        if as_json:
            shown = body if is_watched else msgspec.json.format(body, indent=2)  # one a line
            print_line(shown.decode())
        else:
            if is_watched and not is_plain():
                sys.stdout.write(_CLEAR)
            _print(fleet)
        if not is_watched:
            return Outcome.OK
        sys.stdout.flush()
        time.sleep(WATCH_INTERVAL_S)


def fetch_fleet(config: Config) -> Fleet:
    """The fleet of the Forebay that runs here.  Raises Failure."""
    return _read(fetch_admin(config, "/fleet"))


def _read(body: bytes) -> Fleet:
    try:
        return msgspec.json.decode(body, type=Fleet)
    except msgspec.DecodeError:
        raise Failure(
            "the control plane does not answer like this version of Forebay",
            hint="restart `forebay up` after an update",
        ) from None


def _print(fleet: Fleet) -> None:
    print_table(Table(columns=_COLUMNS, rows=[_make_row(each) for each in fleet.data]))
    if not fleet.data:
        print_note("no model has a target")
    elif all(each.age_s is None and each.error is None for each in fleet.data):
        print_note("no replica is asked for its load: `pools` with an `engine` are (docs/routing.md)")
    if fleet.sharing is not None:
        _tell_sharing(fleet.sharing)


def _tell_sharing(sharing: _Sharing) -> None:
    """With whom this machine shares what its workers know."""
    if not sharing.connected:
        print_note(f"loads are not shared with other machines: {sharing.trouble} (limits.authority)")
    for machine in sharing.machines:
        print_note(
            f"{machine.name}: {machine.requests:,} in progress, workers: {machine.workers:,}, "
            f"heard {machine.age_s:.1f} s ago"
        )
    if sharing.connected and not sharing.machines:
        print_note("no other machine is heard")


def _make_row(replica: _Replica) -> Sequence[str | Cell]:
    share = replica.kv_cache_used
    return (
        replica.pool,
        replica.tier,
        replica.region or "",
        replica.url.partition("://")[2].removesuffix(
            "/v1"
        ),  # what tells replicas apart, in a narrow terminal too
        replica.model,
        Cell(text=replica.state, style=_STYLES.get(replica.state, "")),
        _number(replica.running),
        Cell(text=_number(replica.waiting), style="yellow" if replica.waiting else ""),
        _number(replica.requests),
        _number(replica.requests_elsewhere),
        Cell(
            text="" if share is None else f"{share:.0%}",
            style="yellow" if share is not None and share >= FULL_SHARE else "",
        ),
        "" if replica.queue_wait_s is None else f"{replica.queue_wait_s:.2f} s",
        _list(replica.adapters),
        "" if replica.age_s is None else f"{replica.age_s:.1f} s",
        _make_note(replica),
    )


def _number(count: int | None) -> str:
    return "" if count is None else f"{count:,}"


def _list(adapters: Sequence[str]) -> str:
    more = len(adapters) - ADAPTERS_SHOWN
    return ", ".join(adapters[:ADAPTERS_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _make_note(replica: _Replica) -> Cell:
    if replica.generates is False:
        return Cell(text=f"answers and does not generate: {replica.generation_error}", style="red")
    warm_up = replica.warm_up
    if warm_up is not None and warm_up.state == "due":
        why = f": {warm_up.error}" if warm_up.error else ""
        return Cell(text=f"warming up, {warm_up.answered} of {warm_up.requests}{why}", style="cyan")
    if warm_up is not None and warm_up.state == "overdue":
        why = f": {warm_up.error}" if warm_up.error else ""
        return Cell(text=f"its warm-up failed, it is sent to all the same{why}", style="yellow")
    if replica.ejected_by:
        of = "a worker" if replica.ejected_by == 1 else f"{replica.ejected_by} workers"
        return Cell(text=f"out of service at {of}: it failed too often in a row", style="red")
    if replica.age_s is None and replica.error is None:
        return Cell(text="not asked", style="dim")
    return Cell(text=replica.error or "; ".join(replica.contradictions), style="yellow")
