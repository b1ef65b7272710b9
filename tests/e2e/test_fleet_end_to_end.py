"""A whole Forebay over engines: a real llama.cpp tells its load, and a new replica is warmed up first."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from whole import Whole, running, wait_until

from forebay.engines.load_names import EngineKind
from forebay.testing.engines import FakeEngine
from forebay.testing.recorded import RecordedRequest
from forebay.testing.threaded import ThreadedUpstream

pytestmark = pytest.mark.e2e
WARM_UP = "Are you warm?"
CONFIG = """
gateway: {{port: 0, workers: 1, drain: {{deadline_s: 5}}}}
control: {{port: 0}}
pools:
  gpu:
    tier: provisioned
    engine: vllm
    warm_up: {{requests: 2, prompt: "Are you warm?", timeout_s: 60}}
    replicas: [{replicas}]
models:
  assistant:
    endpoints: [chat/completions]
    targets: [{{pool: gpu, model: there}}]
    routing: {{affinity: none, order: load}}
  small: {{endpoints: [chat/completions], targets: [{{engine: smollm2-135m}}]}}
"""


def read_fleet(whole: Whole) -> dict[str, dict[str, Any]]:
    """By address."""
    shown = whole.command("fleet", "--json")
    assert shown.returncode == 0, shown.stderr
    return {each["url"]: each for each in json.loads(shown.stdout)["data"]}


def ask(whole: Whole, number: int) -> int:
    body = {"model": "assistant", "messages": [{"role": "user", "content": f"Question {number}"}]}
    headers = {"authorization": f"Bearer {whole.key}"}
    return httpx.post(f"{whole.url}/chat/completions", json=body, headers=headers, timeout=60).status_code


def is_warm_up(request: RecordedRequest) -> bool:
    return WARM_UP.encode() in request.body


def list_posts(upstream: ThreadedUpstream, is_wanted: Callable[[RecordedRequest], bool]) -> list[int]:
    """The numbers of such requests among all."""
    posts = (request for request in upstream.requests if request.method == "POST" and request.complete)
    return [request.number for request in posts if is_wanted(request)]


def test_engines_are_seen_and_what_is_new_is_warmed_first(tmp_path: Path) -> None:
    old = FakeEngine(EngineKind.VLLM, model="there", running=2, kv_cache_used=0.25, adapters=["sql"])
    new = FakeEngine(EngineKind.VLLM, model="there", fail_generations=1, answer_s=0.2)
    with ThreadedUpstream(old.handle) as one, ThreadedUpstream(new.handle) as two:
        with running(tmp_path, CONFIG.format(replicas=one.url)) as whole:

            def is_ready(url: str) -> bool:
                return read_fleet(whole).get(url, {}).get("state") == "ready"

            wait_until(lambda: is_ready(one.url), 60, "the first replica is ready")
            real = next(url for url, each in read_fleet(whole).items() if each["engine"] == "llama.cpp")
            wait_until(lambda: is_ready(real), 60, "the real engine is ready")

            def is_idle() -> bool:
                return [read_fleet(whole)[real][what] for what in ("running", "waiting")] == [0, 0]

            wait_until(is_idle, 60, "the real engine tells that it has nothing to do")
            fleet = read_fleet(whole)
            assert fleet[real]["adapters"] == []
            assert (fleet[one.url]["running"], fleet[one.url]["kv_cache_used"]) == (2, 0.25)
            assert fleet[one.url]["adapters"] == ["sql"]
            assert "ready" in whole.command("fleet").stdout

            # Another replica comes while requests flow.
            (tmp_path / "forebay.yaml").write_text(CONFIG.format(replicas=f"{one.url}, {two.url}"))
            asked = 0

            def has_both() -> bool:
                nonlocal asked
                asked += 1
                assert ask(whole, asked) == 200
                return bool(list_posts(two, lambda request: not is_warm_up(request)))

            wait_until(has_both, 90, "the new replica gets requests")
            warm = list_posts(two, is_warm_up)
            assert len(warm) == 3, "one of them was not answered well"
            assert max(warm) < min(list_posts(two, lambda request: not is_warm_up(request)))
            assert read_fleet(whole)[two.url]["warm_up"]["state"] == "done"
            usage = json.loads(whole.command("usage", "--by", "model", "--json").stdout)
            counted = sum(each["requests"] for each in usage["rows"] if each["model"] == "assistant")
            assert counted <= asked, "warm-up requests are on no record"
