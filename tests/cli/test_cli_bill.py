"""`forebay bill` and `forebay prices`: from records on disk to money, exact, and what is unknown is no 0."""

import csv
import io
import json
import sys
from decimal import Decimal
from pathlib import Path

import pytest
from command_line import ESCAPE, forebay, in_terminal

from forebay.app.clock import SystemClock
from forebay.cli.bill import parse_by
from forebay.cli.terminal import BadOption
from forebay.core.events import Finished, Tokens, UsageSource, encode_event
from forebay.ledger.segment import SegmentWriter
from forebay.ledger.usage import UsageBy

BEGIN_NS = 1_790_812_800 * 10**9  # 2026-10-01
DAY_NS = 86_400 * 10**9
OCTOBER = ("--month", "2026-10")
PRICES = """
prices:
  book:
    - {model: m, usd_per_mtok: {input: 1, output: 10}}
    - {model: m, from: 2026-10-02, usd_per_mtok: {input: 2, output: 10}}
"""


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FOREBAY_CONFIG", raising=False)


def event(number: int, *, day: int = 0, **fields: object) -> Finished:
    given = {
        "request_id": f"r{number}",
        "at_ns": BEGIN_NS + day * DAY_NS + number,
        "key": "key_a",
        "team": "t",
        "project": "p",
        "model": "m",
        "target": "m@x",
        "pool": "x",
        "tier": "provider",
        "status": 200,
        "tokens": Tokens(input=1001, output=10),
        "usage_source": UsageSource.REPORTED,
    }
    return Finished(**(given | fields))  # type: ignore[arg-type]


EVENTS = (
    event(1),
    event(2, day=1, tags=(("customer", "acme"),)),
    event(3, day=2, model="unpriced", project="q"),
    event(4, day=31),  # November
)


def record(folder: Path, *events: Finished) -> None:
    writer = SegmentWriter(folder / ".forebay" / "ledger", "w0", 1 << 20, SystemClock())
    for each in events:
        writer.append(encode_event(each))
    writer.close()


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    (tmp_path / "forebay.yaml").write_text(PRICES)
    record(tmp_path, *EVENTS)
    return tmp_path


def bill(*args: str) -> dict[str, object]:
    result = forebay("bill", "--json", *args)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)  # type: ignore[no-any-return]


def costs(found: dict[str, object], *names: str) -> dict[object, object]:
    rows: list[dict[str, object]] = found["rows"]  # type: ignore[assignment]
    return {tuple(row[name] for name in names): row["cost_usd"] for row in rows}


def test_nothing_recorded_makes_nothing(tmp_path: Path) -> None:
    result = forebay("bill")
    assert result.exit_code == 0
    assert "no requests from" in result.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_month_is_charged_by_the_prices_of_its_days(recorded: Path) -> None:
    found = bill(*OCTOBER)
    assert costs(found, "team", "project", "model") == {
        ("t", "p", "m"): "0.003203000",
        ("t", "q", "unpriced"): None,
    }
    assert found["total"]["cost_usd"] == "0.003203000"  # type: ignore[index]
    assert found["total"]["unpriced"] == 1  # type: ignore[index]
    assert (found["since"], found["until"]) == ("2026-10-01T00:00:00Z", "2026-11-01T00:00:00Z")
    assert len(found["prices"]) == 2  # type: ignore[arg-type]
    assert bill("--since", "2026-10-02", "--until", "2026-10-03")["total"]["requests"] == 1  # type: ignore[index]


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("day", {("2026-10-01",): "0.001101000", ("2026-10-02",): "0.002102000", ("2026-10-03",): None}),
        ("pool,tier", {("x", "provider"): "0.003203000"}),
        ("tag:customer", {("",): "0.001101000", ("acme",): "0.002102000"}),
        ("", {(): "0.003203000"}),
    ],
)
def test_a_bill_is_told_apart_by_what_was_asked_for(
    recorded: Path, by: str, expected: dict[object, object]
) -> None:
    names = [f"tag_{word[4:]}" if word.startswith("tag:") else word for word in by.split(",") if word]
    assert costs(bill(*OCTOBER, "--by", by), *names) == expected


def test_the_table_names_what_is_unknown(recorded: Path) -> None:
    result = forebay("bill", *OCTOBER)
    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines[1] == ["t", "p", "m", "2", "2,002", "-", "20", "0.003203"]
    assert lines[2] == ["t", "q", "unpriced", "1", "1,001", "-", "10", "1", "unknown"]
    assert lines[3] == ["Total", "3", "3,003", "-", "30", "1", "0.003203"]
    assert "1 requests have no price and are in no sum" in result.stderr
    assert "forebay bill --recompute" in result.stderr


