"""`forebay usage`: from records on disk to figures, without anything running."""

import csv
import io
import json
import sqlite3
from pathlib import Path

import pytest
from command_line import ESCAPE, forebay, in_terminal
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.app.clock import SystemClock
from forebay.cli.terminal import BadOption
from forebay.cli.usage import compute_bar, parse_by, parse_since
from forebay.core.events import Finished, Outcome, Tokens, UsageSource, encode_event
from forebay.ledger.segment import SegmentWriter
from forebay.ledger.usage import UsageBy

HOUR_NS = 3600 * 10**9
NOW_NS = SystemClock().wall_ns()


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FOREBAY_CONFIG", raising=False)


def event(number: int, **fields: object) -> Finished:
    given = {
        "request_id": f"r{number}",
        "at_ns": NOW_NS,
        "key": "key_a",
        "model": "m",
        "target": "m@p",
        "status": 200,
        "tokens": Tokens(input=10, input_cached=5, output=20),
        "usage_source": UsageSource.REPORTED,
        "duration_ns": 3_000_000_000,
        "first_token_ns": 250_000_000,
    }
    return Finished(**(given | fields))  # type: ignore[arg-type]


def record(folder: Path, *events: Finished, worker: str = "w0") -> None:
    writer = SegmentWriter(folder / ".forebay" / "ledger", worker, 1 << 20, SystemClock())
    for each in events:
        writer.append(encode_event(each))
    writer.close()


EVENTS = (
    event(1),
    event(2, at_ns=NOW_NS - 2 * HOUR_NS, model="n", tokens=Tokens(input=1000, output=2000)),
    event(3, key="key_b", status=502, outcome=Outcome.FAILED, tokens=Tokens(), first_token_ns=None),
    event(4, at_ns=NOW_NS - 100 * HOUR_NS, model="old"),
)


def rows(*args: str) -> list[dict[str, object]]:
    result = forebay("usage", "--json", *args)
    assert result.exit_code == 0
    return json.loads(result.stdout)["rows"]  # type: ignore[no-any-return]


def test_nothing_recorded_makes_nothing(tmp_path: Path) -> None:
    result = forebay("usage")
    assert result.exit_code == 0
    assert "no requests in the last 24h" in result.stdout
    assert "forebay up" in result.stderr
    assert list(tmp_path.iterdir()) == []
    assert rows() == []


def test_records_are_current_and_counted_once(tmp_path: Path) -> None:
    record(tmp_path, *EVENTS)
    first = rows("--by", "model")
    assert {row["model"]: row["requests"] for row in first} == {"m": 2, "n": 1}
    assert rows("--by", "model") == first
    record(tmp_path, event(5), worker="w1")
    assert {row["model"]: row["requests"] for row in rows("--by", "model")} == {"m": 3, "n": 1}


def test_a_table_for_people(tmp_path: Path) -> None:
    record(tmp_path, *EVENTS)
    result = forebay("usage", "--by", "key,model")
    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines[0] == [
        "Key",
        "Model",
        "Requests",
        "Failed",
        "In",
        "Cached",
        "Out",
        "TTFT",
        "Time",
        "Share",
        *("By", "hour"),
    ]
    assert lines[1][:-1] == ["key_a", "m", "1", "0", "15", "5", "20", "250", "ms", "3000", "ms", "1%"]
    assert lines[2][:-1] == ["key_a", "n", "1", "0", "1,000", "-", "2,000", "250", "ms", "3000", "ms", "99%"]
    assert lines[3][:-1] == ["key_b", "m", "1", "1", "-", "-", "-", "-", "3000", "ms", "0%"]
    assert len(lines[1][-1]) == len(lines[2][-1]) == 25
    assert lines[1][-1].index("█") == lines[2][-1].index("█") + 2, "the second was two hours before"
    assert lines[4] == ["Total", "3", "1", "1,015", "5", "2,020", "250", "ms", "3000", "ms"]


