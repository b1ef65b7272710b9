"""`limits.queue` of `forebay.yaml`: from the file into the snapshot, and each mistake at its line."""

from pathlib import Path

import pytest

from forebay.app.config import load_config
from forebay.app.snapshot import compile_snapshot
from forebay.core.errors import ConfigInvalid
from forebay.core.limits import QueueRules
from forebay.core.routes import decode_snapshot, encode_snapshot


def load(folder: Path, queue: str) -> QueueRules:
    file = folder / "forebay.yaml"
    file.write_text(f"limits:\n  queue: {queue}\n")
    snapshot = compile_snapshot(load_config(file, {}), (), {})
    return decode_snapshot(encode_snapshot(snapshot)).quota_queue


def test_what_the_file_says_reaches_the_workers(tmp_path: Path) -> None:
    assert load(tmp_path, "{}") == QueueRules()
    said = (
        "wait_max_s: 2.5, requests_max: 7, tenant_requests_max: 3, default_wait_s: {batch: 9, standard: 0.5}"
    )
    assert load(tmp_path, f"{{{said}}}") == QueueRules(
        wait_max_s=2.5, requests_max=7, tenant_requests_max=3, default_wait_s=(0.0, 0.5, 9.0)
    )
    assert load(tmp_path, "{wait_max_s: 0}").wait_max_s == 0.0


@pytest.mark.parametrize(
    ("queue", "named"),
    [
        ("{wait_max_s: -1}", "limits.queue.wait_max_s"),
        ("{wait_max_s: 1e9}", "limits.queue.wait_max_s"),
        ("{wait_max_s: .nan}", "limits.queue.wait_max_s"),
        ("{requests_max: 0}", "limits.queue.requests_max"),
        ("{tenant_requests_max: many}", "limits.queue.tenant_requests_max"),
        ("{default_wait_s: 5}", "limits.queue.default_wait_s"),
        ("{default_wait_s: {urgent: 5}}", "limits.queue.default_wait_s"),
    ],
)
def test_a_mistake_is_told_with_its_line(tmp_path: Path, queue: str, named: str) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        load(tmp_path, queue)
    assert named in str(caught.value)
    assert "forebay.yaml:2" in str(caught.value)
