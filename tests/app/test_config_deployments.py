"""What `forebay.yaml` says of deployments, and what becomes of a mistake in it."""

from pathlib import Path
from typing import Any

import pytest

from forebay.app.config import check_config, load_config
from forebay.app.deployment_compile import compile_deployments
from forebay.engines.deployment import Deployment, LauncherKind, Strategy

FILE = """
deployments:
  support:
    source: embedded:smollm2-135m
    version: "1"
    engine:
      kind: llamacpp
      slots: 8
      context_tokens: 1024
      arguments: {stall-s: 30, drain-s: 2.5}
    speculation: {method: ngram, tokens: 5}
    precision: q8
    replicas: {min: 2}
    warm_up: [Hello, Bye]
    rollout: {strategy: blue-green, steps: [], step_s: 0}
"""


def load(folder: Path, text: str) -> tuple[Deployment, ...]:
    (folder / "forebay.yaml").write_text(text)
    config = load_config(folder / "forebay.yaml", {})
    return compile_deployments(config.deployments, config.launchers)


def test_a_manifest_becomes_what_launchers_know(tmp_path: Path) -> None:
    (found,) = load(tmp_path, FILE)
    assert (found.name, found.model, found.version, found.precision) == ("support", "support", "1", "q8")
    assert (found.replicas_min, found.replicas_max) == (2, 2)
    assert (found.spec.name, found.spec.kind, found.spec.slots) == ("support", "llamacpp", 8)
    assert found.spec.arguments == {"stall-s": 30, "drain-s": 2.5}
    assert found.spec.speculation is not None
    assert found.spec.speculation.tokens == 5
    assert (found.rollout.strategy, found.rollout.steps) == (Strategy.BLUE_GREEN, ())
    assert found.warm_up == ("Hello", "Bye")


def test_a_manifest_does_not_change_from_a_laptop_to_a_cluster(tmp_path: Path) -> None:
    (laptop,) = load(tmp_path, FILE)
    assert (laptop.launcher, laptop.hardware, laptop.resources.gpus) == (LauncherKind.LOCAL, "cpu", 0)
    launchers = "launchers: {default: kubernetes, hardware: h100, resources: {cpus: 8, gpus: 1}}\n"
    (cluster,) = load(tmp_path, FILE + launchers)
    assert (cluster.launcher, cluster.hardware) == (LauncherKind.KUBERNETES, "h100")
    assert (cluster.resources.cpus, cluster.resources.gpus) == (8, 1)
    (own,) = load(tmp_path, FILE + "    launcher: local\n    hardware: epyc\n" + launchers)
    assert (own.launcher, own.hardware) == (LauncherKind.LOCAL, "epyc")


def test_a_file_of_deployments_alone_starts_no_embedded_engine(tmp_path: Path) -> None:
    (tmp_path / "forebay.yaml").write_text(FILE)
    config = load_config(tmp_path / "forebay.yaml", {})
    assert (config.engines, config.models) == ({}, {})