@pytest.mark.parametrize(("columns", "is_shown"), [("60", False), ("160", True)])
def test_a_narrow_terminal_loses_figures_and_no_part_of_a_word(
    tmp_path: Path, columns: str, is_shown: bool
) -> None:
    model = "llama-3.3-70b-instruct"
    record(tmp_path, *(event(n, model=model, tokens=Tokens(input=10**9 * n, output=1)) for n in range(3)))
    with in_terminal("usage", cwd=tmp_path, env={"COLUMNS": columns}) as terminal:
        assert terminal.wait() == 0
        terminal.drain()
    shown = terminal.written
    assert shown.count(model if is_shown else "llama-3.3-70b-…") == 1
    assert "3,000,000,000" in shown
    assert ("TTFT" in shown.splitlines()[0]) == is_shown
    assert ("left out for want of room: " in shown) == (not is_shown)


def test_hours_come_in_order_and_keys_by_name(tmp_path: Path) -> None:
    key = json.loads(forebay("keys", "create", "my laptop", "--json").stdout)["id"]
    record(tmp_path, *(event(n, key=key, at_ns=NOW_NS - n * HOUR_NS) for n in range(3)))
    given = rows("--by", "key,hour")
    assert [row["key_name"] for row in given] == ["my laptop"] * 3
    hours = [str(row["hour"]) for row in given]
    assert hours == sorted(hours)
    assert all(hour.endswith(":00:00Z") for hour in hours)
    assert "my laptop" in forebay("usage").stdout


@pytest.mark.parametrize(
    ("since", "count"), [("60m", 2), ("24h", 3), ("7d", 4), ("1w", 4), ("all", 4), ("2000-01-01", 4)]
)
def test_since(tmp_path: Path, since: str, count: int) -> None:
    record(tmp_path, *EVENTS)
    assert sum(int(str(row["requests"])) for row in rows("--since", since)) == count


def test_rows_without_a_name_are_explained(tmp_path: Path) -> None:
    record(tmp_path, event(1), event(2, target="", model="", status=404, outcome=Outcome.FAILED))
    for by in ("key,model", "target"):
        result = forebay("usage", "--by", by)
        assert "(none)" in result.stdout
        assert "(none): requests that ended before a model or a target was known" in result.stderr
    assert "(none)" not in forebay("usage", "--by", "key").output


def test_rows_of_an_hour_each_need_no_line(tmp_path: Path) -> None:
    record(tmp_path, *EVENTS)
    lines = forebay("usage", "--by", "key,model,hour").stdout.splitlines()
    assert lines[0].split()[:3] == ["Hour", "Key", "Model"]
    assert lines[0].split()[-1] == "Share"
    assert len(lines) == 1 + 3 + 1


def test_the_totals_can_be_added_up_anew(tmp_path: Path) -> None:
    record(tmp_path, *EVENTS)
    before = rows("--since", "all")
    with sqlite3.connect(tmp_path / ".forebay" / "forebay.db") as database:
        for table in ("ledger_usage_hourly", "ledger_usage_daily"):
            database.execute(f"UPDATE {table} SET requests = 7")
    database.close()
    assert rows("--since", "all") != before
    result = forebay("usage", "--rebuild")
    assert result.exit_code == 0
    assert "added up anew, from 4 records" in result.stderr
    assert rows("--since", "all") == before


def test_without_groups_there_is_one_row(tmp_path: Path) -> None:
    record(tmp_path, *EVENTS)
    assert [row["requests"] for row in rows("--by", "")] == [3]
    assert forebay("usage", "--by", "").exit_code == 0


def test_csv_holds_what_json_holds(tmp_path: Path) -> None:
    record(tmp_path, *EVENTS)
    given = rows("--by", "status,target,day")
    text = forebay("usage", "--by", "status,target,day", "--csv").stdout
    read = list(csv.DictReader(io.StringIO(text)))
    assert [list(row) for row in read] == [list(row) for row in given]
    assert read == [{k: "" if v is None else str(v) for k, v in row.items()} for row in given]


