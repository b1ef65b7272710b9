"""Requests in OpenAI's chat at a target that speaks Anthropic's messages: what becomes of each part."""

import json
import re
from pathlib import Path
from typing import Any, get_type_hints

import anthropic.types as api
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import completion_create_params
from pydantic import TypeAdapter

from forebay.core.errors import InvalidJSON, InvalidValue, MissingField
from forebay.providers.chat_to_anthropic import IDLE, MAPPED, MAX_TOKENS_DEFAULT, REFUSED, ChatToAnthropic

DOCS = Path(__file__).parents[2] / "docs" / "dialects.md"
TRANSLATOR = ChatToAnthropic()
USER = {"role": "user", "content": "hi"}
ASKED: dict[str, Any] = {"model": "public", "messages": [USER]}
PIXEL = "iVBORw0KGgo="
TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks it up.",
        "parameters": {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]},
    },
}
_MESSAGES = TypeAdapter(list[api.MessageParam])
_BLOCKS = TypeAdapter(list[api.TextBlockParam | api.ImageBlockParam | api.DocumentBlockParam]
                      | list[api.ContentBlockParam])  # fmt: skip
_TOOLS = TypeAdapter(list[api.ToolParam])
_CHOICE = TypeAdapter(api.ToolChoiceParam)


def encode(asked: dict[str, Any] | None = None, *, stream: bool = False, **more: object) -> dict[str, Any]:
    """The target's request, which Anthropic's own types take."""
    body = json.dumps((asked or ASKED) | more).encode()
    made: dict[str, Any] = json.loads(TRANSLATOR.encode_request(body, "claude", stream=stream))
    _MESSAGES.validate_python(made["messages"])
    for message in made["messages"]:
        list(_BLOCKS.validate_python(message["content"]))
    _TOOLS.validate_python(made.get("tools", []))
    if "tool_choice" in made:
        _CHOICE.validate_python(made["tool_choice"])
    return made


def encode_messages(*messages: dict[str, Any]) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = encode(ASKED | {"messages": list(messages)})["messages"]
    return made


def refusal(asked: dict[str, Any] | None = None, **more: object) -> str | None:
    """The `param` of the error that a request is refused with."""
    with pytest.raises(InvalidValue) as caught:
        encode(asked, **more)
    assert caught.value.param is not None
    assert f"`{caught.value.param}`" in caught.value.message
    return caught.value.param


# --- parameters ---------------------------------------------------------------------------------------------


def test_every_parameter_of_chat_is_mapped_idle_or_refused_and_none_twice() -> None:
    documented = get_type_hints(completion_create_params.CompletionCreateParamsBase).keys() | {"stream"}
    tables = (MAPPED, IDLE, REFUSED.keys())
    assert documented <= MAPPED | IDLE | REFUSED.keys()
    assert sum(map(len, tables)) == len(MAPPED | IDLE | REFUSED.keys())


@pytest.mark.parametrize("name", sorted(MAPPED | IDLE | REFUSED.keys()))
def test_what_becomes_of_a_parameter_is_documented(name: str) -> None:
    part = DOCS.read_text().split("## Chat at an Anthropic target")[1].split("\n## ")[0]
    row = re.search(rf"^\| [^|]*`{name}`[^|]* \| (.+?) \|", part, re.MULTILINE)
    assert row is not None, f"no row for {name}"
    fate = "refused" if name in REFUSED else "without meaning" if name in IDLE else "mapped"
    assert row[1].startswith(fate)


#: Values that ask for something.
WISHES: dict[str, object] = {
    "audio": {"voice": "alloy", "format": "wav"},
    "frequency_penalty": 0.5,
    "function_call": "auto",
    "functions": [{"name": "f"}],
    "logit_bias": {"50256": -100},
    "logprobs": True,
    "modalities": ["text", "audio"],
    "moderation": {"model": "omni-moderation-latest"},
    "n": 2,
    "presence_penalty": -0.5,
    "seed": 7,
    "store": True,
    "top_logprobs": 3,
    "verbosity": "low",
    "web_search_options": {},
}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_refused_parameter_is_named(name: str) -> None:
    assert refusal(**{name: WISHES[name]}) == name


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name in REFUSED for value in (None, *REFUSED[name])]
)
def test_a_refused_parameter_that_asks_for_nothing_is_taken(name: str, value: object) -> None:
    assert encode(**{name: value}) == encode()


@pytest.mark.parametrize("name", sorted(IDLE))
def test_a_parameter_without_meaning_changes_nothing(name: str) -> None:
    assert encode(**{name: {"a": "b"}}) == encode()


def test_a_parameter_that_nobody_knows_is_named() -> None:
    assert refusal(min_p=0.1) == "min_p"
    assert encode(min_p=None) == encode()


