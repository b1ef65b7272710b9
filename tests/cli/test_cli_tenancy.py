"""`forebay keys`, `teams`, `projects`, `tokens` and `audit`: rights, rotation, roles, and who did it."""

import getpass
import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from command_line import forebay

from forebay.cli.tenancy import RightsOptions, format_rights, parse_age_s, parse_end
from forebay.cli.terminal import BadOption, Outcome
from forebay.core.keys import Rights

RIGHTS = (
    *("--model", "gpt-*", "--model", "x", "--endpoint", "embeddings", "--region", "eu", "--region", "us"),
    *("--tier-max", "quantized", "--context-max", "1000", "--output-max", "50"),
)
AS_JSON = {
    "models": ["gpt-*", "x"],
    "endpoints": ["embeddings"],
    "regions": ["eu", "us"],
    "tier_max": "quantized",
    "context_max_tokens": 1000,
    "output_max_tokens": 50,
}
FREE = {
    "models": ["*"],
    "endpoints": [],
    "regions": [],
    "tier_max": None,
    "context_max_tokens": None,
    "output_max_tokens": None,
}


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FOREBAY_CONFIG", raising=False)


def ask(*words: str) -> Any:
    result = forebay(*words, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def fails(*words: str, status: Outcome = Outcome.PROBLEM) -> str:
    result = forebay(*words)
    assert (result.exit_code, result.stdout) == (status, ""), result.output
    assert result.stderr.startswith("error: ")
    return result.stderr


def rights_of(shown: dict[str, Any]) -> dict[str, Any]:
    return {name: shown[name] for name in FREE}


def test_a_key_is_made_with_all_its_rights_and_shown_with_its_projects() -> None:
    forebay("teams", "create", "web")
    forebay("projects", "create", "search", "--team", "web", "--region", "eu")
    made = ask(
        *("keys", "create", "n", "--team", "web", "--project", "search"),
        *RIGHTS,
        *("--priority", "batch", "--expires", "90d"),
    )
    assert rights_of(made) == AS_JSON
    days = datetime.fromisoformat(made["expires_at"]) - datetime.now(UTC)
    assert 89 <= days.total_seconds() / 86_400 <= 90
    shown = ask("keys", "show", made["id"])
    plaintext = made.pop("key")
    assert shown == {**made, "project_rights": {**FREE, "regions": ["eu"]}}
    assert made["priority"] == "batch"
    text = forebay("keys", "show", made["id"]).stdout
    assert plaintext.startswith("fb-")
    assert plaintext not in text
    for said in ("gpt-* x", "regions eu us", "up to tier quantized", "context 1000", "output 50", "batch"):
        assert said in text
    assert "regions eu" in text.rpartition("its project's")[2]


def test_a_key_is_rotated_and_the_old_one_ends_later() -> None:
    old = ask("keys", "create", "n", *RIGHTS)
    result = forebay("keys", "rotate", old["id"], "--overlap", "2h")
    assert result.exit_code == 0
    assert result.stdout.startswith("fb-")
    assert old["id"] in result.stderr
    listed = {key["id"]: key for key in ask("keys", "list")}
    (new,) = [key for key in listed.values() if key["id"] != old["id"]]
    assert new["rotated_from"] == old["id"]
    assert rights_of(new) == AS_JSON
    ends = datetime.fromisoformat(listed[old["id"]]["expires_at"]).timestamp()
    assert abs(ends - time.time() - 7200) < 60
    assert new["id"] in fails("keys", "rotate", old["id"])
    again = ask("keys", "rotate", new["id"], "--overlap", "0", "--expires", "2100-01-01")
    assert again["expires_at"] == "2100-01-01T00:00:00Z"
    assert "in the place of" in forebay("keys", "show", again["id"]).stdout


def test_a_project_keeps_what_is_not_named_and_an_empty_text_lifts_a_limit() -> None:
    forebay("projects", "create", "p", *RIGHTS)
    assert "already" in fails("projects", "create", "p")

    def rights() -> dict[str, Any]:
        (found,) = [each for each in ask("projects", "list") if each["name"] == "p"]
        return rights_of(found)

    assert rights() == AS_JSON
    forebay("projects", "set", "p", "--output-max", "7")
    assert rights() == {**AS_JSON, "output_max_tokens": 7}
    lift = (*("--model", "", "--endpoint", "", "--region", "", "--tier-max", ""), *("--context-max", "0"))
    forebay("projects", "set", "p", *lift, "--output-max", "0")
    assert rights() == FREE
    text = forebay("projects", "list").stdout
    assert "unlimited" in text
    assert "forebay projects create" in fails("projects", "set", "none")


def test_teams_are_listed_with_what_they_have() -> None:
    forebay("teams", "create", "web")
    assert forebay("teams", "create", "web").exit_code == 0
    forebay("projects", "create", "a", "--team", "web")
    forebay("projects", "create", "b", "--team", "web")
    forebay("keys", "create", "n", "--team", "web", "--project", "a")
    gone = ask("keys", "create", "n", "--team", "web", "--project", "a")["id"]
    forebay("keys", "revoke", gone)
    teams = {team["name"]: (team["projects"], team["keys"]) for team in ask("teams", "list")}
    assert teams == {"default": (1, 0), "web": (2, 1)}
    assert "web" in forebay("teams", "list").stdout


def test_a_token_is_made_listed_and_revoked() -> None:
    made = ask("tokens", "create", "bot", "--role", "operator", "--expires", "1w")
    assert made["token"].startswith("fba-")
    result = forebay("tokens", "create", "someone")
    assert result.stdout.startswith("fba-")
    assert "viewer" in result.stderr, "the least that there is"
    listed = forebay("tokens", "list").stdout
    assert made["token"] not in listed
    assert made["id"] in listed
    assert forebay("tokens", "revoke", made["id"]).exit_code == 0
    assert ask("tokens", "list")[0]["revoked_at"] is not None


def test_the_audit_shows_who_changed_what() -> None:
    key_id = ask("keys", "create", "n")["id"]
    forebay("keys", "revoke", key_id)
    forebay("projects", "set", "default", "--region", "eu")
    events = ask("audit")
    assert [event["action"] for event in events] == ["project.change", "key.revoke", "key.create"]
    assert {(event["actor"]["id"], event["actor"]["name"]) for event in events} == {
        ("command-line", getpass.getuser())
    }
    assert (events[0]["before"]["regions"], events[0]["after"]["regions"]) == ([], ["eu"])
    assert [event["subject"] for event in ask("audit", "--subject", key_id)] == [key_id] * 2
    text = forebay("audit", "--limit", "1")
    assert 'regions: [] → ["eu"]' in text.stdout
    assert "older" in text.stderr
    assert "revoked_ns: none → 20" in forebay("audit", "--subject", key_id).stdout


@pytest.mark.parametrize(
    "words",
    [
        ("keys", "create", "n", "--project", "none"),
        ("keys", "create", "n", "--team", "none"),
        ("keys", "show", "key_none"),
        ("keys", "set", "key_none", "--name", "n"),
        ("keys", "rotate", "key_none"),
        ("projects", "create", "p", "--team", "none"),
        ("projects", "set", "none"),
        ("tokens", "revoke", "tok_none"),
    ],
)
def test_what_is_not_there_is_said(words: tuple[str, ...]) -> None:
    forebay("teams", "create", "web")
    fails(*words)
    assert ask("keys", "list") == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("keys", "create", "n", "--model="), "--model: "),
        (("keys", "create", "n", "--tier-max", "cloud"), "--tier-max: "),
        (("keys", "create", "n", "--tier-max", ""), "--tier-max: "),
        (("keys", "create", "n", "--endpoint", "chat"), "--endpoint: "),
        (("keys", "create", "n", "--region", ""), "--region: "),
        (("keys", "create", "n", "--output-max", "0"), "--output-max: "),
        (("keys", "create", "n", "--context-max", "-5"), "--context-max: "),
        (("keys", "create", "n", "--priority", "urgent"), "--priority: "),
        (("keys", "create", "n", "--expires", "soon"), "2027-01-31"),
        (("keys", "create", "n", "--expires", "9999999d"), "2027-01-31"),
        (("keys", "create", "n", "--expires", "2001-01-01"), "--expires: "),
        (("keys", "create", "n", "--expires", "9999-12-31"), "--expires: "),
        (("keys", "rotate", "key_none", "--overlap", "long"), "0, 90m, 24h, 7d, 2w"),
        (("keys", "rotate", "key_none", "--overlap", "9000w"), "--overlap: "),
        (("keys", "rotate", "key_none", "--expires", "9999999d"), "2027-01-31"),
        (("teams", "create", "a b"), "'a b'"),
        (("projects", "create", ""), "project"),
        (("projects", "set", "default", "--output-max", "-1"), "--output-max: "),
        (("tokens", "create", ""), "name"),
        (("tokens", "create", "t", "--role", "king"), "viewer"),
    ],
)
def test_an_option_that_means_nothing_is_said_by_its_name(words: tuple[str, ...], said: str) -> None:
    forebay("teams", "create", "web")
    assert said in fails(*words, status=Outcome.USAGE)
    assert ask("keys", "list") == []


