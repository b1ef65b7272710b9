"""`forebay signals`: reported, listed and removed by hand, whether Forebay runs or not."""

import json
from pathlib import Path

import pytest
from command_line import forebay

YAML = "limits: {signals: {ccu: {stale_after_s: 3600}}}\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FOREBAY_CONFIG", raising=False)
    (tmp_path / "forebay.yaml").write_text(YAML)
    assert forebay("projects", "create", "search").exit_code == 0
    return tmp_path


def list_json() -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(forebay("signals", "list", "--json").stdout)
    return found


def test_a_signal_is_set_listed_and_removed() -> None:
    assert (
        forebay("signals", "set", "ccu", "1234.5", "--ttl", "5m").stdout == "default/default ccu: 1,234.5\n"
    )
    assert forebay("signals", "set", "ccu", "7", "--project", "search").stderr == ""
    one, other = list_json()
    assert one.pop("reported_at")
    place = {"team": "default", "project": "default", "name": "ccu"}
    assert one == place | {"value": 1234.5, "ttl_s": 300, "stale": False, "declared": True}
    assert (other["project"], other["value"], other["ttl_s"]) == ("search", 7, None)
    rows = forebay("signals", "list").stdout.splitlines()
    assert [row.split()[:4] for row in rows[1:]] == [
        ["default", "default", "ccu", "1,234.5"],
        ["default", "search", "ccu", "7"],
    ]
    assert rows[1].rstrip().endswith("yes")
    assert forebay("signals", "remove", "ccu").stdout == "default/default ccu: removed\n"
    assert [each["project"] for each in list_json()] == ["search"]
    events = json.loads(forebay("audit", "--json").stdout)
    assert [event["action"] for event in events[:3]] == ["signal.delete", "signal.create", "signal.create"]


def test_a_name_that_no_limit_can_use_is_told() -> None:
    result = forebay("signals", "set", "cuc", "5")
    assert result.exit_code == 0
    assert "forebay.yaml has no cuc in limits.signals" in result.stderr
    assert "no, limits.signals lacks it" in forebay("signals", "list").stdout
    assert [(each["declared"], each["stale"]) for each in list_json()] == [(False, True)]


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (("set", "ccu", "-1"), 2, ""),
        (("set", "ccu", "many"), 2, ""),
        (("set", "ccu", "nan"), 2, "from 0 to"),
        (("set", "CCU", "1"), 2, "a letter first"),
        (("set", "ccu", "1", "--ttl", "soon"), 2, "--ttl soon"),
        (("set", "ccu", "1", "--ttl", "0"), 2, "ttl_s"),
        (("set", "ccu", "1", "--project", "none"), 1, "no project 'none'"),
        (("set", "ccu", "1", "--team", "none"), 1, "no team 'none'"),
        (("remove", "ccu"), 1, "has not reported a signal 'ccu'"),
    ],
)
def test_what_can_not_be_is_told(words: tuple[str, ...], status: int, told: str) -> None:
    result = forebay("signals", *words)
    assert (result.exit_code, result.stdout) == (status, "")
    assert told in result.stderr
    assert list_json() == []
