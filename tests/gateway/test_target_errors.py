"""Errors of targets, as callers see them: whose fault it was, in whose words, and where it is tried again."""

import json
from collections.abc import Callable

import httpx
import pytest
from errors_rig import ASK, assert_error
from gateway_stage import Stage
from raw_caller import RawCaller

from forebay.core.events import Outcome, UsageSource
from forebay.testing.answers import answer, json_answer, redirect
from forebay.testing.gateway import GatewayProcess
from forebay.testing.openai import embeddings, error, rate_limited
from forebay.testing.steps import Gate, Reset, Wait


@pytest.mark.parametrize("status", [400, 404, 408, 409, 413, 422, 429, 500, 502, 503, 504, 529])
@pytest.mark.parametrize("stream", [False, True])
def test_a_targets_error_passes_in_its_own_words(
    gateway: GatewayProcess, client: httpx.Client, upstream: Stage, status: int, stream: bool
) -> None:
    said = error("no", type="odd_error", code="odd", param="messages") | {"unknown": [1]}
    upstream.answer = json_answer(
        said, status=status, headers=[("x-secret-header", "1"), ("set-cookie", "a=b")]
    )
    answer = client.post("/chat/completions", json=ASK | {"stream": stream})
    assert (answer.status_code, answer.json()) == (status, said)
    record = gateway.wait_record(answer.headers["x-request-id"])
    assert (record.outcome, record.status, record.error) == (Outcome.FAILED, status, f"upstream_{status}")


@pytest.mark.parametrize("status", [200, 404, 500])
def test_only_headers_on_the_list_cross(client: httpx.Client, upstream: Stage, status: int) -> None:
    private = [
        (name, "private")
        for name in ("set-cookie", "x-powered-by", "server", "via", "openai-organization", "x-request-id")
    ]
    upstream.answer = json_answer(error(), status=status, headers=[*private, ("retry-after", "3")])
    answer = client.post("/chat/completions", json=ASK)
    expected = {"content-type", "content-length", "date", "x-request-id", "x-forebay-attempts"}
    assert set(answer.headers) == expected | ({"retry-after"} if status >= 400 else set())
    assert "private" not in str(answer.headers)


NO_DIALECT = {
    "html": (b"<html><h1>502 Bad Gateway</h1></html>", "text/html"),
    "nothing": (b"", "text/plain"),
    "another dialect": (b'{"detail":"Not Found"}', "application/json"),
    "an error that is text": (b'{"error":"model is loading"}', "application/json"),
    "bytes": (b"\xff\xfe\x00\x01" * 2000, "application/octet-stream"),
    "a very long text": (b"long " * 100_000, "text/plain"),
}


@pytest.mark.parametrize("name", NO_DIALECT)
@pytest.mark.parametrize("stream", [False, True])
def test_a_targets_error_in_another_form_is_put_into_the_dialect(
    client: httpx.Client, upstream: Stage, name: str, stream: bool
) -> None:
    body, content_type = NO_DIALECT[name]
    upstream.answer = answer(body, status=418, headers=[("content-type", content_type)])
    told = assert_error(
        client.post("/chat/completions", json=ASK | {"stream": stream}), 418, "upstream_error"
    )
    assert "418" in told["message"]
    assert len(told["message"]) < 2000
    if name == "another dialect":
        assert "Not Found" in told["message"]


def test_limits_of_a_target_pass_with_the_time_to_wait(client: httpx.Client, upstream: Stage) -> None:
    upstream.answer = rate_limited("17")
    answer = client.post("/chat/completions", json=ASK)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "17")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("stream", [False, True])
def test_a_redirect_is_not_followed_and_not_told(
    client: httpx.Client, upstream: Stage, fallback: Stage, status: int, stream: bool
) -> None:
    upstream.answer = redirect(fallback.url + "/chat/completions", status)
    answer = client.post("/chat/completions", json=ASK | {"stream": stream})
    told = assert_error(answer, 502, "upstream_redirect")
    assert fallback.url not in answer.text
    assert "location" not in answer.headers
    assert told["type"] == "upstream_error"
    assert not fallback.requests


