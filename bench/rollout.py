"""Changes what answers a model while callers stream from it, and counts what they notice.

usage: python bench/rollout.py [--engine llamacpp|vllm] [--callers N] [--pause-s S] [--share S] [--step-s S]
                               [--kill] [--data FOLDER]

Starts a Forebay with one deployment in a folder of its own, and callers that ask one after the other, every
third time for a whole answer.  Then three changes, each to its end: another version of the model, another
argument of the engine, and the way back to the first.  With `--kill` the control plane is killed with SIGKILL
in the middle of the first.  A request has failed if its answer is no 200, breaks off or holds no text.

llama.cpp serves the embedded model; vLLM, from an environment in the data folder that `--data` names, tiny
models with random weights, another one for each version.

Prints what it does on stderr and one JSON line last on stdout: `rollout_failed_requests` is to be 0.
"""

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from forebay.app.deployer_state import Kept, load_state
from forebay.app.supervisor_state import RunState, load_run_state
from forebay.engines.environment_store import FOLDER
from forebay.engines.tiny_model import make_tiny_model
from measure import BenchError, fail
from vllm_environment import find_python

NAME = "chat"
CONFIG = """
data: {{dir: .forebay}}
gateway: {{port: 0, workers: 1}}
control: {{port: 0}}
engines: {{}}
deployments:
  chat:
    model: chat
    source: "{source}"
    version: "{version}"
    engine: {{slots: {slots}, {engine}}}
    warm_up: ["Say hello."]
    rollout:
      steps: [{share}]
      step_s: {step_s}
      requests_min: 5
      latency_ratio_max: 20
      ready_timeout_s: {limit_s}
"""
VLLM = (
    "kind: vllm, context_tokens: 256, "
    "arguments: {enforce-eager: true, dtype: float32, kv-cache-memory-bytes: 67108864}"
)


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What one kind of engine wants."""

    engine: str  #: in the manifest, beside the slots
    sources: dict[str, str]  #: by version
    limit_s: float  #: for each change
    extra: dict[str, Any] = field(default_factory=dict)  #: in requests


def make_llamacpp() -> Kind:
    source = "embedded:smollm2-135m"
    return Kind(
        engine="kind: llamacpp, context_tokens: 256", sources={"1": source, "2": source}, limit_s=300.0
    )


def make_vllm(folder: Path, data: Path) -> Kind:
    """Its environment is shared with that data folder; raises BenchError where it is not built."""
    find_python(data)
    (folder / ".forebay").mkdir()
    (folder / ".forebay" / FOLDER).symlink_to(data.absolute() / FOLDER)
    sources = {}
    for version in ("1", "2"):
        model = folder / f"model-{version}"
        make_tiny_model(model, seed=int(version))
        sources[version] = str(model)
    # Random weights may well choose the end of the text at once.
    return Kind(engine=VLLM, sources=sources, limit_s=1800.0, extra={"ignore_eos": True})


@dataclass(slots=True)
class Counts:
    """What callers have seen."""

    requests: int = 0
    failures: list[str] = field(default_factory=list)
    longest_s: float = 0.0


class Forebay:
    """One `forebay up` in a folder of its own."""

    def __init__(self, folder: Path, kind: Kind, share: float, step_s: float) -> None:
        self._folder, self.kind, self._share, self._step_s = folder, kind, share, step_s
        self.run = folder / ".forebay" / "run"

    def write(self, version: str, slots: int) -> None:
        text = CONFIG.format(
            source=self.kind.sources[version],
            version=version,
            slots=slots,
            engine=self.kind.engine,
            share=self._share,
            step_s=self._step_s,
            limit_s=self.kind.limit_s,
        )
        beside = self._folder / "beside"
        beside.write_text(text)
        beside.replace(self._folder / "forebay.yaml")

    def start(self) -> subprocess.Popen[bytes]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
        with (self._folder / "up.out").open("wb") as out:
            return subprocess.Popen(
                [sys.executable, "-m", "forebay", "up"],
                cwd=self._folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )

    @property
    def state(self) -> RunState | None:
        return load_run_state(self.run / "state.json")

    @property
    def kept(self) -> Kept | None:
        with suppress(OSError, ValueError):
            return load_state(self.run).kept.get(NAME)
        return None

    def serves_alone(self, version: str, slots: int) -> bool:
        kept = self.kept
        if kept is None or kept.track.serving is None:
            return False
        track, serving = kept.track, kept.track.serving
        if track.stopped:
            raise RuntimeError(f"revision {track.stopped} was stopped: {track.reason}")
        is_right = (serving.version, serving.spec.slots) == (version, slots)
        return bool(is_right and track.candidate is None and not track.leaving and kept.serving)

    def is_watching(self) -> bool:
        kept = self.kept
        return kept is not None and kept.track.share > 0

    def kill_control(self) -> None:
        state = self.state
        assert state is not None
        pid = next(child.pid for child in state.children if child.name == "control")
        assert pid is not None
        os.kill(pid, signal.SIGKILL)


async def wait(is_true: Callable[[], bool], what: str, limit_s: float = 300.0) -> None:
    deadline = time.monotonic() + limit_s
    while not is_true():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {limit_s:g} s: {what}")
        await asyncio.sleep(0.1)


async def ask(client: httpx.AsyncClient, number: int, extra: dict[str, Any]) -> str:
    """The text of an answer; raises RuntimeError, httpx.HTTPError."""
    stream = number % 3 != 0
    body: dict[str, Any] = {
        "model": NAME,
        "messages": [{"role": "user", "content": f"Count from {number} on."}],
        "max_tokens": 12,
        "stream": stream,
        **extra,
    }
    async with client.stream("POST", "chat/completions", json=body) as answer:
        if answer.status_code != 200:
            raise RuntimeError(f"{answer.status_code}: {(await answer.aread())[:300]!r}")
        if not stream:
            found = json.loads(await answer.aread())
            return str(found["choices"][0]["message"]["content"])
        lines = [line async for line in answer.aiter_lines() if line.startswith("data: ")]
    if lines[-1:] != ["data: [DONE]"]:
        raise RuntimeError(f"the stream broke off: {lines[-1:]}")
    chunks = [json.loads(line[6:]) for line in lines[:-1]]
    return "".join(
        choice["delta"].get("content") or "" for chunk in chunks for choice in chunk.get("choices", ())
    )


@dataclass(frozen=True, kw_only=True)
class Load:
    """What callers do."""

    callers: int
    pause_s: float  #: of a caller, after each answer
    extra: dict[str, Any]


async def call(client: httpx.AsyncClient, first: int, load: Load, counts: Counts) -> None:
    """One caller, until it is cancelled; the answer that it waits for then does not count."""
    number = first
    while True:
        began = time.monotonic()
        number += 1
        try:
            if not await ask(client, number, load.extra):
                raise RuntimeError("an empty answer")
        except (httpx.HTTPError, RuntimeError, ValueError, LookupError) as error:
            counts.failures.append(f"{type(error).__name__}: {error}")
        counts.requests += 1
        counts.longest_s = max(counts.longest_s, time.monotonic() - began)
        await asyncio.sleep(load.pause_s)


async def wait_answered(client: httpx.AsyncClient, load: Load) -> None:
    """The worker takes up the first replica a moment after the control plane has written it down."""
    deadline = time.monotonic() + 60
    while True:
        try:
            await ask(client, 0, load.extra)
            return
        except RuntimeError:
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(0.1)


@asynccontextmanager
async def calling(url: str, key: str, load: Load) -> AsyncIterator[Counts]:
    """Load while the block runs."""
    counts = Counts()
    headers = {"authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(base_url=f"{url}/v1/", headers=headers, timeout=120) as client:
        await wait_answered(client, load)
        tasks = [asyncio.create_task(call(client, 1000 * at, load, counts)) for at in range(load.callers)]
        try:
            yield counts
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def measure(forebay: Forebay, load: Load, kill: bool) -> dict[str, Any]:
    await wait(lambda: (state := forebay.state) is not None and state.ready, "a Forebay that is ready")
    limit_s = forebay.kind.limit_s
    await wait(lambda: forebay.serves_alone("1", 2), "the first revision", limit_s)
    state = forebay.state
    assert state is not None
    key = (forebay.run.parent / "local.key").read_text().strip()
    took: dict[str, float] = {}
    async with calling(state.gateway_url, key, load) as counts:
        await wait(lambda: counts.requests > 2 * load.callers, "callers that are answered")
        for what, version, slots in (("version", "2", 2), ("argument", "2", 3), ("back", "1", 2)):
            began, before = time.monotonic(), counts.requests
            forebay.write(version, slots)
            if kill and what == "version":
                await wait(forebay.is_watching, "a revision that is watched", limit_s)
                forebay.kill_control()
            is_done = partial(forebay.serves_alone, version, slots)
            await wait(is_done, f"the change of the {what}", limit_s)
            took[what] = round(time.monotonic() - began, 1)
            print(
                f"{what}: {took[what]} s, {counts.requests - before} requests, failed: {counts.failures}",
                file=sys.stderr,
            )
        settled = counts.requests
        await wait(
            lambda: counts.requests > settled + 2 * load.callers, "callers that are answered at the end"
        )
    return {
        "rollout_failed_requests": len(counts.failures),
        "rollout_requests": counts.requests,
        "rollout_longest_request_s": round(counts.longest_s, 2),
        **{f"rollout_{what}_s": seconds for what, seconds in took.items()},
    }


def stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(180)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--engine", choices=("llamacpp", "vllm"), default="llamacpp")
    parser.add_argument("--callers", type=int, default=3)
    parser.add_argument("--pause-s", type=float, default=0.0, help="of a caller, after each answer")
    parser.add_argument("--share", type=float, default=0.3, help="of the new revision, while it is watched")
    parser.add_argument("--step-s", type=float, default=4.0)
    parser.add_argument("--kill", action="store_true", help="the control plane, in the middle of a change")
    parser.add_argument("--data", type=Path, default=Path(".forebay"), help="folder that has environments")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="forebay-rollout-") as name:
        folder = Path(name)
        try:
            kind = make_vllm(folder, args.data) if args.engine == "vllm" else make_llamacpp()
        except BenchError as error:
            return fail(error)
        forebay = Forebay(folder, kind, args.share, args.step_s)
        forebay.write("1", 2)
        process = forebay.start()
        load = Load(callers=args.callers, pause_s=args.pause_s, extra=kind.extra)
        try:
            figures = asyncio.run(measure(forebay, load, args.kill))
        finally:
            stop(process)
    print(json.dumps({"rollout_engine": args.engine, **figures}))
    return 0 if figures["rollout_failed_requests"] == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