KEY = "deployments.support"
SOURCE = "source: embedded:smollm2-135m"
MISTAKES = [
    ("slots: 8", "slot: 8", 8, f"{KEY}.engine.slot", "did you mean `slots`"),
    ("precision: q8", "precison: q8", 12, f"{KEY}.precison", "did you mean `precision`"),
    ("min: 2", "min: 3, max: 2", 13, f"{KEY}.replicas", "less than `min`"),
    ("min: 2", "min: two", 13, f"{KEY}.replicas.min", "whole number"),
    ("kind: llamacpp", "kind: lamacpp", 7, f"{KEY}.engine.kind", "did you mean `llamacpp`"),
    ("steps: []", "steps: [0.5, 0.1]", 15, f"{KEY}.rollout.steps", "must rise"),
    ("steps: []", "steps: [50]", 15, f"{KEY}.rollout.steps[0]", "0.5"),
    ("  support:", "  Sup port:", 3, "deployments.Sup port", "usable name"),
    ("stall-s: 30", "--stall-s: 30", 10, "", "without the dashes"),
    ("stall-s: 30", "stall-s: {a: b}", 10, f"{KEY}.engine.arguments.stall-s", "mapping"),
    ("stall-s: 30", "threads: 3", 10, f"{KEY}.engine.arguments.threads", "engine.threads"),
    ("stall-s: 30", "port: 3", 10, f"{KEY}.engine.arguments.port", "Forebay chooses"),
    (SOURCE, "source: embedded:other", 4, f"{KEY}.source", "embedded"),
    (SOURCE, "source: gone.gguf", 4, f"{KEY}.source", "gone.gguf"),
    (SOURCE, "source: registry:a/b@1", 4, f"{KEY}.source", "name of a registered model"),
    (SOURCE, "source: registry:chat", 4, f"{KEY}.source", "names no version"),
    (SOURCE, "source: registry:chat@champion", 4, f"{KEY}.source", "use `forebay apply`"),
    (SOURCE, "region: eu", 3, KEY, "write `source:`"),
    ("method: ngram", "method: draft", 11, f"{KEY}.speculation", "needs the `source`"),
    ("stall-s: 30", "stal-s: 30", 10, f"{KEY}.engine.arguments.stal-s", "stall-s"),
    ("stall-s: 30", "stall-s: soon", 10, f"{KEY}.engine.arguments.stall-s", "number"),
    ("stall-s: 30", f"stall-s: {1 << 63}", 10, f"{KEY}.engine.arguments.stall-s", "64 bits"),
    ("stall-s: 30", f"stall-s: [{1 << 70}]", 10, f"{KEY}.engine.arguments.stall-s", "a list of at most"),
    ("precision: q8", "adapters: {support: lora}", 12, f"{KEY}.adapters.support", "the model itself"),
    ("precision: q8", "adapters: {sql: lora}", 12, f"{KEY}.adapters.sql", "no adapter at"),
    ("precision: q8", "adapters: {sql: lora}", 12, f"{KEY}.adapters", "run `kind: vllm`"),
    ("method: ngram", f"method: draft, {SOURCE}", 11, f"{KEY}.speculation.method", "`method: ngram`"),
    ("precision: q8", "tier: provisoned", 12, f"{KEY}.tier", "did you mean `provisioned`"),
    ("precision: q8", "resources: {cpus: 999}", 12, f"{KEY}.resources.cpus", "this machine has"),
    ("precision: q8", "resources: {gpus: 64}", 12, f"{KEY}.resources.gpus", "launcher: ray"),
    ("precision: q8", "endpoints: [embeddings]", 12, f"{KEY}.endpoints[0]", "does not answer"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "line", "key", "words"), MISTAKES)
def test_a_mistake_says_what_where_and_how_to_mend_it(
    tmp_path: Path, old: str, new: str, line: int, key: str, words: str
) -> None:
    assert old in FILE
    (tmp_path / "forebay.yaml").write_text(FILE.replace(old, new))
    config, problems = check_config(tmp_path / "forebay.yaml", {})
    assert config is None
    told = [each for each in problems if words in each.render()]
    assert told, [each.render() for each in problems]
    assert told[0].line == line
    assert key in told[0].render()


def test_weights_elsewhere_are_not_looked_for_here(tmp_path: Path) -> None:
    text = FILE.replace("embedded:smollm2-135m", "/models/support.gguf").replace(
        "precision: q8", "resources: {gpus: 8}"
    )
    (found,) = load(tmp_path, text + "    launcher: kubernetes\n")
    assert found.spec.model == "/models/support.gguf"


@pytest.mark.parametrize(
    "section", ["pools: {support: {replicas: []}}", "engines: {support: {kind: minilm}}"]
)
def test_a_deployment_has_its_name_alone(tmp_path: Path, section: str) -> None:
    (tmp_path / "forebay.yaml").write_text(f"{FILE}\n{section}\nmodels: {{}}\n")
    config, problems = check_config(tmp_path / "forebay.yaml", {})
    assert config is None
    assert any("has that name too" in each.message and each.line == 3 for each in problems)


def test_a_model_of_the_file_may_name_deployments(tmp_path: Path) -> None:
    models: dict[str, Any] = {"plus": "targets: [{pool: support}]", "minus": "targets: [{pool: suport}]"}
    for name, targets in models.items():
        (tmp_path / "forebay.yaml").write_text(
            f"{FILE}\nmodels:\n  {name}:\n    endpoints: [chat/completions]\n    {targets}\n"
            "    fallbacks: [support]\n"
        )
        config, problems = check_config(tmp_path / "forebay.yaml", {})
        assert (config is not None) is (name == "plus"), problems