@pytest.mark.parametrize("status", [401, 403])
def test_a_target_that_refuses_our_credentials_is_no_401_for_the_caller(
    client: httpx.Client, upstream: Stage, fallback: Stage, status: int
) -> None:
    upstream.answer = json_answer(error("Incorrect API key provided: sk-can***6789"), status=status)
    answer = client.post("/chat/completions", json=ASK | {"model": "secret"})
    assert_error(answer, 502, "upstream_credentials_rejected")
    assert "sk-can" not in answer.text
    assert "refused the gateway's credentials" in answer.json()["error"]["message"]
    answer = client.post("/chat/completions", json=ASK | {"model": "m"})
    assert_error(answer, 502, "upstream_credentials_rejected")
    assert "has none for it: set its `api_key` in forebay.yaml" in answer.json()["error"]["message"]
    assert client.post("/chat/completions", json=ASK | {"model": "secret-two"}).status_code == 200


def test_a_target_without_its_credentials_is_not_called(client: httpx.Client, upstream: Stage) -> None:
    answer = client.post("/chat/completions", json=ASK | {"model": "no-secret"})
    assert_error(answer, 502, "upstream_credentials_rejected")
    assert not upstream.requests


def test_a_target_where_nobody_listens(
    gateway: GatewayProcess, client: httpx.Client, upstream: Stage
) -> None:
    for stream in (False, True):
        answer = client.post("/chat/completions", json=ASK | {"model": "dead", "stream": stream})
        assert_error(answer, 503, "upstream_unreachable")
        assert answer.json()["error"]["message"].endswith(" can't be reached; the gateway's log says why")
        record = gateway.wait_record(answer.headers["x-request-id"])
        assert record.usage_source is UsageSource.NONE
        answer = client.post("/chat/completions", json=ASK | {"model": "dead-first", "stream": stream})
        assert (answer.status_code, answer.headers["x-forebay-attempts"]) == (200, "2")


@pytest.mark.parametrize("status", [400, 404, 409, 422])
def test_the_callers_fault_is_not_sent_elsewhere(
    gateway: GatewayProcess,
    client: httpx.Client,
    upstream: Stage,
    fallback: Stage,
    fresh: Callable[[str], str],
    status: int,
) -> None:
    """Six requests that are too long, then a good one: the target is as healthy as before."""
    fresh("two")
    upstream.next.extend([json_answer(error("too long", type="invalid_request_error"), status=status)] * 6)
    for _ in range(6):
        answer = client.post("/chat/completions", json=ASK | {"model": "two"})
        assert (answer.status_code, answer.headers["x-forebay-attempts"]) == (status, "1")
    answer = client.post("/chat/completions", json=ASK | {"model": "two"})
    assert (answer.status_code, answer.headers["x-forebay-attempts"]) == (200, "1")
    assert not fallback.requests


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504, 529])
def test_the_targets_fault_is_tried_elsewhere(
    client: httpx.Client, upstream: Stage, fallback: Stage, fresh: Callable[[str], str], status: int
) -> None:
    upstream.answer = json_answer(error("overloaded"), status=status)
    answer = client.post("/chat/completions", json=ASK | {"model": fresh("two")})
    assert (answer.status_code, answer.headers["x-forebay-attempts"]) == (200, "2")
    fallback.answer = json_answer(error("the last word"), status=503)
    answer = client.post("/chat/completions", json=ASK | {"model": fresh("two")})
    assert (answer.status_code, answer.json()["error"]["message"]) == (503, "the last word")


@pytest.mark.parametrize("stream", [False, True])
def test_an_error_in_an_answer_of_200_is_no_success(
    gateway: GatewayProcess, client: httpx.Client, upstream: Stage, stream: bool
) -> None:
    upstream.answer = json_answer(
        error("too long", type="invalid_request_error", code="context_length_exceeded")
    )
    answer = client.post("/chat/completions", json=ASK | {"stream": stream})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "too long"
    assert gateway.wait_record(answer.headers["x-request-id"]).outcome is Outcome.FAILED


def test_when_all_connections_are_in_use_the_caller_learns_so(
    gateway: GatewayProcess, upstream: Stage
) -> None:
    with RawCaller(gateway.port) as first, RawCaller(gateway.port) as second:
        upstream.next.append([Reset()])
        first.post("chat/completions", ASK | {"model": "one-connection"})
        assert first.read_all().status == 502, "and the slot is free again"
    with RawCaller(gateway.port) as first, RawCaller(gateway.port) as second:
        gate = Gate()
        upstream.next.append([Wait(gate), *json_answer(embeddings([[1.0]]))])
        first.post("chat/completions", ASK | {"model": "one-connection"})
        upstream.wait_request()
        second.post("chat/completions", ASK | {"model": "one-connection"})
        reply = second.read_all()
        assert (reply.status, json.loads(reply.body)["error"]["code"]) == (
            503,
            "upstream_connections_exhausted",
        )
        gate.open()
        assert first.read_all().status == 200
