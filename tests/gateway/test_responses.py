"""OpenAI's Responses through a worker, with the real client: translated, and untouched where it is spoken."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from gateway_stage import UPSTREAM_SECRET, Stage, _stages, fallback, upstream

from forebay.core.events import Outcome, UsageSource
from forebay.core.routes import Endpoint, GatewayLimits
from forebay.testing import anthropic as claude
from forebay.testing import openai as gpt
from forebay.testing import responses
from forebay.testing.answers import drip, json_answer, sse_answer
from forebay.testing.gateway import GatewayProcess, make_route
from forebay.testing.openai import ToolCall
from forebay.testing.recorded import RecordedRequest
from forebay.testing.steps import Script

__all__ = ["_stages", "fallback", "upstream"]

WORDS = "Grüße € 😀 \n\ndata: [DONE]\n\n"
CALLS = [
    ToolCall(id="call_1", name="look", arguments='{"at":"sea","depth":3}'),
    ToolCall(id="call_2", name="now", arguments="{}"),
]
TARGETS = ("openai", "anthropic", "openai-responses")
TRANSLATED = ("openai", "anthropic")
targets = pytest.mark.parametrize("target", TARGETS)
both = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


@pytest.fixture(scope="module")
def worker(
    _stages: tuple[Stage, Stage], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    folder: Path = tmp_path_factory.mktemp("responses")
    routes = [
        make_route(
            dialect,
            _stages[0].url,
            target_model="there",
            api_key="env:TEST_UPSTREAM_SECRET",
            endpoints=(Endpoint.CHAT, Endpoint.RESPONSES),
            dialect=dialect,
        )
        for dialect in TARGETS
    ]
    with GatewayProcess(
        routes,
        folder=folder,
        limits=GatewayLimits(event_max_bytes=1 << 20),
        environment={"TEST_UPSTREAM_SECRET": UPSTREAM_SECRET},
    ) as process:
        yield process


@pytest.fixture
def client(worker: GatewayProcess) -> Iterator[openai.OpenAI]:
    """The worker must survive each test, and must have met no error of its own."""
    before = len(worker.log)
    with openai.OpenAI(base_url=worker.url, api_key=worker.key, max_retries=0, timeout=30) as made:
        yield made
    assert worker.process.poll() is None, worker.log
    assert "Traceback" not in worker.log[before:], worker.log[before:]


@pytest.fixture
def http(worker: GatewayProcess) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {worker.key}"}
    with httpx.Client(base_url=worker.url, headers=headers, timeout=30) as made:
        yield made


def speak(target: str) -> Any:
    """A good target whose prompt has 9 tokens, of which 4 came from a cache."""
    match target:
        case "openai":
            return gpt.well_behaved(WORDS[:6], WORDS[6:], tokens=gpt.usage(9, 5, cached=4))
        case "anthropic":
            return claude.well_behaved(WORDS, tokens=claude.usage(5, 5, cache_read=4))
    return responses.well_behaved(WORDS, tokens=responses.usage(9, 5, cached=4))


@both
@targets
def test_the_same_answer_and_the_same_record(
    worker: GatewayProcess, client: openai.OpenAI, upstream: Stage, target: str, stream: bool
) -> None:
    upstream.answer = speak(target)
    asked: dict[str, Any] = {"model": target, "input": "Hello", "metadata": {"experiment": "e1"}}
    if stream:
        with client.responses.stream(**asked) as events:
            kinds = [event.type for event in events]
            answer: Any = events.get_final_response()
            request_id = events._response.headers["x-request-id"]
        assert kinds[0] == "response.created"
        assert kinds[-1] == "response.completed"
        assert kinds.count("response.output_text.delta") > 1
    else:
        raw = client.responses.with_raw_response.create(**asked)
        answer, request_id = raw.parse(), raw.headers["x-request-id"]
    assert (answer.output_text, answer.status) == (WORDS, "completed")
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (9, 5)
    assert answer.usage.input_tokens_details.cached_tokens == 4
    record = worker.wait_record(request_id)
    assert (record.outcome, record.status, record.stream) == (Outcome.OK, 200, stream)
    assert (record.endpoint, record.experiment) == ("responses", "e1")
    assert (record.tokens.input, record.tokens.input_cached, record.tokens.output) == (5, 4, 5)
    assert record.usage_source is UsageSource.REPORTED
    assert (record.first_token_ns is not None) is stream
    sent = upstream.request
    assert sent.json()["model"] == "there"
    path = {"anthropic": "messages", "openai": "chat/completions", "openai-responses": "responses"}[target]
    assert sent.path == f"/v1/{path}"
    assert worker.key not in str(sent.headers)
    if target == "openai-responses":
        assert sent.json() == asked | {"model": "there", "store": False} | (
            {"stream": True} if stream else {}
        )
    else:
        assert answer.metadata == {"experiment": "e1"}
        assert "metadata" not in sent.json()


@both
@pytest.mark.parametrize("target", TRANSLATED)
def test_tools_there_and_back(client: openai.OpenAI, upstream: Stage, target: str, stream: bool) -> None:
    def call(request: RecordedRequest) -> Script:
        if target == "anthropic":
            return claude.well_behaved(claude.text("I look."), *map(claude.tool_use, CALLS))(request)
        if request.json().get("stream"):
            return sse_answer(gpt.tool_call_stream(CALLS))
        return json_answer(gpt.chat_completion(None, tool_calls=CALLS))

    upstream.answer = call
    tools: Any = [
        {
            "type": "function",
            "name": name,
            "parameters": {"type": "object", "properties": {}},
            "strict": False,
        }
        for name in ("look", "now")
    ]
    question: Any = {"role": "user", "content": "Look."}
    asked: dict[str, Any] = {"model": target, "input": [question], "tools": tools}
    if stream:
        with client.responses.stream(**asked) as events:
            answer: Any = events.get_final_response()
    else:
        answer = client.responses.create(**asked)
    calls = [item for item in answer.output if item.type == "function_call"]
    assert [(each.call_id, each.name, json.loads(each.arguments)) for each in calls] == [
        ("call_1", "look", {"at": "sea", "depth": 3}),
        ("call_2", "now", {}),
    ]
    assert [tool.name for tool in answer.tools] == ["look", "now"]
    upstream.answer = speak(target)
    results = [{"type": "function_call_output", "call_id": each.call_id, "output": "waves"} for each in calls]
    sent_back = [question, *(item.model_dump(exclude_none=True) for item in answer.output), *results]
    for item in sent_back:
        item.pop("parsed_arguments", None)
        for part in item["content"] if isinstance(item.get("content"), list) else ():
            part.pop("parsed", None)
    client.responses.create(model=target, input=sent_back, tools=tools)
    messages = upstream.requests[-1].json()["messages"]
    if target == "openai":
        assert [each["role"] for each in messages] == ["user", "assistant", "tool", "tool"]
        assert [each["id"] for each in messages[1]["tool_calls"]] == ["call_1", "call_2"]
    else:
        assert [each["role"] for each in messages] == ["user", "assistant", "user"]
        assert [each["tool_use_id"] for each in messages[2]["content"]] == ["call_1", "call_2"]


@both
def test_signed_thinking_goes_back_as_it_came(client: openai.OpenAI, upstream: Stage, stream: bool) -> None:
    thought = claude.thinking("Let me see …", "EqQBCkgIBRABGAIiQ+signature==")
    upstream.answer = claude.well_behaved(thought, "It is there.")
    if stream:
        with client.responses.stream(model="anthropic", input="?") as events:
            answer: Any = events.get_final_response()
    else:
        answer = client.responses.create(model="anthropic", input="?")
    items = [item.model_dump(exclude_none=True, exclude={"parsed"}) for item in answer.output]
    for part in items[-1]["content"]:
        part.pop("parsed", None)
    client.responses.create(model="anthropic", input=[*items, {"role": "user", "content": "!"}])
    assert upstream.requests[-1].json()["messages"][0]["content"][0] == thought


@targets
def test_a_stream_that_comes_byte_by_byte(http: httpx.Client, upstream: Stage, target: str) -> None:
    events = {
        "openai": gpt.tool_call_stream(CALLS),
        "anthropic": claude.message_events(claude.message(claude.text(WORDS))),
        "openai-responses": responses.response_events(responses.response(WORDS)),
    }[target]
    upstream.answer = sse_answer([b"".join(events)])
    asked = {"model": target, "input": "Hello", "stream": True}
    at_once = http.post("/responses", json=asked)
    upstream.answer = drip(sse_answer([b"".join(events)]), every=1)
    in_pieces = http.post("/responses", json=asked)
    assert in_pieces.status_code == 200
    assert in_pieces.content == at_once.content
    if target == "openai-responses":
        assert at_once.content == b"".join(events)


@both
@targets
def test_an_answer_that_broke_off_has_no_end(
    worker: GatewayProcess, http: httpx.Client, upstream: Stage, target: str, stream: bool
) -> None:
    events = {
        "openai": gpt.chat_stream(["a", "b"]),
        "anthropic": claude.message_events(claude.message(claude.text(WORDS))),
        "openai-responses": responses.response_events(responses.response(WORDS)),
    }[target]
    upstream.answer = (
        sse_answer(events[: 3 if target == "openai" else 5])
        if stream
        else json_answer({"odd": 1}, status=500)
    )
    got = http.post("/responses", json={"model": target, "input": "Hello", "stream": stream})
    record = worker.wait_record(got.headers["x-request-id"])
    assert record.outcome is Outcome.FAILED
    if not stream:
        assert got.status_code == 500
        assert got.json()["error"]["message"]
        return
    assert got.status_code == 200
    assert b"response.completed" not in got.content
    last = got.content.rstrip().rsplit(b"\n\n", 1)[1]
    assert last.startswith(b"event: error\n")
    told = json.loads(last.partition(b"data: ")[2])
    assert (told["type"], told["code"]) == ("error", record.error)


@targets
def test_errors_of_a_target(client: openai.OpenAI, upstream: Stage, target: str) -> None:
    told = claude.error("rate_limit_error", "Slow down.")
    if target != "anthropic":
        told = {"error": {"message": "Slow down.", "type": "rate_limit_error", "code": "rate_limit_exceeded"}}
    upstream.answer = json_answer(told, status=429)
    with pytest.raises(openai.RateLimitError, match="Slow down"):
        client.responses.create(model=target, input="Hello")


@targets
@pytest.mark.parametrize(
    "asked",
    [{"store": True}, {"previous_response_id": "resp_1"}, {"background": True}, {"conversation": "c"}],
)
def test_what_would_be_kept_is_refused_everywhere(
    client: openai.OpenAI, upstream: Stage, target: str, asked: dict[str, Any]
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model=target, input="Hello", **asked)
    assert caught.value.param == next(iter(asked))
    assert upstream.requests == []


def test_tools_of_openai_are_refused_by_name(client: openai.OpenAI, upstream: Stage) -> None:
    with pytest.raises(openai.BadRequestError, match="web_search") as caught:
        client.responses.create(model="openai", input="Hello", tools=[{"type": "web_search"}])
    assert caught.value.param == "tools[0].type"
    assert upstream.requests == []
