"""`forebay bench` of a deployment: its replicas are measured, and the version matrix takes what was tried."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from command_line import forebay

from forebay.app.config import load_config
from forebay.app.deployment_compile import compile_deployments
from forebay.app.deployment_views import DeploymentList, list_views
from forebay.app.supervisor_state import RunState, save_run_state
from forebay.engines.deployment import DeploymentPhase, DeploymentStatus, ReplicaState, ReplicaStatus
from forebay.testing.answers import json_answer, sse_answer
from forebay.testing.openai import chat_stream
from forebay.testing.recorded import RecordedRequest
from forebay.testing.steps import Script
from forebay.testing.threaded import ThreadedUpstream

QUICK = (
    *("--concurrency", "1", "--requests", "2", "--warm-up", "0"),
    *("--input-tokens", "8", "--output-tokens", "2"),
)
FILE = """
deployments:
  support:
    model: help
    version: "3"
    source: embedded:smollm2-135m
    engine: {kind: llamacpp}
    hardware: cpu
  vectors:
    engine: {kind: minilm}
"""


class Running:
    """Answers as the control plane and as the replicas, all of them at one address."""

    def __init__(self, folder: Path) -> None:
        (folder / "forebay.yaml").write_text(FILE)
        (folder / ".forebay" / "run").mkdir(parents=True)
        (folder / ".forebay" / "admin.token").write_text("token\n")
        self.config = load_config(folder / "forebay.yaml", {})
        self.states: list[tuple[str, ReplicaState]] = []  # of which revision, and what it does
        self.url = ""

    def start(self, upstream: ThreadedUpstream) -> None:
        self.url = upstream.url
        state = RunState(
            pid=os.getpid(),
            started_at_s=0,
            gateway_url=upstream.origin,
            control_url=upstream.origin,
            children=(),
        )
        save_run_state(self.config.state_path, state)

    def answer(self, request: RecordedRequest) -> Script:
        if request.method == "POST":
            return sse_answer(chat_stream(["a", "b"], model="help", include_usage=True))
        if request.target.endswith("/deployments"):
            return json_answer(self._list().model_dump(mode="json"))
        return json_answer({"error": {"message": "not here"}}, status=404)

    def _list(self) -> DeploymentList:
        deployments = compile_deployments(self.config.deployments, self.config.launchers)
        support = deployments[0]
        replicas = tuple(
            ReplicaStatus(
                id=f"support-{index}",
                deployment="support",
                revision=revision or support.revision,
                index=index,
                state=state,
                url=self.url if not revision else "http://127.0.0.1:1/v1",
            )
            for index, (revision, state) in enumerate(self.states)
        )
        status = DeploymentStatus(
            name="support", phase=DeploymentPhase.ROLLING, message="it gets ready", replicas=replicas
        )
        return DeploymentList(data=list_views(self.config, deployments, (), {"support": status}), problems=[])


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FOREBAY_CONFIG", raising=False)
    fake = Running(tmp_path)
    with ThreadedUpstream(fake.answer) as upstream:
        fake.start(upstream)
        yield fake


def test_its_ready_replicas_are_measured_and_what_was_tried_is_tested_from_then_on(running: Running) -> None:
    running.states = [("", ReplicaState.READY), ("old", ReplicaState.READY), ("", ReplicaState.STARTING)]
    plan = ("apply", "-f", "deploy.yaml", "--dry-run")
    Path("deploy.yaml").write_text(FILE.replace("  support:", "  again:").partition("  vectors:")[0])
    refused = forebay(*plan)
    assert refused.exit_code == 1
    assert "`forebay bench NAME` then tries it" in refused.output
    done = forebay("bench", "support", *QUICK, "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    wanted = {"model": "help", "version": "3", "hardware": "cpu", "engine": "llamacpp"}
    assert wanted.items() <= told.items()
    assert told["figures"]["errors"] == 0  # the old revision's address answers nobody
    assert forebay(*plan).exit_code == 0


def test_a_model_of_a_deployment_is_measured_through_the_gateway(running: Running) -> None:
    done = forebay("bench", "help", *QUICK, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["engine"] == ""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "support",
            ("no replica of the deployment support is ready", "it gets ready", "forebay deployments"),
        ),
        ("vectors", ("answers embeddings",)),
        ("other", ("deployments: support, vectors", "models: help, vectors")),
        ("model:support", ("neither a deployment",)),
    ],
)
def test_what_cannot_be_measured_is_told(running: Running, name: str, words: tuple[str, ...]) -> None:
    running.states = [("old", ReplicaState.READY), ("", ReplicaState.STARTING)]
    done = forebay("bench", name, *QUICK)
    assert done.exit_code in (1, 2)
    assert all(each in done.output for each in words), done.output
