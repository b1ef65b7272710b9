"""Callers of chat, messages and embeddings at Google's two APIs, through a real worker with real clients."""

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
from forebay.providers.gemini_signatures import FOREIGN
from forebay.testing.answers import chunk, json_answer, last_chunk, sse_answer, sse_head
from forebay.testing.gateway import GatewayProcess, make_route
from forebay.testing.gemini import (
    API_KEY,
    VERTEX_BASE,
    blocked,
    error,
    error_answer,
    event,
    events,
    function_call,
    response,
    retry_info,
    text,
    thought,
    usage,
    well_behaved,
)
from forebay.testing.openai import ToolCall
from forebay.testing.openai import well_behaved as openai_well_behaved
from forebay.testing.steps import Gate, Wait

__all__ = ["_stages", "fallback", "upstream"]

MODEL = "gemini-3-pro"
ENDPOINTS = (Endpoint.CHAT, Endpoint.MESSAGES, Endpoint.COUNT_TOKENS)
ASK: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Grüße"}]
CALLS = [ToolCall(id="c1", name="look", arguments='{"at":"sea"}'), ToolCall(id="c2", name="now")]
PARTS = [
    thought("Let me see … 😀"),
    text("It is there."),
    function_call(CALLS[0], "c2lnbmF0dXJl"),
    function_call(CALLS[1]),
]
COST = usage(12, 4, cached=3, thoughts=6)
COUNTED = Tokens(input=9, input_cached=3, output=4, output_reasoning=6)
BASES = {"gemini": "/v1beta", "vertex": VERTEX_BASE}
dialects = pytest.mark.parametrize("dialect", sorted(BASES))
whole_and_streamed = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


def make_routes(first: str, second: str) -> list[Route]:
    def speak(name: str, dialect: str, secret: str = "GOOGLE_KEY", **more: Any) -> Route:
        base = first.removesuffix("/v1") + BASES[dialect]
        endpoints = more.pop("endpoints", ENDPOINTS)
        return make_route(
            name, base, target_model=MODEL, api_key=f"env:{secret}", dialect=dialect, endpoints=endpoints
        )

    def back(route: Route, model: str) -> Route:
        """With a second target; by a name of its own there, for one that refused is left alone a while."""
        own = tuple(msgspec.structs.replace(each, model=model) for each in route.targets)
        return msgspec.structs.replace(route, targets=(*own, plain))

    plain = msgspec.structs.replace(make_route("m", second).targets[0], id="plain", model="x")
    return [
        speak("gemini", "gemini"),
        speak("vertex", "vertex"),
        speak("wrong-gemini", "gemini", "GOOGLE_WRONG"),
        speak("wrong-vertex", "vertex", "GOOGLE_WRONG"),
        speak("embed", "gemini", endpoints=(Endpoint.EMBEDDINGS,)),
        back(speak("two", "gemini"), "two"),
        back(speak("busy-whole", "gemini"), "busy-whole"),
        back(speak("busy-stream", "gemini"), "busy-stream"),
    ]


@pytest.fixture(scope="module")
def worker(
    _stages: tuple[Stage, Stage], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    folder: Path = tmp_path_factory.mktemp("google")
    with GatewayProcess(
        make_routes(_stages[0].url, _stages[1].url),
        folder=folder,
        limits=GatewayLimits(event_max_bytes=1 << 20),
        environment={"GOOGLE_KEY": API_KEY, "GOOGLE_WRONG": "AIzaWRONG-canary-0123456789"},
    ) as process:
        yield process
    assert API_KEY not in process.log
    assert "AIzaWRONG" not in process.log


@pytest.fixture
def http(worker: GatewayProcess) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {worker.key}"}
    with httpx.Client(base_url=worker.url, headers=headers, timeout=60) as client:
        yield client
    assert worker.process.poll() is None, worker.log
    assert "Traceback" not in worker.log, worker.log


@pytest.fixture
def client(worker: GatewayProcess, http: httpx.Client) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=worker.url, api_key=worker.key, max_retries=0) as made:
        yield made


