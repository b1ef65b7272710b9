"""`forebay audit`: who changed what, when, from what to what."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from forebay.cli.tables import Column, Table, print_table
from forebay.cli.tenancy import format_moment, open_repos, print_json
from forebay.cli.terminal import Outcome, print_note
from forebay.gateway.repo_audit import AuditEvent

_COLUMNS: Final = (
    Column(title="When", kind="whole"),
    Column(title="Who", rank=2),
    Column(title="Action", kind="whole"),
    Column(title="What"),
    Column(title="Change", kind="prose", rank=1),
)


def show_audit(file: Path | None, *, subject: str | None, limit: int, as_json: bool) -> Outcome:
    with open_repos(file) as repos:
        events = repos.audit.load_page(limit=limit + 1, subject=subject)
    shown = events[:limit]
    if as_json:
        print_json([_describe(event) for event in shown])
    else:
        print_table(Table(columns=_COLUMNS, rows=[_row(event) for event in shown]))
    if len(events) > limit:
        print_note(f"there are older ones; `--limit {limit * 10}` shows more")
    return Outcome.OK


def _describe(event: AuditEvent) -> dict[str, object]:
    return {
        "id": event.id,
        "at": format_moment(event.at_ns),
        "actor": {"id": event.actor.id, "name": event.actor.name, "issuer": event.actor.issuer},
        "action": event.action,
        "subject": event.subject,
        "before": event.before,
        "after": event.after,
    }


def _row(event: AuditEvent) -> tuple[str, ...]:
    actor = event.actor
    who = actor.name if actor.id in (actor.name, "command-line") else f"{actor.name} ({actor.id})"
    return (format_moment(event.at_ns), who, event.action, event.subject, _describe_change(event))


def _describe_change(event: AuditEvent) -> str:
    """The fields that are not as before; of what was made, its name."""
    if event.before is None or event.after is None:
        return str((event.after or event.before or {}).get("name", ""))
    before, after = event.before, event.after
    return ", ".join(
        f"{name}: {_format(before, name)} → {_format(after, name)}"
        for name in after
        if before.get(name) != after[name]
    )


def _format(fields: Mapping[str, object], name: str) -> str:
    value = fields.get(name)
    if value is None:
        return "none"
    if name.endswith("_ns") and isinstance(value, int):
        return format_moment(value)
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
