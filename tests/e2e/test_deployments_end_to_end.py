"""A person applies a manifest to a running Forebay, changes it, goes back; callers see each step."""

import json
from pathlib import Path
from typing import Any

import httpx
from whole import Whole, running, wait_until

CONFIG = "gateway: {port: 0, workers: 1}\ncontrol: {port: 0}\nmodels: {}\n"
MANIFEST = """
deployments:
  vectors:
    engine: {kind: minilm}
    version: "1"
    rollout: {strategy: blue-green, step_s: 0, requests_min: 0}
"""


def apply(whole: Whole, manifest: str, *args: str) -> str:
    (whole.folder / "deploy.yaml").write_text(manifest)
    command = ("apply", "-f", "deploy.yaml", "--allow-untested", "--wait", "--timeout", "100", *args)
    done = whole.command(*command)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def show(whole: Whole, name: str = "vectors") -> dict[str, Any]:
    done = whole.command("deployments", name, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def ask(whole: Whole, model: str) -> int:
    headers = {"authorization": f"Bearer {whole.key}"}
    body = {"model": model, "input": "hello"}
    return httpx.post(f"{whole.url}/embeddings", json=body, headers=headers, timeout=60).status_code


def test_apply_change_watch_and_go_back(tmp_path: Path) -> None:
    with running(tmp_path, CONFIG) as whole:
        assert ask(whole, "vectors") == 404
        told = apply(whole, MANIFEST)
        assert "vectors: created, generation 1" in told
        assert "vectors: ready, revision" in told
        wait_until(lambda: ask(whole, "vectors") == 200, 60, "callers get answers")
        first = show(whole)
        assert (first["phase"], first["replicas_ready"], first["version"]) == ("ready", 1, "1")

        apply(whole, MANIFEST.replace('"1"', '"2"'))
        second = show(whole)
        assert (second["generation"], second["version"]) == (2, "2")
        assert second["serving_revision"] == second["revision"] != first["revision"]
        assert ask(whole, "vectors") == 200

        back = whole.command("rollback", "vectors", "--wait", "--timeout", "100")
        assert back.returncode == 0, back.stdout + back.stderr
        assert show(whole)["serving_revision"] == first["revision"]
        assert ask(whole, "vectors") == 200

        # The file that is edited at run time counts as well, and no restart is asked for.
        (whole.folder / "forebay.yaml").write_text(
            CONFIG + "deployments: {more: {model: others, engine: {kind: minilm}}}\n"
        )
        wait_until(lambda: ask(whole, "others") == 200, 60, "what the file asks for serves")
        assert show(whole, "more")["origin"] == "file"

        assert whole.command("delete", "vectors").returncode == 0
        wait_until(lambda: ask(whole, "vectors") == 404, 60, "what was deleted is gone")
        assert ask(whole, "others") == 200
