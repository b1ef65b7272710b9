"""What the check of arguments says, vLLM's own parser says too."""

import json
import os
import subprocess
from pathlib import Path

from forebay.engines.arguments import check_arguments
from forebay.engines.environment import BuiltEnvironment
from forebay.engines.model import Argument, EngineSpec, Speculation
from forebay.engines.vllm_options import compose_vllm_options, format_argument

TRIED: tuple[dict[str, Argument], ...] = (
    {"enforce-eager": True},
    {"enforce-eager": False},
    {"enforce_eager": True},
    {"dtype": "float32"},
    {"dtype": "float31"},
    {"enforce-eagre": True},
    {"kv-cache-memory-bytes": 1 << 26},
    {"kv-cache-memory-bytes": "64M"},
    {"kv-cache-memory-bytes": "64Q"},
    {"max-num-batched-tokens": "8k"},
    {"max-num-batched-tokens": 1.5},
    {"gpu-memory-utilization": 0.8},
    {"gpu-memory-utilization": "much"},
    {"tool-call-parser": "hermes", "enable-auto-tool-choice": True},
    {"hf-overrides": '{"rope_theta": 1}'},
    {"hf-overrides.rope_theta": 1},
    {"limit-mm-per-prompt": '{"image": 2}'},
    {"limit-mm-per-prompt": "{"},
    {"ignore-patterns": ("a/*", "b/*")},
    {"seed": 7},
    {"seed": "seven"},
    {"enable-prefix-caching": True},
    {"shutdown-timeout": 5},
    {"structured-outputs-config": '{"backend":"xgrammar","disable_any_whitespace":true}'},
    {"nobody-has-this": 1},
)


def parse(python: Path, lines: list[list[str]]) -> list[bool]:
    quiet = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [python, "-I", Path(__file__).with_name("parse_arguments.py")],
        input=json.dumps(lines),
        capture_output=True,
        text=True,
        env={**os.environ, **quiet},
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: list[bool] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_the_check_and_the_engine_agree(python: Path, environment: BuiltEnvironment) -> None:
    whole = EngineSpec(
        name="a name",
        kind="vllm",
        model="m",
        adapters={"one": "/lora/one", "two": "/lora/two"},
        speculation=Speculation(method="ngram"),
    )
    lines = [
        [part for name, value in each.items() for part in format_argument(name, value)] for each in TRIED
    ]
    *taken, is_whole_taken = parse(python, [*lines, list(compose_vllm_options(whole))])
    said = [not check_arguments("vllm", environment.version, each) for each in TRIED]
    differing = [each for each, one, other in zip(TRIED, said, taken, strict=True) if one != other]
    assert differing == []
    assert False in said
    assert is_whole_taken
