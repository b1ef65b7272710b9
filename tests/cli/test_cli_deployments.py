"""`forebay apply`, `diff`, `deployments`, `rollback`, `delete` where nothing runs: what they say and do."""

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from command_line import forebay, in_terminal

FILE = """
deployments:
  vectors:
    engine: {kind: minilm, threads: 1}
    version: "1"
  words:
    source: embedded:smollm2-135m
    engine: {kind: llamacpp, slots: 2}
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deploy.yaml").write_text(FILE)
    return tmp_path


def apply(*args: str) -> Any:
    return forebay("apply", "-f", "deploy.yaml", "--allow-untested", *args)


def edit(old: str, new: str) -> None:
    file = Path("deploy.yaml")
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))


def listed() -> dict[str, dict[str, Any]]:
    views = json.loads(forebay("deployments", "--json").stdout)["data"]
    return {view["name"]: view for view in views}


def test_what_is_applied_is_listed(here: Path) -> None:
    assert "nothing is deployed" in forebay("deployments").stdout
    done = apply()
    assert done.exit_code == 0, done.output
    assert done.stdout == "vectors: created, generation 1\nwords: created, generation 1\n"
    assert "it is rolled out when `forebay up` starts" in done.stderr
    assert "untested" in done.stderr
    assert set(listed()) == {"vectors", "words"}
    table = forebay("deployments").stdout.splitlines()
    assert table[0].split()[:3] == ["Name", "State", "Ready"]
    assert [line.split()[0] for line in table[1:]] == ["vectors", "words"]
    one = forebay("deployments", "words").stdout
    assert "generation 1, applied" in one
    assert "slots: 2" in one
    assert apply().stdout == "vectors: unchanged, generation 1\nwords: unchanged, generation 1\n"
    shown = json.loads(apply("--json").stdout)
    assert shown[0] == {"name": "vectors", "outcome": "unchanged", "generation": 1}


def test_a_mistake_anywhere_applies_nothing(here: Path) -> None:
    edit("slots: 2", "slot: 2")
    refused = apply()
    assert refused.exit_code == 1
    assert (
        "deploy.yaml:8: deployments.words.engine.slot: unknown key (did you mean `slots`?)" in refused.stderr
    )
    assert listed() == {}


def test_what_nobody_has_tried_needs_to_be_allowed(here: Path) -> None:
    refused = forebay("apply", "-f", "deploy.yaml")
    assert refused.exit_code == 1
    assert "--allow-untested" in refused.stderr
    assert listed() == {}


def test_a_dry_run_and_a_diff_change_nothing_and_say_what_would(here: Path) -> None:
    dry = apply("--dry-run")
    assert dry.exit_code == 0
    assert "vectors: created, revision" in dry.stdout
    assert listed() == {}
    apply()
    same = forebay("diff", "-f", "deploy.yaml")
    assert (same.exit_code, same.stdout) == (0, "")
    edit("slots: 2", "slots: 3")
    edit('version: "1"', 'version: "1"\n    replicas: {min: 2}')
    differs = forebay("diff", "-f", "deploy.yaml")
    assert differs.exit_code == 1
    told = differs.stdout.splitlines()
    assert told[0].startswith("vectors: changed, revision")
    assert told[0].endswith("no replica is replaced")
    assert told[1:3] == ["- replicas.min: 1", "+ replicas.min: 2"]
    assert told[3].endswith("replicas are replaced")
    assert told[4:] == ["- engine.slots: 2", "+ engine.slots: 3"]
    changes = json.loads(forebay("diff", "-f", "deploy.yaml", "--json").stdout)
    assert changes[1]["changes"] == [{"key": "engine.slots", "before": 2, "after": 3}]
    assert listed()["words"]["manifest"]["engine"]["slots"] == 2


def test_a_folder_and_standard_input_are_read_too(here: Path) -> None:
    piped = forebay("apply", "-f", "-", "--allow-untested", input=FILE)
    assert piped.exit_code == 0, piped.output
    assert forebay("diff", "-f", ".").exit_code == 0
    wrong = forebay("apply", "-f", "-", input="deployments: {a: {engine: {kind: lamacpp}}}")
    assert "<stdin>:1: deployments.a.engine.kind" in wrong.stderr


def test_a_rollback_and_a_deletion(here: Path) -> None:
    apply()
    edit("slots: 2", "slots: 3")
    apply()
    back = forebay("rollback", "words")
    assert back.exit_code == 0, back.output
    assert back.stdout.splitlines() == [
        "words: changed, generation 3, rollback to 1",
        "- engine.slots: 3",
        "+ engine.slots: 2",
    ]
    assert forebay("rollback", "words", "--to", "2").stdout.startswith("words: changed, generation 4")
    assert "no generation 9" in forebay("rollback", "words", "--to", "9").stderr
    assert forebay("delete", "words").stdout == "words: deleted, generation 5\n"
    assert forebay("delete", "words").exit_code == 1
    assert set(listed()) == {"vectors"}
    history = forebay("deployments", "words", "--history").stdout.splitlines()
    assert [line.split()[0] for line in history[1:]] == ["5", "4", "3", "2", "1"]
    assert "deleted" in history[1]
    assert "rollback to 1" in history[3]
    assert forebay("deployments", "--history").exit_code == 2
    audit = forebay("audit", "--json").stdout
    assert "deployment.rollback" in audit


def test_what_stands_in_the_file_is_changed_there(here: Path) -> None:
    (here / "forebay.yaml").write_text(FILE)
    assert "stands in forebay.yaml already" in apply().stderr
    for args in (("delete", "words"), ("rollback", "words")):
        refused = forebay(*args)
        assert refused.exit_code == 1
        assert "forebay.yaml" in refused.stderr
    assert listed()["words"]["origin"] == "file"


def test_waiting_is_for_where_something_runs(here: Path) -> None:
    waited = apply("--wait")
    assert waited.exit_code == 1
    assert "forebay up" in waited.stderr
    assert set(listed()) == {"vectors", "words"}


def test_a_diff_has_colours_in_a_terminal(here: Path) -> None:
    apply()
    edit("slots: 2", "slots: 3")
    with in_terminal("diff", "-f", "deploy.yaml", cwd=here) as terminal:
        terminal.wait_for("engine.slots", 2)
        assert terminal.wait() == 1
        terminal.drain()
        assert "\x1b[31m- engine.slots: 2\x1b[0m" in terminal.written
        assert "\x1b[32m+ engine.slots: 3\x1b[0m" in terminal.written


def test_the_walk_of_the_documentation(here: Path) -> None:
    """Each command does what it is there for; `forebay` runs in this process, the rest in a shell."""
    text = (Path(__file__).parents[2] / "docs" / "deployments.md").read_text()
    walk = text.partition("## Apply, compare, go back")[2].partition("```bash\n")[2].partition("```")[0]
    document, _, rest = walk.partition("END\nforebay")
    subprocess.run(["bash", "-euc", f"{document}END\n"], check=True, cwd=here)
    done = []
    for line in f"forebay{rest}".splitlines():
        if not line.startswith("forebay"):
            subprocess.run(["bash", "-euc", line], check=True, cwd=here)
            continue
        command, _, otherwise = line.partition(" || ")
        result = forebay(*shlex.split(command)[1:])
        assert result.exit_code == (1 if otherwise else 0), result.output
        done.append(result.stdout)
    assert len(done) == 8
    dry, applied, differs, again, table, history, back, gone = done
    assert dry.startswith("support: created, revision")
    assert (applied, again) == (*("support: created, generation 1\n", "support: changed, generation 2\n"),)
    assert "- engine.slots: 2\n+ engine.slots: 4\n" in differs
    assert "support" in table
    assert len(history.splitlines()) == 3
    assert back.startswith("support: changed, generation 3, rollback to 1\n")
    assert gone == "support: deleted, generation 4\n"
