"""The fake of Google's Gemini API and Vertex AI behaves as they say they do."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from forebay.testing.gemini import API_KEY, ID, VERTEX_BASE, text, thought, usage, well_behaved
from forebay.testing.threaded import ThreadedUpstream

ASKED = {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}
METHOD = "/models/gemini-test:generateContent"
STREAM = "/models/gemini-test:streamGenerateContent"


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    handler = well_behaved(thought("Hm, well.", "c2ln"), text("Hello there"), tokens=usage(7, 5, thoughts=3))
    with ThreadedUpstream(handler) as upstream, httpx.Client(base_url=upstream.origin) as client:
        yield client


def post(http: httpx.Client, path: str, body: Any = ASKED, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return http.post(path, json=body, headers=named)


@pytest.mark.parametrize("base", ["/v1", "/v1beta"])
def test_it_serves_whole_answers_to_those_who_have_the_key(http: httpx.Client, base: str) -> None:
    got = post(http, f"{base}{METHOD}", x_goog_api_key=API_KEY).json()
    assert got["responseId"] == ID
    assert got["usageMetadata"] == {
        "promptTokenCount": 7,
        "candidatesTokenCount": 5,
        "thoughtsTokenCount": 3,
        "totalTokenCount": 15,
    }


def test_its_stream_brings_the_same_in_pieces(http: httpx.Client) -> None:
    got = post(http, f"/v1beta{STREAM}?alt=sse", x_goog_api_key=API_KEY)
    assert got.headers["content-type"].startswith("text/event-stream")
    told = [json.loads(raw.removeprefix("data: ")) for raw in got.text.strip().split("\r\n\r\n")]
    parts = [part for each in told for part in each["candidates"][0]["content"]["parts"]]
    assert "".join(part["text"] for part in parts if not part.get("thought")) == "Hello there"
    assert [part["thoughtSignature"] for part in parts if "thoughtSignature" in part] == ["c2ln"]
    reasons = [each["candidates"][0].get("finishReason") for each in told]
    assert reasons == [None] * (len(told) - 1) + ["STOP"]


def test_it_refuses_as_google_does(http: httpx.Client) -> None:
    bad = post(http, f"/v1beta{METHOD}", x_goog_api_key="no")
    assert (bad.status_code, bad.json()["error"]["details"][0]["reason"]) == (400, "API_KEY_INVALID")
    vertex = post(http, f"{VERTEX_BASE}{METHOD}", x_goog_api_key=API_KEY)
    assert (vertex.status_code, vertex.json()["error"]["status"]) == (401, "UNAUTHENTICATED")
    assert post(http, f"{VERTEX_BASE}{METHOD}", authorization=f"Bearer {API_KEY}").status_code == 200
    for path, body in (
        (f"/v1beta{METHOD}", ASKED | {"novelty": 1}),
        (f"/v1beta{STREAM}", ASKED),
    ):
        assert post(http, path, body, x_goog_api_key=API_KEY).status_code == 400
    for path in ("/v1beta/models/missing:generateContent", "/v1beta/models/x:countTokens", "/"):
        assert post(http, path, x_goog_api_key=API_KEY).status_code == 404


def test_it_embeds_each_text(http: httpx.Client) -> None:
    asked = {"requests": [{"content": {"parts": [{"text": each}]}} for each in "ab"]}
    got = post(http, "/v1beta/models/e:batchEmbedContents", asked, x_goog_api_key=API_KEY).json()
    assert [each["values"] for each in got["embeddings"]] == [[0, 0.5], [1, 0.5]]