@pytest.fixture
def claude(worker: GatewayProcess, http: httpx.Client) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=worker.origin, api_key=worker.key, max_retries=0) as made:
        yield made


def post(http: httpx.Client, model: str, **more: Any) -> httpx.Response:
    return http.post("/chat/completions", json={"model": model, "messages": ASK} | more)


def ask_chat(client: openai.OpenAI, model: str, *, stream: bool, **more: Any) -> tuple[Any, str]:
    """The message that the client put together, and the request's id."""
    asked: dict[str, Any] = {"model": model, "messages": ASK} | more
    if not stream:
        raw = client.chat.completions.with_raw_response.create(**asked)
        return raw.parse(), raw.headers["x-request-id"]
    with client.chat.completions.stream(**asked, stream_options={"include_usage": True}) as made:
        for _ in made:
            pass
        return made.get_final_completion(), made._response.headers["x-request-id"]


@whole_and_streamed
@dialects
def test_the_real_client_has_an_answer_and_the_record_what_it_cost(
    worker: GatewayProcess, client: openai.OpenAI, upstream: Stage, dialect: str, stream: bool
) -> None:
    upstream.answer = well_behaved(*PARTS, tokens=COST)
    answer, request_id = ask_chat(client, dialect, stream=stream)
    message = answer.choices[0].message
    assert message.content == "It is there."
    assert message.model_extra["reasoning_content"] == "Let me see … 😀"
    assert [call.id for call in message.tool_calls] == ["c1", "c2"]
    assert answer.choices[0].finish_reason == "tool_calls"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (12, 10)
    record = worker.wait_record(request_id)
    assert (record.outcome, record.status, record.stream) == (Outcome.OK, 200, stream)
    assert (record.tokens, record.usage_source) == (COUNTED, UsageSource.REPORTED)
    sent = upstream.request
    method = "streamGenerateContent?alt=sse" if stream else "generateContent"
    assert sent.target == f"{BASES[dialect]}/models/{MODEL}:{method}"
    assert sent.json() == {
        "contents": [{"role": "user", "parts": [{"text": "Grüße"}]}],
        "systemInstruction": {"parts": [{"text": "Be brief."}]},
    }
    assert worker.key not in str(sent.headers)


@whole_and_streamed
def test_a_second_turn_brings_the_signatures_back(
    client: openai.OpenAI, upstream: Stage, stream: bool
) -> None:
    upstream.answer = well_behaved(*PARTS)
    message = ask_chat(client, "gemini", stream=stream)[0].choices[0].message.model_dump(exclude={"parsed"})
    for call in message["tool_calls"]:
        call["function"].pop("parsed_arguments", None)
        call.pop("index", None)
    results = [{"role": "tool", "tool_call_id": call.id, "content": "waves"} for call in CALLS]
    ask_chat(client, "gemini", stream=stream, messages=[*ASK, message, *results])
    contents = upstream.requests[-1].json()["contents"]
    assert contents[1]["parts"] == PARTS[1:]
    assert [part["functionResponse"]["id"] for part in contents[2]["parts"]] == ["c1", "c2"]


