"""`forebay batch` against a real gateway: from a file of requests to a file of answers."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from batch_scene import BatchScene
from typer.testing import CliRunner, Result

from forebay.cli.main import app
from forebay.testing.gateway import TEST_KEY, make_route
from forebay.testing.openai import well_behaved
from forebay.testing.threaded import ThreadedUpstream


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BatchScene]:
    with ThreadedUpstream(well_behaved("Hello")) as upstream:
        with BatchScene(tmp_path_factory.mktemp("command"), [make_route("m", upstream.url)]) as scene:
            yield scene


def forebay(scene: BatchScene, *args: str, key: str = TEST_KEY) -> Result:
    return CliRunner().invoke(
        app, ["batch", *args, "--url", scene.gateway.url, "--key", key], catch_exceptions=False
    )


def write(folder: Path, lines: list[dict[str, object]]) -> str:
    path = folder / 'requests "1".jsonl'
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def make_lines(count: int) -> list[dict[str, object]]:
    body = {"model": "m", "input": "x" * 30_000}  # more than one piece of the upload
    return [
        {"custom_id": f"c{number}", "method": "POST", "url": "/v1/embeddings", "body": body}
        for number in range(count)
    ]


def test_a_file_of_requests_becomes_a_file_of_answers(scene: BatchScene, tmp_path: Path) -> None:
    path = write(tmp_path, make_lines(40))
    done = forebay(scene, "submit", path, "--endpoint", "/v1/embeddings", "--wait", "--json")
    assert done.exit_code == 0, done.output
    batch = json.loads(done.stdout)
    assert (batch["status"], batch["request_counts"]["completed"]) == ("completed", 40)
    answers = [json.loads(line) for line in forebay(scene, "results", batch["id"]).stdout.splitlines()]
    assert {answer["custom_id"] for answer in answers} == {f"c{number}" for number in range(40)}
    assert "no line" in forebay(scene, "results", batch["id"], "--errors").stderr
    shown = forebay(scene, "show", batch["id"])
    assert batch["id"] in shown.stdout
    assert "completed" in shown.stdout
    assert batch["id"] in forebay(scene, "list").stdout
    assert json.loads(forebay(scene, "list", "--json").stdout)["data"][0]["id"] == batch["id"]
    late = forebay(scene, "cancel", batch["id"])
    assert late.exit_code == 1
    assert "nothing to cancel" in late.stderr


def test_what_is_wrong_with_a_file_is_told_by_its_lines(scene: BatchScene, tmp_path: Path) -> None:
    lines = make_lines(2)
    path = write(tmp_path, [lines[0], lines[1] | {"method": "GET"}])
    begun = forebay(scene, "submit", path, "--endpoint", "/v1/embeddings")
    assert begun.exit_code == 0, begun.output
    failed = forebay(scene, "show", begun.stdout.strip(), "--wait")
    assert failed.exit_code == 1
    assert "line 2: method must be POST" in failed.stderr


@pytest.mark.parametrize(
    "args", [["show", "batch_none"], ["cancel", "batch_none"], ["results", "batch_none"]]
)
def test_a_batch_that_is_not_there_is_told(scene: BatchScene, args: list[str]) -> None:
    told = forebay(scene, *args)
    assert told.exit_code == 1
    assert "there is no batch 'batch_none'" in told.stderr


def test_a_wrong_key_and_a_missing_file_are_told(scene: BatchScene, tmp_path: Path) -> None:
    assert "API key is wrong" in forebay(scene, "list", key="fb-none").stderr
    missing = forebay(scene, "submit", str(tmp_path / "none.jsonl"))
    assert missing.exit_code == 1
    assert "none.jsonl" in missing.stderr


def test_metrics_tell_of_lines(scene: BatchScene, tmp_path: Path) -> None:
    path = write(tmp_path, make_lines(3))
    assert forebay(scene, "submit", path, "--endpoint", "/v1/embeddings", "--wait").exit_code == 0

    def read() -> dict[str, float]:
        lines = scene.gateway.get("/metrics", timeout_s=30)[1].decode().splitlines()
        pairs = [line.rpartition(" ") for line in lines if line.startswith("forebay_batch")]
        return {name: float(value) for name, _, value in pairs}

    scene.until(lambda: read().get('forebay_batch_lines_written_total{file="output"}', 0) >= 3)
    scene.until(lambda: read().get("forebay_batches_unfinished") == 0)
    assert read()['forebay_batch_lines{state="in_flight"}'] == 0
