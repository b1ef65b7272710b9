"""Requests for responses before a target that speaks OpenAI's chat: what becomes of each part."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
from openai.types.responses.response_create_params import ResponseCreateParamsStreaming
from pydantic import TypeAdapter

from forebay.core.errors import InvalidJSON, InvalidValue, MissingField, OutputTooLong
from forebay.core.routes import Endpoint
from forebay.providers.responses_dialect import ResponsesDialect
from forebay.providers.responses_to_chat import IDLE, MAPPED, REFUSED, ResponsesToChat
from forebay.providers.translators import find_way

DOCS = Path(__file__).parents[2] / "docs" / "dialects.md"
TRANSLATOR = ResponsesToChat()
FURTHER = ResponsesToChat(is_extended=True)
DIALECT = ResponsesDialect()
ASKED: dict[str, Any] = {"model": "public", "input": "hi"}
USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True}
FUNCTION = {key: TOOL[key] for key in ("name", "description", "parameters", "strict")}
IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo=", "detail": "low"}
IMAGE_PART = {"type": "image_url", "image_url": {"url": IMAGE["image_url"], "detail": "low"}}
_MESSAGES = TypeAdapter(list[ChatCompletionMessageParam])
_TOOLS = TypeAdapter(list[ChatCompletionToolParam])


def decode(translator: ResponsesToChat = TRANSLATOR, /, **more: object) -> dict[str, Any]:
    """The chat request, which OpenAI's own types take."""
    made: dict[str, Any] = json.loads(translator.decode_request(json.dumps(ASKED | more).encode()))
    _MESSAGES.validate_python(made["messages"])
    _TOOLS.validate_python(made.get("tools", []))
    return made


def refusal(**more: object) -> str | None:
    """The `param` of the error that a request is refused with."""
    with pytest.raises(InvalidValue) as caught:
        decode(**more)
    assert caught.value.param is not None
    assert f"`{caught.value.param}`" in caught.value.message
    return caught.value.param


def text(words: str, kind: str = "input_text") -> dict[str, Any]:
    return {"type": kind, "text": words}


# --- parameters ---------------------------------------------------------------------------------------------


def test_no_parameter_is_forgotten() -> None:
    documented = set(ResponseCreateParamsStreaming.__annotations__)
    documented |= {name for base in ResponseCreateParamsStreaming.__orig_bases__ for name in _names(base)}
    assert len(documented) > 25
    assert documented == MAPPED | IDLE | REFUSED.keys()
    assert not MAPPED & IDLE
    assert not (MAPPED | IDLE) & REFUSED.keys()


def _names(base: Any) -> set[str]:
    return set(getattr(base, "__annotations__", {}))


def test_the_docs_say_what_becomes_of_each() -> None:
    section = DOCS.read_text().partition("## Responses at targets that speak chat")[2].partition("\n## ")[0]
    said: dict[str, str] = {}
    for names, word in re.findall(r"^\| (`[^|]*) \| (mapped|without meaning|refused) \|", section, re.M):
        said |= dict.fromkeys(re.findall(r"`([^`]+)`", names), word)
    for names, word in ((MAPPED, "mapped"), (IDLE, "without meaning"), (REFUSED, "refused")):
        assert {name for name, what in said.items() if what == word} == set(names)