def test_the_model_and_the_stream_are_those_of_the_attempt() -> None:
    assert encode(ASKED | {"stream": True})["model"] == "claude"
    assert "stream" not in encode(ASKED | {"stream": True})
    assert encode(stream=True)["stream"] is True


MAPPINGS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"max_tokens": MAX_TOKENS_DEFAULT}),
    ({"max_tokens": 5}, {"max_tokens": 5}),
    ({"max_tokens": 5, "max_completion_tokens": 7}, {"max_tokens": 7}),
    ({"temperature": 1, "top_p": 0.9, "top_k": 4}, {"temperature": 1.0, "top_p": 0.9, "top_k": 4}),
    ({"stop": "END"}, {"stop_sequences": ["END"]}),
    ({"stop": ["a", "b"]}, {"stop_sequences": ["a", "b"]}),
    ({"stop": []}, {}),
    ({"user": "u1"}, {"metadata": {"user_id": "u1"}}),
    ({"user": "u1", "safety_identifier": "s1"}, {"metadata": {"user_id": "s1"}}),
    ({"service_tier": "auto"}, {"service_tier": "auto"}),
    ({"service_tier": "priority"}, {"service_tier": "auto"}),
    ({"service_tier": "default"}, {"service_tier": "standard_only"}),
    ({"reasoning_effort": "none"}, {"thinking": {"type": "disabled"}}),
    ({"reasoning_effort": "minimal"}, {"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}}),
    ({"reasoning_effort": "max"}, {"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}}),
    ({"thinking": {"type": "disabled"}}, {"thinking": {"type": "disabled"}}),
    ({"response_format": {"type": "text"}}, {}),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"a": 1}}}},
        {"output_config": {"format": {"type": "json_schema", "schema": {"a": 1}}}},
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"description": "d", "schema": {}}}},
        {"output_config": {"format": {"type": "json_schema", "schema": {"description": "d"}}}},
    ),
    ({"cache_control": {"type": "ephemeral"}}, {"cache_control": {"type": "ephemeral"}}),
]  # fmt: skip


@pytest.mark.parametrize(("asked", "expected"), MAPPINGS, ids=lambda value: json.dumps(value)[:60])
def test_parameters_are_mapped(asked: dict[str, Any], expected: dict[str, Any]) -> None:
    made = encode(**asked)
    rest = {name: value for name, value in made.items() if name not in ("model", "messages")}
    assert rest == {"max_tokens": MAX_TOKENS_DEFAULT} | expected


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"temperature": 1.2}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"stop": 3}, "stop"),
        ({"stop": ["a", " \n"]}, "stop"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"service_tier": "flex"}, "service_tier"),
        ({"reasoning_effort": "huge"}, "reasoning_effort"),
        ({"response_format": {"type": "json_object"}}, "response_format.type"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}},
            "response_format.json_schema.schema",
        ),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": [{"type": "custom", "custom": {"name": "c"}}]}, "tools[0].type"),
        ({"tools": [TOOL, {"type": "function", "function": {}}]}, "tools[1].function"),
        ({"tools": [{"type": "function", "function": {"name": "f", "odd": 1}}]}, "tools[0].function.odd"),
        ({"messages": 3}, "messages"),
        ({"messages": [USER, 3]}, "messages[1]"),
        ({"messages": [{"role": "function", "name": "f", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 4}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "x", "odd": 1}]}, "messages[0].odd"),
        (
            {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]},
            "messages[0].content[0].type",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "ftp://x"}}]}]},
            "messages[0].content[0].image_url.url",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_id": "f"}}]}]},
            "messages[0].content[0].file.file_data",
        ),
        ({"messages": [USER, {"role": "tool", "content": "x"}]}, "messages[1].tool_call_id"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "a", "type": "custom"}]}]},
            "messages[0].tool_calls[0].type",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "a", "odd": 1}]}]},
            "messages[0].tool_calls[0].odd",
        ),
        (
            {"messages": [{"role": "system", "content": [{"type": "refusal", "refusal": "no"}]}]},
            "messages[0].content[0].type",
        ),
        ({"messages": [{"role": "user", "content": " "}]}, "messages"),
        ({"messages": []}, "messages"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_what_cannot_be_said_is_refused_by_its_place(asked: dict[str, Any], param: str) -> None:
    assert refusal(**asked) == param


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b'{"messages":[' + b"[" * 100_000])
def test_no_json_is_said_to_be_none(body: bytes) -> None:
    with pytest.raises(InvalidJSON):
        TRANSLATOR.encode_request(body, "claude", stream=False)


def test_an_array_is_no_request_and_messages_are_needed() -> None:
    with pytest.raises(InvalidJSON):
        TRANSLATOR.encode_request(b"[]", "claude", stream=False)
    with pytest.raises(MissingField):
        TRANSLATOR.encode_request(b'{"model":"m"}', "claude", stream=False)


