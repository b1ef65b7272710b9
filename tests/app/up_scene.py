"""`forebay up` as a process, in a folder of its own, in front of a scripted upstream."""

import http.client
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from forebay.app.supervisor_state import ChildStatus, RunState, load_run_state

MODEL = "m"


def write_config(folder: Path, upstream_url: str, extra: str = "", workers: int = 1) -> Path:
    path = folder / "forebay.yaml"
    path.write_text(
        f"models:\n  {MODEL}: {{endpoints: [chat/completions], targets: [{{url: '{upstream_url}'}}]}}\n"
        f"gateway: {{port: 0, workers: {workers}, drain: {{deadline_s: 10}}}}\n"
        f"control: {{port: 0}}\n{extra}"
    )
    return path


class LiveForebay:
    """A started `forebay up`.  Output is collected as it comes."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self.data = folder / ".forebay"
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "forebay", "up", *arguments],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._collect, daemon=True)
        self._reader.start()

    def _collect(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)

    @property
    def output(self) -> str:
        return "".join(self.lines)

    @property
    def state(self) -> RunState:
        state = load_run_state(self.data / "run" / "state.json")
        assert state is not None
        return state

    def child(self, name: str) -> ChildStatus:
        return next(child for child in self.state.children if child.name == name)

    def pids(self) -> list[int]:
        return [child.pid for child in self.state.children if child.pid is not None]

    def wait_for(self, condition: Callable[[], bool], limit_s: float = 120) -> None:
        deadline = time.monotonic() + limit_s
        while not condition():
            assert time.monotonic() < deadline, self.output
            time.sleep(0.02)

    def wait_ready(self) -> "LiveForebay":
        self.wait_for(lambda: "Ctrl-C ends it" in self.output or self.process.poll() is not None, 120)
        assert self.process.poll() is None, self.output
        return self

    def wait_end(self, limit_s: float = 120) -> int:
        code = self.process.wait(limit_s)
        self._reader.join(30)
        return code

    @property
    def key(self) -> str:
        return (self.data / "local.key").read_text().strip()

    def gateway(self, path: str, **options: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {self.key}"}
        return httpx.request(
            options.pop("method", "GET"),
            self.state.gateway_url + path,
            headers=headers,
            timeout=60,
            **options,
        )

    def chat(self) -> httpx.Response:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}
        return self.gateway("/v1/chat/completions", method="POST", json=body)

    def open_stream(self) -> http.client.HTTPResponse:
        """A stream whose first bytes have come."""
        parts = urlsplit(self.state.gateway_url)
        connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=60)
        body = '{"model": "m", "stream": true, "messages": [{"role": "user", "content": "Hi"}]}'
        headers = {"authorization": f"Bearer {self.key}", "content-type": "application/json"}
        connection.request("POST", "/v1/chat/completions", body, headers)
        return connection.getresponse()

    def close(self) -> None:
        """Whatever a test has left."""
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._reader.join(30)
        assert self.process.stdout is not None
        self.process.stdout.close()


def are_gone(pids: list[int]) -> bool:
    return not any(os.path.exists(f"/proc/{pid}/exe") for pid in pids)