def test_records_are_priced_anew_once_there_is_a_price(recorded: Path) -> None:
    assert bill(*OCTOBER)["total"]["unpriced"] == 1  # type: ignore[index]
    with (recorded / "forebay.yaml").open("a") as file:
        file.write("    - {model: unpriced, usd_per_request: '0.5'}\n")
    assert bill(*OCTOBER)["total"]["unpriced"] == 1, "an edit alone changes no bill"  # type: ignore[index]
    result = forebay("bill", *OCTOBER, "--recompute")
    assert "priced 3 records anew: 1 changed, 0.003203 USD became 0.503203" in result.stderr
    assert "records of this time were priced anew on" in result.stderr
    found = bill(*OCTOBER, "--recompute")
    assert found["total"]["cost_usd"] == "0.503203000"  # type: ignore[index]
    assert len(found["corrections"]) == 1, "the second time changed nothing"  # type: ignore[arg-type]
    assert bill("--month", "2026-11")["corrections"] == []


def test_csv_holds_exact_costs_and_leaves_unknown_ones_empty(recorded: Path, tmp_path: Path) -> None:
    result = forebay("bill", *OCTOBER, "--by", "model", "--csv", tmp_path / "bill.csv")
    assert "2 rows written to" in result.stderr
    assert "Total" in result.stdout
    rows = list(csv.DictReader((tmp_path / "bill.csv").open()))
    assert [(row["model"], row["cost_usd"], row["unpriced"]) for row in rows] == [
        ("m", "0.003203000", "0"),
        ("unpriced", "", "1"),
    ]
    piped = forebay("bill", *OCTOBER, "--by", "model", "--csv", "-")
    assert list(csv.DictReader(io.StringIO(piped.stdout))) == rows


def test_parquet_without_pyarrow_says_what_to_install(
    recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    result = forebay("bill", *OCTOBER, "--parquet", tmp_path / "bill.parquet")
    assert result.exit_code == 1
    assert "forebay[parquet]" in result.stderr
    assert not (tmp_path / "bill.parquet").exists()


def test_parquet_holds_decimals_and_integers(recorded: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    assert forebay("bill", *OCTOBER, "--by", "model", "--parquet", tmp_path / "bill.parquet").exit_code == 0
    rows = parquet.read_table(tmp_path / "bill.parquet").to_pylist()
    assert [(row["model"], row["cost_usd"], row["requests"]) for row in rows] == [
        ("m", Decimal("0.003203000"), 2),
        ("unpriced", None, 1),
    ]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--by", "status"), "tag:NAME"),
        (("--by", "tag:a,tag:b"), "two tags"),
        (("--by", f"tag:{'x' * 65}"), "64"),
        (("--month", "2026-13"), "2026-11"),
        (("--month", "2026-10", "--since", "2026-10-01"), "choose one"),
        (("--since", "yesterday"), "2026-01-31"),
        (("--until", "1960-01-01"), "2026-01-31"),
        (("--since", "2026-10-02", "--until", "2026-10-02"), "later"),
        (("--json", "--csv", "-"), "give --csv a file"),
    ],
)
def test_what_can_not_be_understood_is_told(args: tuple[str, ...], words: str) -> None:
    result = forebay("bill", *args)
    assert result.exit_code == 2
    assert words in result.stderr


def test_a_tags_name_keeps_its_spelling() -> None:
    assert parse_by("Team, tag:Kunde Nr.") == ((UsageBy.TEAM, UsageBy.TAG), "Kunde Nr.")
    with pytest.raises(BadOption):
        parse_by("tag:")


LABELED = (
    event(11, version="v1", experiment="e", variant="a", tags=(("customer", "acme"),)),
    event(12, version="v1", experiment="e", variant="b"),
    event(13, version="v2", tags=(("customer", "öl"),)),
)


