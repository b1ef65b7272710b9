"""`forebay mirrors`, and `--mirrors` of usage and bill: copies apart from requests, and beside them."""

import csv
import io
import json
from pathlib import Path

import msgspec
import pytest
from command_line import ESCAPE, forebay, in_terminal

from forebay.app.clock import SystemClock
from forebay.core.events import Finished, Outcome, Tokens, UsageSource, encode_event
from forebay.ledger.segment import SegmentWriter

BEGIN_NS = 1_790_812_800 * 10**9  # 2026-10-01
PRICES = """
prices:
  book:
    - {model: m, usd_per_mtok: {input: 1, output: 1}}
    - {model: new, usd_per_mtok: {input: 2, output: 2}}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With three requests, of which two were copied, one copy of which failed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FOREBAY_CONFIG", raising=False)
    (tmp_path / "forebay.yaml").write_text(PRICES)
    requests = [
        Finished(
            request_id=f"r{number}",
            at_ns=BEGIN_NS + number,
            key="key_a",
            team="t",
            project="p",
            model="m",
            status=200,
            duration_ns=100_000_000,
            first_token_ns=20_000_000,
            tokens=Tokens(input=1000, output=0),
            usage_source=UsageSource.REPORTED,
        )
        for number in range(3)
    ]
    copies = [
        msgspec.structs.replace(
            each,
            request_id=f"{each.request_id}-m1",
            mirror_of=each.request_id,
            model="new",
            duration_ns=50_000_000,
        )
        for each in requests[:2]
    ]
    copies[1] = msgspec.structs.replace(
        copies[1], outcome=Outcome.FAILED, error="upstream_500", status=500, mirrors_dropped=7
    )
    writer = SegmentWriter(tmp_path / ".forebay" / "ledger", "w0", 1 << 20, SystemClock())
    for each in (*requests, *copies):
        writer.append(encode_event(each))
    writer.close()
    return tmp_path


def test_a_table_for_each_mirror(folder: Path) -> None:
    result = forebay("mirrors", "--since", "all")
    assert result.exit_code == 0
    lines = {line.split("  ")[0]: line.split()[-3:] for line in result.stdout.splitlines()}
    assert "m and its mirror new: 2 pairs" in result.stdout
    assert lines["Failed"] == ["0.0%", "50.0%", "+50.0%"]
    assert lines["Time p50"][-1] == "-50%"
    assert lines["Cost, USD"] == ["0.001000", "0.002000", "+100%"]
    assert "copies that failed: upstream_500 1; 1 while the other side went well" in result.stderr
    assert "7 copies were dropped" in result.stderr
    assert "no copies" in forebay("mirrors", "--since", "1h").stdout
    assert "no copies" in forebay("mirrors", "other", "--since", "all").stdout


def test_a_difference_has_a_colour_in_a_terminal(folder: Path) -> None:
    with in_terminal("mirrors", "--since", "all", cwd=folder) as terminal:
        assert terminal.wait() == 0
        terminal.drain()
    assert f"{ESCAPE}[31m" in terminal.written
    assert f"{ESCAPE}[32m" in terminal.written


def test_programs_get_all_of_it(folder: Path) -> None:
    (found,) = json.loads(forebay("mirrors", "--since", "all", "--json").stdout)["data"]
    assert (found["pairs"], found["good"], found["dropped"]) == (2, 1, 7)
    assert found["copies"]["duration"] == {"p50_s": 0.05, "p90_s": 0.05, "p99_s": 0.05}
    assert (found["requests"]["cost_usd"], found["copies"]["cost_usd"]) == ("0.001000000", "0.002000000")
    (row,) = csv.DictReader(io.StringIO(forebay("mirrors", "--since", "all", "--csv").stdout))
    assert (row["model"], row["mirror"], row["copies_failed"]) == ("m", "new", "1")
    assert row["requests_duration_ns_p99"] == "100000000"
    assert forebay("mirrors", "--json", "--csv").exit_code == 2


def test_usage_and_bills_leave_copies_out_unless_asked(folder: Path) -> None:
    def count(*words: str) -> dict[str, int]:
        rows = json.loads(forebay(*words, "--json").stdout)["rows"]
        return {
            " ".join(str(row[name]) for name in ("kind", "model") if name in row): row["requests"]
            for row in rows
        }

    for words in (("usage", "--since", "all", "--by"), ("bill", "--month", "2026-10", "--by")):
        assert count(*words, "model") == {"m": 3}
        assert count(*words, "model", "--mirrors") == {"new": 2}
        assert count(*words, "model,kind") == {"request m": 3, "mirror new": 2}