# --- tools --------------------------------------------------------------------------------------------------


def test_tools_are_mapped() -> None:
    strict = {
        "type": "function",
        "function": {"name": "f", "strict": True},
        "cache_control": {"type": "ephemeral"},
    }
    made = encode(tools=[TOOL, strict])["tools"]
    assert made == [
        {
            "name": "look_up",
            "description": "Looks it up.",
            "input_schema": TOOL["function"]["parameters"],  # type: ignore[index]
        },
        {
            "name": "f",
            "input_schema": {"type": "object"},
            "strict": True,
            "cache_control": {"type": "ephemeral"},
        },
    ]


NAMED = {"type": "function", "function": {"name": "look_up"}}


@pytest.mark.parametrize(
    ("choice", "parallel", "expected"),
    [
        (None, None, None),
        (None, True, None),
        (None, False, {"type": "auto", "disable_parallel_tool_use": True}),
        ("auto", None, {"type": "auto"}),
        ("required", None, {"type": "any"}),
        ("required", False, {"type": "any", "disable_parallel_tool_use": True}),
        ("none", None, {"type": "none"}),
        ("none", False, {"type": "none"}),
        (NAMED, None, {"type": "tool", "name": "look_up"}),
        (NAMED, False, {"type": "tool", "name": "look_up", "disable_parallel_tool_use": True}),
    ],
)
def test_the_choice_of_tools_is_mapped(choice: object, parallel: bool | None, expected: object) -> None:
    made = encode(tools=[TOOL], tool_choice=choice, parallel_tool_calls=parallel)
    assert made.get("tool_choice") == expected


def test_allowed_tools_are_the_only_ones_that_are_offered() -> None:
    other = {"type": "function", "function": {"name": "other"}}
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}
    made = encode(tools=[other, TOOL], tool_choice=allowed)
    assert [tool["name"] for tool in made["tools"]] == ["look_up"]
    assert made["tool_choice"] == {"type": "any"}


def test_without_tools_there_is_nothing_to_choose() -> None:
    assert encode(tool_choice="auto", parallel_tool_calls=False, tools=[]) == encode()


# --- messages -----------------------------------------------------------------------------------------------


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def call(call_id: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": "look_up", "arguments": arguments}}


def test_system_and_developer_messages_become_the_system_prompt_wherever_they_stand() -> None:
    made = encode(
        messages=[
            {"role": "system", "content": "one"},
            USER,
            {"role": "developer", "content": [text("two"), text("  ")]},
        ]
    )
    assert made["system"] == [text("one"), text("two")]
    assert made["messages"] == [{"role": "user", "content": [text("hi")]}]


def test_images_and_files_are_mapped_by_their_urls() -> None:
    parts = [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}", "detail": "high"}},
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
        {"type": "file", "file": {"file_data": "data:application/pdf;base64,JVBE", "filename": "a.pdf"}},
    ]
    (message,) = encode_messages({"role": "user", "content": parts})
    assert message["content"] == [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}},
        {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}},
        {
            "type": "document",
            "title": "a.pdf",
            "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBE"},
        },
    ]


def test_marks_for_the_cache_are_kept() -> None:
    parts = [
        text("a") | {"cache_control": {"type": "ephemeral", "ttl": "1h"}},
        text("b") | {"prompt_cache_breakpoint": {"mode": "explicit"}},
        text("c") | {"prompt_cache_breakpoint": {"mode": "explicit", "ttl": "30m"}},
    ]
    (message,) = encode_messages({"role": "user", "content": parts})
    assert [block["cache_control"] for block in message["content"]] == [
        {"type": "ephemeral", "ttl": "1h"},
        {"type": "ephemeral"},
        {"type": "ephemeral", "ttl": "1h"},
    ]
    late = text("d") | {"prompt_cache_breakpoint": {"mode": "explicit", "ttl": "12h"}}
    assert refusal(messages=[{"role": "user", "content": [late]}]) == (
        "messages[0].content[0].prompt_cache_breakpoint.ttl"
    )


def test_parallel_calls_and_their_results_stand_in_one_turn_each() -> None:
    made = encode_messages(
        USER,
        {
            "role": "assistant",
            "content": "So.",
            "tool_calls": [call("a", ""), call("b", '{"q":"x"}')],
        },
        {"role": "tool", "tool_call_id": "b", "content": "found"},
        {"role": "user", "content": "And?"},
        {"role": "tool", "tool_call_id": "a", "content": [text("one"), text("two")], "is_error": True},
    )
    assert made[1]["content"] == [
        text("So."),
        {"type": "tool_use", "id": "a", "name": "look_up", "input": {}},
        {"type": "tool_use", "id": "b", "name": "look_up", "input": {"q": "x"}},
    ]
    assert made[2:] == [
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "b", "content": "found"},
                {
                    "type": "tool_result",
                    "tool_use_id": "a",
                    "content": [text("one"), text("two")],
                    "is_error": True,
                },
                text("And?"),
            ],
        }
    ]  # fmt: skip


