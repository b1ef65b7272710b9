"""Limits of keys on audio and images: requests, requests at once, tokens by a guess, rights, context."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from limits_rig import Authority, workers

from forebay.core.limits import Kind, Limit, Measure, Period
from forebay.core.routes import Endpoint
from forebay.testing.gateway import GatewayProcess, make_key, make_route
from forebay.testing.media import PNG, audio_usage, duration_usage, wav, well_behaved
from forebay.testing.openai import Payload
from forebay.testing.recorded import RecordedRequest
from forebay.testing.steps import Gate, Script, Wait
from forebay.testing.threaded import ThreadedUpstream

REQUESTS = Limit(
    id="r", owner="key k1", measure=Measure.REQUESTS, amount=2, period=Period.MONTH, kind=Kind.CALENDAR
)
TOKENS = Limit(
    id="t", owner="key k2", measure=Measure.TOTAL_TOKENS, amount=2000, period=Period.MONTH, kind=Kind.CALENDAR
)
AT_ONCE = Limit(id="c", owner="key k3", measure=Measure.CONCURRENT, amount=1)
KEYS = {"fb-requests": [REQUESTS], "fb-tokens": [TOKENS], "fb-at-once": [AT_ONCE]}


class Upstream:
    usage: Payload | None = None
    gate: Gate | None = None

    def serve(self, request: RecordedRequest) -> Script:
        steps = list(well_behaved("Hello", usage=self.usage)(request))
        return steps if self.gate is None else [Wait(self.gate), *steps]


SERVER = Upstream()


@pytest.fixture(scope="module")
def upstream() -> Iterator[ThreadedUpstream]:
    with ThreadedUpstream(SERVER.serve) as upstream:
        yield upstream


@pytest.fixture(scope="module")
def worker(
    upstream: ThreadedUpstream, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[GatewayProcess, Authority]]:
    folder = tmp_path_factory.mktemp("media-limits")
    limits = (REQUESTS, TOKENS, AT_ONCE)
    with (
        Authority(folder, limits) as authority,
        workers(folder, 1, upstream.url, limits, keys=KEYS) as started,
    ):
        yield started[0], authority


def hear(worker: GatewayProcess, key: str, seconds: float = 1, **fields: str) -> httpx.Response:
    form: Any = {"model": (None, "m"), "file": ("a.wav", wav(seconds))}
    form |= {name: (None, value) for name, value in fields.items()}
    headers = {"authorization": f"Bearer {key}"}
    return httpx.post(f"{worker.url}/audio/transcriptions", files=form, headers=headers, timeout=60)


def test_requests(worker: tuple[GatewayProcess, Authority], upstream: ThreadedUpstream) -> None:
    SERVER.usage = SERVER.gate = None
    statuses = [hear(worker[0], "fb-requests").status_code for _ in range(3)]
    assert statuses == [200, 200, 429]


def test_tokens_are_those_that_the_answer_tells(worker: tuple[GatewayProcess, Authority]) -> None:
    """One by one, as limits see them: 10 for a second of sound before, what is told after."""
    process, authority = worker
    SERVER.usage = audio_usage(100, 20, 30)
    assert hear(process, "fb-tokens").headers["x-ratelimit-limit-tokens"] == "2000"
    process.until(lambda: authority.left()["t"] == 1850)
    SERVER.usage = duration_usage(9)
    assert hear(process, "fb-tokens").status_code == 200
    process.until(lambda: authority.left()["t"] == 1850)  # it was no matter of tokens
    SERVER.usage = None
    refused = hear(process, "fb-tokens", 400)  # 4000 tokens of sound
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    assert hear(process, "fb-tokens", 10, response_format="text").status_code == 200
    # What nobody told is not given back: 100 of sound, 2 of texts, and what answers took on average.
    left = process.until(lambda: 0 < authority.left()["t"] < 1748 and authority.left()["t"])
    assert left > 1400


def test_at_once(worker: tuple[GatewayProcess, Authority], upstream: ThreadedUpstream) -> None:
    process, _ = worker
    SERVER.usage, SERVER.gate = None, Gate()
    asked, seen = {"model": "m", "voice": "a", "input": "x"}, len(upstream.requests)
    headers = {"authorization": "Bearer fb-at-once"}
    with httpx.Client(base_url=process.url, headers=headers, timeout=60) as client:
        first: list[httpx.Response] = []
        thread = threading.Thread(target=lambda: first.append(client.post("/audio/speech", json=asked)))
        thread.start()
        upstream.wait_requests(seen + 1)
        assert httpx.post(f"{process.url}/audio/speech", json=asked, headers=headers).status_code == 429
        SERVER.gate.open()
        thread.join()
        SERVER.gate = None
        assert first[0].status_code == 200
        assert client.post("/audio/speech", json=asked).status_code == 200


def test_rights_of_a_key(upstream: ThreadedUpstream, tmp_path: Path) -> None:
    SERVER.usage = SERVER.gate = None
    bounded = msgspec.structs.replace(
        make_key("fb-bounded"),
        endpoints=(Endpoint.SPEECH, Endpoint.IMAGE_EDITS),
        context_max_tokens=10,
        output_max_tokens=1,
    )
    with GatewayProcess([make_route("m", upstream.url)], folder=tmp_path, keys=[bounded]) as process:
        headers = {"authorization": "Bearer fb-bounded"}
        with httpx.Client(base_url=process.url, headers=headers, timeout=60) as client:
            assert hear(process, "fb-bounded").json()["error"]["code"] == "endpoint_not_allowed"
            said = client.post("/audio/speech", json={"model": "m", "voice": "a", "input": "short"})
            assert said.status_code == 200  # no such request can say how long its answer is to be
            long = client.post("/audio/speech", json={"model": "m", "voice": "a", "input": "x" * 200})
            assert (long.status_code, long.json()["error"]["param"]) == (400, "input")
            assert long.json()["error"]["code"] == "context_length_exceeded"
            form: Any = {"model": (None, "m"), "image": ("a.png", PNG * 100), "prompt": (None, "p")}
            assert client.post("/images/edits", files=form).status_code == 200  # pictures are no text
            form["prompt"] = (None, "p" * 200)
            assert client.post("/images/edits", files=form).json()["error"]["param"] == "prompt"
