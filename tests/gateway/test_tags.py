"""A request's metadata stands on its record, however the request ends, and reaches the target untouched."""

import json
from pathlib import Path

import httpx
import msgspec
import pytest

from forebay.testing.gateway import GatewayProcess, make_route
from forebay.testing.openai import well_behaved
from forebay.testing.threaded import ThreadedUpstream

ASK = {"model": "m", "messages": [{"role": "user", "content": "Hi."}]}
TAGS = {"customer": "acme", "größe": "…"}


def test_tags_stand_on_the_record_and_reach_the_target(tmp_path: Path) -> None:
    with ThreadedUpstream(well_behaved("Hello")) as upstream:
        with GatewayProcess([make_route("m", upstream.url)], folder=tmp_path) as gateway:
            headers = {"authorization": f"Bearer {gateway.key}"}
            for number, (metadata, tags, stream) in enumerate(
                [(TAGS, TAGS, False), (TAGS, TAGS, True), ({"a": 1}, {}, False), ("odd", {}, True)]
            ):
                body = ASK | {"metadata": metadata, "stream": stream}
                answer = httpx.post(gateway.url + "/chat/completions", json=body, headers=headers)
                assert answer.status_code == 200
                assert upstream.requests[number].json()["metadata"] == metadata
                assert dict(gateway.wait_record(answer.headers["x-request-id"]).tags) == tags


@pytest.mark.parametrize("model", ["unknown", "m"])
def test_a_request_that_fails_keeps_what_was_known_of_it(tmp_path: Path, model: str) -> None:
    with GatewayProcess([make_route("m", "http://127.0.0.1:9/v1")], folder=tmp_path) as gateway:
        headers = {"authorization": f"Bearer {gateway.key}"}
        body = json.dumps(ASK | {"model": model, "metadata": TAGS})
        answer = httpx.post(gateway.url + "/chat/completions", content=body, headers=headers)
        assert answer.status_code in (404, 503)
        record = gateway.wait_record(answer.headers["x-request-id"])
        assert dict(record.tags) == (TAGS if model == "m" else {}), (
            "a request for nothing is looked at no further"
        )


def test_experiment_variant_and_version_stand_on_the_record(tmp_path: Path) -> None:
    with ThreadedUpstream(well_behaved("Hello")) as upstream:
        route = make_route("m", upstream.url)
        target = msgspec.structs.replace(route.targets[0], version="2026-11")
        route = msgspec.structs.replace(route, targets=(target,))
        with GatewayProcess([route], folder=tmp_path) as gateway:
            headers = {"authorization": f"Bearer {gateway.key}"}
            for metadata, expected in [
                ({"experiment": "e", "variant": "b", "x": "y"}, ("e", "b")),
                ({"variant": "b"}, ("", "b")),
                ({"Experiment": "e"}, ("", "")),
                ({"experiment": 1, "variant": "b"}, ("", "")),
                (None, ("", "")),
            ]:
                body = ASK | {"metadata": metadata}
                answer = httpx.post(gateway.url + "/chat/completions", json=body, headers=headers)
                record = gateway.wait_record(answer.headers["x-request-id"])
                assert (record.experiment, record.variant) == expected
                assert record.version == "2026-11"
                if expected[1]:
                    assert dict(record.tags) == metadata, "they are tags as well"
