"""The official client in front of the gateway: what it assembles from a stream, and the errors it raises."""

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from gateway_stage import Stage

from forebay.core.events import Outcome
from forebay.testing.answers import chunk, json_answer, sse_answer, sse_head
from forebay.testing.gateway import GatewayProcess
from forebay.testing.openai import (
    ToolCall,
    chat_chunk,
    chat_completion,
    chat_stream,
    error,
    event,
    rate_limited,
    tool_call_stream,
    usage,
)
from forebay.testing.steps import Reset, Sleep, Stall

MESSAGES: Any = [{"role": "user", "content": "Hello"}]
CALLS = [
    ToolCall(id="call_1", name="get_weather", arguments='{"city":"Zürich","unit":"°C"}'),
    ToolCall(id="call_2", name="search", arguments='{"query":"\\"quoted\\" {braces}","limit":3}'),
    ToolCall(id="call_3", name="now"),
]


@pytest.fixture(scope="module")
def _official(_gateway: GatewayProcess) -> Iterator[openai.OpenAI]:
    http_client = httpx.Client(verify=False)
    with openai.OpenAI(
        base_url=_gateway.url, api_key=_gateway.key, max_retries=0, http_client=http_client
    ) as client:
        yield client


@pytest.fixture
def official(gateway: GatewayProcess, _official: openai.OpenAI) -> openai.OpenAI:
    return _official


def assemble(chunks: Any) -> dict[int, dict[str, str]]:
    """Tool calls put together as clients do: by index, arguments one after the other."""
    calls: dict[int, dict[str, str]] = {}
    for part in chunks:
        for choice in part.choices:
            for call in choice.delta.tool_calls or []:
                known = calls.setdefault(call.index, {"id": "", "name": "", "arguments": ""})
                known["id"] += call.id or ""
                known["name"] += call.function.name or ""
                known["arguments"] += call.function.arguments or ""
    return calls


# --- answers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fragment", [1, 4, 1000])
@pytest.mark.parametrize("asked", [False, True])
def test_parallel_tool_calls_are_the_same_streamed_and_not(
    official: openai.OpenAI, upstream: Stage, fragment: int, asked: bool
) -> None:
    upstream.next.append(json_answer(chat_completion(None, tool_calls=CALLS)))
    upstream.next.append(sse_answer(tool_call_stream(CALLS, fragment_chars=fragment), cut_every=37))
    whole = official.chat.completions.create(model="m", messages=MESSAGES)
    options: Any = {"stream_options": {"include_usage": True}} if asked else {}
    chunks = list(official.chat.completions.create(model="m", messages=MESSAGES, stream=True, **options))
    expected = {
        index: {"id": call.id, "name": call.function.name, "arguments": call.function.arguments}
        for index, call in enumerate(whole.choices[0].message.tool_calls or [])
        if call.type == "function"
    }
    assert len(expected) == 3
    assert assemble(chunks) == expected
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == whole.choices[0].finish_reason
    assert [part.usage for part in chunks if part.usage] == ([whole.usage] if asked else [])


def test_the_clients_own_assembly_of_a_stream(official: openai.OpenAI, upstream: Stage) -> None:
    upstream.answer = sse_answer(tool_call_stream(CALLS))
    tools: Any = [{"type": "function", "function": {"name": call.name, "parameters": {}}} for call in CALLS]
    with official.chat.completions.stream(model="m", messages=MESSAGES, tools=tools) as stream:
        final = stream.get_final_completion()
    made = final.choices[0].message.tool_calls or []
    assert [(call.id, call.function.name, call.function.arguments) for call in made] == [
        (call.id, call.name, call.arguments) for call in CALLS
    ]


def test_two_choices_interleaved(official: openai.OpenAI, upstream: Stage) -> None:
    parts = [(0, "a"), (1, "x"), (1, "y"), (0, "b"), (1, "z")]
    events = [event(chat_chunk({"content": text}, index=index)) for index, text in parts]
    events += [event(chat_chunk({}, finish_reason="stop", index=index)) for index in (0, 1)]
    upstream.answer = sse_answer([*events, b"data: [DONE]\n\n"])
    texts = {0: "", 1: ""}
    for part in official.chat.completions.create(model="m", messages=MESSAGES, stream=True, n=2):
        for choice in part.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == {0: "ab", 1: "xyz"}