@pytest.mark.parametrize(
    ("asked", "made"),
    [
        ({"max_output_tokens": 9}, {"max_completion_tokens": 9}),
        ({"temperature": 0.5, "top_p": 0.1}, {"temperature": 0.5, "top_p": 0.1}),
        ({"stream": True}, {"stream": True}),
        ({"parallel_tool_calls": False}, {"parallel_tool_calls": False}),
        ({"reasoning": {"effort": "low", "summary": "auto"}}, {"reasoning_effort": "low"}),
        ({"text": {"verbosity": "low"}}, {"verbosity": "low"}),
        ({"text": {"format": {"type": "text"}}}, {}),
        ({"text": {"format": {"type": "json_object"}}}, {"response_format": {"type": "json_object"}}),
        (
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": {"a": 1}, "strict": True}}},
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": {"a": 1}, "strict": True},
                }
            },
        ),
        ({"tools": [TOOL]}, {"tools": [{"type": "function", "function": FUNCTION}]}),
        ({"tool_choice": "required"}, {"tool_choice": "required"}),
        (
            {"tool_choice": {"type": "function", "name": "f"}},
            {"tool_choice": {"type": "function", "function": {"name": "f"}}},
        ),
        (
            {
                "tool_choice": {
                    "type": "allowed_tools",
                    "mode": "auto",
                    "tools": [{"type": "function", "name": "f"}],
                }
            },
            {
                "tool_choice": {
                    "type": "allowed_tools",
                    "allowed_tools": {
                        "mode": "auto",
                        "tools": [{"type": "function", "function": {"name": "f"}}],
                    },
                }
            },
        ),
        (
            {"user": "u", "safety_identifier": "s", "service_tier": "flex", "prompt_cache_key": "k"},
            {"user": "u", "safety_identifier": "s", "service_tier": "flex", "prompt_cache_key": "k"},
        ),
        ({"metadata": {"a": "b"}, "max_tool_calls": 3, "stream_options": {"include_obfuscation": True}}, {}),
        ({"include": ["reasoning.encrypted_content"], "store": False, "truncation": "disabled"}, {}),
        (dict.fromkeys((MAPPED | IDLE | REFUSED.keys()) - {"model", "input"}), {}),
    ],
)  # fmt: skip
def test_parameters(asked: dict[str, Any], made: dict[str, Any]) -> None:
    assert decode(**asked) == {"model": "public", "messages": [USER]} | made


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        *(({name: {"x": 1}}, name) for name in sorted(REFUSED)),
        ({"a_new_one": 1}, "a_new_one"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"reasoning": {"mode": "pro"}}, "reasoning.mode"),
        ({"reasoning": {"odd": 1}}, "reasoning.odd"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format"),
        ({"text": {"odd": 1}}, "text"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [TOOL, {"type": "custom", "name": "c"}]}, "tools[1].type"),
        ({"tools": [TOOL | {"defer_loading": True}]}, "tools[0].defer_loading"),
        ({"tool_choice": "maybe"}, "tool_choice"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"max_output_tokens": "9"}, "max_output_tokens"),
        ({"input": []}, "input"),
        ({"input": 3}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"type": "web_search_call", "id": "x"}]}, "input[0].type"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": "x", "odd": 1}]}, "input[0].odd"),
        ({"input": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]},
         "input[0].content[0].file_id"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call", "call_id": "x"}]}, "input[0].name"),
        ({"input": [{"type": "reasoning", "encrypted_content": "forebay:?"}]}, None),
    ],
)  # fmt: skip
def test_what_can_not_be_mapped_is_refused_by_name(asked: dict[str, Any], param: str | None) -> None:
    if param is None:
        with pytest.raises(InvalidValue, match="encrypted_content"):
            decode(FURTHER, **asked)
    else:
        assert refusal(**asked) == param


@pytest.mark.parametrize("name", ["model", "input"])
def test_what_a_request_needs(name: str) -> None:
    body = json.dumps({key: value for key, value in ASKED.items() if key != name}).encode()
    with pytest.raises(MissingField) as caught:
        TRANSLATOR.decode_request(body)
    assert caught.value.param == name


# --- items --------------------------------------------------------------------------------------------------


def test_a_turn_of_the_model_is_one_message() -> None:
    made = decode(
        instructions="Be kind.",
        input=[
            {"role": "developer", "content": "Look."},
            {"role": "user", "content": [text("What?"), IMAGE]},
            {"type": "reasoning", "id": "rs", "summary": [], "content": [text("Hm.", "reasoning_text")]},
            {"type": "message", "id": "m", "role": "assistant", "status": "completed",
             "content": [text("So.", "output_text") | {"annotations": [], "logprobs": []}]},
            {"type": "function_call", "id": "fc", "call_id": "a", "name": "f", "arguments": "{}"},
            {"type": "function_call", "call_id": "b", "name": "g", "arguments": '{"x": 1}'},
            {"type": "function_call_output", "call_id": "a", "output": [text("one"), IMAGE]},
            {"type": "function_call_output", "call_id": "b", "output": "two"},
            {"role": "user", "content": "And?"},
        ],
    )["messages"]  # fmt: skip
    part = {"type": "text", "text": "So."}
    assert made == [
        {"role": "system", "content": "Be kind."},
        {"role": "developer", "content": "Look."},
        {"role": "user", "content": [{"type": "text", "text": "What?"}, IMAGE_PART]},
        {
            "role": "assistant",
            "content": [part],
            "reasoning_content": "Hm.",
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}},
                {"id": "b", "type": "function", "function": {"name": "g", "arguments": '{"x": 1}'}},
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "one"}]},
        {"role": "tool", "tool_call_id": "b", "content": "two"},
        {"role": "user", "content": [IMAGE_PART]},
        {"role": "user", "content": "And?"},
    ]


def test_images_stay_in_results_before_a_translator() -> None:
    asked = [{"type": "function_call_output", "call_id": "a", "output": [text("one"), IMAGE]}]
    made = json.loads(FURTHER.decode_request(json.dumps(ASKED | {"input": asked}).encode()))
    assert made["messages"] == [
        {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "one"}, IMAGE_PART]}
    ]


