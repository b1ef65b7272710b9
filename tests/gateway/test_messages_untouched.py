"""Messages at a target that speaks them: untouched both ways, counted, and told apart in every error."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import msgspec
import pytest
from dialect_stage import read_through
from gateway_stage import UPSTREAM_SECRET, Stage, _stages, fallback, upstream

from forebay.core.events import Outcome, Tokens, UsageSource
from forebay.core.routes import Endpoint, GatewayLimits, Route, Timeouts
from forebay.testing.answers import chunk, drip, json_answer, last_chunk, sse_answer, sse_head
from forebay.testing.anthropic import (
    error,
    error_answer,
    event,
    message,
    message_events,
    text,
    thinking,
    tool_use,
    usage,
    well_behaved,
)
from forebay.testing.gateway import GatewayProcess, make_key, make_route
from forebay.testing.openai import ToolCall
from forebay.testing.steps import Close, Gate, Reset, Script, Send, Sleep, Stall, Step, Wait

__all__ = ["_stages", "fallback", "upstream"]

MESSAGES = (Endpoint.MESSAGES, Endpoint.COUNT_TOKENS)
ASKED: dict[str, Any] = {
    "model": "m",
    "max_tokens": 100,
    "messages": [{"role": "user", "content": "Hello"}],
}
THOUGHT = thinking("Let me see … 😀", "EqQBCkgIBRABGAIiQ+signature==")
CALLS = [ToolCall(id="toolu_1", name="look", arguments='{"at":"sea"}'), ToolCall(id="toolu_2", name="now")]


def make_routes(first: str, second: str) -> list[Route]:
    def speak(model: str, *urls: str, **more: Any) -> Route:
        return make_route(model, *urls, endpoints=MESSAGES, dialect="anthropic", **more)

    brief = Timeouts(connect_s=0.5, first_token_s=0.5, idle_s=0.5, total_s=20)
    return [
        speak("m", first, api_key="env:TEST_UPSTREAM_SECRET"),
        speak("alias", first, target_model="the-name-there"),
        speak("two", first, second),
        speak("brief", first, timeouts=brief),
    ]


@pytest.fixture(scope="module")
def worker(
    _stages: tuple[Stage, Stage], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    first, second = _stages
    with GatewayProcess(
        make_routes(first.url, second.url),
        folder=tmp_path_factory.mktemp("messages"),
        limits=GatewayLimits(event_max_bytes=1 << 20),
        environment={"TEST_UPSTREAM_SECRET": UPSTREAM_SECRET},
    ) as process:
        yield process


@pytest.fixture
def http(worker: GatewayProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=worker.url, headers={"x-api-key": worker.key}, timeout=60) as client:
        yield client
    assert worker.process.poll() is None, worker.log
    assert "Traceback" not in worker.log, worker.log


@pytest.fixture
def claude(worker: GatewayProcess) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=worker.origin, api_key=worker.key, max_retries=0) as client:
        yield client


def ask(http: httpx.Client, **changes: Any) -> httpx.Response:
    return http.post("/messages", json=ASKED | changes)


def test_the_real_client_has_a_whole_answer(
    worker: GatewayProcess, claude: anthropic.Anthropic, upstream: Stage
) -> None:
    upstream.answer = well_behaved(
        THOUGHT, "It is there.", *map(tool_use, CALLS), tokens=usage(7, 5, cache_read=3, cache_write=2)
    )
    answer = claude.messages.create(**ASKED, extra_body={"odd": {"kept": [1, None]}})
    assert [block.type for block in answer.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert answer.content[0].to_dict() == THOUGHT
    assert answer.stop_reason == "tool_use"
    assert answer._request_id is not None
    record = worker.wait_record(answer._request_id)
    assert (record.endpoint, record.model, record.outcome) == ("messages", "m", Outcome.OK)
    assert record.tokens == Tokens(input=7, output=5, input_cached=3, input_cache_write=2)
    assert record.usage_source is UsageSource.REPORTED
    asked = upstream.request
    assert asked.path == "/v1/messages"
    assert asked.json() == ASKED | {"odd": {"kept": [1, None]}}
    assert asked.header("x-api-key") == UPSTREAM_SECRET
    assert asked.header("authorization") is None
    assert asked.header("anthropic-version")  # the client's own
    assert worker.key not in str(asked.headers)


def test_the_real_client_has_a_stream(
    worker: GatewayProcess, claude: anthropic.Anthropic, upstream: Stage
) -> None:
    upstream.answer = well_behaved(THOUGHT, "It is there.", *map(tool_use, CALLS), tokens=usage(7, 9))
    with claude.messages.stream(**ASKED) as stream:
        answer = stream.get_final_message()
        request_id = stream.response.headers["request-id"]
    assert [block.to_dict() for block in answer.content] == [
        THOUGHT, text("It is there."), *map(tool_use, CALLS)
    ]  # fmt: skip
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (7, 9)
    record = worker.wait_record(request_id)
    assert (record.outcome, record.tokens) == (Outcome.OK, Tokens(input=7, output=9))
    assert record.first_token_ns is not None


def test_every_byte_of_request_and_answer_stays(http: httpx.Client, upstream: Stage) -> None:
    body = b'{ "model":"m",\n "max_tokens" : 5, "messages":[{"role":"user","content":[]}], "x":1.50 }'
    answer = json.dumps(message(THOUGHT, text("Gr\u00fc\u00dfe")), indent=1).encode()
    upstream.answer = [
        Send(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(answer)
        ),
        Send(answer),
    ]
    got = http.post("/messages", content=body, headers={"content-type": "application/json"})
    assert (got.status_code, got.content) == (200, answer)
    assert bytes(upstream.request.body) == body


def test_what_another_model_thought_does_not_reach_anthropic(http: httpx.Client, upstream: Stage) -> None:
    upstream.answer = well_behaved("Hello")
    foreign = [thinking("Mine.", ""), thinking("", "gemini:text:c2ln")]
    said = {"role": "assistant", "content": [*foreign, THOUGHT, text("So.")]}
    asked = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "a"}, said]}
    assert http.post("/messages", json=asked).status_code == 200
    assert upstream.request.json()["messages"][1]["content"] == [THOUGHT, text("So.")]


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_a_stream_that_comes_byte_by_byte_is_the_same(
    worker: GatewayProcess, http: httpx.Client, upstream: Stage, newline: bytes
) -> None:
    events = b"".join(message_events(message(THOUGHT, text("Grüße € 😀"), *map(tool_use, CALLS))))
    events = events.replace(b"\n", newline)
    upstream.answer = drip(sse_answer([events]), every=1)
    answer = ask(http, stream=True)
    assert answer.content == events
    record = worker.wait_record(answer.headers["x-request-id"])
    assert (record.outcome, record.tokens) == (Outcome.OK, Tokens(input=7, output=5))


def test_only_the_name_of_the_model_is_changed(http: httpx.Client, upstream: Stage) -> None:
    upstream.answer = well_behaved("Hi")
    assert ask(http, model="alias").json()["model"] == "the-name-there"
    assert upstream.request.json() == ASKED | {"model": "the-name-there"}


def test_the_callers_version_and_betas_go_along(http: httpx.Client, upstream: Stage) -> None:
    upstream.answer = well_behaved("Hi")
    headers = {"anthropic-version": "2099-01-01", "anthropic-beta": "new-thing-1,other", "cookie": "c=1"}
    http.post("/messages", json=ASKED, headers=headers)
    sent = upstream.request
    assert sent.header("anthropic-version") == "2099-01-01"
    assert sent.header("anthropic-beta") == "new-thing-1,other"
    assert sent.header("cookie") is None


@pytest.mark.parametrize("header", ["x-api-key", "authorization"])
def test_a_key_may_come_in_either_header(worker: GatewayProcess, upstream: Stage, header: str) -> None:
    upstream.answer = well_behaved("Hi")
    value = worker.key if header == "x-api-key" else f"Bearer {worker.key}"
    answer = httpx.post(f"{worker.url}/messages", json=ASKED, headers={header: value})
    assert answer.status_code == 200
    refused = httpx.post(f"{worker.url}/messages", json=ASKED, headers={header: value + "x"})
    assert refused.status_code == 401
    assert refused.json() == {
        "type": "error",
        "error": {"type": "authentication_error", "message": "the API key is wrong, expired or revoked"},
    }
    assert len(upstream.requests) == 1


def test_that_header_opens_no_endpoint_of_openais(worker: GatewayProcess) -> None:
    headers = {"x-api-key": worker.key}
    body = {"model": "m", "messages": []}
    assert httpx.post(f"{worker.url}/chat/completions", json=body, headers=headers).status_code == 401


# --- errors -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "status", "kind", "word"),
    [
        ({"model": "nobody"}, 404, "not_found_error", "does not exist"),
        ({"model": ""}, 400, "invalid_request_error", "model"),
        ({"model": 3}, 400, "invalid_request_error", "model"),
    ],
)
def test_our_errors_are_in_its_dialect(
    claude: anthropic.Anthropic, changes: dict[str, Any], status: int, kind: str, word: str
) -> None:
    with pytest.raises(anthropic.APIStatusError, match=word) as caught:
        claude.messages.create(**ASKED | changes)
    assert caught.value.status_code == status
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["type"] == "error"
    assert caught.value.body["error"]["type"] == kind
    assert caught.value.request_id


def test_paths_and_methods_that_are_none_are_told_in_its_dialect(http: httpx.Client) -> None:
    wrong = http.get("/messages")
    assert (wrong.status_code, wrong.json()["error"]["type"]) == (405, "invalid_request_error")
    unknown = http.post("/messages/batches", json={})
    assert (unknown.status_code, unknown.json()["error"]["type"]) == (404, "not_found_error")


def test_an_error_of_the_target_keeps_its_words(
    worker: GatewayProcess, claude: anthropic.Anthropic, upstream: Stage
) -> None:
    upstream.answer = error_answer(400, "invalid_request_error", f"bad image, said {UPSTREAM_SECRET}")
    with pytest.raises(anthropic.BadRequestError, match=r"bad image, said \[redacted\]") as caught:
        claude.messages.create(**ASKED)
    assert caught.value.request_id is not None
    record = worker.wait_record(caught.value.request_id)
    assert (record.status, record.error, record.usage_source) == (400, "upstream_400", UsageSource.NONE)


@pytest.mark.parametrize(
    ("answer", "status"),
    [(error_answer(401, "authentication_error"), 502), (json_answer({"odd": 1}, status=500), 500)],
)
def test_other_errors_are_put_into_its_envelope(
    http: httpx.Client, upstream: Stage, answer: list[Step], status: int
) -> None:
    upstream.answer = answer
    got = ask(http)
    assert got.status_code == status
    assert (got.json()["type"], got.json()["error"]["type"]) == ("error", "api_error")


def test_an_overloaded_target_is_replaced_by_the_next(
    worker: GatewayProcess, http: httpx.Client, upstream: Stage, fallback: Stage
) -> None:
    upstream.answer = sse_answer(
        [*message_events(message())[:2], event(error("overloaded_error", "Overloaded"))]
    )
    fallback.answer = well_behaved("Here.")
    answer = ask(http, model="two", stream=True)
    assert answer.headers["x-forebay-attempts"] == "2"
    assert answer.content == b"".join(message_events(message(text("Here."), model="two")))


def test_an_error_before_the_first_content_has_its_true_status(http: httpx.Client, upstream: Stage) -> None:
    upstream.answer = sse_answer([event(error("overloaded_error", "Overloaded"))])
    answer = ask(http, stream=True)
    assert (answer.status_code, answer.json()) == (529, error("overloaded_error", "Overloaded"))


def test_an_error_inside_the_stream_passes(
    worker: GatewayProcess, claude: anthropic.Anthropic, upstream: Stage
) -> None:
    events = message_events(message(text("A long answer")))
    failure = chunk(event(error("overloaded_error", "Overloaded")))
    begun = Gate()
    upstream.answer = [*sse_head(), *map(chunk, events[:5]), Wait(begun), failure, last_chunk()]

    def read() -> None:
        with claude.messages.stream(**ASKED) as stream:
            for _ in stream:
                begun.open()

    with pytest.raises(anthropic.APIStatusError, match="Overloaded") as caught:
        read()
    record = worker.wait_record(caught.value.response.headers["request-id"])
    assert (record.outcome, record.error) == (Outcome.FAILED, "upstream_error")


# --- streams that do not end well ---------------------------------------------------------------------------

PART = message_events(message(text("A long answer"), tokens=usage(7, 5, cache_read=3)))[:6]


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ([Reset()], "upstream_reset"),
        ([Send(b"0\r\n\r\n"), Close()], "upstream_truncated"),
        ([Stall()], "upstream_idle_timeout"),
    ],
)
def test_a_cut_stream_ends_with_an_error_event(
    worker: GatewayProcess, http: httpx.Client, upstream: Stage, ending: list[Step], code: str
) -> None:
    begun = Gate()
    upstream.answer = [*sse_head(), *map(chunk, PART), Wait(begun), *ending]
    model = "brief" if code == "upstream_idle_timeout" else "m"
    with http.stream("POST", "/messages", json=ASKED | {"model": model, "stream": True}) as stream:
        answer = read_through(stream, begun)
    whole = b"".join(PART)
    assert answer.content.startswith(whole)
    rest = answer.content[len(whole) :]
    assert rest.startswith(b'event: error\ndata: {"type":"error","error":{"type":"')
    assert b"message_stop" not in answer.content
    assert b"message_delta" not in answer.content
    record = worker.wait_record(answer.headers["x-request-id"])
    assert (record.outcome, record.error) == (Outcome.FAILED, code)
    assert record.tokens == Tokens(input=7, input_cached=3, output=3)
    assert record.usage_source is UsageSource.ESTIMATED


def test_a_caller_that_leaves_is_charged_what_it_saw(
    worker: GatewayProcess, http: httpx.Client, upstream: Stage
) -> None:
    def go_on() -> Script:
        yield from sse_head()
        yield from map(chunk, PART)
        while True:
            yield Sleep(0.05)
            yield chunk(PART[-1])

    upstream.answer = lambda request: go_on()
    with http.stream("POST", "/messages", json=ASKED | {"stream": True}) as answer:
        seen = b""
        for data in answer.iter_raw():
            seen += data
            if seen.count(b"content_block_delta") >= 10:
                break
    upstream.wait_closed(upstream.wait_request())
    record = worker.wait_record(answer.headers["x-request-id"])
    assert (record.status, record.outcome) == (499, Outcome.ABANDONED)
    assert record.usage_source is UsageSource.ESTIMATED
    assert record.tokens.input == 7
    assert (record.tokens.output or 0) >= 5
    worker.wait_idle()


def test_an_event_that_is_too_large_ends_it(
    worker: GatewayProcess, http: httpx.Client, upstream: Stage
) -> None:
    begun = Gate()
    large = chunk(b"event: x\ndata: " + b"x" * (1 << 21))
    upstream.answer = [*sse_head(), *map(chunk, PART), Wait(begun), large, Stall()]
    with http.stream("POST", "/messages", json=ASKED | {"stream": True}) as stream:
        answer = read_through(stream, begun)
    assert b"event: error" in answer.content
    record = worker.wait_record(answer.headers["x-request-id"])
    assert record.error == "upstream_event_too_large"


# --- counting -----------------------------------------------------------------------------------------------


def test_tokens_are_counted_by_a_target_that_can(
    worker: GatewayProcess, claude: anthropic.Anthropic, upstream: Stage
) -> None:
    upstream.answer = well_behaved()
    asked = {name: ASKED[name] for name in ("model", "messages")}
    assert claude.messages.count_tokens(**asked).input_tokens == 42
    assert upstream.request.path == "/v1/messages/count_tokens"
    record = worker.wait_for(lambda each: each.endpoint == "messages/count_tokens")
    assert record.tokens == Tokens(input=0, output=0)


def test_a_key_may_be_kept_from_messages(upstream: Stage, tmp_path: Path) -> None:
    kept = msgspec.structs.replace(make_key(), endpoints=(Endpoint.CHAT,))
    route = make_route("m", upstream.url, endpoints=(Endpoint.CHAT, *MESSAGES), dialect="anthropic")
    with GatewayProcess([route], folder=tmp_path, keys=[kept]) as process:
        answer = httpx.post(f"{process.url}/messages", json=ASKED, headers={"x-api-key": process.key})
    assert (answer.status_code, answer.json()["error"]["type"]) == (403, "permission_error")
