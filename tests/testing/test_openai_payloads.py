"""OpenAI payloads are what the official client takes them for."""

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from forebay.testing.answers import json_answer, sse_answer
from forebay.testing.openai import (
    ToolCall,
    chat_completion,
    chat_stream,
    error_answer,
    rate_limited,
    tool_call_stream,
    usage,
    well_behaved,
)
from forebay.testing.threaded import ThreadedUpstream

ASK: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Say hello."}]
CALLS = (
    ToolCall(id="call_a", name="weather", arguments='{"city": "Zürich", "days": 3}'),
    ToolCall(id="call_b", name="now"),
    ToolCall(id="call_c", name="sum", arguments='{"of": [1, 2]}'),
)


def connect(upstream: ThreadedUpstream) -> openai.OpenAI:
    return openai.OpenAI(base_url=upstream.url, api_key="test", max_retries=0)


def test_a_good_server_streams_and_tells_usage_only_when_asked() -> None:
    with (
        ThreadedUpstream(well_behaved("Hel", "lo", tokens=usage(9, 2, cached=4))) as upstream,
        connect(upstream) as api,
    ):
        whole = api.chat.completions.create(model="some", messages=ASK)
        assert (whole.model, whole.choices[0].message.content, whole.choices[0].finish_reason) == (
            "some",
            "Hello",
            "stop",
        )
        plain = list(api.chat.completions.create(model="some", messages=ASK, stream=True))
        assert "".join(part.choices[0].delta.content or "" for part in plain) == "Hello"
        assert [part.usage for part in plain] == [None] * 4
        told = list(
            api.chat.completions.create(
                model="some", messages=ASK, stream=True, stream_options={"include_usage": True}
            )
        )
        assert told[-1].choices == []
        assert told[-1].usage == whole.usage
        assert whole.usage is not None
        assert whole.usage.prompt_tokens_details is not None
        assert (whole.usage.total_tokens, whole.usage.prompt_tokens_details.cached_tokens) == (11, 4)


def test_a_good_server_serves_the_other_endpoints() -> None:
    with ThreadedUpstream(well_behaved("Hel", "lo", model="own")) as upstream, connect(upstream) as api:
        assert api.completions.create(model="some", prompt="Say").choices[0].text == "Hello"
        stream = api.completions.create(model="some", prompt="Say", stream=True)
        assert "".join(part.choices[0].text for part in stream) == "Hello"
        assert len(api.embeddings.create(model="some", input=["a", "b"], encoding_format="float").data) == 2
        assert len(api.embeddings.create(model="some", input="a", encoding_format="float").data) == 1
        assert len(api.embeddings.create(model="some", input=[1, 2, 3], encoding_format="float").data) == 1
        assert [model.id for model in api.models.list()] == ["own"]
        with pytest.raises(openai.NotFoundError):
            api.moderations.create(input="x")


def test_interleaved_tool_calls_assemble_to_the_answer_that_is_not_streamed() -> None:
    with ThreadedUpstream() as upstream, connect(upstream) as api:
        upstream.enqueue(
            json_answer(chat_completion(None, tool_calls=CALLS)),
            sse_answer(tool_call_stream(CALLS, fragment_chars=3), cut_every=7),
        )
        whole = api.chat.completions.create(model="m", messages=ASK)
        with api.chat.completions.stream(model="m", messages=ASK) as stream:
            assembled = stream.get_final_completion()
        assert whole.choices[0].finish_reason == assembled.choices[0].finish_reason == "tool_calls"
        expected = [(call.id, call.name, call.arguments) for call in CALLS]
        for answer in (whole, assembled):
            calls = answer.choices[0].message.tool_calls or []
            assert [
                (c.id, c.function.name, c.function.arguments) for c in calls if c.type == "function"
            ] == expected


def test_fragments_of_parallel_calls_take_turns() -> None:
    events = b"".join(tool_call_stream(CALLS, fragment_chars=20))
    at = [events.index(part) for part in (b'ys\\": 3}', b"[1, 2]")]
    assert at == sorted(at, reverse=True)


def test_errors_are_the_clients_errors() -> None:
    with ThreadedUpstream() as upstream, connect(upstream) as api:
        upstream.enqueue(
            rate_limited("7"),
            rate_limited(None),
            error_answer(400, "Too long.", code="context_length_exceeded"),
        )
        with pytest.raises(openai.RateLimitError) as limited:
            api.chat.completions.create(model="m", messages=ASK)
        assert limited.value.response.headers["retry-after"] == "7"
        with pytest.raises(openai.RateLimitError) as silent:
            api.chat.completions.create(model="m", messages=ASK)
        assert "retry-after" not in silent.value.response.headers
        with pytest.raises(openai.BadRequestError, match=r"Too long\.") as refused:
            api.chat.completions.create(model="m", messages=ASK)
        assert refused.value.code == "context_length_exceeded"


def test_a_stream_may_lack_its_usage_and_its_end() -> None:
    events = chat_stream(["a"], include_usage=False, done=False)
    assert b"[DONE]" not in b"".join(events)
    assert b"usage" not in b"".join(events)
    assert b'"usage":null' in chat_stream(["a"])[0]