def test_every_endpoint(official: openai.OpenAI, upstream: Stage) -> None:
    assert (
        official.chat.completions.create(model="m", messages=MESSAGES).choices[0].message.content == "Hello"
    )
    assert official.completions.create(model="m", prompt="x").choices[0].text == "Hello"
    streamed = official.completions.create(model="m", prompt="x", stream=True)
    assert "".join(part.choices[0].text for part in streamed if part.choices) == "Hello"
    assert official.embeddings.create(model="embed/only", input=["a", "b"]).data[1].embedding == [
        1.0,
        0.0,
        0.0,
    ]
    assert "alias" in [model.id for model in official.models.list()]
    assert official.models.retrieve("embed/only").id == "embed/only"


def test_the_request_id_is_there_for_support(
    gateway: GatewayProcess, official: openai.OpenAI, upstream: Stage
) -> None:
    answer = official.chat.completions.create(model="m", messages=MESSAGES)
    assert gateway.wait_record(answer._request_id or "").outcome is Outcome.OK


def test_usage_with_details(official: openai.OpenAI, upstream: Stage) -> None:
    upstream.answer = sse_answer(chat_stream(tokens=usage(100, 50, cached=60, reasoning=45)))
    options: Any = {"include_usage": True}
    *_, last = official.chat.completions.create(
        model="m", messages=MESSAGES, stream=True, stream_options=options
    )
    assert last.usage is not None
    assert last.usage.completion_tokens_details is not None
    assert last.usage.completion_tokens_details.reasoning_tokens == 45


def test_a_hundred_at_once(gateway: GatewayProcess, upstream: Stage) -> None:
    upstream.answer = sse_answer(
        chat_stream([f"{n} " for n in range(20)], include_usage=False), pause_s=0.002
    )

    async def ask(client: openai.AsyncOpenAI, stream: bool) -> str:
        if not stream:
            raw = await client.chat.completions.create(model="alias", messages=MESSAGES)
            return str(raw.choices[0].message.content)
        parts = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
        return "".join([part.choices[0].delta.content or "" async for part in parts if part.choices])

    async def run() -> list[str]:
        http_client = httpx.AsyncClient(verify=False)
        async with openai.AsyncOpenAI(
            base_url=gateway.url, api_key=gateway.key, http_client=http_client
        ) as client:
            return await asyncio.gather(*(ask(client, True) for _ in range(100)))

    assert set(asyncio.run(run())) == {"".join(f"{n} " for n in range(20))}


# --- errors -------------------------------------------------------------------------------------------------


def test_errors_of_the_gateway_are_the_clients_classes(
    gateway: GatewayProcess, official: openai.OpenAI, upstream: Stage
) -> None:
    with pytest.raises(openai.AuthenticationError) as wrong:
        official.with_options(api_key="fb-wrong").chat.completions.create(model="m", messages=MESSAGES)
    assert wrong.value.code == "invalid_api_key"
    with pytest.raises(openai.NotFoundError) as unknown:
        official.chat.completions.create(model="nobody", messages=MESSAGES)
    assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as unsupported:
        official.chat.completions.create(model="embed/only", messages=MESSAGES)
    assert unsupported.value.code == "endpoint_not_supported"
    with pytest.raises(openai.BadRequestError):
        official.chat.completions.create(model="", messages=MESSAGES)
    with pytest.raises(openai.NotFoundError):
        official.models.retrieve("nobody")
    assert unknown.value.request_id is not None
    assert gateway.wait_record(unknown.value.request_id).error == "model_not_found"


def test_a_limit_of_a_target_is_a_rate_limit_error_with_the_time_to_wait(
    official: openai.OpenAI, upstream: Stage
) -> None:
    upstream.answer = rate_limited("7")
    for stream in (False, True):
        with pytest.raises(openai.RateLimitError) as limited:
            official.chat.completions.create(model="m", messages=MESSAGES, stream=stream)
        assert limited.value.response.headers["retry-after"] == "7"
        assert limited.value.code == "rate_limit_exceeded"


def test_a_client_that_retries_after_a_limit_succeeds(official: openai.OpenAI, upstream: Stage) -> None:
    upstream.next.append(rate_limited("0"))
    answer = official.with_options(max_retries=1).chat.completions.create(model="m", messages=MESSAGES)
    assert answer.choices[0].message.content == "Hello"
    assert len(upstream.requests) == 2


