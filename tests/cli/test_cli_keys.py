"""`forebay keys`: made once, listed without their text, revoked for good."""

import json
from pathlib import Path

import pytest
from command_line import forebay


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FOREBAY_CONFIG", raising=False)


def listed() -> list[dict[str, object]]:
    return json.loads(forebay("keys", "list", "--json").stdout)  # type: ignore[no-any-return]


def test_a_key_alone_goes_to_stdout_so_that_a_script_can_take_it() -> None:
    result = forebay("keys", "create", "nightly batch")
    assert result.exit_code == 0
    assert result.stdout.startswith("fb-")
    assert len(result.stdout.split()) == 1
    assert "only this once" in result.stderr
    assert f"a key of the data folder {Path('.forebay').absolute()}" in result.stderr


def test_a_key_is_listed_without_its_text() -> None:
    forebay("teams", "create", "t")
    forebay("projects", "create", "p", "--team", "t")
    key = json.loads(
        forebay(
            "keys", "create", "n", "--project", "p", "--team", "t", "-m", "gpt-*", "-m", "x", "--json"
        ).stdout
    )
    (entry,) = listed()
    assert {name: entry[name] for name in ("id", "name", "project", "team", "models", "revoked_at")} == {
        "id": key["id"],
        "name": "n",
        "project": "p",
        "team": "t",
        "models": ["gpt-*", "x"],
        "revoked_at": None,
    }
    table = forebay("keys", "list").stdout
    assert key["key"] not in table
    assert key["key"][:8] in table
    assert "gpt-* x" in table


def test_a_revoked_key_stays_in_the_list() -> None:
    key_id = json.loads(forebay("keys", "create", "n", "--json").stdout)["id"]
    result = forebay("keys", "revoke", key_id)
    assert result.exit_code == 0
    assert key_id in result.stdout
    assert listed()[0]["revoked_at"] is not None


def test_the_data_folder_is_private(tmp_path: Path) -> None:
    forebay("keys", "create", "n")
    assert (tmp_path / ".forebay").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / ".forebay" / "forebay.db").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "args",
    [
        ("create", ""),
        ("create", "n", "--project", "a b"),
        ("create", "n", "--team", ""),
        ("create", "n", "-m", ""),
    ],
)
def test_what_can_not_be_done_is_said(args: tuple[str, ...]) -> None:
    result = forebay("keys", *args)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert result.stdout == ""
