"""A deployment on real vLLM is changed under load, and no caller notices."""

import json
import os
import subprocess
import sys
from pathlib import Path

from forebay.engines.environment import BuiltEnvironment

ROOT = Path(__file__).parents[2]


def test_no_request_fails_while_vllm_is_changed(environment: BuiltEnvironment) -> None:
    """Another model, another argument, and the way back: four vLLMs one after the other."""
    del environment  # the script finds it itself; asked for so that it is there
    data = os.environ.get("FOREBAY_TEST_VLLM_DATA", str(ROOT / ".forebay"))
    script = ROOT / "bench" / "rollout.py"
    done = subprocess.run(
        [sys.executable, script, "--engine", "vllm", "--data", data, "--pause-s", "0.3"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert done.stdout, "it measured nothing; what it says of that is on stderr"
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["rollout_failed_requests"] == 0
    assert figures["rollout_requests"] > 50
