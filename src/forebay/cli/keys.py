"""`forebay keys`: callers' keys, made, shown, changed, rotated and revoked."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from forebay.app.clock import SystemClock
from forebay.cli.tables import Cell, Column, Table, print_table
from forebay.cli.tenancy import (
    RightsOptions,
    describe_rights,
    find_actor,
    format_day,
    format_moment,
    format_rights,
    open_folder,
    open_repos,
    parse_age_s,
    parse_end,
    print_json,
)
from forebay.cli.terminal import Outcome, print_line, print_note
from forebay.gateway.tenancy import KeyRecord, KeyTerms, NewKey


@dataclass(frozen=True, slots=True, kw_only=True)
class NewKeyOptions:
    """What was named for a new key."""

    name: str
    project: str
    team: str
    rights: RightsOptions
    priority: str
    expires: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyChangeOptions:
    """What was named to change; None stays.  An empty `expires`, or `never`, lifts the end."""

    name: str | None
    rights: RightsOptions
    priority: str | None
    expires: str | None

    def apply(self, before: KeyTerms, now_ns: int) -> KeyTerms:
        """Raises BadOption."""
        expires_ns = before.expires_ns
        if self.expires is not None:
            is_lifted = self.expires.strip().casefold() in ("", "never")
            expires_ns = None if is_lifted else parse_end(self.expires, now_ns)
        return KeyTerms(
            name=before.name if self.name is None else self.name,
            rights=self.rights.apply(before.rights),
            priority=before.priority if self.priority is None else self.priority,
            expires_ns=expires_ns,
        )


def create(file: Path | None, options: NewKeyOptions, *, as_json: bool) -> Outcome:
    wanted = NewKey(
        name=options.name,
        project=options.project,
        team=options.team,
        rights=options.rights.make(),
        priority=options.priority,
        expires_ns=parse_end(options.expires, SystemClock().wall_ns()),
    )
    with open_folder(file, create=True) as (repos, folder):
        record, plaintext = repos.keys.create(wanted, find_actor())
    return _print_once(record, plaintext, folder, as_json=as_json)


def rotate(file: Path | None, key_id: str, *, overlap: str, expires: str | None, as_json: bool) -> Outcome:
    overlap_s = parse_age_s("--overlap", overlap)
    ends_ns = parse_end(expires, SystemClock().wall_ns())
    with open_folder(file) as (repos, folder):
        record, plaintext = repos.keys.rotate(key_id, find_actor(), overlap_s=overlap_s, expires_ns=ends_ns)
        old = repos.keys.get(key_id)
    _print_once(record, plaintext, folder, as_json=as_json)
    print_note(f"{key_id} opens nothing any more from {format_moment(old.entry.expires_ns)} on")
    return Outcome.OK


def change(file: Path | None, key_id: str, options: KeyChangeOptions, *, as_json: bool) -> Outcome:
    now_ns = SystemClock().wall_ns()
    with open_repos(file) as repos:
        record = repos.keys.change(key_id, lambda terms: options.apply(terms, now_ns), find_actor())
    if as_json:
        print_json(_describe(record))
        return Outcome.OK
    entry = record.entry
    ends = f"expires {format_moment(entry.expires_ns)}" if entry.expires_ns else "never expires"
    bounds = format_rights(record.rights) or "no limits of its own"
    print_line(f"{entry.id} ({entry.name}): {bounds}, priority {entry.priority}, {ends}")
    return Outcome.OK


def _print_once(record: KeyRecord, plaintext: str, folder: Path, *, as_json: bool) -> Outcome:
    if as_json:
        print_json({"key": plaintext, **_describe(record)})
        return Outcome.OK
    print_line(plaintext)
    bounds = format_rights(record.rights) or "no limits of its own"
    print_note(f"{record.entry.id}: {record.entry.name}, {bounds}. It is shown only this once.")
    print_note(f"It is a key of the data folder {folder}.")
    return Outcome.OK


def list_keys(file: Path | None, *, as_json: bool) -> Outcome:
    with open_repos(file) as repos:
        records = repos.keys.list()
    if as_json:
        print_json([_describe(record) for record in records])
        return Outcome.OK
    print_table(Table(columns=_COLUMNS, rows=[_row(each) for each in records]))
    return Outcome.OK


def show(file: Path | None, key_id: str, *, as_json: bool) -> Outcome:
    with open_repos(file) as repos:
        record = repos.keys.get(key_id)
        project = repos.teams.get_project(record.entry.team, record.entry.project)
    if as_json:
        print_json({**_describe(record), "project_rights": describe_rights(project.rights)})
        return Outcome.OK
    entry = record.entry
    rows = [
        ("id", entry.id),
        ("name", entry.name),
        ("key", f"{entry.prefix}…"),
        ("team", entry.team),
        ("project", entry.project),
        ("priority", entry.priority),
        ("made", format_moment(record.created_ns)),
        ("in the place of", record.rotated_from or ""),
        ("expires", format_moment(entry.expires_ns) or "never"),
        ("revoked", format_moment(record.revoked_ns)),
        ("its rights", format_rights(record.rights) or "unlimited"),
        ("its project's", format_rights(project.rights) or "unlimited"),
    ]
    columns = (Column(title="What", kind="whole"), Column(title="Value", kind="prose"))
    print_table(Table(columns=columns, rows=[row for row in rows if row[1]]))
    return Outcome.OK


def revoke(file: Path | None, key_id: str) -> Outcome:
    with open_repos(file) as repos:
        record = repos.keys.revoke(key_id, find_actor())
    print_line(f"{record.entry.id} ({record.entry.name}) opens nothing any more")
    return Outcome.OK


_COLUMNS: Final = (
    Column(title="Id", kind="whole"),
    Column(title="Name"),
    Column(title="Key", kind="whole", rank=5),
    Column(title="Project", rank=3),
    Column(title="Team", rank=6),
    Column(title="Models", rank=4),
    Column(title="Made", kind="whole", rank=7),
    Column(title="Expires", kind="whole", rank=2),
    Column(title="Revoked", kind="whole", rank=1),
)


def _row(record: KeyRecord) -> tuple[str | Cell, ...]:
    entry = record.entry
    expired = entry.expires_ns is not None and entry.expires_ns <= SystemClock().wall_ns()
    return (
        entry.id,
        entry.name,
        f"{entry.prefix}…",
        entry.project,
        entry.team,
        " ".join(entry.models),
        format_day(record.created_ns),
        Cell(text=format_day(entry.expires_ns), style="red" if expired else ""),
        Cell(text=format_day(record.revoked_ns), style="red"),
    )


def _describe(record: KeyRecord) -> dict[str, object]:
    entry = record.entry
    return {
        "id": entry.id,
        "name": entry.name,
        "prefix": entry.prefix,
        "project": entry.project,
        "team": entry.team,
        **describe_rights(record.rights),
        "priority": entry.priority,
        "created_at": format_moment(record.created_ns),
        "expires_at": format_moment(entry.expires_ns) or None,
        "revoked_at": format_moment(record.revoked_ns) or None,
        "rotated_from": record.rotated_from,
    }
