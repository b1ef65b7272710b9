"""The embedded language model, called by the official client through the engine process."""

import json

import openai
import pytest
from engine_process import Engine
from openai import OpenAI

MODEL = "smollm2-135m"
MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "maximum": 150}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def test_a_chat_answers(chat_client: OpenAI) -> None:
    answer = chat_client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_completion_tokens=8, temperature=0
    )
    assert answer.model == MODEL
    assert answer.choices[0].message.content
    assert answer.usage.completion_tokens == 8
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 8
    assert answer.choices[0].finish_reason == "length"


def test_a_streamed_chat_says_the_same(chat_client: OpenAI) -> None:
    asked = {"model": MODEL, "messages": MESSAGES, "max_tokens": 8, "temperature": 0}
    whole = chat_client.chat.completions.create(**asked)
    with chat_client.chat.completions.create(
        **asked, stream=True, stream_options={"include_usage": True}
    ) as stream:
        chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == 8
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens


@pytest.mark.parametrize("stream", [False, True])
def test_a_completion_goes_on_from_its_prompt(chat_client: OpenAI, stream: bool) -> None:
    answer = chat_client.completions.create(
        model=MODEL, prompt="The capital of France is", max_tokens=3, temperature=0, stream=stream
    )
    parts = list(answer) if stream else [answer]
    assert "Paris" in "".join(part.choices[0].text for part in parts)
    assert parts[-1].usage.completion_tokens == 3


def test_a_json_schema_is_obeyed(chat_client: OpenAI) -> None:
    answer = chat_client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Invent a person."}],
        max_tokens=80,
        response_format={"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}},
    )
    person = json.loads(answer.choices[0].message.content)
    assert set(person) == {"name", "age"}
    assert isinstance(person["age"], int)


def test_a_prompt_longer_than_the_context_is_the_caller_s_error(chat_client: OpenAI, llama: Engine) -> None:
    with pytest.raises(openai.BadRequestError, match="exceeds the available context size") as refused:
        chat_client.completions.create(model=MODEL, prompt="river " * 600, max_tokens=1)
    assert refused.value.type == "exceed_context_size_error"
    assert refused.value.body["n_ctx"] == 512


def test_every_request_may_use_the_whole_context(llama: Engine) -> None:
    _, slots = llama.ask("/slots")
    assert [slot["n_ctx"] for slot in json.loads(slots)] == [512] * 4


def test_the_model_has_the_engine_s_name(chat_client: OpenAI) -> None:
    assert [model.id for model in chat_client.models.list()] == [MODEL]
