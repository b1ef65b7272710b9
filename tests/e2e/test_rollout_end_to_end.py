"""Changes of what answers a model, while callers ask: nobody notices a good one, and a bad one is stopped."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from e2e.fake_engine import make_environment
from e2e.whole import Whole, running, wait_until
from forebay.app.deployer_state import Kept, load_state
from forebay.app.replica_files import load_report
from forebay.engines.deployment import ReplicaState

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
GOOD, ERRS, SLOW, REFUSES = (letter * 16 for letter in "abcd")
RATIO_MAX = (
    5.0  #: one of them is about twenty times as slow, and a busy machine slows any of them now and then
)
CONFIG = """
data: {{dir: .forebay}}
gateway: {{port: 0, workers: 1, drain: {{deadline_s: 5}}}}
control: {{port: 0}}
engines: {{}}
deployments:
  chat:
    model: chat
    source: embedded:smollm2-135m
    version: "{version}"
    engine: {{kind: llamacpp, slots: 4, environment: {environment}}}
    rollout: {{steps: [0.25, 0.5], step_s: {step_s}, requests_min: 12, latency_ratio_max: {ratio_max}}}
"""


@dataclass
class Seen:
    """By callers."""

    requests: int = 0
    failures: list[str] = field(default_factory=list)


async def call(client: httpx.AsyncClient, seen: Seen, *, stream: bool) -> None:
    body = {"model": "chat", "messages": [{"role": "user", "content": "count"}], "stream": stream}
    while True:
        try:
            answer = await client.post("chat/completions", json=body)
            is_whole = answer.text.rstrip().endswith("[DONE]") if stream else "three" in answer.text
            if answer.status_code != 200 or not is_whole:
                seen.failures.append(f"{answer.status_code}: {answer.text[:200]}")
        except httpx.HTTPError as error:
            seen.failures.append(repr(error))
        seen.requests += 1
        await asyncio.sleep(0.01)


@asynccontextmanager
async def calling(whole: Whole) -> AsyncIterator[Seen]:
    seen, headers = Seen(), {"authorization": f"Bearer {whole.key}"}
    async with httpx.AsyncClient(base_url=f"{whole.url}/", headers=headers, timeout=60) as client:
        tasks = [asyncio.create_task(call(client, seen, stream=at % 2 == 0)) for at in range(4)]
        try:
            yield seen
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def write(whole: Whole, version: str, environment: str, step_s: float = 1.0) -> None:
    text = CONFIG.format(version=version, environment=environment, step_s=step_s, ratio_max=RATIO_MAX)
    beside = whole.folder / "beside"
    beside.write_text(text)
    beside.replace(whole.folder / "forebay.yaml")


def find_kept(whole: Whole) -> Kept | None:
    return load_state(whole.data / "run").kept.get("chat")


def has_ended(whole: Whole, version: str) -> bool:
    """Whether that version serves alone, and no other replica is there."""
    kept, report = find_kept(whole), load_report(whole.data / "run")
    if kept is None or kept.track.serving is None or report is None:
        return False
    is_alone = kept.track.candidate is None and [each.version for each in kept.serving] == [version]
    return is_alone and [each.state for each in report.replicas] == [ReplicaState.READY]


async def wait(whole: Whole, version: str) -> None:
    await asyncio.to_thread(wait_until, lambda: has_ended(whole, version), 180, f"{version} serves alone")


def is_answered(whole: Whole) -> bool:
    body = {"model": "chat", "messages": [{"role": "user", "content": "count"}]}
    headers = {"authorization": f"Bearer {whole.key}"}
    return httpx.post(f"{whole.url}/chat/completions", json=body, headers=headers, timeout=60).is_success


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Whole]:
    folder = tmp_path_factory.mktemp("rollout")
    for digest, mode in ((GOOD, "good"), (ERRS, "errs"), (SLOW, "slow"), (REFUSES, "refuses")):
        make_environment(folder / ".forebay", digest, mode)
    config = CONFIG.format(version="1", environment=GOOD, step_s=1.0, ratio_max=RATIO_MAX)
    with running(folder, config) as whole:
        wait_until(lambda: has_ended(whole, "1"), 60, "the first version serves")
        wait_until(lambda: is_answered(whole), 60, "the worker knows of it")
        yield whole


async def check_good(whole: Whole) -> None:
    async with calling(whole) as seen:
        for version in ("2", "1"):  # there, and back
            before = seen.requests
            write(whole, version, GOOD)
            await wait(whole, version)
            assert seen.requests > before
    assert seen.failures == []


def test_a_good_version_takes_over_and_back_and_nobody_notices(whole: Whole) -> None:
    asyncio.run(check_good(whole))


async def check_bad(whole: Whole, environment: str, words: str) -> None:
    async with calling(whole) as seen:
        # A slow one needs some time until enough of its answers are there.
        write(whole, f"bad-{environment[0]}", environment, step_s=6.0 if environment == SLOW else 1.0)

        def is_stopped() -> bool:
            kept = find_kept(whole)
            return kept is not None and bool(kept.track.stopped) and words in kept.track.reason

        await asyncio.to_thread(wait_until, is_stopped, 180, "the bad version is stopped")
        await wait(whole, "1")
        at_the_stop, failed = seen.requests, len(seen.failures)
        await asyncio.to_thread(wait_until, lambda: seen.requests > at_the_stop + 40, 60, "callers go on")
        assert len(seen.failures) == failed, "after the stop nobody sees it"
    assert seen.failures == [], "what it failed was answered by the version that served before"
    write(whole, "1", GOOD)
    is_forgotten = lambda: (kept := find_kept(whole)) is not None and not kept.track.stopped  # noqa: E731
    await asyncio.to_thread(wait_until, is_forgotten, 60, "the first version is what is asked for")


@pytest.mark.parametrize(
    ("environment", "words"),
    [(REFUSES, "the weights are not there"), (ERRS, "attempts failed"), (SLOW, "latency_ratio_max")],
    ids=["refuses", "errs", "slow"],
)
def test_a_bad_version_is_stopped_by_itself(whole: Whole, environment: str, words: str) -> None:
    asyncio.run(check_bad(whole, environment, words))


def test_real_streams_survive_changes_and_a_kill_of_the_control_plane() -> None:
    """With the embedded model: another version, another argument, and back; killed in the first."""
    bench = [sys.executable, "bench/rollout.py", "--kill", "--step-s", "2"]
    ended = subprocess.run(bench, cwd=ROOT, capture_output=True, text=True, timeout=400, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    figures = json.loads(ended.stdout.splitlines()[-1])
    assert figures["rollout_failed_requests"] == 0
    assert figures["rollout_requests"] > 30
