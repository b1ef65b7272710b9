"""`forebay matrix` and `forebay env`, as people use them."""

import json
import subprocess
from pathlib import Path

import dockerfile
import pytest
from command_line import forebay

from forebay.app.bench_files import BenchResult, save_bench


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "forebay.yaml"
    path.write_text(f"data: {{dir: {tmp_path / 'data'}}}\n")
    return path


def test_a_trial_is_recorded_listed_and_forgotten(config: Path) -> None:
    given = ["chat", "--engine", "vllm", "--engine-version", "0.32.0", "--hardware", "cpu", "-c", config]
    unknown = forebay("matrix", "show", *given)
    assert (unknown.exit_code, "was never tested" in unknown.output) == (1, True)
    made = forebay(
        "matrix", "record", *given, "--outcome", "passed", "--figure", "ttft_s=0.25", "--note", "fine"
    )
    assert made.exit_code == 0, made.output
    assert "chat on vllm 0.32.0, cpu: passed" in made.output
    listed = forebay("matrix", "list", "-c", config)
    assert "ttft_s 0.25" in listed.output
    (found,) = json.loads(forebay("matrix", "list", "--json", "-c", config).output)
    assert (found["model"], found["outcome"], found["figures"]) == ("chat", "passed", {"ttft_s": 0.25})
    assert forebay("matrix", "show", *given).exit_code == 0
    forebay("matrix", "record", *given, "--outcome", "failed", "--note", "out of memory")
    failed = forebay("matrix", "show", *given)
    assert (failed.exit_code, "was tested and failed: out of memory" in failed.output) == (1, True)
    assert len(json.loads(forebay("matrix", "list", "--json", "-c", config).output)) == 1
    assert len(json.loads(forebay("matrix", "list", "--json", "--all", "-c", config).output)) == 2
    assert "2 trials removed" in forebay("matrix", "forget", "chat", "-c", config).output


def test_a_benchmark_says_what_was_not_given(config: Path, tmp_path: Path) -> None:
    result = BenchResult(
        target="gpu",
        at_ns=1_790_000_000 * 10**9,
        model="chat",
        engine="vllm",
        engine_version="0.32.0",
        hardware="cuda-h100",
        figures={"output_tokens_per_s": 1200.5},
    )
    save_bench(tmp_path / "data", result)
    made = forebay("matrix", "record", "chat", "--bench", "gpu", "--precision", "fp8", "-c", config)
    assert made.exit_code == 0, made.output
    (trial,) = json.loads(forebay("matrix", "list", "--json", "-c", config).output)
    assert (trial["engine"], trial["engine_version"], trial["hardware"]) == ("vllm", "0.32.0", "cuda-h100")
    assert (trial["precision"], trial["outcome"], trial["source"]) == ("fp8", "passed", "bench")
    assert trial["figures"] == {"output_tokens_per_s": 1200.5}
    assert trial["at"].startswith("2026-09-21")
    missing = forebay("matrix", "record", "chat", "--bench", "nowhere", "-c", config)
    assert (missing.exit_code, "neither a file nor a target" in missing.output) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--outcome", "passed"], "--engine"),
        (["--outcome", "maybe", "--engine", "vllm"], "passed"),
        (["--outcome", "passed", "--engine", "vllm", "--figure", "fast"], "--figure"),
        (["--outcome", "passed", "--engine", "vllm", "--figure", "a=nan"], "no finite number"),
    ],
)
def test_what_is_no_trial_is_not_used_rightly(config: Path, arguments: list[str], word: str) -> None:
    refused = forebay("matrix", "record", "chat", *arguments, "-c", config)
    assert (refused.exit_code, word in refused.output) == (2, True), refused.output


def test_an_environment_of_llamacpp_is_built_used_and_removed(config: Path, tmp_path: Path) -> None:
    """With the real packages: its smoke inference asks the embedded model."""
    built = forebay("env", "build", "llamacpp", "-c", config)
    assert built.exit_code == 0, built.output
    digest = built.stdout.strip()
    again = forebay("env", "build", "llamacpp", "-c", config)
    assert again.stdout.strip() == digest
    assert "built already" in again.output
    (found,) = json.loads(forebay("env", "list", "--json", "-c", config).stdout)["environments"]
    assert (found["digest"], found["engine"], found["users"]) == (digest, "llamacpp", [])
    assert found["smoke_tokens"] == 1
    assert "xllamacpp==" in forebay("env", "show", digest[:6], "-c", config).output
    assert forebay("env", "verify", "-c", config).exit_code == 0
    python = tmp_path / "data" / "environments" / digest / "bin" / "python"
    subprocess.run([python, "-I", "-c", "import xllamacpp"], check=True)
    (trial,) = json.loads(forebay("matrix", "list", "--json", "-c", config).output)
    assert (trial["model"], trial["outcome"], trial["environment"]) == ("forebay-smoke", "passed", digest)
    assert trial["figures"]["start_s"] > 0
    before = config.read_text()
    manifest = f"{{source: 'embedded:smollm2-135m', engine: {{kind: llamacpp, environment: {digest}}}}}"
    config.write_text(f"{before}deployments: {{chat: {manifest}}}\n")
    kept = forebay("env", "gc", "--yes", "-c", config)
    assert f"kept {digest}: wanted by deployment chat" in kept.output, kept.output
    config.write_text(before)
    shown = forebay("env", "gc", "-c", config)
    assert f"would remove {digest}" in shown.output
    removed = forebay("env", "gc", "--yes", "-c", config)
    assert f"removed {digest}" in removed.output
    assert json.loads(forebay("env", "list", "--json", "-c", config).stdout)["environments"] == []
    assert "nothing to remove" in forebay("env", "gc", "-c", config).output


def test_an_unknown_recipe_names_the_known_ones(config: Path) -> None:
    refused = forebay("env", "build", "vlm", "-c", config)
    assert (refused.exit_code, "llamacpp, vllm-cpu, vllm-cuda" in refused.output) == (1, True)


def test_a_dockerfile_is_printed_that_docker_reads() -> None:
    printed = forebay("env", "dockerfile", "llamacpp")
    assert printed.exit_code == 0
    assert dockerfile.parse_string(printed.stdout)[0].cmd == "FROM"
