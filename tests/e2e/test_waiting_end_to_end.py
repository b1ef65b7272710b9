"""Requests wait for a limit over a whole Forebay: all are served, also when its authority dies."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

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
            begun = time.monotonic()
            with ThreadPoolExecutor(COUNT) as pool:
                started = [pool.submit(ask, ("batch", "interactive")[number % 2]) for number in range(COUNT)]
                wait_until(lambda: any(each.done() for each in started), 60, "the first are served")
                kill_control_plane(whole)
                answers = [each.result(60) for each in started]
            passed = time.monotonic() - begun
            assert {answer.status_code for answer in answers} == {200}
            assert passed > (COUNT - RATE) / RATE / 2 - 1, "in the meantime each worker has a share, no more"
            waited = [int(answer.headers.get("x-forebay-waited-ms", 0)) for answer in answers]
            assert sum(wait > 0 for wait in waited) >= COUNT / 2
            first, last = sum(waited[1::2]), sum(waited[::2])
            assert first < last, "interactive requests wait for less long"
