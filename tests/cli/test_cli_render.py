"""`forebay render`: deployments of forebay.yaml as YAML that Kubernetes' own schemas take."""

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from forebay.cli.main import app
from forebay.cli.render import format_objects

FILE = """
version: 1
launchers:
  default: kubernetes
  kubernetes:
    namespace: models
    images: {llamacpp: "registry.example/engine:1", vllm: "vllm/vllm-openai:v{version}"}
    tolerations: [{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}]
deployments:
  chat:
    source: embedded:smollm2-135m
    engine: {kind: llamacpp}
    replicas: {min: 1, max: 3}
  big:
    source: hf://example/model
    engine: {kind: vllm, version: 0.32.0}
    resources: {gpus: 1.0}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "forebay.yaml"
    path.write_text(FILE)
    return path


def run(config: Path, *words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["render", *words, "--config", str(config)])
    return result.exit_code, result.output


def test_a_deployment_is_printed_as_objects_that_kubernetes_takes(config: Path) -> None:
    code, said = run(config, "chat")
    assert code == 0
    objects: list[dict[str, Any]] = list(yaml.safe_load_all(said))
    assert [each["kind"] for each in objects] == [
        "Deployment",
        "Service",
        "PodDisruptionBudget",
        "HorizontalPodAutoscaler",
    ]
    for each in objects:
        kubernetes_validate.validate(each, "1.34", strict=True)
        assert each["metadata"]["namespace"] == "models"


def test_it_is_printed_for_kserve_too(config: Path) -> None:
    code, said = run(config, "big", "--as", "kserve-llm")
    assert code == 0
    assert yaml.safe_load(said)["spec"]["model"]["uri"] == "hf://example/model"
    code, said = run(config, "chat", "--as", "kserve")
    assert (code, yaml.safe_load(said)["kind"]) == (0, "InferenceService")


@pytest.mark.parametrize(
    ("words", "code", "wrong"),
    [
        (("chat", "--as", "kserve-llm"), 1, "Render it as an InferenceService"),
        (("big",), 1, "LLMInferenceService alone"),
        (("nobody",), 2, "there are big, chat"),
        (("chat", "--as", "helm"), 2, "the forms are kubernetes, kserve, kserve-llm"),
    ],
)
def test_what_can_not_be_rendered_is_said(
    config: Path, words: tuple[str, ...], code: int, wrong: str
) -> None:
    found, said = run(config, *words)
    assert found == code
    assert wrong in " ".join(said.split())


@given(st.dictionaries(st.text(max_size=8), st.text(max_size=12), max_size=4))
def test_all_texts_come_back_as_they_were(found: dict[str, str]) -> None:
    assert list(yaml.safe_load_all(format_objects([found, found]))) == [found, found]


@pytest.mark.parametrize("text", ["12e4567890", "0123456789", "on", "1_000", "0x1f", "2026-11-30", ".5"])
def test_texts_like_numbers_are_quoted_for_readers_of_older_yaml(text: str) -> None:
    assert f"'{text}'" in format_objects([{"revision": text}])
