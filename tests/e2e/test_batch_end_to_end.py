"""A whole Forebay with its embedded models runs batches: answers, usage by kind, bills once."""

import json
from pathlib import Path

import pytest
from openai import OpenAI
from whole import running, wait_until

CONFIG = """
gateway: {port: 0, workers: 1}
control: {port: 0}
prices:
  book:
    - {model: minilm-l6-v2, usd_per_mtok: {input: 1.0}}
limits:
  rules:
    - {each: key, concurrent_requests: 2}
"""


@pytest.mark.e2e
def test_a_batch_of_embedded_models_is_answered_and_in_the_usage(tmp_path: Path) -> None:
    with running(tmp_path, CONFIG) as whole:
        client = OpenAI(base_url=whole.url, api_key=whole.key, timeout=120)
        ids = []
        for endpoint, body in (
            ("/v1/embeddings", {"model": "minilm-l6-v2", "input": "a river"}),
            ("/v1/chat/completions", {"model": "smollm2-135m", "max_tokens": 2,
                                      "messages": [{"role": "user", "content": "Hi"}]}),
        ):  # fmt: skip
            lines = [
                json.dumps({"custom_id": f"c{n}", "method": "POST", "url": endpoint, "body": body})
                for n in range(5)
            ]
            file = client.files.create(file=("in.jsonl", "\n".join(lines).encode()), purpose="batch")
            batch = client.batches.create(
                input_file_id=file.id,
                endpoint=endpoint,  # type: ignore[arg-type]
                completion_window="24h",
            )
            ids.append(batch.id)
        for batch_id in ids:
            wait_until(lambda id=batch_id: client.batches.retrieve(id).status == "completed", 120, batch_id)
            done = client.batches.retrieve(batch_id)
            assert done.request_counts is not None
            assert (done.request_counts.completed, done.request_counts.failed) == (5, 0)
            assert done.output_file_id is not None
            for _ in range(4):
                text = client.files.content(done.output_file_id).text
            assert len(text.splitlines()) == 5
        usage = whole.command("usage", "--by", "kind,model", "--json")
        assert usage.returncode == 0, usage.stderr
        rows = json.loads(usage.stdout)["rows"]
        batches = {row["model"]: row for row in rows if row["kind"] == "batch"}
        # What met the limit of two at once has waited in line, or was asked again; none is billed twice.
        assert batches["minilm-l6-v2"]["requests"] - batches["minilm-l6-v2"]["failed"] == 5
        assert batches["smollm2-135m"]["requests"] - batches["smollm2-135m"]["failed"] == 5
