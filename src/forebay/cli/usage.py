"""`forebay usage`: who used how much of what, from the ledger, whether Forebay runs or not.

Takes in what the workers have written until now before it reads, so the figures are current.  Asking never
makes a data folder where there is none.
"""

import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import Final

import msgspec

from forebay.app.clock import SystemClock
from forebay.app.config import Config
from forebay.app.database import open_database
from forebay.app.price_books import PriceBooks
from forebay.cli.csv_file import write_rows
from forebay.cli.tables import Cell, Column, Table, print_table, terminal_columns
from forebay.cli.terminal import BadOption, Outcome, is_plain, print_line, print_note
from forebay.cli.usable_config import load_usable_config
from forebay.cli.usage_hours import MARKS_MAX, Hours, can_show_hours, compute_sparkline, fold_hours
from forebay.core.events import Kind
from forebay.gateway.repo import KeyRepo
from forebay.ledger.ingest import Ingester, IngestLimits
from forebay.ledger.marks import NoLongerKept
from forebay.ledger.rebuild import rebuild_usage
from forebay.ledger.rollup import HOUR_NS, NOTHING, UsageTotals, merge_totals
from forebay.ledger.usage import UsageBy, UsageQuery, UsageQueryInvalid, UsageRow, load_usage
from forebay.store.database import Database
from forebay.store.errors import StoreBusy

TAG_NAME_MAX: Final = 64
#: What --where takes, beside tags.
WHERE: Final = ("key", "model", "version", "experiment", "variant")
_UNITS_S: Final = {"m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_BAR_CELLS: Final = 8
_WIDE_COLUMNS: Final = 100
_PAUSE_S: Final = 0.12  #: SQLite looks for a lock that it waits for each 0.1 s
_HOURS_COLUMNS: Final = 125  #: a terminal that has room for a mark for each hour of a day
_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """Rows, and the names of the keys in them."""

    by: tuple[UsageBy, ...]
    tag: str | None  #: the name of the one to tell apart by
    rows: Sequence[UsageRow]
    key_names: Mapping[str, str]
    hours: Hours | None = None  #: when the tokens of each row were used

    @property
    def total(self) -> UsageTotals:
        return reduce(merge_totals, (row.totals for row in self.rows), NOTHING)


def usage(
    file: Path | None,
    *,
    by: str,
    since: str,
    where: Sequence[str] = (),
    mirrors: bool = False,
    as_json: bool,
    as_csv: bool,
    rebuild: bool = False,
) -> Outcome:
    clock = SystemClock()
    if as_json and as_csv:
        raise BadOption("--json and --csv can't go together", hint="choose one of them")
    words, tag = parse_tag(by)
    kind = Kind.MIRROR if mirrors else None
    query = UsageQuery(by=parse_by(words), since_ns=parse_since(since, clock.wall_ns()), kind=kind)
    query = replace(query, **parse_where(where, tag))  # type: ignore[arg-type]  # filters are texts
    answer = _load(load_usable_config(file), query, clock, rebuild=rebuild)
    if as_json:
        _print_json(answer)
    elif as_csv:
        _print_csv(answer)
    else:
        _print_table(answer, since)
    return Outcome.OK


def parse_by(text: str) -> tuple[UsageBy, ...]:
    """Raises BadOption."""
    words = [word.strip().casefold() for word in text.split(",") if word.strip()]
    known = [by.value for by in UsageBy]
    if unknown := [word for word in words if word not in known]:
        known.remove(UsageBy.TAG.value)
        raise BadOption(
            f"can't group by {', '.join(unknown)}", hint=f"possible: {', '.join(known)}, tag:NAME"
        )
    if {"hour", "day"} <= set(words):
        raise BadOption("can't group by hour and by day", hint="choose one of them")
    return tuple(dict.fromkeys(UsageBy(word) for word in words))


def parse_tag(text: str) -> tuple[str, str | None]:
    """A list with `tag` in the place of `tag:NAME`, and the name.  Raises BadOption."""
    words: list[str] = []
    name: str | None = None
    for word in (word.strip() for word in text.split(",") if word.strip()):
        found = re.fullmatch(r"tag:(.+)", word, re.IGNORECASE)
        if found is None and word.casefold() == "tag":
            raise BadOption("can't tell apart by a tag without its name", hint="write tag:NAME")
        if found is not None and name not in (None, found[1]):
            raise BadOption("can't tell apart by two tags", hint="ask once for each")
        name = name if found is None else found[1]
        words.append(word if found is None else UsageBy.TAG.value)
    if name is not None and len(name) > TAG_NAME_MAX:
        raise BadOption(f"no tag's name is longer than {TAG_NAME_MAX} characters", hint="check the name")
    return ",".join(words), name


def parse_where(conditions: Sequence[str], tag: str | None) -> dict[str, str]:
    """Filters by the names that UsageQuery has for them, and the tag's name.  Raises BadOption."""
    where = {} if tag is None else {"tag": tag}
    for condition in conditions:
        name, sign, value = condition.partition("=")
        name = name.strip()
        if name.casefold() in WHERE and sign:
            field = name.casefold()
        elif (found := re.fullmatch(r"tag:(.+)", name, re.IGNORECASE)) and sign:
            if where.setdefault("tag", found[1]) != found[1]:
                raise BadOption("can't look at two tags", hint="ask for the same tag everywhere")
            field = "tag_value"
        else:
            hint = f"write NAME=VALUE, with one of {', '.join(WHERE)}, tag:NAME"
            raise BadOption(f"can't understand --where {condition}", hint=hint)
        if field in where:
            raise BadOption(f"--where {name} stands twice", hint="name each once")
        where[field] = value
    return where


def parse_since(text: str, now_ns: int) -> int | None:
    """The first nanosecond that counts; None for all there is.  Raises BadOption."""
    word = text.strip().casefold()
    if word == "all":
        return None
    if found := re.fullmatch(r"(\d{1,6})([mhdw])", word):
        return max(0, now_ns - int(found[1]) * _UNITS_S[found[2]] * 10**9)
    return parse_moment("--since", text, hint="90m, 24h, 7d, 2w, all, or a date like 2026-01-31")


def parse_moment(option: str, text: str, *, hint: str = "a date like 2026-01-31 (UTC)") -> int:
    """The nanosecond of a date between 1970 and 2242.  Raises BadOption."""
    try:
        moment = datetime.fromisoformat(text.strip())
        seconds = int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())
    except (ValueError, OverflowError):
        seconds = -1
    if not 0 <= seconds < 2**33:
        raise BadOption(f"can't understand {option} {text}", hint=hint)
    return seconds * 10**9


