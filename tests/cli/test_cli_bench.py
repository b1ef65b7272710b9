"""`forebay bench` on the command line: what a name stands for, what is told, saved and compared."""

import json
from pathlib import Path

import pytest
from command_line import forebay

from forebay.app.bench_files import list_benches
from forebay.testing.answers import json_answer, sse_answer
from forebay.testing.openai import chat_stream
from forebay.testing.recorded import RecordedRequest
from forebay.testing.steps import Script
from forebay.testing.threaded import ThreadedUpstream

QUICK = (
    "--concurrency",
    "2",
    "--requests",
    "4",
    "--warm-up",
    "0",
    "--input-tokens",
    "8",
    "--output-tokens",
    "4",
)


def serve(request: RecordedRequest) -> Script:
    if request.method == "GET":
        return json_answer({"object": "list", "data": [{"id": "there", "object": "model"}]})
    return sse_answer(chat_stream(["a", "b"], model="there", include_usage=True))


def write(folder: Path, url: str) -> Path:
    file = folder / "forebay.yaml"
    file.write_text(
        "data: {dir: data}\n"
        f"pools:\n  p: {{engine: vllm, hardware: h100, precision: fp8, version: '3', replicas: [{url}]}}\n"
        "models:\n  m: {endpoints: [chat/completions], targets: [{pool: p, model: there}]}\n"
    )
    return file


def test_a_pool_is_measured_saved_and_compared(tmp_path: Path) -> None:
    with ThreadedUpstream(serve) as upstream:
        file = write(tmp_path, upstream.url)
        plot = tmp_path / "p.svg"
        done = forebay("bench", "p", *QUICK, "--slo", "ttft=5s", "--plot", plot, "--config", file)
        assert done.exit_code == 0, done.output
        assert "2 at once" in done.output
        assert "Good/s" in done.output
        assert plot.read_text().startswith("<svg")
        asked = [json.loads(request.body) for request in upstream.requests if request.method == "POST"]
        assert len(asked) == 4
        assert all(each["model"] == "there" and each["ignore_eos"] for each in asked)
        done = forebay("bench", "p", *QUICK, "--json", "--no-ignore-eos", "--config", file)
    told = json.loads(done.stdout)
    assert told["figures"]["errors"] == 0
    fields = {"model": "there", "version": "3", "engine": "vllm", "hardware": "h100", "precision": "fp8"}
    assert fields.items() <= told.items()
    assert "samples" not in told["levels"][0]
    files = list(list_benches(tmp_path / "data"))
    assert str(files[0]) == told["file"]
    assert len(files) == 2
    tried = json.loads(forebay("matrix", "list", "--all", "--json", "--config", file).stdout)
    assert [
        (each["model"], each["engine"], each["hardware"], each["outcome"], each["source"]) for each in tried
    ] == [("m", "vllm", "h100", "passed", "bench")] * 2
    assert tried[0]["figures"]["output_tokens_per_s"] > 0
    compared = forebay("bench", "compare", files[0], files[1], "--json", "--config", file)
    assert compared.exit_code == 0, compared.output
    names = {each["name"] for each in json.loads(compared.stdout)["differences"]}
    assert {"mean_ttft_ms", "p99_e2el_ms"} <= names
    shown = forebay("bench", "compare", "p", "p", "--config", file)
    assert "no difference is certain" in shown.output


def test_an_address_needs_no_configuration_and_its_model_is_asked_for(tmp_path: Path) -> None:
    with ThreadedUpstream(serve) as upstream:
        done = forebay(
            "bench", upstream.url, *QUICK, "--json", "--no-save", "--config", write(tmp_path, "http://x/v1")
        )
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["model"] == "there"
    assert not (tmp_path / "data").exists()


def test_errors_are_told_and_are_a_problem(tmp_path: Path) -> None:
    def fail(request: RecordedRequest) -> Script:
        return json_answer({"error": {"message": "out of memory"}}, status=500)

    with ThreadedUpstream(fail) as upstream:
        done = forebay("bench", "p", *QUICK, "--config", write(tmp_path, upstream.url))
    assert done.exit_code == 1
    assert "4 × answered 500" in done.output
    assert "out of memory" in done.output
    (tried,) = json.loads(forebay("matrix", "list", "--json", "--config", tmp_path / "forebay.yaml").stdout)
    assert (tried["outcome"], tried["note"]) == ("failed", "2 at once; 4 requests failed")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["other"], "pools: p; models: m"),
        (["model:p"], "neither a deployment, a pool nor a model"),
        (["m"], "no Forebay runs here"),
        (["p", "--concurrency", "0"], "--concurrency"),
        (["p", "--concurrency", "1.5"], "--concurrency"),
        (["p", "--rate", "x"], "--rate"),
        (["p", "--slo", "ttft=5"], "--slo"),
        (["p", "--arrival", "often"], "--arrival"),
        (["p", "--endpoint", "embeddings"], "--endpoint"),
        (["p", "--prefix-tokens", "500"], "--prefix-tokens"),
        (["p", "--dataset", "/nowhere.jsonl"], "--dataset"),
        (["p", "q"], "one target"),
        (["compare", "p"], "two results"),
        (["compare", "p", "q"], "neither a file nor"),
        (["http://127.0.0.1:1"], "does not answer"),
    ],
)
def test_mistakes_are_told_with_how_to_mend_them(tmp_path: Path, args: list[str], words: str) -> None:
    done = forebay("bench", *args, "--config", write(tmp_path, "http://127.0.0.1:1/v1"))
    assert done.exit_code in (1, 2)
    assert words in done.output
