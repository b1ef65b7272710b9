"""The board in a whole Forebay: all workers are on it, and its end hurts no request."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from whole import Whole, running, wait_until

from forebay.testing.openai import well_behaved
from forebay.testing.threaded import ThreadedUpstream

pytestmark = pytest.mark.e2e

CONFIG = """
gateway: {{port: 0, workers: 2, explain_routes: true}}
control: {{port: 0}}
engines: {{}}
pools:
  own: {{tier: provisioned, requests_max: 8, replicas: ["{url}"]}}
models:
  m:
    endpoints: [chat/completions]
    targets: [{{pool: own}}, {{url: "{other}"}}]
"""
CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}


def ask(whole: Whole, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.post(
        f"{whole.url}/chat/completions",
        json=CHAT,
        headers={"authorization": f"Bearer {whole.key}"} | named,
        timeout=30,
    )


def count_connected(whole: Whole) -> float:
    page = httpx.get(whole.state.gateway_url + "/metrics", timeout=30).text
    lines = [line for line in page.splitlines() if line.startswith("forebay_board_connected ")]
    return sum(float(line.split()[1]) for line in lines)


def test_a_control_plane_that_is_killed_takes_the_board_and_no_request(tmp_path: Path) -> None:
    with ThreadedUpstream(well_behaved("Hello")) as own, ThreadedUpstream(well_behaved("Hello")) as other:
        config = CONFIG.format(url=own.url, other=other.url)
        with running(tmp_path, config) as whole, ThreadPoolExecutor(4) as pool:
            wait_until(lambda: count_connected(whole) == 2, 60, "both workers are on the board")
            control = next(each for each in whole.state.children if each.name == "control")
            asked = [pool.submit(ask, whole) for _ in range(40)]
            assert control.pid is not None
            os.kill(control.pid, signal.SIGKILL)
            asked += [pool.submit(ask, whole) for _ in range(40)]
            assert {each.result().status_code for each in asked} == {200}
            wait_until(lambda: count_connected(whole) == 2, 60, "both workers are back on the board")
            assert {ask(whole).status_code for _ in range(10)} == {200}
