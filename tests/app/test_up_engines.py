"""`forebay up` with the embedded engines, as a newcomer runs it, and with both engines killed."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from up_scene import LiveForebay, are_gone

pytestmark = pytest.mark.e2e

ENGINES = ("engine-smollm2-135m", "engine-minilm-l6-v2")


@pytest.fixture
def live(tmp_path: Path) -> Iterator[LiveForebay]:
    (tmp_path / "forebay.yaml").write_text("gateway: {port: 0}\ncontrol: {port: 0}\n")
    live = LiveForebay(tmp_path, "--ask", "What is the capital of France?")
    yield live
    live.close()


def embed(live: LiveForebay, text: str) -> list[float]:
    body = {"model": "minilm-l6-v2", "input": text}
    response = live.gateway("/v1/embeddings", method="POST", json=body)
    assert response.status_code == 200, response.text
    found: list[float] = response.json()["data"][0]["embedding"]
    return found


def complete(live: LiveForebay, prompt: str) -> dict[str, Any]:
    body = {"model": "smollm2-135m", "prompt": prompt, "max_tokens": 4, "temperature": 0}
    response = live.gateway("/v1/completions", method="POST", json=body)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def test_the_embedded_engines_answer_and_come_back(live: LiveForebay) -> None:
    live.wait_ready()
    assert "Paris" in live.output.partition("capital of France?\n")[2].partition("Forebay is ready")[0]
    first = embed(live, "hello")
    for name in ENGINES:
        before = live.child(name)
        others = {child.name: child.pid for child in live.state.children if child.name != name}
        assert before.pid is not None
        os.kill(before.pid, signal.SIGKILL)
        live.wait_for(lambda name=name: live.child(name).restarts == 1 and live.state.ready)
        assert {child.name: child.pid for child in live.state.children if child.name != name} == others
    assert embed(live, "hello") == pytest.approx(first, abs=1e-6)
    assert complete(live, "One, two,")["usage"]["completion_tokens"] == 4

    pids = live.pids()
    assert len(pids) == len(live.state.children)
    live.process.kill()
    live.wait_end()
    live.wait_for(lambda: are_gone(pids))
