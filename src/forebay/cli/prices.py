"""`forebay prices`: the price book that the configuration makes, in the order of the file."""

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Final

import msgspec

from forebay.app.config_prices import PriceConfig, RatesConfig, ShippedPrice, load_shipped_prices
from forebay.cli.tables import Column, Table, print_table
from forebay.cli.terminal import Outcome, print_line, print_note
from forebay.cli.usable_config import load_usable_config

_COLUMNS: Final = (
    Column(title="Model"),
    Column(title="Where"),
    Column(title="From", kind="whole", rank=2),
    Column(title="USD", kind="prose"),
    Column(title="Source", kind="prose", rank=1),
)
_PLACES: Final = ("target", "pool", "tier")


def prices(file: Path | None, *, as_json: bool) -> Outcome:
    section = load_usable_config(file).prices
    entries = [*section.book, *(load_shipped_prices() if section.defaults else ())]
    if as_json:
        shown = [_describe(entry) for entry in entries]
        print_line(msgspec.json.format(msgspec.json.encode(shown), indent=2).decode())
    elif entries:
        print_table(Table(columns=_COLUMNS, rows=[_row(entry) for entry in entries]))
    else:
        print_note("no prices: write them under `prices` in forebay.yaml; until then costs are unknown")
    return Outcome.OK


def _row(entry: PriceConfig) -> list[str]:
    places = [f"{name} {value}" for name in _PLACES if (value := getattr(entry, name)) is not None]
    source = "forebay.yaml"
    if isinstance(entry, ShippedPrice):
        source = f"{entry.source}, {entry.checked:%Y-%m-%d}"
    return [
        entry.model,
        ", ".join(places) or "anywhere",
        "always" if entry.from_ is None else entry.from_.strftime("%Y-%m-%d"),
        ", ".join(_list_amounts(entry)),
        source,
    ]


def _list_amounts(entry: PriceConfig) -> Iterator[str]:
    for name in RatesConfig.model_fields:
        if (amount := getattr(entry.usd_per_mtok, name)) is not None:
            yield f"{name} {_spell(amount)}/M"
    if entry.usd_per_request is not None:
        yield f"{_spell(entry.usd_per_request)}/request"
    if entry.usd_per_second is not None:
        yield f"{_spell(entry.usd_per_second)}/s"
    for name, amount in entry.usd_per_unit.items():
        yield f"{name} {_spell(amount)} each"


def _spell(amount: Decimal) -> str:
    return format(amount, "f")


def _describe(entry: PriceConfig) -> dict[str, object]:
    return {"id": entry.compile().id, **entry.model_dump(mode="json")}