def test_totals_of_json_are_the_sum(tmp_path: Path) -> None:
    record(tmp_path, *EVENTS)
    total = json.loads(forebay("usage", "--json").stdout)["total"]
    assert (total["requests"], total["failed"], total["tokens_output"]) == (3, 1, 2020)


def test_estimates_are_named(tmp_path: Path) -> None:
    record(tmp_path, event(1, usage_source=UsageSource.ESTIMATED), event(2))
    assert "tokens of 1 requests were counted here" in forebay("usage").stderr


def test_a_terminal_gets_bars(tmp_path: Path) -> None:
    record(tmp_path, *EVENTS)
    with in_terminal("usage", "--by", "model,hour", cwd=tmp_path) as terminal:
        assert terminal.wait() == 0
        terminal.wait_for("tokens by hour")
        assert "█" * 8 in terminal.written
        assert ESCAPE in terminal.written


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--by", "colour"), "can't group by colour"),
        (("--by", "hour,day"), "by hour and by day"),
        (("--since", "3y"), "--since 3y"),
        (("--since", ""), "--since"),
        (("--since", "2026-13-01"), "2026-13-01"),
        (("--json", "--csv"), "can't go together"),
    ],
)
def test_an_option_that_makes_no_sense_is_wrong_use(args: tuple[str, ...], words: str) -> None:
    result = forebay("usage", *args)
    assert result.exit_code == 2
    assert words in result.stderr
    assert result.stdout == ""


def test_a_damaged_record_is_no_end(tmp_path: Path) -> None:
    record(tmp_path, *EVENTS)
    (file,) = (tmp_path / ".forebay" / "ledger").iterdir()
    file.write_bytes(file.read_bytes() + b"\xff" * 50)
    assert sum(int(str(row["requests"])) for row in rows()) == 3


@settings(deadline=None)
@given(st.integers(0, 10**9), st.integers(0, 10**9))
def test_a_bar_is_never_longer_than_its_place(value: int, peak: int) -> None:
    value, peak = min(value, peak), max(value, peak)
    assert len(compute_bar(value, peak)) <= 8
    assert compute_bar(peak, peak) == ("█" * 8 if peak else "")


@settings(deadline=None)
@given(st.text(max_size=12))
def test_any_age_is_understood_or_refused(text: str) -> None:
    try:
        since = parse_since(text, NOW_NS)
    except BadOption:
        return
    assert since is None or isinstance(since, int)


def test_groups_may_be_written_freely() -> None:
    assert parse_by(" Key , model,key") == (UsageBy.KEY, UsageBy.MODEL)


@pytest.mark.parametrize("since", ["0001-01-01", "1969-12-31", "9999-12-31"])
def test_a_date_that_no_record_can_have_is_not_understood(tmp_path: Path, since: str) -> None:
    record(tmp_path, *EVENTS)
    result = forebay("usage", "--by", "status", "--since", since)
    assert result.exit_code == 2
    assert f"can't understand --since {since}" in result.stderr


def test_an_age_beyond_all_time_is_all_there_is(tmp_path: Path) -> None:
    record(tmp_path, *EVENTS)
    for by in ("status", "model", "key,hour"):
        counts = [int(str(row["requests"])) for row in rows("--by", by, "--since", "999999w")]
        assert sum(counts) == len(EVENTS)


def test_texts_of_callers_are_no_formulas_in_csv(tmp_path: Path) -> None:
    record(tmp_path, event(1, experiment="=HYPERLINK(1)", variant="b"), event(2, experiment="a=b"))
    told = forebay("usage", "--by", "experiment,variant", "--csv").stdout
    read = list(csv.DictReader(io.StringIO(told)))
    assert sorted(row["experiment"] for row in read) == ["'=HYPERLINK(1)", "a=b"]