@whole_and_streamed
@dialects
def test_callers_of_messages_are_translated_twice(
    worker: GatewayProcess, claude: anthropic.Anthropic, upstream: Stage, dialect: str, stream: bool
) -> None:
    upstream.answer = well_behaved(*PARTS, tokens=COST)
    look = {"name": "look", "input_schema": {"type": "object", "properties": {}}}
    asked: dict[str, Any] = {
        "model": dialect,
        "max_tokens": 100,
        "system": "Be brief.",
        "messages": [{"role": "user", "content": "Grüße"}],
        "tools": [look],
        "tool_choice": {"type": "any"},
    }

    def ask(**more: Any) -> tuple[Any, str]:
        if stream:
            with claude.messages.stream(**asked | more) as made:
                return made.get_final_message(), made.response.headers["request-id"]
        raw = claude.messages.with_raw_response.create(**asked | more)
        return raw.parse(), raw.headers["request-id"]

    answer, request_id = ask()
    assert "".join(block.text for block in answer.content if block.type == "text") == "It is there."
    assert [block.input for block in answer.content if block.type == "tool_use"] == [{"at": "sea"}, {}]
    assert answer.stop_reason == "tool_use"
    assert worker.wait_record(request_id).tokens == COUNTED
    sent = upstream.request.json()
    assert sent["generationConfig"] == {"maxOutputTokens": 100}
    assert sent["toolConfig"] == {"functionCallingConfig": {"mode": "ANY"}}
    results = [
        {"type": "tool_result", "tool_use_id": call.id, "content": "waves", "is_error": call.id == "c2"}
        for call in CALLS
    ]
    turns = [
        *asked["messages"],
        {"role": "assistant", "content": [block.to_dict() for block in answer.content]},
        {"role": "user", "content": results},
    ]
    ask(messages=turns)
    contents = upstream.requests[-1].json()["contents"]
    calls = [part for part in contents[1]["parts"] if "functionCall" in part]
    assert calls[0]["thoughtSignature"] == "c2lnbmF0dXJl"
    assert "thoughtSignature" not in calls[1]
    responses = [part["functionResponse"]["response"] for part in contents[2]["parts"]]
    assert responses == [{"output": "waves"}, {"error": "waves"}]


def test_a_conversation_that_another_model_began_goes_on(
    claude: anthropic.Anthropic, upstream: Stage
) -> None:
    upstream.answer = well_behaved("Yes.")
    begun = [
        {"type": "thinking", "thinking": "Hm.", "signature": "EqQBCkgIBRABGAIiQ+signature=="},
        {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}},
    ]
    found = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "waves"}
    turns: list[Any] = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": begun},
        {"role": "user", "content": [found]},
    ]
    claude.messages.create(model="gemini", max_tokens=9, messages=turns)
    assert upstream.request.json()["contents"][1]["parts"] == [
        {"functionCall": {"id": "toolu_1", "name": "look", "args": {}}, "thoughtSignature": FOREIGN}
    ]


def test_thinking_is_asked_for_and_shown(claude: anthropic.Anthropic, upstream: Stage) -> None:
    upstream.answer = well_behaved(*PARTS[:2])
    answer = claude.messages.create(
        model="gemini",
        max_tokens=9000,
        messages=[{"role": "user", "content": "Look."}],
        thinking={"type": "enabled", "budget_tokens": 2000},
    )
    assert [block.type for block in answer.content] == ["thinking", "text"]
    assert upstream.request.json()["generationConfig"] == {
        "maxOutputTokens": 9000,
        "thinkingConfig": {"thinkingLevel": "LOW", "includeThoughts": True},
    }


def test_an_error_inside_a_stream_is_told_to_callers_of_messages(
    worker: GatewayProcess, http: httpx.Client, upstream: Stage
) -> None:
    begun, gate = events(response(text("Hello there")))[:2], Gate()
    upstream.answer = [
        *sse_head(),
        *map(chunk, begun),
        Wait(gate),
        chunk(event(error(503, "UNAVAILABLE", "The model is overloaded."))),
        last_chunk(),
    ]
    body = {"model": "gemini", "max_tokens": 9, "messages": ASK[1:], "stream": True}
    got = ""
    with http.stream("POST", "/messages", json=body) as answer:
        for piece in answer.iter_text():
            got += piece
            if "Hell" in got:
                gate.open()
    last = got.strip().rpartition("\n\n")[2]
    assert last.startswith("event: error\n")
    assert "The model is overloaded." in last
    assert "message_stop" not in got
    assert worker.wait_record(answer.headers["x-request-id"]).outcome is not Outcome.OK


def test_embeddings_are_answered_and_counted(
    worker: GatewayProcess, client: openai.OpenAI, upstream: Stage
) -> None:
    upstream.answer = well_behaved()
    raw = client.embeddings.with_raw_response.create(model="embed", input=["a", "b"])
    assert [list(each.embedding) for each in raw.parse().data] == [[0, 0.5], [1, 0.5]]
    assert worker.wait_record(raw.headers["x-request-id"]).tokens == Tokens(input=6, output=0)
    assert upstream.request.target == f"/v1beta/models/{MODEL}:batchEmbedContents"