@pytest.mark.parametrize("setting", ["", "ledger: {rollup_tags: [customer]}\n"])
def test_a_bill_is_told_apart_by_and_narrowed_to_labels(tmp_path: Path, setting: str) -> None:
    (tmp_path / "forebay.yaml").write_text(PRICES + setting)
    record(tmp_path, *LABELED)
    one = "0.001101000"
    found = bill(*OCTOBER, "--by", "version,experiment,variant")
    assert costs(found, "version", "experiment", "variant") == {
        ("v1", "e", "a"): one, ("v1", "e", "b"): one, ("v2", "", ""): one
    }  # fmt: skip
    found = bill(*OCTOBER, "--by", "tag:customer,version", "--where", "version=v1")
    assert found["by"] == ["tag:customer", "version"]
    assert costs(found, "tag_customer", "version") == {("", "v1"): one, ("acme", "v1"): one}
    found = bill(*OCTOBER, "--by", "model", "--where", "tag:customer=öl", "--where", "experiment=")
    assert costs(found, "model") == {("m",): one}
    shown = forebay(
        "usage", "--since", "all", "--by", "variant,tag:customer", "--where", "experiment=e", "--json"
    )
    rows = json.loads(shown.stdout)["rows"]
    assert [(row["variant"], row["tag_customer"], row["requests"]) for row in rows] == [
        ("a", "acme", 1), ("b", "", 1)
    ]  # fmt: skip
    shown = forebay("usage", "--since", "all", "--by", "tag:customer", "--rebuild")
    assert "acme" in shown.stdout
    assert "customer" in shown.stdout


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--where", "nothing"), "NAME=VALUE"),
        (("--where", "target=x"), "tag:NAME"),
        (("--where", "model=a", "--where", "model=b"), "stands twice"),
        (("--by", "tag:a", "--where", "tag:b=c"), "two tags"),
    ],
)
def test_a_condition_that_can_not_be_understood_is_told(args: tuple[str, ...], words: str) -> None:
    for command in ("bill", "usage"):
        result = forebay(command, *args)
        assert result.exit_code == 2
        assert words in result.stderr


def test_a_csv_that_can_not_be_written_is_told_without_a_traceback(recorded: Path) -> None:
    result = forebay("bill", *OCTOBER, "--csv", "no/such/folder/bill.csv")
    assert result.exit_code == 1
    assert "No such file" in result.stderr


def test_a_terminal_shows_the_same_figures(recorded: Path) -> None:
    with in_terminal("bill", *OCTOBER, cwd=recorded) as terminal:
        assert terminal.wait() == 0
        terminal.drain()
    assert ESCAPE in terminal.written
    assert terminal.written.count("0.003203") == 2
    assert "unknown" in terminal.written


def test_prices_are_listed_with_their_source(tmp_path: Path) -> None:
    assert "no prices" in forebay("prices").stderr
    (tmp_path / "forebay.yaml").write_text(
        PRICES
        + "    - {pool: x, usd_per_request: 0.5, usd_per_second: '0.0000001', "
        + "usd_per_unit: {searches: 0.01}, usd_per_mtok: {input_cache_write: 3.125}}\n  defaults: true\n"
    )
    shown = forebay("prices").stdout
    assert "input 2/M, output 10/M" in shown
    assert "input_cache_write 3.125/M, 0.5/request, 0.0000001/s, searches 0.01 each" in shown
    assert "2026-10-02" in shown
    assert "https://" in shown
    found = json.loads(forebay("prices", "--json").stdout)
    assert found[0]["id"].startswith("price_")
    assert found[0]["usd_per_mtok"]["input"] == "1"
    assert found[2]["usd_per_unit"] == {"searches": "0.01"}
    assert {each.get("source", "own") for each in found[:3]} == {"own"}
    assert all(each["source"] and each["checked"] for each in found[3:])


def audit() -> list[dict[str, object]]:
    return [
        each
        for each in json.loads(forebay("audit", "--json").stdout)
        if str(each["action"]).startswith("ledger.")
    ]


def test_pricing_anew_is_in_the_audit_with_what_it_changed(recorded: Path) -> None:
    bill(*OCTOBER)
    assert audit() == []
    (recorded / "forebay.yaml").write_text(PRICES.replace("input: 1,", "input: 3,"))
    bill(*OCTOBER, "--recompute")
    (told,) = audit()
    assert told["action"] == "ledger.reprice"
    assert told["subject"] == "2026-10-01 to 2026-11-01"
    assert told["actor"]["id"] == "command-line"  # type: ignore[index]
    assert told["before"] == {"cost_usd": "0.003203000", "unpriced": 1}
    assert told["after"] == {"cost_usd": "0.005205000", "unpriced": 1, "changed": 1}
    bill(*OCTOBER, "--recompute")
    assert audit() == [told], "nothing changed"


@pytest.mark.parametrize("formula", ["=1+1", "+1", "-1", "@SUM(1)", "\t=1", "\r=1"])
def test_texts_of_callers_are_no_formulas_in_csv(tmp_path: Path, formula: str) -> None:
    record(tmp_path, event(1, tags=(("customer", formula),)), event(2, tags=(("customer", "a-b"),)))
    told = forebay("bill", *OCTOBER, "--by", "tag:customer", "--csv", tmp_path / "bill.csv")
    assert told.exit_code == 0
    with (tmp_path / "bill.csv").open(newline="") as file:
        assert {row["tag_customer"] for row in csv.DictReader(file)} == {f"'{formula}", "a-b"}
    shown = bill(*OCTOBER, "--by", "tag:customer")["rows"]
    assert {row["tag_customer"] for row in shown} == {formula, "a-b"}  # type: ignore[attr-defined]
