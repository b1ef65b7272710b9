"""`forebay tokens`: who may use the admin API, and in which role."""

from pathlib import Path
from typing import Final

from forebay.app.clock import SystemClock
from forebay.cli.tables import Cell, Column, Table, print_table
from forebay.cli.tenancy import find_actor, format_day, format_moment, open_repos, parse_end, print_json
from forebay.cli.terminal import BadOption, Outcome, print_line, print_note
from forebay.gateway.tenancy import Role, TokenRecord

_COLUMNS: Final = (
    Column(title="Id", kind="whole"),
    Column(title="Name"),
    Column(title="Token", kind="whole", rank=3),
    Column(title="Role", kind="whole"),
    Column(title="Made", kind="whole", rank=4),
    Column(title="Expires", kind="whole", rank=2),
    Column(title="Revoked", kind="whole", rank=1),
)


def create(file: Path | None, name: str, *, role: str, expires: str | None, as_json: bool) -> Outcome:
    try:
        wanted = Role(role)
    except ValueError:
        raise BadOption(f"there is no role {role!r}", hint=f"possible: {', '.join(Role)}") from None
    ends_ns = parse_end(expires, SystemClock().wall_ns())
    with open_repos(file, create=True) as repos:
        record, plaintext = repos.tokens.create(name, wanted, find_actor(), expires_ns=ends_ns)
    if as_json:
        print_json({"token": plaintext, **_describe(record)})
        return Outcome.OK
    print_line(plaintext)
    print_note(f"{record.id}: {record.name}, {record.role.value}. It is shown only this once.")
    return Outcome.OK


def list_tokens(file: Path | None, *, as_json: bool) -> Outcome:
    with open_repos(file) as repos:
        records = repos.tokens.list()
    if as_json:
        print_json([_describe(record) for record in records])
        return Outcome.OK
    rows = [
        (
            each.id,
            each.name,
            f"{each.prefix}…",
            each.role.value,
            format_day(each.created_ns),
            format_day(each.expires_ns),
            Cell(text=format_day(each.revoked_ns), style="red"),
        )
        for each in records
    ]
    print_table(Table(columns=_COLUMNS, rows=rows))
    return Outcome.OK


def revoke(file: Path | None, token_id: str) -> Outcome:
    with open_repos(file) as repos:
        record = repos.tokens.revoke(token_id, find_actor())
    print_line(f"{record.id} ({record.name}) opens nothing any more")
    return Outcome.OK


def _describe(record: TokenRecord) -> dict[str, object]:
    return {
        "id": record.id,
        "name": record.name,
        "prefix": record.prefix,
        "role": record.role.value,
        "created_at": format_moment(record.created_ns),
        "expires_at": format_moment(record.expires_ns) or None,
        "revoked_at": format_moment(record.revoked_ns) or None,
    }
