"""Starts engine processes for tests, by the plan that the supervisor would use."""

import asyncio
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from forebay.app import supervisor_exec
from forebay.engines.health import probe_health
from forebay.engines.model import EngineSpec, LaunchPlan
from forebay.engines.plan import Place, plan_engine
from forebay.net.probe import Healthy
from forebay.testing.threaded import find_closed_port

READY_S = 120.0


class Engine(msgspec.Struct, frozen=True):
    """A running engine process."""

    plan: LaunchPlan
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def base_url(self) -> str:
        return self.plan.health_url.removesuffix("/health") + "/v1"

    @property
    def port(self) -> int:
        return urlsplit(self.base_url).port or 0

    def ask(self, path: str, body: Any = None, *, timeout_s: float = 60.0) -> tuple[int, bytes]:
        """GET, or POST of `body` as JSON (bytes go as they are)."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        try:
            data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
            method = "GET" if data is None else "POST"
            connection.request(method, path, body=data, headers={"connection": "close"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def terminate(self, timeout_s: float = 60.0) -> tuple[int, float]:
        """SIGTERM; the return code and the seconds it took."""
        start = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout_s), time.monotonic() - start

    def read_log(self) -> str:
        return self.log.read_text(errors="replace")


@contextmanager
def run_engine(spec: EngineSpec, folder: Path) -> Iterator[Engine]:
    """A ready engine, killed afterwards if it still runs."""
    with start_engine(plan_engine(spec, Place(port=find_closed_port())), folder) as engine:
        wait_until_healthy(engine)
        yield engine


@contextmanager
def start_engine(plan: LaunchPlan, folder: Path, *options: str) -> Iterator[Engine]:
    """Started as the supervisor does, so that it dies with the tests; killed afterwards if it still runs."""
    log = folder / "engine.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            tie_to(os.getpid(), *plan.argv, *options),
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            env=os.environ | dict(plan.env),
        )
    try:
        yield Engine(plan, process, log)
    finally:
        process.kill()
        process.wait(10)


def tie_to(pid: int, *argv: str) -> list[str]:
    return [sys.executable, "-I", "-S", supervisor_exec.__file__, str(pid), *argv]


def wait_until_healthy(engine: Engine) -> None:
    """Until it answers, and has said so: only then it also listens to signals."""
    deadline = time.monotonic() + READY_S
    while not (re.search(r"^engine .*: (ready|serving) at ", engine.read_log(), re.M) and is_healthy(engine)):
        assert engine.process.poll() is None, engine.read_log()
        assert time.monotonic() < deadline, engine.read_log()
        time.sleep(0.05)


def is_healthy(engine: Engine) -> bool:
    return isinstance(asyncio.run(probe_health(engine.plan)), Healthy)


def run_module(module: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The module as a program that is expected to end by itself."""
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | environment,
    )
