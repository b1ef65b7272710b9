"""What callers name is not fetched, and what one tenant was told is told to no other: faults O3 and O4."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from forebay.testing.answers import json_answer
from forebay.testing.gateway import TEST_KEY, GatewayProcess, make_key, make_route
from forebay.testing.openai import well_behaved
from forebay.testing.threaded import ThreadedUpstream

DIALECTS = ("openai", "openai-responses", "anthropic", "bedrock", "gemini", "vertex")
OTHER_KEY = "fb-of-another-tenant-that-asks-the-same"


@pytest.fixture(scope="module")
def targets() -> Iterator[ThreadedUpstream]:
    """Refuses everything: what matters is what it was sent."""
    with ThreadedUpstream(
        json_answer({"error": {"message": "no", "type": "invalid"}}, status=400)
    ) as upstream:
        yield upstream


@pytest.fixture(scope="module")
def canary() -> Iterator[ThreadedUpstream]:
    """On a private address: nobody has any business there."""
    with ThreadedUpstream(well_behaved("a picture")) as upstream:
        yield upstream


@pytest.fixture(scope="module")
def gateway(targets: ThreadedUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("fetching")
    (folder / "secret").write_text("a-token")
    routes = [
        make_route(name, targets.url, dialect=name, api_key=f"file:{folder}/secret") for name in DIALECTS
    ]
    with GatewayProcess(routes, folder=folder / "gateway") as gateway:
        yield gateway


def list_urls(port: int) -> list[str]:
    return [
        f"http://127.0.0.1:{port}/x.png",
        f"http://2130706433:{port}/x.png",
        f"http://0x7f000001:{port}/x.png",
        f"http://localhost:{port}/x.png",
        f"http://[::1]:{port}/x.png",
        "http://169.254.169.254/latest/meta-data/",
        "file:///etc/passwd",
        f"http://name@127.0.0.1:{port}/x.png",
    ]


@pytest.mark.parametrize("model", DIALECTS)
def test_O3_a_picture_that_is_named_is_not_fetched(
    gateway: GatewayProcess,
    targets: ThreadedUpstream,
    canary: ThreadedUpstream,
    model: str,
) -> None:
    """It goes to the target as an address, or the caller is told that the target takes none."""
    for number, url in enumerate(list_urls(canary.port)):
        content = [
            {"type": "text", "text": "What is this?"},
            {"type": "image_url", "image_url": {"url": url}},
        ]
        asks: dict[str, dict[str, Any]] = {
            "chat/completions": {"messages": [{"role": "user", "content": content}]},
            "messages": {
                "max_tokens": 10,
                "messages": [
                    {"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": url}}]}
                ],
            },
            "responses": {
                "input": [{"role": "user", "content": [{"type": "input_image", "image_url": url}]}],
                "store": False,
            },
        }
        for path, body in asks.items():
            before = len(targets.requests)
            answer = httpx.post(
                f"{gateway.url}/{path}",
                json={**body, "model": model, "stream": bool(number % 2)},
                headers={"authorization": f"Bearer {TEST_KEY}"},
                timeout=60,
            )
            assert answer.status_code == 400, answer.text
            sent = targets.requests[before:]
            if sent:
                assert url.encode() in sent[0].body or url.encode().replace(b"/", b"\\/") in sent[0].body
            else:
                assert "imag" in answer.text or "url" in answer.text.lower(), answer.text
    assert canary.connections == []


def test_O4_the_same_prompt_of_two_tenants_is_answered_twice(tmp_path: Path) -> None:
    """There is no cache of answers: each request is its own, and so is its record."""
    ask = {"model": "m", "messages": [{"role": "user", "content": "The same"}], "temperature": 0, "seed": 1}
    keys = (make_key(), make_key(OTHER_KEY))
    with ThreadedUpstream(well_behaved("Hello")) as upstream:
        with GatewayProcess([make_route("m", upstream.url)], folder=tmp_path, keys=keys) as gateway:
            for number, key in enumerate((TEST_KEY, OTHER_KEY, TEST_KEY)):
                answer = httpx.post(
                    f"{gateway.url}/chat/completions",
                    json=ask,
                    headers={"authorization": f"Bearer {key}", "cache-control": "max-age=600"},
                )
                assert answer.status_code == 200
                assert not {"age", "x-cache", "etag"} & set(answer.headers)
                assert len(upstream.requests) == number + 1