def test_a_tools_result_may_be_an_image() -> None:
    image = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    made = encode_messages(
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call("a", "{}")]},
        {"role": "tool", "tool_call_id": "a", "content": [image]},
    )
    assert made[2]["content"][0]["content"] == [
        {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}
    ]


def test_arguments_go_on_as_they_were_spelled() -> None:
    spelled = '{"big": 123456789012345678901234567890, "e":1E+2,"é":"\\u00e9"}'
    asked = {"messages": [USER, {"role": "assistant", "tool_calls": [call("a", spelled)]}]}
    body = json.dumps(ASKED | asked).encode()
    assert spelled.encode() in TRANSLATOR.encode_request(body, "claude", stream=False)


@pytest.mark.parametrize("arguments", ["{", "[]", '"x"', "nope"])
def test_arguments_that_are_no_object_are_refused(arguments: str) -> None:
    asked = [USER, {"role": "assistant", "tool_calls": [call("a", "{}"), call("b", arguments)]}]
    assert refusal(messages=asked) == "messages[1].tool_calls[1].function.arguments"


def test_signed_thinking_goes_back_as_it_came_and_before_all_else() -> None:
    thoughts = [
        {"index": 0, "type": "thinking", "thinking": "Hm \n ü", "signature": "c2ln=="},
        {"index": 1, "type": "redacted_thinking", "data": "ZGF0YQ=="},
        {"index": 2, "type": "thinking", "thinking": "unsigned"},
        {"index": 3, "type": "thinking", "thinking": "Google's", "signature": "gemini:thought:c2ln"},
    ]
    made = encode_messages(
        USER,
        {"role": "assistant", "reasoning_content": "Hm", "content": "So.", "thinking_blocks": thoughts},
    )
    assert made[1]["content"] == [
        {"type": "thinking", "thinking": "Hm \n ü", "signature": "c2ln=="},
        {"type": "redacted_thinking", "data": "ZGF0YQ=="},
        text("So."),
    ]


@pytest.mark.parametrize("content", [None, "", "  \n", [], [{"type": "text", "text": ""}], [text(" ")]])
@pytest.mark.parametrize("role", ["user", "assistant", "system"])
def test_empty_messages_are_left_out_and_their_neighbours_merged(role: str, content: object) -> None:
    made = encode(messages=[USER, {"role": role, "content": content}, USER])
    assert made["messages"] == [{"role": "user", "content": [text("hi"), text("hi")]}]
    assert "system" not in made


@pytest.mark.parametrize("content", [None, "", " ", []])
def test_an_empty_result_is_a_result_without_content(content: object) -> None:
    made = encode_messages(
        USER,
        {"role": "assistant", "content": content, "tool_calls": [call("a", "{}")]},
        {"role": "tool", "tool_call_id": "a", "content": content},
    )
    assert made[1]["content"] == [{"type": "tool_use", "id": "a", "name": "look_up", "input": {}}]
    assert made[2]["content"] == [{"type": "tool_result", "tool_use_id": "a"}]


def test_what_the_model_answered_can_be_sent_back_as_clients_dump_it() -> None:
    dumped = {"role": "assistant", "content": "x", "refusal": None, "annotations": [], "audio": None,
              "function_call": None, "tool_calls": None}  # fmt: skip
    assert encode_messages(USER, dumped)[1]["content"] == [text("x")]
    refused = {"role": "assistant", "content": None, "refusal": "No."}
    assert encode_messages(USER, refused)[1]["content"] == [text("No.")]


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(sorted(MAPPED)), _JSON, max_size=4))
def test_whatever_is_asked_is_translated_or_refused(fields: dict[str, Any]) -> None:
    try:
        made = json.loads(TRANSLATOR.encode_request(json.dumps(ASKED | fields).encode(), "c", stream=False))
    except (InvalidValue, InvalidJSON):
        return
    assert made["messages"]


# --- the way there ------------------------------------------------------------------------------------------


def test_requests_are_addressed_and_signed_as_anthropic_wants_it() -> None:
    assert TRANSLATOR.build_path("/v1", "claude", stream=True) == "/v1/messages"
    assert TRANSLATOR.build_headers("k") == [("x-api-key", "k"), ("anthropic-version", "2023-06-01")]
    assert TRANSLATOR.build_headers("") == [("anthropic-version", "2023-06-01")]
