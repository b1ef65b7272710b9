"""`forebay models`, as people use it: from a first version to the last byte that is collected."""

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import forebay


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "forebay.yaml"
    path.write_text(f"data: {{dir: {tmp_path / 'data'}}}\n")
    return path


def models(config: Path, *words: object, status: int = 0) -> str:
    result = forebay("models", *words, "-c", config)
    assert result.exit_code == status, result.output
    return result.output


def read(config: Path, *words: object) -> Any:
    return json.loads(models(config, *words, "--json"))


def test_a_model_from_its_first_version_to_its_last_byte(config: Path, tmp_path: Path) -> None:
    assert "no model is registered here" in models(config, "list")
    (tmp_path / "one.gguf").write_bytes(b"GGUF one")
    (tmp_path / "two.gguf").write_bytes(b"GGUF two")
    told = ("--alias", "champion", "--tag", "precision=q4", "--description", "the first")
    first = read(config, "register", "chat", tmp_path / "one.gguf", *told)
    assert (first["version"], first["is_new"], first["aliases"]) == (1, True, ["champion"])
    assert "that content is chat@1 already" in models(config, "register", "chat", tmp_path / "one.gguf")
    assert models(config, "register", "chat", tmp_path / "two.gguf").startswith("chat@2 ")

    assert "champion=1" in models(config, "list")
    assert "precision=q4" in models(config, "show", "chat")
    shown = read(config, "show", "chat@champion")
    assert Path(shown["path"]).read_bytes() == b"GGUF one"
    assert (shown["used_by"], shown["label"], shown["origin"]) == ([], "chat-v1", str(tmp_path / "one.gguf"))
    whole = models(config, "show", "chat@1")
    assert "the first" in whole
    assert shown["digest"] in whole

    assert "means version 2" in models(config, "alias", "chat", "champion", 2)
    assert "means version 1" in models(config, "alias", "chat", "champion", "--rollback")
    assert [move["version"] for move in read(config, "alias", "chat", "champion")] == [1, 2, 1]
    assert "rollback" in models(config, "alias", "chat", "champion")
    assert "x=y" in models(config, "edit", "chat@champion", "--tag", "x=y", "--untag", "precision")
    assert read(config, "show", "chat@1")["tags"] == {"x": "y"}

    assert "in use by the alias champion" in models(config, "delete", "chat@1", status=1)
    assert "removed" in models(config, "alias", "chat", "champion", "--remove")
    assert "deleted" in models(config, "delete", "chat@1")
    assert "gives 8 B back" in models(config, "gc")
    assert len(read(config, "gc", "--yes")["removed"]) == 2
    assert "there is nothing to remove" in models(config, "gc")
    assert "whole" in models(config, "verify", "chat@2")
    audit = json.loads(forebay("audit", "--json", "-c", config).output)
    assert {event["action"] for event in audit if event["action"].startswith("model.")} == {
        *("model.register", "model.edit", "model.delete", "model.alias", "model.alias_remove")
    }


def test_damage_is_told_with_its_files(config: Path, tmp_path: Path) -> None:
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf/config.json").write_text("{}")
    version = read(config, "register", "chat", tmp_path / "hf")
    place = Path(read(config, "show", "chat@1")["path"]) / "config.json"
    place.chmod(0o644)
    place.write_text("{ }")
    assert "changed: config.json" in models(config, "verify", status=1)
    result = forebay("models", "verify", "chat", "--json", "-c", config)
    assert json.loads(result.output)["chat@1"]["changed"] == ["config.json"]
    assert read(config, "register", "chat", tmp_path / "hf")["digest"] == version["digest"]
    assert "whole" in models(config, "verify")


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("register", "a/b", "x"), 1, "name of a registered model"),
        (("register", "chat", "/nowhere/at/all"), 1, "there is nothing at /nowhere/at/all"),
        (("register", "chat", "forebay.yaml", "--alias", "latest"), 1, "would move by itself"),
        (("register", "chat", "forebay.yaml", "--tag", "x"), 2, "can't understand --tag x"),
        (("show", "chat"), 1, "no model 'chat' is registered here"),
        (("show", "chat@"), 1, "names no version"),
        (("alias", "chat", "champion"), 1, "no model 'chat' is registered here"),
        (("alias", "chat", "champion", "1", "--remove"), 2, "and not two of them"),
        (("edit", "chat@1"), 2, "nothing is to be changed"),
        (("delete", "chat@champion"), 2, "by its alias"),
    ],
)
def test_what_is_asked_wrongly_is_told(config: Path, words: tuple[str, ...], status: int, said: str) -> None:
    assert said in " ".join(models(config, *words, status=status).split())
