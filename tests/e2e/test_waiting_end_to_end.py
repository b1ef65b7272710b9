"""Requests wait for a limit over a whole Forebay: all are served, also when its authority dies."""

import json
import os
import random
import select
import signal
import socket
import time
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import httpx
from whole import Whole, running, wait_until

from forebay.testing.openai import well_behaved
from forebay.testing.threaded import ThreadedUpstream

RATE = 10  #: requests a second
COUNT = 60


def make_key(whole: Whole, name: str, priority: str) -> str:
    made = whole.command("keys", "create", name, "--priority", priority)
    assert made.returncode == 0, made.stderr
    return next(word for word in made.stdout.split() if word.startswith("fb-"))


class Caller:
    """A request on a connection that stands already, so that all of them come at about the same time."""

    def __init__(self, url: str, key: str, body: str, name: str) -> None:
        parts = urlsplit(url)
        self.name = name
        self._path, self._body = parts.path, body
        self._headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        if name == "interactive":
            self._headers["x-forebay-wait"] = "30"
        self._connection = HTTPConnection(str(parts.hostname), parts.port, timeout=90)
        self._connection.connect()
        self.socket: socket.socket = self._connection.sock

    def send(self) -> None:
        self._connection.request("POST", self._path, self._body, self._headers)

    def read(self) -> tuple[int, int]:
        """The status, and how many milliseconds it waited."""
        answer = self._connection.getresponse()
        answer.read()
        self._connection.close()
        return answer.status, int(answer.headers.get("x-forebay-waited-ms", 0))


def mix_names() -> list[str]:
    """Half of each, in an order that no dealing of connections to two workers follows."""
    names = ["batch", "interactive"] * (COUNT // 2)
    random.Random(1).shuffle(names)
    return names


def kill_control_plane(whole: Whole) -> None:
    pid = next(child.pid for child in whole.state.children if child.name == "control")
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


def test_all_that_wait_are_served_at_the_rate_of_the_limit(tmp_path: Path) -> None:
    with ThreadedUpstream(well_behaved("Hello")) as upstream:
        config = (
            "gateway: {port: 0, workers: 2}\ncontrol: {port: 0}\n"
            f"models: {{m: {{endpoints: [chat/completions], targets: [{{url: '{upstream.url}'}}]}}}}\n"
            "limits:\n  queue: {default_wait_s: {batch: 30}}\n"
            f"  rules: [{{team: default, requests: {RATE}, per: second}}]\n"
        )
        with running(tmp_path, config) as whole:
            keys = {name: make_key(whole, name, name) for name in ("interactive", "batch")}
            url = f"{whole.url}/chat/completions"

            def ask(name: str) -> httpx.Response:
                headers = {"authorization": f"Bearer {keys[name]}"}
                if name == "interactive":
                    headers["x-forebay-wait"] = "30"
                body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
                return httpx.post(url, json=body, headers=headers, timeout=60, verify=False)

            # Until the workers know the keys.
            wait_until(lambda: {ask(name).status_code for name in keys} == {200}, 60, "the keys are known")
            wait_until(whole.is_in_force, 60, "they are known to all workers")
            body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "Hi"}]})
            callers = [Caller(url, keys[name], body, name) for name in mix_names()]
            begun = time.monotonic()
            for caller in callers:  # at once, as near as one thread can
                caller.send()
            assert select.select([caller.socket for caller in callers], [], [], 60)[0], "the first are served"
            kill_control_plane(whole)
            answers = [caller.read() for caller in callers]
            passed = time.monotonic() - begun
            assert {status for status, _ in answers} == {200}
            assert passed > (COUNT - RATE) / RATE / 2 - 1, "in the meantime each worker has a share, no more"
            assert sum(wait > 0 for _, wait in answers) >= COUNT / 2
            waited = {
                name: sum(
                    wait for caller, (_, wait) in zip(callers, answers, strict=True) if caller.name == name
                )
                for name in keys
            }
            assert waited["interactive"] < waited["batch"], "they wait for less long"