def _load(config: Config, query: UsageQuery, clock: SystemClock, *, rebuild: bool) -> _Answer:
    if not config.data_path.exists():
        print_note(f"nothing was recorded in {config.data_path} yet; `forebay up` starts Forebay")
        return _Answer(by=query.by, tag=query.tag, rows=(), key_names={})
    database = open_database(config)
    try:
        database.migrate()
        take_in(database, config, clock)
        if rebuild:
            count = rebuild_usage(database, config.ledger.rollups, pause=give_way)
            print_note(f"the totals were added up anew, from {count:,} records")
        names = {record.entry.id: record.entry.name for record in KeyRepo(database, clock).list()}
        return _Answer(
            by=query.by,
            tag=query.tag,
            rows=load_usage(database, query),
            key_names=names,
            hours=_load_hours(database, query, clock.wall_ns()),
        )
    finally:
        database.close()


def give_way() -> None:
    """Between two transactions: long enough for whoever waits for SQLite's lock to look for it once more."""
    time.sleep(_PAUSE_S)


def _load_hours(database: Database, query: UsageQuery, now_ns: int) -> Hours | None:
    """None where the rows tell the time themselves, or where there are too many hours."""
    if not can_show_hours(query.by):
        return None
    # Whole hours are read from the hourly totals, so the first one is not cut.
    first_ns = None if query.since_ns is None else query.since_ns // HOUR_NS * HOUR_NS
    try:
        rows = load_usage(database, replace(query, by=(*query.by, UsageBy.HOUR), since_ns=first_ns))
    except (UsageQueryInvalid, NoLongerKept):
        return None
    return fold_hours(
        rows,
        lambda row: _tokens(row.totals),
        first_s=None if first_ns is None else first_ns // 10**9,
        now_s=now_ns // 10**9,
        marks_max=MARKS_MAX if is_plain() or terminal_columns() >= _HOURS_COLUMNS else _BAR_CELLS,
    )


