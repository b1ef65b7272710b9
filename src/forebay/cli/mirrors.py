"""`forebay mirrors`: copies beside the requests that they are of, whether Forebay runs or not.

Takes in what the workers have written until now before it reads.  Texts are not compared: none is kept.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Final

import msgspec

from forebay.app.clock import SystemClock
from forebay.app.config import Config
from forebay.app.database import open_database
from forebay.app.mirror_views import show_comparisons
from forebay.cli.csv_file import write_rows
from forebay.cli.tables import Cell, Column, Table, print_table
from forebay.cli.terminal import BadOption, Outcome, print_line, print_note
from forebay.cli.usable_config import load_usable_config
from forebay.cli.usage import parse_since, take_in
from forebay.ledger.mirror_pairs import PAIRS_MAX, Comparison, Comparisons, Side, Spread, load_comparisons

_COLUMNS: Final = (
    Column(title="", kind="whole"),
    Column(title="Requests", align="right", kind="whole"),
    Column(title="Copies", align="right", kind="whole"),
    Column(title="Difference", align="right", kind="whole", rank=1),
)
_MUCH: Final = 0.05  #: of a difference, from where on it has a colour


def mirrors(file: Path | None, *, model: str | None, since: str, as_json: bool, as_csv: bool) -> Outcome:
    if as_json and as_csv:
        raise BadOption("--json and --csv can't go together", hint="choose one of them")
    clock = SystemClock()
    since_ns = parse_since(since, clock.wall_ns())
    found = _load(load_usable_config(file), clock, since_ns, model)
    if as_json:
        body = show_comparisons(found).model_dump_json().encode()
        print_line(msgspec.json.format(body, indent=2).decode())
    elif as_csv:
        names = list(_describe(_EMPTY))
        write_rows(sys.stdout, names, (_describe(each) for each in found.data))
    else:
        _print_tables(found, since)
    return Outcome.OK


def _load(config: Config, clock: SystemClock, since_ns: int | None, model: str | None) -> Comparisons:
    if not config.data_path.exists():
        print_note(f"nothing was recorded in {config.data_path} yet; `forebay up` starts Forebay")
        return Comparisons(data=(), is_cut=False)
    database = open_database(config)
    try:
        database.migrate()
        take_in(database, config, clock)
        return load_comparisons(database, since_ns=since_ns, model=model)
    finally:
        database.close()


# --- for people ---------------------------------------------------------------------------------------------


def _print_tables(found: Comparisons, since: str) -> None:
    if not found.data:
        print_line(f"no copies for mirrors{'' if since == 'all' else f' since {since}'}")
        print_note("a model gets some with `mirrors` in forebay.yaml")
        return
    for number, each in enumerate(found.data):
        if number:
            print_line()
        print_line(f"{each.model or '(unknown)'} and its mirror {each.mirror}: {each.pairs:,} pairs")
        if each.pairs:
            print_table(Table(columns=_COLUMNS, rows=list(_make_rows(each))))
        for note in _list_notes(each):
            print_note(note)
    if found.is_cut:
        print_note(f"only the {PAIRS_MAX:,} newest copies are compared; ask with a shorter --since", "yellow")


def _make_rows(found: Comparison) -> Iterator[list[str | Cell]]:
    one, two = found.request, found.copy
    rates = [side.failed / found.pairs for side in (one, two)]
    yield [
        "Failed",
        *(f"{rate:.1%}" for rate in rates),
        Cell(text=f"{rates[1] - rates[0]:+.1%}", style=_find_style(rates[1] - rates[0], 0.005)),
    ]
    for title, name in (("TTFT", "first_token_ns"), ("Time", "duration_ns")):
        for percent in ("p50", "p90", "p99"):
            values = [_pick(getattr(side, name), percent) for side in (one, two)]
            yield _compare(f"{title} {percent}", values, _spell_time)
    yield _compare("Tokens in", [one.tokens_input, two.tokens_input], _spell_count, is_neutral=True)
    yield _compare("Tokens out", [one.tokens_output, two.tokens_output], _spell_count, is_neutral=True)
    yield _compare("Cost, USD", [one.cost_nano_usd, two.cost_nano_usd], _spell_usd)


def _compare(
    title: str,
    values: Sequence[int | None],
    spell: Callable[[int | None], str],
    *,
    is_neutral: bool = False,
) -> list[str | Cell]:
    one, two = values
    change = None if not one or two is None else two / one - 1
    cell = Cell(
        text="" if change is None else f"{change:+.0%}",
        style="" if change is None or is_neutral else _find_style(change, _MUCH),
    )
    return [title, *(spell(value) for value in values), cell]


def _find_style(change: float, much: float) -> str:
    return "red" if change > much else "green" if change < -much else ""


def _pick(spread: Spread | None, percent: str) -> int | None:
    return None if spread is None else int(getattr(spread, percent))


def _spell_time(value: int | None) -> str:
    if value is None:
        return "-"
    return f"{value / 1e6:,.0f} ms" if value < 10**10 else f"{value / 1e9:,.1f} s"


def _spell_count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _spell_usd(value: int | None) -> str:
    return "unknown" if value is None else f"{Decimal(value).scaleb(-9):,.6f}"


def _list_notes(found: Comparison) -> Iterator[str]:
    for name, side in (("requests", found.request), ("copies", found.copy)):
        if side.errors:
            listed = ", ".join(f"{code or 'no code'} {count:,}" for code, count in side.errors)
            yield f"{name} that failed: {listed}; {side.failed_alone:,} while the other side went well"
    if compared := found.same + found.different:
        yield f"results were the same in {found.same:,} of {compared:,} pairs that can be compared"
    if found.dropped:
        yield f"{found.dropped:,} copies were dropped; forebay_mirrors_total says why"
    if found.lonely:
        yield f"{found.lonely:,} copies have no request on record (yet)"


# --- for programs -------------------------------------------------------------------------------------------


def _describe(found: Comparison) -> dict[str, object]:
    row: dict[str, object] = {
        name: getattr(found, name)
        for name in ("model", "mirror", "pairs", "good", "lonely", "dropped", "same", "different")
    }
    for prefix, side in (("requests", found.request), ("copies", found.copy)):
        row |= {f"{prefix}_failed": side.failed, f"{prefix}_failed_alone": side.failed_alone}
        for name in ("first_token_ns", "duration_ns"):
            for percent in ("p50", "p90", "p99"):
                row[f"{prefix}_{name}_{percent}"] = _pick(getattr(side, name), percent)
        for name in ("tokens_input", "tokens_output", "cost_nano_usd"):
            row[f"{prefix}_{name}"] = getattr(side, name)
    return row


_NO_SIDE: Final = Side(
    failed=0,
    failed_alone=0,
    errors=(),
    first_token_ns=None,
    duration_ns=None,
    tokens_input=None,
    tokens_output=None,
    cost_nano_usd=None,
)
_EMPTY: Final = Comparison(
    model="",
    mirror="",
    pairs=0,
    good=0,
    lonely=0,
    dropped=0,
    same=0,
    different=0,
    request=_NO_SIDE,
    copy=_NO_SIDE,
)
