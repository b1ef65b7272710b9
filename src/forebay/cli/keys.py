"""`forebay keys`: callers' keys, straight in the database, so that it works whether Forebay runs or not.

A running control plane sees the change and hands it to the gateway's workers.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from forebay.app.clock import SystemClock
from forebay.app.config import Config
from forebay.cli.tables import Cell, Column, Table, print_table
from forebay.cli.terminal import Outcome, is_plain, print_line, print_note
from forebay.cli.usable_config import load_usable_config
from forebay.gateway.repo import KeyRecord, KeyRepo
from forebay.store.database import Database


def create(
    file: Path | None, name: str, *, project: str, team: str, models: tuple[str, ...], as_json: bool
) -> Outcome:
    config = load_usable_config(file)
    with _open_repo(config) as repo:
        entry, plaintext = repo.create(name, project=project, team=team, models=models)
    if as_json:
        _print_json({"id": entry.id, "key": plaintext, "name": entry.name, "models": entry.models})
        return Outcome.OK
    print_line(plaintext)
    print_note(f"{entry.id}: {entry.name}, may call {', '.join(entry.models)}. It is shown only this once.")
    print_note(f"It is a key of the data folder {config.data_path}.")
    return Outcome.OK


def list_keys(file: Path | None, *, as_json: bool) -> Outcome:
    with _open_repo(load_usable_config(file)) as repo:
        records = repo.list()
    if as_json:
        _print_json([_describe(record) for record in records])
        return Outcome.OK
    print_table(Table(columns=_COLUMNS, rows=[_row(each) for each in records]))
    return Outcome.OK


def revoke(file: Path | None, key_id: str) -> Outcome:
    with _open_repo(load_usable_config(file)) as repo:
        record = repo.revoke(key_id)
    print_line(f"{record.entry.id} ({record.entry.name}) opens nothing any more")
    return Outcome.OK


_COLUMNS: Final = (
    Column(title="Id", kind="whole"),
    Column(title="Name"),
    Column(title="Key", kind="whole", rank=4),
    Column(title="Project", rank=3),
    Column(title="Team", rank=5),
    Column(title="Models", rank=2),
    Column(title="Made", kind="whole", rank=6),
    Column(title="Revoked", kind="whole", rank=1),
)


@contextmanager
def _open_repo(config: Config) -> Iterator[KeyRepo]:
    database = Database.open(config.database_path)
    try:
        database.migrate()
        yield KeyRepo(database, SystemClock())
    finally:
        database.close()


def _row(record: KeyRecord) -> tuple[str | Cell, ...]:
    entry = record.entry
    days = [_moment(each) for each in (record.created_ns, record.revoked_ns)]
    made, revoked = days if is_plain() else [day[: len("2026-01-31")] for day in days]
    return (
        entry.id,
        entry.name,
        f"{entry.prefix}…",
        entry.project,
        entry.team,
        " ".join(entry.models),
        made,
        Cell(text=revoked, style="red"),
    )


def _describe(record: KeyRecord) -> dict[str, object]:
    entry = record.entry
    return {
        "id": entry.id,
        "name": entry.name,
        "prefix": entry.prefix,
        "project": entry.project,
        "team": entry.team,
        "models": entry.models,
        "created_at": _moment(record.created_ns),
        "revoked_at": _moment(record.revoked_ns) or None,
    }


def _moment(time_ns: int | None) -> str:
    if time_ns is None:
        return ""
    return datetime.fromtimestamp(time_ns / 1e9, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _print_json(value: object) -> None:
    print_line(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())