def take_in(database: Database, config: Config, clock: SystemClock) -> None:
    """Ingests what the workers have written until now; says what can't be read."""
    limits = IngestLimits(keep_segments_s=config.ledger.keep_segments_s)
    book = PriceBooks(config.ledger_path).in_force(config.prices.price_book)
    rollups = config.ledger.rollups
    ingester = Ingester(
        database,
        config.ledger_path,
        clock,
        limits,
        get_prices=lambda: book,
        get_rollups=lambda: rollups,
    )
    try:
        while not (report := ingester.ingest_once()).is_complete:
            pass
    except StoreBusy:
        print_note("the database is busy: the last moments may be missing", "yellow")
        return
    for problem in report.problems:
        print_note(f"records that can't be read: {problem}", "yellow")


# --- for people ---------------------------------------------------------------------------------------------


def _print_table(answer: _Answer, since: str) -> None:
    if not answer.rows:
        age = f" in the last {since}" if re.fullmatch(r"\d+\w", since) else f" since {since}"
        print_line("no requests" + ("" if since == "all" else age))
        return
    print_table(_make_table(answer))
    total = answer.total
    if UsageBy.HOUR in answer.by and not is_plain():
        print_note(f"tokens by hour: {compute_sparkline(_by_hour(answer.rows))}")
    if any(_has_no_name(row, answer.by) for row in answer.rows):
        print_note(f"{_NO_NAME}: requests that ended before a model or a target was known")
    if total.estimated:
        print_note(f"tokens of {total.estimated} requests were counted here: their targets never said")


def _make_table(answer: _Answer) -> Table:
    groups = [by for by in UsageBy if by in answer.by]
    groups.sort(key=lambda by: by not in (UsageBy.HOUR, UsageBy.DAY))
    columns = [_group_column(by, answer.tag) for by in groups]
    columns += [
        Column(title=title, align="right", kind="whole", rank=_RANKS.get(title, 0)) for title in _FIGURES
    ]
    columns.append(Column(title="Share", kind="whole", rank=_RANKS["Share"]))
    if answer.hours is not None:
        columns.append(Column(title=answer.hours.title, kind="whole", rank=_RANKS["Hours"]))
    peak = max(_tokens(row.totals) for row in answer.rows)
    whole = _tokens(answer.total)
    rows: list[list[str | Cell]] = []
    for row in answer.rows:
        names = [_GROUP_TEXTS[by](row, answer.key_names) for by in groups]
        share = _percent(_tokens(row.totals), whole)
        if not (is_plain() or terminal_columns() < _WIDE_COLUMNS or answer.hours is not None):
            share = f"{compute_bar(_tokens(row.totals), peak):<{_BAR_CELLS}} {share}"
        shares = [Cell(text=share, style="cyan")]
        if answer.hours is not None:
            shares.append(Cell(text=answer.hours.draw(row), style="cyan"))
        rows.append([*names, *(figure(row.totals) for figure in _FIGURES.values()), *shares])
    footer = ["Total", *[""] * (len(groups) - 1), *(figure(answer.total) for figure in _FIGURES.values())]
    return Table(columns=columns, rows=rows, footer=footer if groups else ())


def _has_no_name(row: UsageRow, by: Sequence[UsageBy]) -> bool:
    return (UsageBy.MODEL in by and not row.model) or (UsageBy.TARGET in by and not row.target)


def _group_column(by: UsageBy, tag: str | None) -> Column:
    is_short = by in (UsageBy.HOUR, UsageBy.DAY, UsageBy.STATUS)
    title = tag or "" if by is UsageBy.TAG else by.value.capitalize()
    return Column(title=title, kind="whole" if is_short else "name")


