"""Every refusal is JSON in the dialect, says what is wrong, and is counted; keys open what they may."""

import httpx
import pytest
from errors_rig import ASK, assert_error
from gateway_stage import NARROW_KEY, Stage
from raw_caller import RawCaller

from forebay.core.events import Outcome, UsageSource
from forebay.testing.gateway import GatewayProcess

# --- what is asked for --------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["chat/completions", "completions", "embeddings"])
@pytest.mark.parametrize("stream", [False, True])
def test_an_unknown_model(gateway: GatewayProcess, client: httpx.Client, path: str, stream: bool) -> None:
    answer = client.post("/" + path, json={"model": "gpt-99", "stream": stream})
    told = assert_error(answer, 404, "model_not_found", "model")
    assert "gpt-99" in told["message"]
    record = gateway.wait_record(answer.headers["x-request-id"])
    assert (record.status, record.outcome, record.error) == (404, Outcome.FAILED, "model_not_found")
    assert (record.model, record.target, record.usage_source) == ("", "", UsageSource.NONE)


def test_a_very_long_model_name_is_cut_in_the_message(client: httpx.Client) -> None:
    told = assert_error(
        client.post("/completions", json={"model": "x" * 50_000}), 404, "model_not_found", "model"
    )
    assert len(told["message"]) < 1000


def test_an_endpoint_that_the_model_lacks(client: httpx.Client) -> None:
    told = assert_error(
        client.post("/chat/completions", json=ASK | {"model": "embed/only"}),
        400,
        "endpoint_not_supported",
        "model",
    )
    assert "/v1/embeddings" in told["message"]


UNKNOWN_PATHS = [
    "/", "/v1", "/v1/", "/v1/chat", "/v1/chat/completions/", "/v1/assistants", "//v1/models",
    "/v1/../v1/models", "/metrics/", "/V1/models", "/v1/chat%2Fcompletions", "/x" * 5000,
]  # fmt: skip


@pytest.mark.parametrize("path", UNKNOWN_PATHS)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "OPTIONS"])
def test_an_unknown_path(gateway: GatewayProcess, path: str, method: str) -> None:
    with RawCaller(gateway.port) as caller:
        caller.send(f"{method} {path} HTTP/1.1\r\nhost: t\r\ncontent-length: 0\r\n\r\n".encode())
        reply = caller.read_all()
    assert reply.status == 404
    assert reply.json()["error"]["code"] == "unknown_url"
    assert len(reply.body) < 1000


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/chat/completions", "/v1/chat/completions"),
        ("/v1/v1/messages", "/v1/messages"),
        ("/v1/chat/completion", "/v1/chat/completions"),
        ("/v1/embeddings/", "/v1/embeddings"),
        ("/models", "/v1/models"),
        ("/nothing", None),
    ],
)
def test_a_path_that_is_almost_right(gateway: GatewayProcess, path: str, meant: str | None) -> None:
    reply = httpx.post(f"http://127.0.0.1:{gateway.port}{path}", json={})
    message = reply.json()["error"]["message"]
    assert message.endswith(f"did you mean {meant}?" if meant else "/v2/models/{model}/ready")


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS"])
@pytest.mark.parametrize("path", ["chat/completions", "completions", "embeddings"])
def test_a_method_that_inference_does_not_take(client: httpx.Client, path: str, method: str) -> None:
    answer = client.request(method, "/" + path)
    assert answer.headers["allow"] == "POST"
    if method == "HEAD":
        assert answer.status_code == 405
    else:
        assert_error(answer, 405, "method_not_allowed")


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/m", "/healthz", "/readyz", "/metrics"])
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_a_method_that_other_paths_do_not_take(
    gateway: GatewayProcess, client: httpx.Client, path: str, method: str
) -> None:
    answer = client.request(method, gateway.origin + path)
    assert_error(answer, 405, "method_not_allowed")
    assert {name.strip() for name in answer.headers["allow"].split(",")} == {"GET", "HEAD"}


# --- keys ---------------------------------------------------------------------------------------------------

WRONG_KEYS = {
    "none": {},
    "empty": {"authorization": ""},
    "no key": {"authorization": "Bearer"},
    "blank": {"authorization": "Bearer    "},
    "another": {"authorization": "Bearer fb-wrong"},
    "another scheme": {"authorization": "Basic ZmI6ZmI="},
    "in another header": {"x-api-key": "fb-test-key-that-may-call-every-model"},
    "a prefix of one": {"authorization": "Bearer fb-test-key-that-may-call-every"},
    "letters that no key has": {"authorization": "Bearer fb-é\xff"},
    "very long": {"authorization": "Bearer " + "x" * 20_000},
}


@pytest.mark.parametrize("name", WRONG_KEYS)
@pytest.mark.parametrize("path", ["chat/completions", "completions", "embeddings", "models", "models/m"])
def test_without_a_good_key(gateway: GatewayProcess, upstream: Stage, name: str, path: str) -> None:
    before = len(gateway.records())
    headers = tuple(f"{key}: {value}" for key, value in WRONG_KEYS[name].items())
    method = "GET" if path.startswith("models") else "POST"
    with RawCaller(gateway.port) as caller:
        caller.post(path, ASK, headers=headers, method=method)
        reply = caller.read_all()
    assert reply.status == 401
    assert reply.header("www-authenticate") == "Bearer"
    told = reply.json()["error"]
    assert (told["type"], told["code"]) == ("authentication_error", "invalid_api_key")
    assert "wrong" not in told["message"] or "fb-wrong" not in told["message"]
    assert not upstream.requests
    assert len(gateway.records()) == before, "nobody to record it for"