@pytest.mark.parametrize(
    ("status", "raised"),
    [
        (400, openai.BadRequestError),
        (404, openai.NotFoundError),
        (409, openai.ConflictError),
        (422, openai.UnprocessableEntityError),
        (500, openai.InternalServerError),
        (401, openai.InternalServerError),
        (403, openai.InternalServerError),
    ],
)
def test_errors_of_a_target_are_the_clients_classes(
    official: openai.OpenAI, upstream: Stage, status: int, raised: type[openai.APIStatusError]
) -> None:
    upstream.answer = json_answer(error("no"), status=status)
    for stream in (False, True):
        with pytest.raises(raised):
            official.chat.completions.create(model="m", messages=MESSAGES, stream=stream)


def test_too_long_in_the_first_event_is_a_bad_request(official: openai.OpenAI, upstream: Stage) -> None:
    said = error("too long", type="invalid_request_error", code="context_length_exceeded")
    upstream.answer = sse_answer([chat_stream()[0], event(said)])
    with pytest.raises(openai.BadRequestError, match="too long") as raised:
        official.chat.completions.create(model="m", messages=MESSAGES, stream=True)
    assert raised.value.code == "context_length_exceeded"


BROKEN = {
    "a reset": [Reset()],
    "silence": [Stall()],
    "the target's own error": [Sleep(0.05), chunk(event(error("out of memory")))],
}


def read_text(stream: Any, into: list[str]) -> None:
    """Reads a stream to its end, which no chunk may say has come."""
    for part in stream:
        assert part.choices[0].finish_reason is None
        into.append(part.choices[0].delta.content or "")


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_stream_raises_after_the_content(
    official: openai.OpenAI, upstream: Stage, name: str
) -> None:
    content = [chunk(raw) for raw in chat_stream(["Hel", "lo"], include_usage=False)[:3]]
    upstream.answer = [*sse_head(), *content, *BROKEN[name], chunk(b"data: [DONE]\n\n")]
    stream = official.chat.completions.create(model="brief", messages=MESSAGES, stream=True)
    parts: list[str] = []
    with pytest.raises(openai.APIError):
        read_text(stream, parts)
    assert "".join(parts) == "Hello"


def test_a_client_that_gives_up_lets_the_target_go(official: openai.OpenAI, upstream: Stage) -> None:
    upstream.answer = [Stall()]
    for _ in range(10):
        with pytest.raises(openai.APITimeoutError):
            official.with_options(timeout=0.2).chat.completions.create(model="m", messages=MESSAGES)
        if upstream.requests:  # else it gave up before the target was asked
            break
    upstream.wait_closed(upstream.requests[-1])


def test_a_client_that_closes_its_stream_lets_the_target_go(official: openai.OpenAI, upstream: Stage) -> None:
    upstream.answer = [*sse_head(), *map(chunk, chat_stream()[:2]), Stall()]
    with official.chat.completions.create(model="m", messages=MESSAGES, stream=True) as stream:
        next(iter(stream))
    upstream.wait_closed(upstream.request)


def test_the_asynchronous_client_sees_the_same(gateway: GatewayProcess, upstream: Stage) -> None:
    async def run() -> None:
        http_client = httpx.AsyncClient(verify=False)
        options: Any = {"base_url": gateway.url, "max_retries": 0, "http_client": http_client}
        async with openai.AsyncOpenAI(api_key=gateway.key, **options) as client:
            ask = client.chat.completions.create
            upstream.next.append(sse_answer(tool_call_stream(CALLS)))
            chunks = [part async for part in await ask(model="m", messages=MESSAGES, stream=True)]
            assert [call["arguments"] for call in assemble(chunks).values()] == [
                call.arguments for call in CALLS
            ]
            with pytest.raises(openai.NotFoundError):
                await ask(model="nobody", messages=MESSAGES)
            with pytest.raises(openai.AuthenticationError):
                await client.with_options(api_key="fb-wrong").models.list()
            upstream.next.append(rate_limited("7"))
            with pytest.raises(openai.RateLimitError):
                await ask(model="m", messages=MESSAGES)
            upstream.next.append([*sse_head(), *map(chunk, chat_stream()[:2]), Reset()])
            with pytest.raises(openai.APIError):
                async for _ in await ask(model="m", messages=MESSAGES, stream=True):
                    pass
            upstream.next.append([Stall()])
            task = asyncio.create_task(ask(model="m", messages=MESSAGES))
            while len(upstream.requests) < 4:
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(run())
    upstream.wait_closed(upstream.requests[-1])