@pytest.mark.parametrize("model", ["wrong-gemini", "wrong-vertex"])
@whole_and_streamed
def test_a_secret_that_google_refuses_is_our_fault(
    http: httpx.Client, upstream: Stage, model: str, stream: bool
) -> None:
    upstream.answer = well_behaved()
    got = post(http, model, stream=stream)
    assert (got.status_code, got.json()["error"]["code"]) == (502, "upstream_credentials_rejected")
    assert "API key" not in got.text


@whole_and_streamed
def test_a_quota_says_when_to_come_again_as_its_body_does(
    http: httpx.Client, upstream: Stage, stream: bool
) -> None:
    upstream.answer = error_answer(429, "RESOURCE_EXHAUSTED", "Quota exceeded.", retry_info("2.5s"))
    got = post(http, "gemini", stream=stream)
    assert (got.status_code, got.headers.get("retry-after")) == (429, "3")
    assert got.json()["error"]["code"] == "rate_limit_exceeded"


@whole_and_streamed
def test_what_google_can_not_be_asked_goes_to_the_next_target(
    http: httpx.Client, upstream: Stage, fallback: Stage, stream: bool
) -> None:
    fallback.answer = openai_well_behaved("plain")
    got = post(http, "two", stream=stream, logit_bias={"1": 2})
    assert (got.status_code, upstream.requests) == (200, [])
    refused = post(http, "gemini", stream=stream, logit_bias={"1": 2})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "logit_bias")


@whole_and_streamed
def test_one_that_is_overloaded_is_replaced(
    http: httpx.Client, upstream: Stage, fallback: Stage, stream: bool
) -> None:
    upstream.answer = error_answer(503, "UNAVAILABLE", "The model is overloaded.")
    fallback.answer = openai_well_behaved("plain")
    got = post(http, "busy-stream" if stream else "busy-whole", stream=stream)
    assert (got.status_code, got.headers["x-forebay-attempts"]) == (200, "2")


def test_an_error_before_the_first_content_of_a_stream_is_replaced(
    http: httpx.Client, upstream: Stage, fallback: Stage
) -> None:
    upstream.answer = sse_answer([event(error(503, "UNAVAILABLE"))])
    fallback.answer = openai_well_behaved("plain")
    assert "plain" in post(http, "two", stream=True).text.replace('"},', "")
    alone = post(http, "gemini", stream=True)
    assert alone.status_code >= 500
    assert alone.json()["error"]["type"] == "overloaded_error"


def test_a_stream_without_a_reason_to_finish_has_no_good_end(
    worker: GatewayProcess, http: httpx.Client, upstream: Stage
) -> None:
    upstream.answer = sse_answer(events(response(text("Hello there")))[:-1])
    got = post(http, "gemini", stream=True)
    assert "Hell" in got.text
    assert "[DONE]" not in got.text
    assert "error" in got.text
    assert worker.wait_record(got.headers["x-request-id"]).outcome is not Outcome.OK


@whole_and_streamed
def test_a_prompt_that_was_blocked_is_told_and_counted(
    worker: GatewayProcess, http: httpx.Client, upstream: Stage, stream: bool
) -> None:
    upstream.answer = sse_answer([event(blocked())]) if stream else json_answer(blocked())
    got = post(http, "gemini", stream=stream)
    assert '"finish_reason":"content_filter"' in got.text
    assert "The prompt was blocked: PROHIBITED_CONTENT." in got.text
    record = worker.wait_record(got.headers["x-request-id"])
    assert (record.outcome, record.tokens) == (Outcome.OK, Tokens(input=7, output=0))


def test_a_stream_in_small_pieces_is_the_same(client: openai.OpenAI, upstream: Stage) -> None:
    whole = b"".join(events(response(*PARTS, tokens=COST)))
    upstream.answer = sse_answer([whole], cut_every=7)
    answer, _ = ask_chat(client, "gemini", stream=True)
    assert answer.choices[0].message.content == "It is there."
    assert answer.usage.completion_tokens == 10