def test_a_key_in_the_url_is_no_key_and_is_not_repeated(gateway: GatewayProcess, upstream: Stage) -> None:
    for name in ("key", "api_key", "api-key", "access_token"):
        answer = httpx.post(f"{gateway.url}/chat/completions?{name}={gateway.key}", json=ASK)
        assert answer.status_code == 401
        assert gateway.key not in answer.text
    answer = httpx.get(f"{gateway.url}/nothing?api_key={gateway.key}")
    assert answer.status_code == 404
    assert gateway.key not in answer.text
    assert gateway.key not in gateway.log
    assert not upstream.requests


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_the_scheme_is_not_about_case_and_space_does_not_count(
    gateway: GatewayProcess, upstream: Stage, scheme: str
) -> None:
    for gap in (" ", "   "):
        headers = {"authorization": f"{scheme}{gap}{gateway.key}"}
        assert httpx.post(gateway.url + "/chat/completions", json=ASK, headers=headers).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_model_whose_engine_does_not_run_yet_waits(
    gateway: GatewayProcess, client: httpx.Client, stream: bool
) -> None:
    answer = client.post("/chat/completions", json=ASK | {"model": "waits", "stream": stream})
    told = assert_error(answer, 503, "engine_not_running", "model")
    assert told["type"] == "upstream_error"
    assert "`waits`" in told["message"]
    assert "restarted" in told["message"]
    record = gateway.wait_record(answer.headers["x-request-id"])
    assert (record.status, record.outcome, record.error) == (503, Outcome.FAILED, "engine_not_running")
    assert (record.model, record.target, record.attempts) == ("waits", "", 0)
    assert record.usage_source is UsageSource.NONE
    assert record.route_hash
    assert_error(
        client.post("/embeddings", json={"model": "waits", "input": "x"}),
        400,
        "endpoint_not_supported",
        "model",
    )
    assert client.get("/models/waits").json()["id"] == "waits"


def test_a_key_calls_and_sees_only_its_models(gateway: GatewayProcess, upstream: Stage) -> None:
    headers = {"authorization": f"Bearer {NARROW_KEY}"}
    with httpx.Client(base_url=gateway.url, headers=headers) as client:
        assert [model["id"] for model in client.get("/models").json()["data"]] == ["m", "embed/only"]
        assert client.get("/models/embed/only").json()["id"] == "embed/only"
        assert client.get("/models/embed%2Fonly").json()["id"] == "embed/only"
        assert_error(client.get("/models/alias"), 404, "model_not_found")
        assert client.post("/chat/completions", json=ASK).status_code == 200
        answer = client.post("/chat/completions", json=ASK | {"model": "alias"})
        assert_error(answer, 403, "model_not_allowed", "model")
        assert gateway.wait_record(answer.headers["x-request-id"]).key == "narrow"
        told = assert_error(
            client.post("/chat/completions", json=ASK | {"model": "x"}), 404, "model_not_found", "model"
        )
        assert "alias" not in told["message"]


def test_the_list_of_models_has_the_shape_of_the_api(gateway: GatewayProcess, client: httpx.Client) -> None:
    listed = client.get("/models").json()
    assert listed["object"] == "list"
    assert len(listed["data"]) == len(gateway.snapshot.table.routes)
    for model in listed["data"]:
        assert set(model) == {"id", "object", "created", "owned_by"}
        assert client.get("/models/" + model["id"]).json() == model


# --- bodies that cannot be read -----------------------------------------------------------------------------

BODIES: dict[str, tuple[bytes, str, str | None]] = {
    "empty": (b"", "invalid_json", None),
    "no JSON": (b"hello", "invalid_json", None),
    "cut": (b'{"model":"m"', "invalid_json", None),
    "a list": (b'[{"model":"m"}]', "invalid_json", None),
    "a string": (b'"m"', "invalid_json", None),
    "null": (b"null", "invalid_json", None),
    "UTF-16": ('{"model":"m"}'.encode("utf-16"), "invalid_json", None),
    "Latin-1 where it matters": (b'{"model":"m\xe9"}', "invalid_json", None),
    "no model": (b"{}", "missing_required_parameter", "model"),
    "an empty model": (b'{"model":""}', "invalid_value", "model"),
    "a model that is a number": (b'{"model":1}', "invalid_value", "model"),
    "a model that is null": (b'{"model":null}', "invalid_value", "model"),
    "a stream that is a word": (b'{"model":"m","stream":"yes"}', "invalid_value", "stream"),
    "options of the wrong type": (b'{"model":"m","stream_options":1}', "invalid_value", "stream_options"),
    "a bomb of lists": (b'{"model":"m","x":' + b"[" * 10_000 + b"]" * 10_000 + b"}", "invalid_json", None),
    "a bomb of objects": (b'{"model":"m","x":' + b'{"a":' * 9999 + b"1" + b"}" * 9999, "invalid_json", None),
    "a bomb without end": (b"[" * 100_000, "invalid_json", None),
}  # fmt: skip


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("path", ["chat/completions", "embeddings"])
def test_a_body_that_cannot_be_read(
    gateway: GatewayProcess, client: httpx.Client, upstream: Stage, name: str, path: str
) -> None:
    body, code, param = BODIES[name]
    answer = client.post("/" + path, content=body)
    assert_error(answer, 400, code, param)
    assert not upstream.requests
    record = gateway.wait_record(answer.headers["x-request-id"])
    assert (record.status, record.error, record.usage_source) == (400, code, UsageSource.NONE)


def test_a_million_fields_hold_nobody_up(client: httpx.Client, upstream: Stage) -> None:
    body = b'{"model":"%b"' + b"".join(b',"%d":1' % number for number in range(1_000_000)) + b"}"
    assert client.post("/completions", content=body % b"m").status_code == 200
    assert_error(client.post("/completions", content=body % b"alias"), 400, "invalid_json")
