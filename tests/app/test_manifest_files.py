"""Files of manifests: which of a folder count, that all mistakes are told at once, and where each stands."""

from pathlib import Path

import pytest

from forebay.app.config import Config, load_config
from forebay.app.config_problems import ConfigInvalid
from forebay.app.manifest_files import FILES_MAX, find_manifest_files, load_manifests

GOOD = "deployments:\n  a:\n    engine: {kind: minilm}\n"


@pytest.fixture
def config(tmp_path: Path) -> Config:
    file = tmp_path / "forebay.yaml"
    file.write_text("pools: {taken: {}}\ndeployments: {of-file: {engine: {kind: minilm}}}\n")
    return load_config(file, {})


def refuse(config: Config, *places: Path) -> list[str]:
    with pytest.raises(ConfigInvalid) as caught:
        load_manifests([str(place) for place in places], config)
    return [problem.render() for problem in caught.value.problems]


def test_files_folders_and_documents_add_up(tmp_path: Path, config: Config) -> None:
    folder = tmp_path / "apps"
    folder.mkdir()
    (folder / "b.yml").write_text(GOOD.replace("  a:", "  b:"))
    (folder / "a.yaml").write_text(f"---\n{GOOD}---\n# nothing\n---\n{GOOD.replace('  a:', '  c:')}")
    (folder / "notes.txt").write_text("not a manifest")
    (tmp_path / "one.yaml").write_text("version: 1\n" + GOOD.replace("  a:", "  d:"))
    found = load_manifests([str(folder), str(tmp_path / "one.yaml")], config)
    assert list(found.deployments) == ["a", "c", "b", "d"]


def test_relative_paths_start_at_the_manifest(tmp_path: Path, config: Config) -> None:
    folder = tmp_path / "apps"
    folder.mkdir()
    file = folder / "a.yaml"
    file.write_text(
        "deployments: {a: {source: m.gguf, launcher: ray, engine: {kind: vllm}, adapters: {x: lora}}}"
    )
    found = load_manifests([str(file)], config).deployments["a"]
    assert (found.source, found.adapters["x"]) == (str(folder / "m.gguf"), folder / "lora")


def test_all_mistakes_of_all_files_are_told_with_their_lines(tmp_path: Path, config: Config) -> None:
    one, two, three = (tmp_path / f"{name}.yaml" for name in ("one", "two", "three"))
    one.write_text(f"{GOOD}---\n\n{GOOD}    teir: quantized\n")
    two.write_text("models: {}\ndeployments:\n  a: {engine: {kind: minilm, threads: many}}\n")
    three.write_text("deployments: [\n")
    told = refuse(config, one, two, three)
    assert any(
        text.startswith(f"{one}:9: deployments.a.teir: unknown key (did you mean `tier`?") for text in told
    )
    assert any(f"{one}:7: deployments.a: stands twice, first in {one}:2" in text for text in told)
    assert any(
        f"{two}:1: models: has no place in a manifest (put it into forebay.yaml" in text for text in told
    )
    assert any(f"{two}:3: deployments.a.engine.threads: must be a whole number" in text for text in told)
    assert any(f"{two}:3: deployments.a: stands twice" in text for text in told)
    assert any(text.startswith(f"{three}:1:") for text in told)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "there is no deployment"),
        ("deploymnts: {}\n", "did you mean `deployments`?"),
        ("version: 1\n", "deployments: is missing"),
        ("deployments: {taken: {engine: {kind: minilm}}}\n", "a pool has that name too"),
        ("deployments: {of-file: {engine: {kind: minilm}}}\n", "stands in forebay.yaml already"),
        ("deployments: {a: {engine: {kind: minilm}, adapters: {x: /}}}\n", "minilm has no LoRA adapters"),
        ("- a\n", "must be a mapping"),
        ("deployments: {a: &a {engine: {kind: minilm}, tier: *a}}\n", "nested too deeply"),
    ],
)
def test_what_is_no_manifest_is_refused(tmp_path: Path, config: Config, text: str, words: str) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(text)
    assert any(words in told for told in refuse(config, file)), refuse(config, file)


def test_places_that_hold_nothing_are_refused(tmp_path: Path, config: Config) -> None:
    (tmp_path / "empty").mkdir()
    assert "holds no file" in refuse(config, tmp_path / "empty")[0]
    assert "no such file" in refuse(config, tmp_path / "gone.yaml")[0]
    big = tmp_path / "big"
    big.mkdir()
    for number in range(FILES_MAX + 1):
        (big / f"{number}.yaml").touch()
    with pytest.raises(ConfigInvalid, match="more than"):
        list(find_manifest_files([str(big)]))
