"""Forced calls of tools at the real llama.cpp, which does not enforce them, through a real worker and the
official clients."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import jsonschema
import openai
import pytest
from engine_process import Engine

from forebay.core.routes import ForcedCalls
from forebay.testing.gateway import GatewayProcess, make_route
from forebay.testing.openai import well_behaved
from forebay.testing.threaded import ThreadedUpstream

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["C", "F"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
TOOLS: Any = [
    {"type": "function", "function": {"name": "weather", "description": "of a city", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "now", "description": "The time"}},
]
ASKED: Any = [{"role": "user", "content": "What is the weather in Paris?"}]
NAMED: Any = {"type": "function", "function": {"name": "weather"}}
MOST = 120


@pytest.fixture(scope="module")
def gateway(llama: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    routes = [
        make_route("m", llama.base_url, forced_tools=ForcedCalls.SCHEMA),
        make_route("native", llama.base_url),
        make_route("refusing", llama.base_url, forced_tools=ForcedCalls.REFUSE),
        # The second target is only there to be tried where the first one does not meet the call.
        make_route("untried", llama.base_url, llama.base_url, forced_tools=ForcedCalls.REFUSE),
    ]
    with GatewayProcess(routes, folder=tmp_path_factory.mktemp("forced")) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def client(gateway: GatewayProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=gateway.url, api_key=gateway.key, max_retries=0, timeout=120) as client:
        yield client


def check(name: str | None, arguments: str) -> None:
    assert name in ("weather", "now")
    if name == "weather":
        jsonschema.validate(json.loads(arguments), WEATHER)
    else:
        assert json.loads(arguments) == {}


@pytest.mark.parametrize("choice", ["required", NAMED])
def test_a_forced_call_comes_back(client: openai.OpenAI, choice: Any) -> None:
    answer = client.chat.completions.create(
        model="m", messages=ASKED, tools=TOOLS, tool_choice=choice, temperature=0, max_tokens=MOST
    )
    (made,) = answer.choices[0].message.tool_calls or []
    assert made.type == "function"
    assert made.id.startswith("call_")
    check(made.function.name, made.function.arguments)
    assert choice == "required" or made.function.name == "weather"
    assert answer.choices[0].message.content is None
    assert answer.choices[0].finish_reason == "tool_calls"
    assert answer.usage is not None
    assert answer.usage.completion_tokens > 5


def test_it_does_in_a_stream(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model="m", messages=ASKED, tools=TOOLS, tool_choice=NAMED, temperature=0, max_tokens=MOST
    ) as stream:
        events = list(stream)
        answer = stream.get_final_completion()
    (made,) = answer.choices[0].message.tool_calls or []
    check(made.function.name, made.function.arguments)
    assert answer.choices[0].finish_reason == "tool_calls"
    flowing = [each for each in events if each.type == "tool_calls.function.arguments.delta"]
    assert len(flowing) > 3, "token by token"


def test_several_calls_may_come(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="m",
        messages=ASKED,
        tools=TOOLS,
        tool_choice="required",
        parallel_tool_calls=True,
        temperature=0,
        max_tokens=MOST,
    )
    made = answer.choices[0].message.tool_calls or []
    assert made
    assert len({each.id for each in made}) == len(made)
    whole = made if answer.choices[0].finish_reason == "tool_calls" else made[:-1]
    for each in whole:
        assert each.type == "function"
        check(each.function.name, each.function.arguments)


def test_its_result_goes_back(client: openai.OpenAI) -> None:
    said = client.chat.completions.create(
        model="m", messages=ASKED, tools=TOOLS, tool_choice=NAMED, temperature=0, max_tokens=MOST
    )
    message: Any = said.choices[0].message.model_dump(exclude_none=True)
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "Sunny"}
    answer = client.chat.completions.create(
        model="m", messages=[*ASKED, message, result], tools=TOOLS, max_tokens=8, temperature=0
    )
    assert answer.choices[0].message.content


def test_anthropics_callers_have_it_too(gateway: GatewayProcess) -> None:
    tools: Any = [{"name": "weather", "description": "of a city", "input_schema": WEATHER}]
    asked: Any = {
        "model": "m",
        "max_tokens": MOST,
        "messages": ASKED,
        "tools": tools,
        "tool_choice": {"type": "any"},
    }
    address = gateway.url.removesuffix("/v1")
    with anthropic.Anthropic(base_url=address, api_key=gateway.key, max_retries=0) as client:
        answer = client.messages.create(**asked)
        with client.messages.stream(**asked) as stream:
            streamed = stream.get_final_message()
    for message in (answer, streamed):
        assert message.stop_reason == "tool_use"
        (block,) = message.content
        assert block.type == "tool_use"
        check(block.name, json.dumps(block.input))
        assert message.usage.output_tokens > 5


def test_callers_of_responses_have_it_too(client: openai.OpenAI) -> None:
    tools: Any = [{"type": "function", "name": "weather", "parameters": WEATHER, "strict": True}]
    asked: Any = {
        "model": "m",
        "input": "Paris?",
        "tools": tools,
        "max_output_tokens": MOST,
        "temperature": 0,
    }
    answer = client.responses.create(**asked, tool_choice="required")
    with client.responses.stream(**asked, tool_choice={"type": "function", "name": "weather"}) as stream:
        streamed = stream.get_final_response()
    for response in (answer, streamed):
        (item,) = response.output
        assert item.type == "function_call"
        check(item.name, item.arguments)


def test_what_is_not_forced_passes_as_it_is(client: openai.OpenAI) -> None:
    answers = [
        client.chat.completions.create(
            model=model, messages=ASKED, tools=TOOLS, tool_choice="auto", temperature=0, max_tokens=8
        )
        for model in ("m", "native")
    ]
    assert answers[0].choices == answers[1].choices
    assert answers[0].choices[0].message.content


def test_without_it_the_engine_reads_over_the_choice(client: openai.OpenAI) -> None:
    """Why all of this is there; when this fails, llama.cpp has learned it."""
    answer = client.chat.completions.create(
        model="native", messages=ASKED, tools=TOOLS, tool_choice="required", temperature=0, max_tokens=8
    )
    assert not answer.choices[0].message.tool_calls


@pytest.mark.parametrize("model", ["refusing", "untried"])
def test_who_refuses_says_so(client: openai.OpenAI, model: str) -> None:
    with pytest.raises(openai.BadRequestError, match="say auto") as caught:
        client.chat.completions.create(model=model, messages=ASKED, tools=TOOLS, tool_choice="required")
    assert caught.value.param == "tool_choice"


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "string", "pattern": "^(a{0,200}){0,200}$"}, "repetitions"),
        ({"$ref": "#/$defs/none"}, "schema of a forced tool"),
        ({"type": "string", "minLength": 100_000}, "schema of a forced tool"),
    ],
)
def test_a_schema_that_it_can_not_enforce_is_a_400(client: openai.OpenAI, schema: Any, words: str) -> None:
    tools: Any = [
        {"type": "function", "function": {"name": "x", "parameters": {"properties": {"a": schema}}}}
    ]
    with pytest.raises(openai.BadRequestError, match=words) as caught:
        client.chat.completions.create(
            model="m", messages=ASKED, tools=tools, tool_choice="required", max_tokens=MOST
        )
    assert (caught.value.param or "").startswith("tools")


def test_it_does_over_a_connection_that_lies_ready_too(tmp_path: Path) -> None:
    """A request that needs no task goes another way through the worker."""
    told = '{"name": "weather", "arguments": {}}'
    asked: Any = {"model": "m", "messages": ASKED, "tools": TOOLS, "tool_choice": "required"}
    with (
        ThreadedUpstream(well_behaved(told)) as upstream,
        GatewayProcess(
            [make_route("m", upstream.url, forced_tools=ForcedCalls.SCHEMA)], folder=tmp_path
        ) as gateway,
        openai.OpenAI(base_url=gateway.url, api_key=gateway.key, max_retries=0) as client,
    ):
        for _ in range(20):
            answer = client.chat.completions.create(**asked)
            assert [each.function.name for each in answer.choices[0].message.tool_calls or []] == ["weather"]
            with client.chat.completions.stream(**asked) as stream:
                streamed = stream.get_final_completion()
            assert streamed.choices[0].finish_reason == "tool_calls"
