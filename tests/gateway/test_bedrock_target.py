"""Chat and messages at Bedrock through a real worker: signed, framed, counted, and with its errors."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import msgspec
import openai
import pytest
from gateway_stage import Stage, _stages, fallback, upstream

from forebay.core.events import Outcome, Tokens, UsageSource
from forebay.core.routes import Endpoint, GatewayLimits, Route
from forebay.providers.eventstream import MEDIA_TYPE
from forebay.testing.answers import answer, chunk, drip, head, json_answer, last_chunk
from forebay.testing.bedrock import (
    API_KEY,
    CREDENTIALS,
    REGION,
    converse,
    converse_events,
    error_answer,
    event,
    exception,
    find_problem,
    stream_answer,
    text,
    thinking,
    tool_use,
    usage,
    well_behaved,
    write_secret,
)
from forebay.testing.gateway import GatewayProcess, make_key, make_route
from forebay.testing.openai import ToolCall
from forebay.testing.openai import well_behaved as openai_well_behaved
from forebay.testing.steps import Gate, Send, Wait

__all__ = ["_stages", "fallback", "upstream"]

MODEL = "eu.anthropic.claude-sonnet-4-5-20250929-v1:0"
PATH = "/model/eu.anthropic.claude-sonnet-4-5-20250929-v1%3A0/converse"
SECRETS = {
    "BEDROCK_SIGNING": write_secret(),
    "BEDROCK_WRONG": f"{CREDENTIALS.access_key_id}:not-the-secret-of-this-key:{CREDENTIALS.session_token}",
    "BEDROCK_KEY": API_KEY,
    "BEDROCK_ODD": "a:b:c:d",
}
ASK: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Grüße"}]
THOUGHT = thinking("Let me see … 😀", "EqQBCkgIBRABGAIiQ+signature==")
LOOK = ToolCall(id="tooluse_1", name="look", arguments='{"at":"sea"}')
CALLS = [LOOK, ToolCall(id="tooluse_2", name="now")]
COST = usage(9, 4, cache_read=3, cache_write=2)
COUNTED = Tokens(input=9, input_cached=3, input_cache_write=2, output=4)


def make_routes(first: str, second: str) -> list[Route]:
    def speak(model: str, *urls: str, secret: str = "BEDROCK_SIGNING", region: str = REGION) -> Route:
        made = make_route(
            model,
            *(url.removesuffix("/v1") for url in urls),
            target_model=MODEL,
            api_key=f"env:{secret}",
            dialect="bedrock",
            endpoints=(Endpoint.CHAT, Endpoint.MESSAGES, Endpoint.COUNT_TOKENS),
        )
        targets = tuple(msgspec.structs.replace(target, region=region) for target in made.targets)
        return msgspec.structs.replace(made, targets=targets)

    plain = make_route("m", second).targets[0]
    bedrock = speak("two", first)
    return [
        speak("m", first),
        speak("key", first, secret="BEDROCK_KEY"),
        speak("wrong", first, secret="BEDROCK_WRONG"),
        speak("odd", first, secret="BEDROCK_ODD"),
        speak("elsewhere", first, region="onprem"),
        msgspec.structs.replace(
            bedrock, targets=(*bedrock.targets, msgspec.structs.replace(plain, id="plain", model="x"))
        ),
    ]


@pytest.fixture(scope="module")
def worker(
    _stages: tuple[Stage, Stage], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    first, second = _stages
    folder: Path = tmp_path_factory.mktemp("bedrock")
    with GatewayProcess(
        make_routes(first.url, second.url),
        folder=folder,
        keys=[make_key()],
        limits=GatewayLimits(event_max_bytes=1 << 20),
        environment=SECRETS,
    ) as process:
        yield process
    for secret in (CREDENTIALS.secret_access_key, CREDENTIALS.session_token, API_KEY):
        assert secret not in process.log


@pytest.fixture
def http(worker: GatewayProcess) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {worker.key}"}
    with httpx.Client(base_url=worker.url, headers=headers, timeout=60) as client:
        yield client
    assert worker.process.poll() is None, worker.log
    assert "Traceback" not in worker.log, worker.log


@pytest.fixture
def client(worker: GatewayProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=worker.url, api_key=worker.key, max_retries=0) as made:
        yield made


def ask(http: httpx.Client, **changes: Any) -> httpx.Response:
    return http.post("/chat/completions", json={"model": "m", "messages": ASK} | changes)


def test_openai_s_client_has_a_whole_answer(
    worker: GatewayProcess, client: openai.OpenAI, upstream: Stage
) -> None:
    upstream.answer = well_behaved(THOUGHT, "It is there.", *map(tool_use, CALLS), tokens=COST)
    raw = client.chat.completions.with_raw_response.create(model="m", messages=ASK, max_tokens=50)
    made = raw.parse()
    message = made.choices[0].message
    assert (message.content, made.choices[0].finish_reason) == ("It is there.", "tool_calls")
    assert [call.function.arguments for call in message.tool_calls or ()] == ['{"at":"sea"}', "{}"]  # type: ignore[union-attr]
    assert message.model_extra is not None
    assert message.model_extra["reasoning_content"] == "Let me see … 😀"
    asked = upstream.request
    assert (asked.method, asked.target) == ("POST", PATH)
    assert asked.json() == {
        "system": [{"text": "Be brief."}],
        "messages": [{"role": "user", "content": [{"text": "Grüße"}]}],
        "inferenceConfig": {"maxTokens": 50},
    }
    assert asked.header("x-amz-security-token") == CREDENTIALS.session_token
    assert worker.key not in str(asked.headers)
    assert CREDENTIALS.secret_access_key not in str(asked.headers)
    record = worker.wait_record(raw.headers["x-request-id"])
    assert (record.outcome, record.tokens) == (Outcome.OK, COUNTED)
    assert record.usage_source is UsageSource.REPORTED


def test_openai_s_client_has_a_stream(worker: GatewayProcess, client: openai.OpenAI, upstream: Stage) -> None:
    upstream.answer = well_behaved(THOUGHT, "It is there.", *map(tool_use, CALLS), tokens=COST)
    with client.chat.completions.stream(model="m", messages=ASK) as stream:
        made = stream.get_final_completion()
    message = made.choices[0].message
    assert (message.content, made.choices[0].finish_reason) == ("It is there.", "tool_calls")
    assert [(call.id, call.function.arguments) for call in message.tool_calls or ()] == [
        ("tooluse_1", '{"at":"sea"}'),
        ("tooluse_2", "{}"),
    ]
    assert made.usage is None  # nobody asked for it
    assert upstream.request.target == f"{PATH}-stream"
    worker.wait_idle()
    record = worker.records()[-1]
    assert (record.outcome, record.tokens, record.usage_source) == (
        Outcome.OK,
        COUNTED,
        UsageSource.REPORTED,
    )
    assert record.first_token_ns is not None


def test_usage_is_told_to_who_asks_for_it(client: openai.OpenAI, upstream: Stage) -> None:
    upstream.answer = well_behaved("Hello", tokens=COST)
    *_, last = client.chat.completions.create(
        model="m", messages=ASK, stream=True, stream_options={"include_usage": True}
    )
    assert last.usage is not None
    assert last.usage.prompt_tokens_details is not None
    assert (last.usage.prompt_tokens, last.usage.prompt_tokens_details.cached_tokens) == (14, 3)


def test_anthropic_s_client_has_both(worker: GatewayProcess, upstream: Stage) -> None:
    upstream.answer = well_behaved(THOUGHT, "It is there.", tool_use(LOOK), tokens=COST)
    asked: Any = {"model": "m", "max_tokens": 100, "messages": [{"role": "user", "content": "Hello"}]}
    with anthropic.Anthropic(base_url=worker.origin, api_key=worker.key, max_retries=0) as claude:
        whole = claude.messages.create(**asked)
        with claude.messages.stream(**asked) as stream:
            streamed = stream.get_final_message()
        back = [
            *asked["messages"],
            {"role": "assistant", "content": [block.to_dict() for block in whole.content]},
        ]
        back.append(
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "tooluse_1", "content": "waves"}],
            }
        )
        claude.messages.create(**asked | {"messages": back})
    for made in (whole, streamed):
        assert [block.type for block in made.content] == ["thinking", "text", "tool_use"]
        assert made.stop_reason == "tool_use"
        assert (made.usage.input_tokens, made.usage.cache_read_input_tokens) == (9, 3)
    assert whole.content[0].to_dict()["signature"] == "EqQBCkgIBRABGAIiQ+signature=="
    sent = upstream.requests[-1].json()["messages"]
    assert sent[1]["content"][0] == THOUGHT  # what was signed goes back byte for byte
    assert sent[2]["content"][0]["toolResult"]["toolUseId"] == "tooluse_1"


def test_an_api_key_goes_as_a_bearer_token(http: httpx.Client, upstream: Stage) -> None:
    upstream.answer = well_behaved("Hello")
    assert ask(http, model="key").status_code == 200
    assert upstream.request.header("authorization") == f"Bearer {API_KEY}"
    assert upstream.request.header("x-amz-date") is None


@pytest.mark.parametrize(
    ("model", "words"), [("wrong", "credentials"), ("odd", "ACCESS_KEY_ID"), ("elsewhere", "region")]
)
def test_credentials_that_are_of_no_use_are_not_the_caller_s_fault(
    http: httpx.Client, upstream: Stage, model: str, words: str
) -> None:
    upstream.answer = well_behaved("Hello")
    got = ask(http, model=model)
    assert (got.status_code, got.json()["error"]["code"]) == (502, "upstream_credentials_rejected")
    assert words in got.json()["error"]["message"]
    for secret in SECRETS.values():
        assert all(part not in got.text for part in secret.split(":") if len(part) > 1)


def test_a_changed_body_does_not_fit_its_signature(http: httpx.Client, upstream: Stage) -> None:
    upstream.answer = well_behaved("Hello")
    ask(http)
    request = upstream.request
    assert find_problem(request, CREDENTIALS, REGION, int(time.time())) is None
    request.body += b" "
    assert "does not match" in (find_problem(request, CREDENTIALS, REGION, int(time.time())) or "")


def test_bytes_come_in_any_split(http: httpx.Client, upstream: Stage) -> None:
    script = stream_answer(converse_events(converse(THOUGHT, "Grüße 😀", tool_use(LOOK))))
    upstream.answer = script
    answers = [ask(http, stream=True)]
    upstream.answer = drip(script, every=3)
    answers.append(ask(http, stream=True))
    # Bedrock names no answer in its body, so each has the name of its request.
    plain, dripped = (each.text.replace(each.headers["x-request-id"], "ID") for each in answers)
    assert plain == dripped
    assert '"id":"ID"' in plain
    assert plain.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("stream", [False, True])
def test_errors_before_the_answer_keep_their_words(http: httpx.Client, upstream: Stage, stream: bool) -> None:
    upstream.answer = error_answer(429, "ThrottlingException", "Too many tokens, please wait.")
    got = ask(http, stream=stream)
    assert got.status_code == 429
    assert got.json()["error"] == {
        "message": "Too many tokens, please wait.",
        "type": "rate_limit_error",
        "param": None,
        "code": "rate_limit_exceeded",
    }


def test_an_exception_as_the_first_event_is_an_answer_with_its_status(
    http: httpx.Client, upstream: Stage
) -> None:
    begun = converse_events(converse())[:1]
    upstream.answer = stream_answer([*begun, exception("throttlingException", "Slow down.")])
    got = ask(http, stream=True)
    assert (got.status_code, got.json()["error"]["message"]) == (429, "Slow down.")


def read_after_content(
    http: httpx.Client, upstream: Stage, first: list[bytes], rest: list[bytes]
) -> tuple[str, str]:
    """The id and the text of a stream whose rest is sent once its first content is here."""
    gate = Gate()
    headers = [("content-type", MEDIA_TYPE), ("transfer-encoding", "chunked")]
    upstream.answer = [
        *(Send(head(200, headers)), *map(chunk, first)),
        *(Wait(gate), *map(chunk, rest), last_chunk()),
    ]
    asked = {"model": "m", "messages": ASK, "stream": True}
    with http.stream("POST", "/chat/completions", json=asked) as got:
        assert got.status_code == 200
        pieces = got.iter_text()
        begun = next(pieces)
        gate.open()
        return got.headers["x-request-id"], begun + "".join(pieces)


def read_last(told: str) -> dict[str, Any]:
    *_, last, rest = told.split("\n\n")
    assert rest == ""
    assert "[DONE]" not in told
    error: dict[str, Any] = json.loads(last.removeprefix("data: "))["error"]
    return error


def test_an_exception_after_content_ends_the_stream(
    worker: GatewayProcess, http: httpx.Client, upstream: Stage
) -> None:
    begun = converse_events(converse("Hello"))[:3]
    broken = [exception("modelStreamErrorException", "It broke.")]
    request_id, told = read_after_content(http, upstream, begun, broken)
    assert read_last(told)["message"] == "It broke."
    assert worker.wait_record(request_id).outcome is not Outcome.OK


def test_a_broken_checksum_is_told_and_has_no_good_end(
    worker: GatewayProcess, http: httpx.Client, upstream: Stage
) -> None:
    whole = converse_events(converse("Hello"))
    broken = bytearray(whole[3])
    broken[-6] ^= 1
    request_id, told = read_after_content(http, upstream, whole[:3], [bytes(broken), *whole[4:]])
    assert read_last(told)["code"] == "upstream_protocol_error"
    assert worker.wait_record(request_id).outcome is not Outcome.OK
    upstream.answer = stream_answer([bytes(broken)])
    assert ask(http, stream=True).status_code == 502  # nothing had gone out


def test_a_cut_stream_has_no_good_end(worker: GatewayProcess, http: httpx.Client, upstream: Stage) -> None:
    upstream.answer = stream_answer(converse_events(converse("Hello"))[:4])
    got = ask(http, stream=True)
    assert "upstream_truncated" in got.text
    assert "[DONE]" not in got.text
    assert worker.wait_record(got.headers["x-request-id"]).usage_source is UsageSource.ESTIMATED


@pytest.mark.parametrize(
    "script",
    [
        json_answer({"odd": True}),
        answer(b"<html>", headers=[("content-type", "text/html")]),
        stream_answer([event("messageStart", {"role": "assistant"})]),
        error_answer(503, "ServiceUnavailableException"),
        error_answer(424, "ModelErrorException"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_another_target_answers_before_content(
    http: httpx.Client, upstream: Stage, fallback: Stage, script: Any, stream: bool
) -> None:
    upstream.answer = script
    fallback.answer = openai_well_behaved("from elsewhere")
    got = ask(http, model="two", stream=stream)
    assert got.status_code == 200
    assert "from elsewhere" in got.text


def test_what_can_t_be_said_goes_to_who_can_and_else_to_nobody(
    http: httpx.Client, upstream: Stage, fallback: Stage
) -> None:
    fallback.answer = openai_well_behaved("from elsewhere")
    assert "from elsewhere" in ask(http, model="two", seed=7).text
    refused = ask(http, seed=7)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "seed")
    assert upstream.requests == []


def test_text_is_not_changed_by_the_blocks_it_came_in(http: httpx.Client, upstream: Stage) -> None:
    upstream.answer = well_behaved(text("a"), text("b"))
    assert ask(http).json()["choices"][0]["message"]["content"] == "ab"


def test_credentials_that_an_error_echoes_are_hidden(http: httpx.Client, upstream: Stage) -> None:
    parts = f"{CREDENTIALS.secret_access_key} and {CREDENTIALS.session_token}"
    upstream.answer = error_answer(400, "ValidationException", f"Odd: {parts}.")
    assert ask(http).json()["error"]["message"] == "Odd: [redacted] and [redacted]."
    begun = converse_events(converse("Hello"))[:3]
    _, told = read_after_content(http, upstream, begun, [exception("validationException", parts)])
    assert CREDENTIALS.secret_access_key not in told
    assert CREDENTIALS.session_token not in told
