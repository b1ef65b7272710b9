"""A deployment on a cluster: from forebay.yaml over pods to answers, through a change, until it is gone.

The cluster is `forebay.testing.cluster`; its pods are real engines with the embedded model.
"""

import time
from pathlib import Path

import httpx
import pytest
from whole import Whole, running

from forebay.testing.cluster import FakeCluster

pytestmark = pytest.mark.e2e
CONFIG = """
gateway: {{port: 0, workers: 1}}
control: {{port: 0}}
models: {{}}
engines: {{}}
launchers:
  default: kubernetes
  kubernetes: {{url: "{url}", images: {{llamacpp: "registry.example/engine:1"}}}}
deployments:
  chat:
    version: "{version}"
    source: embedded:smollm2-135m
    engine: {{kind: llamacpp, slots: {slots}, context_tokens: 512}}
    rollout: {{strategy: blue-green, step_s: 0.0, requests_min: 0}}
"""
LIMIT_S = 180.0


def ask(whole: Whole) -> httpx.Response:
    return httpx.post(
        f"{whole.url}/chat/completions",
        json={"model": "chat", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4},
        headers={"authorization": f"Bearer {whole.key}"},
        timeout=60,
    )


def await_answer(whole: Whole) -> None:
    deadline = time.monotonic() + LIMIT_S
    while (answer := ask(whole)).status_code != 200:
        assert time.monotonic() < deadline, f"{answer.text}\n{whole.output()}"
        time.sleep(0.3)


def list_deployments(cluster: FakeCluster) -> set[str]:
    return {each["metadata"]["name"] for each in cluster.find("deployments")}


def test_a_deployment_runs_changes_and_ends_on_a_cluster(tmp_path: Path) -> None:
    with FakeCluster(tmp_path / "cluster") as cluster:
        file = tmp_path / "forebay.yaml"
        given = CONFIG.format(url=cluster.url, version="1", slots=1)
        with running(tmp_path, given) as whole:
            await_answer(whole)
            (first,) = list_deployments(cluster)
            file.write_text(CONFIG.format(url=cluster.url, version="2", slots=2))
            deadline = time.monotonic() + LIMIT_S
            while first in list_deployments(cluster):
                answer = ask(whole)
                assert answer.status_code == 200, answer.text
                assert time.monotonic() < deadline, whole.output()
            (second,) = list_deployments(cluster)
            assert second != first
            assert ask(whole).status_code == 200
            file.write_text(CONFIG.format(url=cluster.url, version="2", slots=2).partition("deployments:")[0])
            while cluster.objects:
                assert time.monotonic() < deadline, "nothing is left on the cluster"
                time.sleep(0.2)
