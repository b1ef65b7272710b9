"""`forebay signals`: what applications report of their projects, listed, set and removed by hand.

Works straight on the database, as `keys` does; a running control plane follows within a second.
"""

from pathlib import Path
from typing import Final

from forebay.app.clock import SystemClock
from forebay.app.config_signals import compile_signals
from forebay.cli.tables import Cell, Column, Table, print_table
from forebay.cli.tenancy import find_actor, format_moment, open_repos, parse_age_s, print_json
from forebay.cli.terminal import Outcome, print_line, print_note
from forebay.cli.usable_config import load_usable_config
from forebay.gateway.policy.meter import Now
from forebay.gateway.policy.signals import Place, SignalBoard
from forebay.gateway.signals import SignalRecord, make_report

_COLUMNS: Final = (
    Column(title="Team"),
    Column(title="Project"),
    Column(title="Signal"),
    Column(title="Value", align="right", kind="whole"),
    Column(title="Reported", kind="whole", rank=1),
    Column(title="Counts", kind="whole"),
)


def list_signals(file: Path | None, *, as_json: bool) -> Outcome:
    with open_repos(file) as repos:
        records = repos.signals.list()
    signals = load_usable_config(file).limits.signals
    clock, board = SystemClock(), SignalBoard()
    board.set_rules(compile_signals(signals))
    now = Now(clock.monotonic_ns(), clock.wall_ns())
    rows = [(record, record.name in signals, not board.is_fresh(record, now)) for record in records]
    if as_json:
        print_json(
            [
                {
                    "team": record.team,
                    "project": record.project,
                    "name": record.name,
                    "value": record.value,
                    "reported_at": format_moment(record.reported_ns),
                    "ttl_s": None if record.ttl_ns is None else record.ttl_ns / 1e9,
                    "stale": is_stale,
                    "declared": is_declared,
                }
                for record, is_declared, is_stale in rows
            ]
        )
        return Outcome.OK
    print_table(Table(columns=_COLUMNS, rows=[_make_row(*row) for row in rows]))
    return Outcome.OK


def _make_row(record: SignalRecord, is_declared: bool, is_stale: bool) -> tuple[str | Cell, ...]:
    counts = "yes"
    if is_stale:
        counts = "no, it is stale" if is_declared else "no, limits.signals lacks it"
    return (
        record.team,
        record.project,
        record.name,
        f"{record.value:,}",
        format_moment(record.reported_ns),
        Cell(text=counts, style="yellow" if is_stale else ""),
    )


def set_signal(file: Path | None, place: Place, value: float, ttl: str | None) -> Outcome:
    team, project, name = place
    ttl_s = None if ttl is None else parse_age_s("--ttl", ttl, hint="90s, 5m, 2h")
    with open_repos(file) as repos:
        record = repos.signals.report(team, project, name, make_report(value, ttl_s), find_actor())
    print_line(f"{team}/{project} {name}: {record.value:,}")
    if name not in load_usable_config(file).limits.signals:
        print_note(f"no limit uses it: forebay.yaml has no {name} in limits.signals", "yellow")
    return Outcome.OK


def remove_signal(file: Path | None, place: Place) -> Outcome:
    team, project, name = place
    with open_repos(file) as repos:
        repos.signals.delete(team, project, name, find_actor())
    print_line(f"{team}/{project} {name}: removed")
    return Outcome.OK
