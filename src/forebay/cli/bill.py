"""`forebay bill`: what the requests of a month cost, and whose they were, whether Forebay runs or not.

Takes in what the workers have written until now before it reads.  What has no price is shown as unknown and
is in no sum.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import msgspec
from sqlalchemy import Connection

from forebay.app.clock import SystemClock
from forebay.app.config import Config
from forebay.app.database import open_database
from forebay.cli.bill_export import COUNTS, format_usd, list_fields, write_csv
from forebay.cli.parquet import find_parquet, write_parquet
from forebay.cli.tables import Cell, Column, Table, print_table
from forebay.cli.tenancy import find_actor
from forebay.cli.terminal import BadOption, Outcome, print_line, print_note
from forebay.cli.usable_config import load_usable_config
from forebay.cli.usage import give_way, parse_moment, parse_tag, parse_where, take_in
from forebay.core.events import Kind
from forebay.gateway.repo import KeyRepo
from forebay.gateway.repo_audit import Change, append_audit
from forebay.ledger.bill import (
    BILL_BY,
    Bill,
    Correction,
    Terms,
    find_month,
    load_bill,
    load_corrections,
    load_terms,
    name_month,
)
from forebay.ledger.pricing import Repricing, reprice
from forebay.ledger.rollup import UsageTotals
from forebay.ledger.usage import UsageBy, UsageRow
from forebay.store.database import Database

_DECIMALS: Final = 6  #: of USD in a table; files have all nine


@dataclass(frozen=True, slots=True, kw_only=True)
class BillOptions:
    """What was asked for.  `month` and `since`/`until` exclude each other; without either: this month."""

    config_file: Path | None
    by: str
    month: str | None
    since: str | None
    until: str | None
    where: Sequence[str] = ()
    mirrors: bool = False
    as_json: bool
    csv_file: str | None
    parquet_file: Path | None
    recompute: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    by: tuple[UsageBy, ...]
    tag: str | None
    where: Mapping[str, Any]
    since_ns: int
    until_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    bill: Bill
    key_names: Mapping[str, str]
    terms: Sequence[Terms]
    corrections: Sequence[Correction]


def bill(options: BillOptions) -> Outcome:
    clock = SystemClock()
    wanted = parse_options(options, clock.wall_ns())
    if options.parquet_file is not None:
        find_parquet()  # before anything is done, so that nothing is done in vain
    found = _load(load_usable_config(options.config_file), wanted, clock, recompute=options.recompute)
    rows = [list_fields(row, wanted.by, wanted.tag, found.key_names) for row in found.bill.rows]
    names = list(list_fields(UsageRow(totals=UsageTotals()), wanted.by, wanted.tag, {}))
    if options.csv_file is not None:
        write_csv(options.csv_file, names, rows)
    if options.parquet_file is not None:
        write_parquet(options.parquet_file, names, rows, COUNTS)
    for file in (options.csv_file, options.parquet_file):
        if file not in (None, "-"):
            print_note(f"{len(rows)} rows written to {file}")
    if options.as_json:
        print_line(
            msgspec.json.format(msgspec.json.encode(_describe(found, wanted, rows)), indent=2).decode()
        )
    elif options.csv_file != "-":
        _print_table(found, wanted)
    _print_unpriced(found.bill.total)
    return Outcome.OK


# --- what is asked for --------------------------------------------------------------------------------------


def parse_options(options: BillOptions, now_ns: int) -> _Wanted:
    """Raises BadOption."""
    by, tag = parse_by(options.by)
    if options.month is not None and (options.since or options.until):
        raise BadOption("--month can't go with --since or --until", hint="choose one of them")
    if options.as_json and options.csv_file == "-":
        raise BadOption("--json and --csv - can't go together", hint="give --csv a file")
    since_ns, until_ns = _parse_time(options, now_ns)
    if since_ns >= until_ns:
        raise BadOption("the bill ends before it begins", hint="--until must be later than --since")
    where: dict[str, Any] = {**parse_where(options.where, tag)}
    if options.mirrors:
        where["kind"] = Kind.MIRROR
    return _Wanted(by=by, tag=tag, where=where, since_ns=since_ns, until_ns=until_ns)


def _parse_time(options: BillOptions, now_ns: int) -> tuple[int, int]:
    try:
        month_ns, next_ns = find_month(options.month or name_month(now_ns))
    except ValueError as error:
        raise BadOption(f"can't understand --month: {error}", hint="without it: this month, UTC") from None
    since_ns = month_ns if options.since is None else parse_moment("--since", options.since)
    if options.until is not None:
        return since_ns, parse_moment("--until", options.until)
    return since_ns, next_ns


def parse_by(text: str) -> tuple[tuple[UsageBy, ...], str | None]:
    """What to tell apart, and the name of the tag if it is one of it.  Raises BadOption."""
    words, tag = parse_tag(text)
    known = [each.value for each in BILL_BY]
    by: list[UsageBy] = []
    for word in words.split(",") if words else ():
        if word.casefold() not in known:
            known.remove(UsageBy.TAG.value)
            hint = f"possible: {', '.join(known)}, tag:NAME"
            raise BadOption(f"can't tell apart by {word}", hint=hint)
        by.append(UsageBy(word.casefold()))
    return tuple(dict.fromkeys(by)), tag


# --- figures ------------------------------------------------------------------------------------------------


def _load(config: Config, wanted: _Wanted, clock: SystemClock, *, recompute: bool) -> _Found:
    if not config.data_path.exists():
        print_note(f"nothing was recorded in {config.data_path} yet; `forebay up` starts Forebay")
        empty = Bill(since_ns=wanted.since_ns, until_ns=wanted.until_ns, rows=())
        return _Found(bill=empty, key_names={}, terms=(), corrections=())
    database = open_database(config)
    try:
        database.migrate()
        take_in(database, config, clock)
        if recompute:
            _recompute(database, config, wanted, clock)
        return _Found(
            bill=load_bill(
                database,
                by=wanted.by,
                since_ns=wanted.since_ns,
                until_ns=wanted.until_ns,
                tag=wanted.tag,
                where=wanted.where,
            ),
            key_names={record.entry.id: record.entry.name for record in KeyRepo(database, clock).list()},
            terms=load_terms(database),
            corrections=load_corrections(database, wanted.since_ns, wanted.until_ns),
        )
    finally:
        database.close()


def _recompute(database: Database, config: Config, wanted: _Wanted, clock: SystemClock) -> None:
    actor, span = find_actor(), f"{_moment(wanted.since_ns)} to {_moment(wanted.until_ns)}"

    def tell(connection: Connection, report: Repricing, is_done: bool) -> None:
        change = (
            _describe_repricing(span, report)
            if is_done
            else Change(action="ledger.reprice_begin", subject=span)
        )
        append_audit(connection, actor, change, clock.wall_ns())

    report: Repricing = reprice(
        database,
        config.prices.price_book,
        since_ns=wanted.since_ns,
        until_ns=wanted.until_ns,
        now_ns=clock.wall_ns(),
        rollups=config.ledger.rollups,
        tell=tell,
        pause=give_way,
    )
    before, after = (_show_usd(cost) for cost in (report.cost_nano_usd_before, report.cost_nano_usd_after))
    print_note(
        f"priced {report.records:,} records anew: {report.changed:,} changed, {before} USD became {after}"
        if report.changed
        else f"priced {report.records:,} records anew: nothing changed"
    )


def _describe_repricing(span: str, report: Repricing) -> Change:
    before, after = report.cost_nano_usd_before, report.cost_nano_usd_after
    return Change(
        action="ledger.reprice",
        subject=span,
        before={"cost_usd": format_usd(before), "unpriced": report.unpriced_before},
        after={"cost_usd": format_usd(after), "unpriced": report.unpriced_after, "changed": report.changed},
    )


# --- for people ---------------------------------------------------------------------------------------------


def _print_table(found: _Found, wanted: _Wanted) -> None:
    period = f"{_moment(wanted.since_ns)} to {_moment(wanted.until_ns)}"
    if not found.bill.rows:
        print_line(f"no requests from {period}")
        return
    print_table(_make_table(found, wanted))
    print_note(f"{period}, UTC; costs in USD")
    if found.bill.records_since_ns > wanted.since_ns:
        print_note(
            f"the records before {_moment(found.bill.records_since_ns)} were removed: of that time there are "
            "totals, and nothing that needs records"
        )
    for each in found.corrections:
        print_note(f"{each.changed:,} records of this time were priced anew on {_moment(each.at_ns)}")


def _make_table(found: _Found, wanted: _Wanted) -> Table:
    groups = [by for by in (UsageBy.DAY, *BILL_BY) if by in wanted.by]
    groups = list(dict.fromkeys(groups))
    columns = [
        Column(title=wanted.tag or "" if by is UsageBy.TAG else by.value.capitalize()) for by in groups
    ]
    columns += [
        Column(title="Requests", align="right", kind="whole", rank=1),
        Column(title="In", align="right", kind="whole", rank=3),
        Column(title="Cached", align="right", kind="whole", rank=5),
        Column(title="Out", align="right", kind="whole", rank=4),
        Column(title="No price", align="right", kind="whole", rank=2),
        Column(title="Cost", align="right", kind="whole"),
    ]
    rows = [
        [*(_show_group(row, by, found.key_names) for by in groups), *_figures(row.totals)]
        for row in found.bill.rows
    ]
    figures = [cell if isinstance(cell, str) else cell.text for cell in _figures(found.bill.total)]
    footer = ["Total", *[""] * (len(groups) - 1), *figures]
    return Table(columns=columns, rows=rows, footer=footer if groups else ())


def _show_group(row: UsageRow, by: UsageBy, key_names: Mapping[str, str]) -> str:
    if by is UsageBy.DAY:
        return _moment((row.start_s or 0) * 10**9)
    value = str(getattr(row, by.value) or "")
    return (key_names.get(value, value) if by is UsageBy.KEY else value) or "(none)"


def _figures(totals: UsageTotals) -> list[str | Cell]:
    numbers = (totals.requests, totals.input_total, totals.tokens_input_cached, totals.output_total)
    return [
        *("-" if number is None else f"{number:,}" for number in numbers),
        Cell(text=f"{totals.unpriced:,}" if totals.unpriced else "", style="yellow"),
        _show_usd(totals.cost_nano_usd),
    ]


def _show_usd(nano_usd: int | None) -> str:
    """Rounded for the eye; what is unknown is called so."""
    if nano_usd is None:
        return "unknown"
    return f"{Decimal(nano_usd).scaleb(-9):,.{_DECIMALS}f}"


def _moment(at_ns: int) -> str:
    moment = datetime.fromtimestamp(at_ns // 10**9, tz=UTC)
    return moment.strftime("%Y-%m-%d" if at_ns % (86_400 * 10**9) == 0 else "%Y-%m-%d %H:%M")


def _print_unpriced(total: UsageTotals) -> None:
    if total.unpriced:
        print_note(
            f"{total.unpriced:,} requests have no price and are in no sum: give them one under `prices` in "
            "forebay.yaml, then run `forebay bill --recompute`",
            "yellow",
        )


# --- for programs -------------------------------------------------------------------------------------------


def _describe(found: _Found, wanted: _Wanted, rows: Sequence[Mapping[str, object]]) -> dict[str, object]:
    total = found.bill.total
    return {
        "currency": "USD",
        "since": _iso(wanted.since_ns),
        "until": _iso(wanted.until_ns),
        "records_since": _iso(found.bill.records_since_ns) if found.bill.records_since_ns else None,
        "by": [by.value if by is not UsageBy.TAG else f"tag:{wanted.tag}" for by in wanted.by],
        "rows": rows,
        "total": list_fields(UsageRow(totals=total), (), None, {}),
        "prices": {each.id: msgspec.json.decode(each.terms) for each in found.terms},
        "corrections": [
            {
                "at": _iso(each.at_ns),
                "changed": each.changed,
                "cost_usd_before": format_usd(each.cost_nano_usd_before),
                "cost_usd_after": format_usd(each.cost_nano_usd_after),
            }
            for each in found.corrections
        ],
    }


def _iso(at_ns: int) -> str:
    return datetime.fromtimestamp(at_ns // 10**9, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
