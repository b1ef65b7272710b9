"""`forebay ledger`: how far back it goes, and its compaction by hand, whether Forebay runs or not."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from forebay.app.clock import SystemClock
from forebay.app.database import open_database
from forebay.app.retention import PAGES, make_keep, make_retention
from forebay.cli.tables import Column, Table, print_table
from forebay.cli.tenancy import find_actor, format_moment
from forebay.cli.terminal import Outcome, print_line, print_note
from forebay.cli.usable_config import load_usable_config
from forebay.ledger.marks import Kept, Mark, format_day, load_marks
from forebay.ledger.retention import Excess, KeepDays, Retention
from forebay.store.database import Database

_COLUMNS: Final = (
    Column(title="What"),
    Column(title="Kept", kind="whole"),
    Column(title="Too old", align="right", kind="whole"),
    Column(title="Gone before", kind="whole", rank=1),
    Column(title="Removed", align="right", kind="whole", rank=2),
    Column(title="Last", kind="whole", rank=3),
)
_NAMES: Final = {
    Kept.RECORDS: "records", Kept.HOURLY: "totals of hours", Kept.DAILY: "totals of days"
}  # fmt: skip
_MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opened:
    database: Database
    keep: KeepDays
    retention: Retention


def show(file: Path | None, *, as_json: bool) -> Outcome:
    with _open(file) as opened:
        _print_state(opened, as_json=as_json)
    return Outcome.OK


def compact(file: Path | None, *, is_dry: bool, is_whole: bool, as_json: bool) -> Outcome:
    with _open(file) as opened:
        if not is_dry:
            removed = 0
            while more := opened.retention.remove_portion(opened.keep):
                removed += more
            before = opened.database.count_spare_bytes()
            while opened.database.give_back(PAGES):
                pass
            if is_whole:
                opened.database.rewrite()
            given = (before - opened.database.count_spare_bytes()) / _MIB
            print_note(f"{removed:,} rows removed, {given:,.1f} MiB given back to the disk")
        _print_state(opened, as_json=as_json)
        if is_dry:
            print_note("nothing was removed: this was a dry run")
    return Outcome.OK


@contextmanager
def _open(file: Path | None) -> Iterator[_Opened]:
    config = load_usable_config(file)
    database, clock = open_database(config), SystemClock()
    try:
        database.migrate()
        yield _Opened(
            database=database,
            keep=make_keep(config.ledger.retention),
            retention=make_retention(database, clock, find_actor(), lambda: config.ledger.rollups),
        )
    finally:
        database.close()


def _print_state(opened: _Opened, *, as_json: bool) -> None:
    with opened.database.read() as connection:
        marks = load_marks(connection)
    excess = {each.kind: each for each in opened.retention.find_excess(opened.keep)}
    keep = {Kept.RECORDS: opened.keep.records, Kept.HOURLY: opened.keep.hourly, Kept.DAILY: opened.keep.daily}
    spare = opened.database.count_spare_bytes()
    if as_json:
        value = {
            "kinds": {kind.value: _describe(kind, keep, excess, marks) for kind in Kept},
            "spare_bytes": spare,
        }
        print_line(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())
        return
    print_table(Table(columns=_COLUMNS, rows=[_row(kind, keep, excess, marks) for kind in Kept]))
    if spare >= _MIB:
        print_note(f"{spare / _MIB:,.0f} MiB of the file hold nothing; what comes next goes there")


def _describe(
    kind: Kept, keep: Mapping[Kept, int | None], excess: Mapping[Kept, Excess], marks: Mapping[Kept, Mark]
) -> dict[str, object]:
    """Times as RFC 3339; null where there is none."""
    mark, old = marks[kind], excess.get(kind)
    return {
        "kept_days": keep[kind],
        "too_old": old.rows if old else 0,
        "too_old_from": format_day(old.first_ns) if old and old.first_ns is not None else None,
        "gone_before": format_day(mark.gone_before_ns) if mark.gone_before_ns else None,
        "removed": mark.removed,
        "last_at": None if mark.removed_at_ns is None else format_moment(mark.removed_at_ns),
    }


def _row(
    kind: Kept, keep: Mapping[Kept, int | None], excess: Mapping[Kept, Excess], marks: Mapping[Kept, Mark]
) -> list[str]:
    found = _describe(kind, keep, excess, marks)
    days = keep[kind]
    return [
        _NAMES[kind],
        "for ever" if days is None else f"{days} days",
        f"{found['too_old']:,}",
        str(found["gone_before"] or "-"),
        f"{found['removed']:,}",
        str(found["last_at"] or "-"),
    ]
