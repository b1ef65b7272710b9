"""A real vLLM as its launch plan starts it, with a whole Forebay in front of it."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from whole import Whole

from forebay.engines.model import Argument, EngineSpec, LaunchPlan
from forebay.engines.plan import Place, plan_engine

LIMIT_S = 1800.0
#: What makes it small and quick to start.
SMALL: dict[str, Argument] = {
    "enforce-eager": True,
    "dtype": "float32",
    "kv-cache-memory-bytes": 64 << 20,
    # A model with random weights would choose blanks for ever.
    "structured-outputs-config": '{"backend":"xgrammar","disable_any_whitespace":true}',
    "enable-auto-tool-choice": True,
    "tool-call-parser": "hermes",
}


@dataclass(slots=True)
class Engine:
    process: "subprocess.Popen[bytes]"
    plan: LaunchPlan
    log: Path
    start_s: float = 0.0

    @property
    def root(self) -> str:
        return self.plan.health_url.removesuffix("/health")

    @property
    def url(self) -> str:
        return f"{self.root}/v1"

    def fetch(self, path: str) -> httpx.Response:
        return httpx.get(f"{self.root}{path}", timeout=60, trust_env=False)

    def read_metric(self, name: str) -> float:
        """The sum of a metric's series."""
        lines = self.fetch("/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.partition("{")[0] == name)

    def wait_ready(self) -> None:
        started = time.monotonic()
        while True:
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            assert time.monotonic() - started < LIMIT_S, self.log.read_text()[-3000:]
            try:
                if self.fetch("/health").status_code == 200:
                    break
            except httpx.HTTPError:
                pass
            time.sleep(0.5)
        self.start_s = time.monotonic() - started


@contextmanager
def serving(python: Path, spec: EngineSpec, log: Path) -> Iterator[Engine]:
    """An engine that answers."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    plan = plan_engine(spec, Place(port=port, python=str(python)))
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    with log.open("wb") as file:
        process = subprocess.Popen(
            ["nice", "-n", "5", *plan.argv],
            env={**kept, **plan.env},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    engine = Engine(process, plan, log)
    try:
        engine.wait_ready()
        yield engine
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def ask(whole: Whole, **fields: Any) -> httpx.Response:
    """A chat completion through the gateway."""
    body = {"max_tokens": 8, "temperature": 0, "messages": [{"role": "user", "content": "Hello"}], **fields}
    headers = {"authorization": f"Bearer {whole.key}"}
    return httpx.post(
        f"{whole.url}/chat/completions", json=body, headers=headers, timeout=LIMIT_S, trust_env=False
    )


def read_text(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])