@pytest.mark.parametrize("kind", ["teams", "projects", "keys", "tokens", "audit"])
def test_looking_makes_no_data_folder(kind: str, tmp_path: Path) -> None:
    said = fails(*((kind,) if kind == "audit" else (kind, "list")))
    assert str(tmp_path / ".forebay") in said
    assert "forebay up" in said
    assert list(tmp_path.iterdir()) == []


def test_changing_what_can_not_be_there_makes_no_data_folder(tmp_path: Path) -> None:
    for words in (("keys", "revoke", "k"), ("keys", "set", "k"), ("projects", "set", "default")):
        assert "forebay up" in fails(*words)
    assert list(tmp_path.iterdir()) == []


# --- changing a key -----------------------------------------------------------------------------------------


def test_of_a_key_only_what_is_named_changes_and_an_empty_text_lifts_a_limit() -> None:
    made = ask("keys", "create", "n", *RIGHTS, "--priority", "batch", "--expires", "2100-01-01")
    key_id = made["id"]
    result = forebay("keys", "set", key_id, "--output-max", "7", "--name", "m")
    assert result.exit_code == 0
    assert f"{key_id} (m): " in result.stdout
    assert "output 7" in result.stdout
    shown = {name: value for name, value in made.items() if name != "key"}
    expected = {**shown, "output_max_tokens": 7, "name": "m"}
    assert ask("keys", "list") == [expected]
    changed = ask("keys", "set", key_id, "--priority", "standard", "--expires", "2101-01-01", "-m", "y")
    expected |= {"priority": "standard", "expires_at": "2101-01-01T00:00:00Z", "models": ["y"]}
    assert changed == expected
    lift = (*("--model", "", "--endpoint", "", "--region", "", "--tier-max", ""), *("--context-max", "0"))
    freed = ask("keys", "set", key_id, *lift, "--output-max", "0", "--expires", "never")
    assert rights_of(freed) == FREE
    assert freed["expires_at"] is None
    (latest, *_, first) = ask("audit", "--subject", key_id)
    assert (latest["action"], first["action"]) == ("key.change", "key.create")
    assert (latest["before"]["models"], latest["after"]["models"]) == (["y"], ["*"])