def test_two_turns_of_the_model_stay_two() -> None:
    said = {"role": "assistant", "content": "a"}
    call = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
    made = decode(input=[said, said, call, {"type": "reasoning", "summary": [text("s")]}, call, said])[
        "messages"
    ]
    assert [(each["content"], len(each.get("tool_calls", []))) for each in made] == [
        ("a", 0), ("a", 1), (None, 1), ("a", 0),
    ]  # fmt: skip
    assert made[2]["reasoning_content"] == "s"


def test_what_others_encrypted_is_left_out() -> None:
    thought = {"type": "reasoning", "summary": [text("s")], "encrypted_content": "gAAAAB"}
    for translator in (TRANSLATOR, FURTHER):
        assert decode(translator, input=[USER, thought, {"role": "assistant", "content": "a"}])[
            "messages"
        ] == [
            USER,
            {"role": "assistant", "content": "a"},
        ]


def test_files() -> None:
    data = "data:application/pdf;base64,JVBERi0="
    file = {"type": "input_file", "filename": "a.pdf", "file_data": data}
    [message] = decode(input=[{"role": "user", "content": [file]}])["messages"]
    assert message["content"] == [{"type": "file", "file": {"file_data": data, "filename": "a.pdf"}}]
    url = {"type": "input_file", "file_url": "https://x.example/a.pdf"}
    assert refusal(input=[{"role": "user", "content": [url]}]) == "input[0].content[0].file_url"


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(sorted(MAPPED)), _JSON, max_size=4))
def test_whatever_is_asked_is_translated_or_refused(fields: dict[str, Any]) -> None:
    try:
        body = json.dumps(ASKED | fields).encode()
        made = json.loads(TRANSLATOR.decode_request(body))
    except (InvalidValue, InvalidJSON):
        return
    assert made["messages"]
    TRANSLATOR.bind(body).encode_answer(b'{"choices":[{"message":{}}]}')


# --- what is kept, and how long it may be -------------------------------------------------------------------


@pytest.mark.parametrize(
    "asked",
    [
        {"store": True},
        {"previous_response_id": "resp_1"},
        {"conversation": "conv_1"},
        {"conversation": {"id": "conv_1"}},
        {"background": True},
    ],
)
def test_nothing_is_kept(asked: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue) as caught:
        DIALECT.read_request(json.dumps(ASKED | asked).encode())
    assert caught.value.param == next(iter(asked))
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("more", "sent"),
    [({}, {"store": False}), ({"store": None}, {"store": False}), ({"store": False}, {"store": False})],
)
def test_what_passes_is_not_stored(more: dict[str, Any], sent: dict[str, Any]) -> None:
    body = json.dumps(ASKED | {"odd": [1, 2.50]} | more).encode()
    made = DIALECT.encode_request(body, DIALECT.read_request(body), Endpoint.RESPONSES, "there")
    assert isinstance(made, bytes)
    assert json.loads(made) == ASKED | {"odd": [1, 2.5], "model": "there"} | sent
    if more == {"store": False}:
        same = DIALECT.encode_request(body, DIALECT.read_request(body), Endpoint.RESPONSES, "public")
        assert same is body


def test_a_key_that_limits_output() -> None:
    body = json.dumps(ASKED).encode()
    view = DIALECT.cap_output(body, DIALECT.read_request(body), Endpoint.RESPONSES, 50)
    assert json.loads(DIALECT.write_cap(body, view))["max_output_tokens"] == 50
    made = DIALECT.encode_request(body, view, Endpoint.RESPONSES, "there")
    assert isinstance(made, bytes)
    assert json.loads(made)["max_output_tokens"] == 50
    for name in ("max_output_tokens", "max_tokens", "n_predict"):
        long = json.dumps(ASKED | {name: 51}).encode()
        with pytest.raises(OutputTooLong) as caught:
            DIALECT.cap_output(long, DIALECT.read_request(long), Endpoint.RESPONSES, 50)
        assert caught.value.param == name
    odd = json.dumps(ASKED | {"max_output_tokens": 1.5}).encode()
    with pytest.raises(InvalidValue):
        DIALECT.cap_output(odd, DIALECT.read_request(odd), Endpoint.RESPONSES, 50)
    assert DIALECT.read_output_max(json.dumps(ASKED | {"max_output_tokens": 7}).encode()) == 7


def test_who_meets_whom() -> None:
    way = find_way(Endpoint.RESPONSES, "openai-responses")
    assert way is not None
    assert (way.caller, way.target) == (None, None)
    for dialect in ("openai", "azure", "anthropic", "bedrock", "gemini", "vertex"):
        way = find_way(Endpoint.RESPONSES, dialect)
        assert way is not None
        assert way.caller is not None
        assert (way.target is None) is (dialect in ("openai", "azure"))
