"""What passes through passes byte for byte: unknown fields, odd spellings, empty content, tool calls."""

import json

import httpx
import pytest
from gateway_stage import Stage

from forebay.core.events import UsageSource
from forebay.testing.answers import Framing, answer, sse_answer
from forebay.testing.gateway import GatewayProcess
from forebay.testing.openai import DONE, embeddings

PATHS = ["chat/completions", "completions", "embeddings"]

#: What no decoder and encoder would give back as it was.
ODD = {
    "whitespace": b'\n{ "model"\t:"%b" ,\r\n"messages" : [ ] , "x" : { } }  \n',
    "escapes": b'{"model":"%b","s":"\\u00e9\\/\\u0022\\ud83d\\ude00\\b\\f","\\u006bey":1}',
    "raw characters": b'{"model":"%b","s":"' + "é€😀\u2028\x7f".encode() + b'"}',
    "numbers": b'{"model":"%b","big":123456789012345678901234567890,"exp":1E+2,"zero":-0.0,"long":0.1000000}',
    "unknown fields": b'{"model":"%b","reasoning":{"effort":"high"},"provider":{"only":["a"]},"n":null}',
    "a name that comes twice": b'{"model":"%b","x":1,"x":2}',
    "a name within a name": b'{"metadata":{"model":"not me"},"model":"%b","stop":["\\"model\\":\\"x\\""]}',
    "null content": b'{"model":"%b","messages":[{"role":"assistant","content":null,"tool_calls":[]}]}',
    "empty content": b'{"model":"%b","messages":[{"role":"assistant","content":""},{"content":[]}]}',
    "blank content": b'{"model":"%b","messages":[{"role":"assistant","content":" \\n\\t "},{"role":"user"}]}',
    "thinking": b'{"model":"%b","messages":[{"content":[{"type":"thinking","signature":"RXE9PQ=="}]}]}',
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("path", PATHS)
def test_a_request_reaches_the_target_byte_for_byte(
    client: httpx.Client, upstream: Stage, name: str, path: str
) -> None:
    upstream.answer = answer(b"{}", headers=[("content-type", "application/json")])
    body = ODD[name] % b"m"
    assert client.post("/" + path, content=body).status_code == 200
    assert bytes(upstream.request.body) == body
    assert upstream.request.target == "/v1/" + path
    assert upstream.request.header("content-length") == str(len(body))


@pytest.mark.parametrize("name", [name for name in ODD if name != "a name that comes twice"])
def test_under_another_name_only_the_models_value_changes(
    client: httpx.Client, upstream: Stage, name: str
) -> None:
    upstream.answer = answer(b"{}", headers=[("content-type", "application/json")])
    client.post("/chat/completions", content=ODD[name] % b"alias")
    assert bytes(upstream.request.body) == ODD[name] % b"the-name-there"


def test_a_name_that_comes_twice_keeps_its_last_value_under_another_name(
    client: httpx.Client, upstream: Stage
) -> None:
    upstream.answer = answer(b"{}", headers=[("content-type", "application/json")])
    client.post("/chat/completions", content=b'{"model":"x","big":1E+400, "model":"alias","x":1,"x":2}')
    assert json.loads(upstream.request.body) == {"model": "the-name-there", "big": float("inf"), "x": 2}
    assert b"1E+400" in upstream.request.body


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("path", ["chat/completions", "completions"])
def test_a_stream_changes_no_byte_but_for_the_question_for_usage(
    client: httpx.Client, upstream: Stage, name: str, path: str
) -> None:
    upstream.answer = sse_answer([DONE])
    body = (ODD[name] % b"m").rstrip()[:-1] + b',"stream":true}'
    client.post("/" + path, content=body)
    sent = bytes(upstream.request.body)
    added = b'"stream_options":{"include_usage":true},'
    assert sent.count(added) == 1
    assert sent.replace(added, b"") == body.lstrip()


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("framing", Framing)
def test_an_answer_reaches_the_caller_byte_for_byte(
    gateway: GatewayProcess, client: httpx.Client, upstream: Stage, name: str, path: str, framing: Framing
) -> None:
    body = ODD[name] % b"the target's own"
    upstream.answer = answer(body, headers=[("content-type", "application/json")], framing=framing)
    got = client.post("/" + path, content=b'{"model":"alias"}')
    assert got.content == body
    record = gateway.wait_record(got.headers["x-request-id"])
    assert record.answer_bytes == len(body)
    assert record.usage_source is UsageSource.ESTIMATED


@pytest.mark.parametrize("name", ODD)
def test_an_event_reaches_the_caller_byte_for_byte(client: httpx.Client, upstream: Stage, name: str) -> None:
    one_line = (ODD[name] % b"m").replace(b"\r\n", b" ").strip().replace(b"\n", b" ")
    events = [b"data: " + one_line[:-1] + b',"choices":[{"delta":{"content":"x"},"odd":[ ]}]}\n\n', DONE]
    upstream.answer = sse_answer(events)
    got = client.post("/chat/completions", json={"model": "m", "stream": True})
    assert got.content == b"".join(events)


@pytest.mark.parametrize(
    "content_type", ["application/json", "application/json; charset=utf-8", "text/plain", None]
)
def test_the_type_of_an_answer_passes(
    client: httpx.Client, upstream: Stage, content_type: str | None
) -> None:
    upstream.answer = answer(b"{}", headers=[] if content_type is None else [("Content-Type", content_type)])
    got = client.post("/chat/completions", json={"model": "m"})
    assert got.headers["content-type"] == (content_type or "application/json")


@pytest.mark.parametrize("status", [200, 201, 202, 207])
def test_a_good_status_passes(client: httpx.Client, upstream: Stage, status: int) -> None:
    upstream.answer = answer(b"{}", status=status, headers=[("content-type", "application/json")])
    assert client.post("/chat/completions", json={"model": "m"}).status_code == status


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_embeddings_pass(
    gateway: GatewayProcess, client: httpx.Client, upstream: Stage, encoding: str
) -> None:
    payload = embeddings([[0.1, -2e-9]], prompt_tokens=12)
    if encoding == "base64":
        payload["data"][0]["embedding"] = "zczMPQ=="
    body = json.dumps(payload).encode()
    upstream.answer = answer(body, headers=[("content-type", "application/json")])
    got = client.post("/embeddings", json={"model": "embed/only", "input": "x", "encoding_format": encoding})
    assert got.content == body
    record = gateway.wait_record(got.headers["x-request-id"])
    assert (record.tokens.input, record.tokens.output, record.stream) == (12, 0, False)
    assert (record.endpoint, record.model) == ("embeddings", "embed/only")


def test_a_stream_flag_on_embeddings_is_left_alone(client: httpx.Client, upstream: Stage) -> None:
    body = b'{"model":"m","input":"x","stream":true}'
    assert client.post("/embeddings", content=body).status_code == 200
    assert bytes(upstream.request.body) == body


TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_only_headers_on_the_list_reach_the_target(
    gateway: GatewayProcess, client: httpx.Client, upstream: Stage
) -> None:
    private = {
        "x-forwarded-for": "10.0.0.1", "cookie": "session=1", "user-agent": "spy/1.0", "te": "trailers",
        "accept-encoding": "br", "openai-organization": "org", "x-stainless-lang": "python",
        "accept-language": "de", "x-request-id": "mine", "forwarded": "for=x",
        "content-type": "application/json; charset=utf-8",
    }  # fmt: skip
    got = client.post(
        "/completions", json={"model": "m"}, headers=private | {"traceparent": TRACE, "tracestate": "a=b"}
    )
    headers = {name.lower(): value for name, value in upstream.request.headers}
    assert headers["x-request-id"] == got.headers["x-request-id"] != "mine"
    assert (headers.pop("traceparent"), headers.pop("tracestate")) == (TRACE, "a=b")
    assert headers.pop("user-agent") == "forebay"
    assert headers.pop("content-type") == "application/json"
    assert set(headers) <= {"host", "accept", "accept-encoding", "content-length", "x-request-id"}


def test_a_target_is_not_asked_to_compress(client: httpx.Client, upstream: Stage) -> None:
    """Without the header any coding would be allowed, and we could not read a compressed stream."""
    client.post("/completions", json={"model": "m"}, headers={"accept-encoding": "gzip"})
    assert upstream.request.header("accept-encoding") == "identity"
