"""Estimates of tokens under limits: how far they were from what targets reported is on the metrics page."""

import base64
from pathlib import Path
from typing import Any

import pytest
from limits_rig import Authority, ask, workers

from forebay.core.limits import Kind, Limit, Measure, Period
from forebay.testing.gateway import TEST_KEY, GatewayProcess
from forebay.testing.openai import usage, well_behaved
from forebay.testing.threaded import ThreadedUpstream

LIMIT = Limit(
    id="t",
    owner="key k1",
    measure=Measure.TOTAL_TOKENS,
    amount=10**6,
    period=Period.MONTH,
    kind=Kind.CALENDAR,
)
FREE = "fb-test-key-without-limits"


def read(worker: GatewayProcess, endpoint: str = "chat/completions") -> dict[tuple[str, str], float]:
    return {
        (kind, source): worker.metric(
            "forebay_estimate_tokens_total", endpoint=endpoint, type=kind, source=source
        )
        for kind in ("input", "output", "output_named")
        for source in ("estimated", "reported")
    }


def test_what_was_estimated_stands_beside_what_was_reported(tmp_path: Path) -> None:
    with ThreadedUpstream(well_behaved("Hi", tokens=usage(50, 20, reasoning=5))) as upstream:
        with (
            Authority(tmp_path, (LIMIT,)),
            workers(tmp_path, 1, upstream.url, (LIMIT,), keys={TEST_KEY: (LIMIT,), FREE: ()}) as (worker,),
        ):
            sent = [ask(worker.url, stream=stream, user="x" * 300) for stream in (False, True)]
            assert [answer.status_code for answer in sent] == [200, 200]
            inputs = sum(len(answer.request.content) // 4 for answer in sent)
            worker.until(lambda: read(worker)["input", "reported"] == 100)
            found = read(worker)
            assert found["input", "estimated"] == inputs
            assert found["output", "reported"] == 40
            assert found["output", "estimated"] == 256 + int(256 + 0.05 * (20 - 256))
            assert found["output_named", "estimated"] == found["output_named", "reported"] == 0

            assert ask(worker.url, max_tokens=70).status_code == 200
            worker.until(lambda: read(worker)["output_named", "reported"] == 20)
            assert read(worker)["output_named", "estimated"] == 70

            before = read(worker)
            assert ask(worker.url, key=FREE).status_code == 200, "without limits nothing is estimated"
            assert ask(worker.url, "embeddings").status_code == 200
            worker.until(lambda: read(worker, "embeddings")["input", "reported"] == 3)
            assert read(worker, "embeddings")["output", "estimated"] == 0
            assert read(worker) == before


@pytest.mark.parametrize(
    ("content", "tokens_max"),
    [
        ([{"type": "image_url", "image_url": {"url": "data:image/png;base64,%s"}}], 1100),
        ([{"type": "input_audio", "input_audio": {"format": "wav", "data": "%s"}}], 1100),
        ("%s", 200_000),
    ],
)
def test_a_picture_is_reserved_for_as_a_picture(tmp_path: Path, content: Any, tokens_max: int) -> None:
    """A megabyte in base64 does not take a quarter of a million tokens of the limit; as text it would."""
    data = base64.b64encode(bytes(750_000)).decode()
    limit = Limit(id="i", owner="key k1", measure=Measure.INPUT_TOKENS, amount=tokens_max, period=Period.DAY)
    filled = data if isinstance(content, str) else _fill(content, data)
    with ThreadedUpstream(well_behaved("Hi")) as upstream, Authority(tmp_path, (limit,)):
        with workers(tmp_path, 1, upstream.url, (limit,)) as (worker,):
            answer = ask(worker.url, messages=[{"role": "user", "content": filled}])
            assert answer.status_code == (429 if isinstance(content, str) else 200), answer.text


def _fill(content: Any, data: str) -> Any:
    if isinstance(content, list):
        return [_fill(part, data) for part in content]
    if isinstance(content, dict):
        return {name: _fill(part, data) for name, part in content.items()}
    return content.replace("%s", data)
