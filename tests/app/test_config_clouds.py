"""Addresses and regions of targets at Azure and Bedrock: each mistake is told at its line."""

from pathlib import Path

import pytest

from forebay.app.config import ConfigProblem, check_config, load_config
from forebay.app.config_problems import Severity
from forebay.app.snapshot import compile_snapshot

AZURE = "dialect: azure, url: 'https://name.openai.azure.com"
BEDROCK = "dialect: bedrock, url: https://bedrock-runtime.eu-central-1.amazonaws.com"
ELSEWHERE = "dialect: bedrock, url: https://bedrock.example"


def write(folder: Path, target: str) -> Path:
    file = folder / "forebay.yaml"
    file.write_text(f"models:\n  m:\n    endpoints: [chat/completions]\n    targets:\n      - {{{target}}}\n")
    return file


def problems_of(folder: Path, target: str) -> tuple[ConfigProblem, ...]:
    return check_config(write(folder, target), {})[1]


@pytest.mark.parametrize(
    "target",
    [
        f"{AZURE}'",
        f"{AZURE}/openai/v1'",
        f"{AZURE}?api-version=2024-10-21'",
        f"{AZURE}/openai/v1/?api-version=preview'",
        BEDROCK,
        f"{ELSEWHERE}, region: eu-central-1",
    ],
)
def test_addresses_that_are_well(tmp_path: Path, target: str) -> None:
    assert problems_of(tmp_path, target) == ()


def test_the_version_of_the_api_reaches_the_worker(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, f"{AZURE}/?api-version=2024-10-21'"), {})
    target = compile_snapshot(config, [], {}).table.routes[0].targets[0]
    assert (target.dialect, target.url) == (
        "azure",
        "https://name.openai.azure.com?api-version=2024-10-21",
    )


@pytest.mark.parametrize(
    ("target", "severity", "message"),
    [
        (f"{AZURE}?api-version=2024-10-21&sig=secret'", Severity.ERROR, "no query"),
        (f"{AZURE}?key=secret'", Severity.ERROR, "no query"),
        ("url: 'https://a.example/v1?api-version=1'", Severity.ERROR, "no query"),
        (f"{ELSEWHERE}", Severity.WARNING, "does not say the AWS region"),
        (f"{ELSEWHERE}, region: frankfurt", Severity.WARNING, "does not say the AWS region"),
    ],
)
def test_mistakes_are_told_where_they_stand(
    tmp_path: Path, target: str, severity: Severity, message: str
) -> None:
    found = problems_of(tmp_path, target)
    assert [(each.severity, each.line) for each in found] == [(severity, 5)]
    assert message in found[0].message
    assert "secret" not in found[0].message + found[0].hint
