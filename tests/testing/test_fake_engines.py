"""The fake engine answers as its software does: whole, or as a stream where that is asked."""

import httpx
import pytest

from forebay.testing.engines import FakeEngine
from forebay.testing.threaded import ThreadedUpstream


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
def test_a_fake_engine_streams_where_it_is_asked_to(path: str) -> None:
    engine = FakeEngine(answer_s=0.01)
    with ThreadedUpstream(engine.handle) as upstream:
        whole = httpx.post(f"{upstream.url}/{path}", json={"model": "m"})
        assert whole.json()["model"] == "m"
        stream = httpx.post(f"{upstream.url}/{path}", json={"model": "m", "stream": True})
    assert stream.headers["content-type"].startswith("text/event-stream")
    assert stream.text.endswith("data: [DONE]\n\n")
    assert "prompt_tokens" not in stream.text, "usage was not asked for"
    assert engine.generated == 2
