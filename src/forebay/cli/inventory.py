"""`forebay inventory`: what runs where and what has drifted, for people and programs."""

from pathlib import Path
from typing import Final

import msgspec

from forebay.cli.admin_client import fetch_admin
from forebay.cli.tables import Cell, Column, Table, print_table
from forebay.cli.tenancy import print_json
from forebay.cli.terminal import Failure, Outcome, print_note
from forebay.cli.usable_config import load_usable_config

_STYLES: Final = {"ready": "green", "missing": "red", "down": "red", "refused": "red", "backoff": "yellow"}
_COLUMNS: Final = (
    Column(title="Deployment"),
    Column(title="Replica"),
    Column(title="State", kind="whole"),
    Column(title="Model"),
    Column(title="Version", rank=3),
    Column(title="Engine"),
    Column(title="Environment", kind="whole", rank=4),
    Column(title="Hardware", rank=5),
    Column(title="Node", rank=6),
    Column(title="Tested", kind="whole", rank=2),
    Column(title="Drift", kind="prose"),
)


class _Item(msgspec.Struct, kw_only=True):
    """Of `GET /admin/v1/inventory`."""

    deployment: str | None
    replica: str | None
    state: str
    url: str | None
    node: str | None
    model: str
    model_version: str | None
    engine: str | None
    engine_version: str | None
    environment: str | None
    hardware: str | None
    precision: str | None
    tested: bool | None
    drift: list[str]


class _Inventory(msgspec.Struct, kw_only=True):
    data: list[_Item]


def show_inventory(file: Path | None, *, is_drifted: bool, as_json: bool) -> Outcome:
    try:
        found = msgspec.json.decode(fetch_admin(load_usable_config(file), "/inventory"), type=_Inventory).data
    except msgspec.DecodeError:
        raise Failure(
            "the control plane does not answer like this version of Forebay",
            hint="restart `forebay up` after an update",
        ) from None
    shown = [item for item in found if item.drift] if is_drifted else found
    if as_json:
        print_json({"data": shown})
    else:
        print_table(Table(columns=_COLUMNS, rows=[_make_row(item) for item in shown]))
        if not shown:
            print_note("nothing has drifted" if is_drifted else "nothing runs here")
    return Outcome.PROBLEM if is_drifted and shown else Outcome.OK


def _make_row(item: _Item) -> tuple[str | Cell, ...]:
    place = (item.url or "").partition("://")[2].removesuffix("/v1")
    return (
        item.deployment or "",
        item.replica or place,
        Cell(text=item.state, style=_STYLES.get(item.state, "")),
        item.model,
        item.model_version or "",
        " ".join(part for part in (item.engine, item.engine_version) if part),
        item.environment or "",
        " ".join(part for part in (item.hardware, item.precision) if part),
        item.node or "",
        "" if item.tested is None else Cell(text="yes") if item.tested else Cell(text="no", style="yellow"),
        Cell(text="; ".join(item.drift), style="yellow"),
    )
