"""From a registered version to answers on record: by alias, pinned, changed, rolled out and taken back."""

import json
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest
from whole import Whole, running, wait_until

from forebay.engines.weights import find_gguf

pytestmark = pytest.mark.e2e

CONFIG = "data: {dir: .forebay}\ngateway: {port: 0, workers: 1}\ncontrol: {port: 0}\nmodels: {}\n"
MANIFEST = """
deployments:
  chat:
    source: registry:chat@champion
    engine: {kind: llamacpp, slots: 1, context_tokens: 256}
    rollout: {strategy: canary, steps: [0.5], step_s: 0.5, requests_min: 0}
"""


def run(whole: Whole, *words: str, status: int = 0) -> str:
    done = whole.command(*words)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def show(whole: Whole) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(whole.command("deployments", "chat", "--json").stdout)
    return found


def ask(whole: Whole) -> bool:
    body = {"model": "chat", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
    headers = {"authorization": f"Bearer {whole.key}"}
    answer = httpx.post(f"{whole.url}/chat/completions", json=body, headers=headers, timeout=60)
    return answer.status_code == 200


def list_versions(whole: Whole) -> set[str]:
    """Of the model, on records."""
    rows = json.loads(whole.command("usage", "--by", "version", "--json").stdout)["rows"]
    return {str(row["version"]) for row in rows}


def test_a_version_is_deployed_by_its_alias_changed_and_taken_back(tmp_path: Path) -> None:
    first = find_gguf("embedded:smollm2-135m")
    second = tmp_path / "second.gguf"
    shutil.copyfile(first, second)
    with second.open("ab") as file:
        file.write(b"another content")
    wait = ("--allow-untested", "--wait", "--timeout", "200")
    with running(tmp_path, CONFIG) as whole:
        (whole.folder / "deploy.yaml").write_text(MANIFEST)
        told = run(whole, "apply", "-f", "deploy.yaml", *wait, status=1)
        assert "no model 'chat' is registered here" in told
        run(whole, "models", "register", "chat", str(first), "--alias", "champion")
        run(whole, "apply", "-f", "deploy.yaml", *wait)
        wait_until(lambda: ask(whole), 60, "callers get answers")
        before = show(whole)
        assert (before["version"], before["phase"]) == ("chat-v1", "ready")
        assert before["manifest"]["source"].startswith("registry:chat@champion#1:")

        # The alias moves, and nothing that runs does.
        run(whole, "models", "register", "chat", str(second), "--alias", "champion", "--link")
        assert show(whole)["serving_revision"] == before["revision"]
        assert "registry:chat@champion#2:" in run(whole, "diff", "-f", "deploy.yaml", status=1)
        assert "in use by deployment chat" in run(whole, "models", "delete", "chat@1", status=1)

        run(whole, "apply", "-f", "deploy.yaml", *wait)
        after = show(whole)
        assert (after["version"], after["phase"], after["generation"]) == ("chat-v2", "ready", 2)
        assert after["serving_revision"] != before["revision"]
        assert ask(whole)
        wait_until(lambda: list_versions(whole) >= {"chat-v1", "chat-v2"}, 60, "records tell")
        told = run(whole, "models", "delete", "chat@1", status=1)
        assert "generation 1 that deployment chat may go back to" in told
        inventory = json.loads(whole.command("inventory", "--json").stdout)["data"]
        assert {row["model_version"] for row in inventory if row["deployment"] == "chat"} == {"chat-v2"}

        run(whole, "rollback", "chat", "--wait", "--timeout", "200")
        assert (show(whole)["version"], show(whole)["serving_revision"]) == ("chat-v1", before["revision"])
        assert ask(whole)
        assert run(whole, "models", "verify").count("whole") == 2