_NO_NAME: Final = "(none)"
_GROUP_TEXTS: Final[dict[UsageBy, Callable[[UsageRow, Mapping[str, str]], str]]] = {
    UsageBy.KEY: lambda row, names: names.get(row.key or "", row.key or "(unknown)"),
    UsageBy.MODEL: lambda row, names: row.model or _NO_NAME,
    UsageBy.HOUR: lambda row, names: _moment(row.start_s, "%Y-%m-%d %H:00"),
    UsageBy.DAY: lambda row, names: _moment(row.start_s, "%Y-%m-%d"),
    UsageBy.TARGET: lambda row, names: row.target or _NO_NAME,
    UsageBy.STATUS: lambda row, names: str(row.status),
    UsageBy.TEAM: lambda row, names: row.team or "(none)",
    UsageBy.PROJECT: lambda row, names: row.project or "(none)",
    UsageBy.POOL: lambda row, names: row.pool or "(none)",
    UsageBy.TIER: lambda row, names: row.tier or "(none)",
    UsageBy.REGION: lambda row, names: row.region or "(none)",
    UsageBy.KIND: lambda row, names: row.kind or "(none)",
    UsageBy.VERSION: lambda row, names: row.version or "(none)",
    UsageBy.EXPERIMENT: lambda row, names: row.experiment or "(none)",
    UsageBy.VARIANT: lambda row, names: row.variant or "(none)",
    UsageBy.TAG: lambda row, names: row.tag or "(none)",
}


_FIGURES: Final[dict[str, Callable[[UsageTotals], str]]] = {
    "Requests": lambda totals: f"{totals.requests:,}",
    "Failed": lambda totals: f"{totals.failed:,}",
    "In": lambda totals: _number(totals.input_total),
    "Cached": lambda totals: _number(totals.tokens_input_cached),
    "Out": lambda totals: _number(totals.output_total),
    "TTFT": lambda totals: _mean(totals.first_token_ns_sum, totals.first_token_count),
    "Time": lambda totals: _mean(totals.duration_ns_sum, totals.duration_count),
}
#: What a narrow terminal loses first, so that names stay readable.
_RANKS: Final = {"Cached": 7, "TTFT": 6, "Hours": 5, "Time": 4, "Share": 3, "Failed": 2, "Requests": 1}


def _tokens(totals: UsageTotals) -> int:
    return (totals.input_total or 0) + (totals.output_total or 0)


def _number(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


def _mean(sum_ns: int, count: int) -> str:
    if not count:
        return "-"
    mean_ms = sum_ns / count / 1e6
    return f"{mean_ms:.0f} ms" if mean_ms < 10_000 else f"{mean_ms / 1000:.1f} s"


def _moment(start_s: int | None, form: str) -> str:
    return datetime.fromtimestamp(start_s or 0, tz=UTC).strftime(form)


def _percent(tokens: int, whole: int) -> str:
    return f"{tokens / whole:.0%}" if whole else "-"


def compute_bar(value: int, peak: int) -> str:
    """A bar as long as the value's part of the peak, to an eighth of a character."""
    eighths = round(_BAR_CELLS * 8 * value / peak) if peak else 0
    return (_EIGHTHS[8] * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip()


def _by_hour(rows: Sequence[UsageRow]) -> list[int]:
    """Tokens of each hour between the first and the last, at most the last 168 of them."""
    tokens: dict[int, int] = {}
    for row in rows:
        hour = (row.start_s or 0) // 3600
        tokens[hour] = tokens.get(hour, 0) + _tokens(row.totals)
    last = max(tokens)
    return [tokens.get(hour, 0) for hour in range(max(min(tokens), last - 167), last + 1)]


# --- for programs -------------------------------------------------------------------------------------------


def _describe(row: UsageRow, answer: _Answer) -> dict[str, object]:
    named: dict[str, object] = {}
    for by in answer.by:
        if by in (UsageBy.HOUR, UsageBy.DAY):
            named[by.value] = _moment(row.start_s, "%Y-%m-%dT%H:%M:%SZ")
        elif by is UsageBy.TAG:
            named[f"tag_{answer.tag}"] = row.tag
        else:
            named[by.value] = getattr(row, by.value)
        if by is UsageBy.KEY:
            named["key_name"] = answer.key_names.get(row.key or "", "")
    return named | asdict(row.totals)


def _print_json(answer: _Answer) -> None:
    value = {
        "by": [by.value if by is not UsageBy.TAG else f"tag:{answer.tag}" for by in answer.by],
        "rows": [_describe(row, answer) for row in answer.rows],
        "total": asdict(answer.total),
    }
    print_line(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def _print_csv(answer: _Answer) -> None:
    sample = UsageRow(totals=NOTHING)
    rows = (_describe(row, answer) for row in answer.rows)
    write_rows(sys.stdout, list(_describe(sample, answer)), rows)