def test_a_change_that_is_not_usable_changes_nothing() -> None:
    key_id = ask("keys", "create", "n", *RIGHTS)["id"]
    for option, value in (("--tier-max", "cloud"), ("--expires", "2001-01-01"), ("--output-max", "-1")):
        assert f"{option}: " in fails("keys", "set", key_id, option, value, status=Outcome.USAGE)
    assert "name" in fails("keys", "set", key_id, "--name", "", status=Outcome.USAGE)
    assert "2027-01-31" in fails("keys", "set", key_id, "--expires", "soon", status=Outcome.USAGE)
    assert len(ask("audit")) == 1
    forebay("keys", "revoke", key_id)
    assert "revoked" in fails("keys", "set", key_id, "--name", "m")


def test_ends_are_ages_or_moments() -> None:
    assert parse_end(None, 5) is None
    assert parse_end("90m", 5) == 5 + 5400 * 10**9
    assert parse_end("2w", 0) == 14 * 86_400 * 10**9
    assert parse_end("1970-01-02", 0) == 86_400 * 10**9
    assert parse_end("1970-01-01T01:00:00+01:00", 7) == 0
    assert [parse_age_s("--overlap", text) for text in ("0", "5s", "1D")] == [0, 5, 86_400]
    for text in ("", "m", "1y", "-1d", "1.5h", "9999999d"):
        with pytest.raises(BadOption):
            parse_age_s("--overlap", text)


def test_rights_are_told_in_words_and_none_is_nothing() -> None:
    assert format_rights(Rights()) == ""
    assert RightsOptions().apply(Rights(regions=("eu",))) == Rights(regions=("eu",))
    assert RightsOptions().make() == Rights()
