"""Requests in Anthropic's messages before a target that speaks OpenAI's chat: what becomes of each part."""

import json
import re
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from anthropic.types import message_create_params
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
from pydantic import TypeAdapter

from forebay.core.errors import InvalidJSON, InvalidValue, MissingField
from forebay.core.routes import Endpoint
from forebay.providers.messages_to_chat import IDLE, MAPPED, REFUSED, MessagesToChat
from forebay.providers.translators import find_way

DOCS = Path(__file__).parents[2] / "docs" / "dialects.md"
TRANSLATOR = MessagesToChat()
FURTHER = MessagesToChat(is_extended=True)
USER = {"role": "user", "content": "hi"}
ASKED: dict[str, Any] = {"model": "public", "max_tokens": 9, "messages": [USER]}
PIXEL = "iVBORw0KGgo="
TOOL = {
    "name": "look_up",
    "description": "Looks it up.",
    "input_schema": {"type": "object", "properties": {"q": {"type": "string"}}},
}
_MESSAGES = TypeAdapter(list[ChatCompletionMessageParam])
_TOOLS = TypeAdapter(list[ChatCompletionToolParam])


def decode(translator: MessagesToChat = TRANSLATOR, /, **more: object) -> dict[str, Any]:
    """The chat request, which OpenAI's own types take."""
    made: dict[str, Any] = json.loads(translator.decode_request(json.dumps(ASKED | more).encode()))
    _MESSAGES.validate_python(made["messages"])
    _TOOLS.validate_python(made.get("tools", []))
    return made


def decode_messages(*messages: dict[str, Any], further: bool = False) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = decode(FURTHER if further else TRANSLATOR, messages=list(messages))[
        "messages"
    ]
    return made


def refusal(**more: object) -> str | None:
    """The `param` of the error that a request is refused with."""
    with pytest.raises(InvalidValue) as caught:
        decode(**more)
    assert caught.value.param is not None
    assert f"`{caught.value.param}`" in caught.value.message
    return caught.value.param


# --- parameters ---------------------------------------------------------------------------------------------


def test_every_parameter_of_messages_is_mapped_idle_or_refused_and_none_twice() -> None:
    documented = get_type_hints(message_create_params.MessageCreateParamsBase).keys() | {"stream"}
    beta = {"context_management", "mcp_servers", "temperature", "top_p", "top_k"}
    assert documented | beta == MAPPED | IDLE | REFUSED.keys()
    assert sum(map(len, (MAPPED, IDLE, REFUSED))) == len(MAPPED | IDLE | REFUSED.keys())


@pytest.mark.parametrize("name", sorted(MAPPED | IDLE | REFUSED.keys()))
def test_what_becomes_of_a_parameter_is_documented(name: str) -> None:
    part = DOCS.read_text().split("## Messages at targets that speak chat")[1].split("\n## ")[0]
    row = re.search(rf"^\| [^|]*`{name}`[^|]* \| (.+?) \|", part, re.MULTILINE)
    assert row is not None, f"no row for {name}"
    assert row[1] == ("refused" if name in REFUSED else "without meaning" if name in IDLE else "mapped")


#: Values that ask for something.
WISHES: dict[str, object] = {
    "container": "c1",
    "inference_geo": "us",
    "mcp_servers": [{"type": "url", "url": "https://example.com"}],
    "speed": "fast",
    "user_profile_id": "u",
    "workspace_id": "w",
}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_refused_parameter_is_named_unless_it_asks_for_nothing(name: str) -> None:
    assert refusal(**{name: WISHES[name]}) == name
    for value in (None, *REFUSED[name]):
        assert decode(**{name: value}) == decode()


@pytest.mark.parametrize("name", sorted(IDLE))
def test_a_parameter_without_meaning_changes_nothing(name: str) -> None:
    assert decode(**{name: {"a": "b"}}) == decode()


def test_a_parameter_that_nobody_knows_is_named() -> None:
    assert refusal(min_p=0.1) == "min_p"


@pytest.mark.parametrize("name", ["model", "messages", "max_tokens"])
def test_what_is_needed_is_named_if_it_is_missing(name: str) -> None:
    body = json.dumps({key: value for key, value in ASKED.items() if key != name}).encode()
    with pytest.raises(MissingField) as caught:
        TRANSLATOR.decode_request(body)
    assert caught.value.param == name


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff", b'{"messages":[' + b"[" * 100_000])
def test_no_json_is_said_to_be_none(body: bytes) -> None:
    with pytest.raises(InvalidJSON):
        TRANSLATOR.decode_request(body)


def form(schema: object) -> dict[str, Any]:
    inner = {"name": "output", "schema": schema, "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": inner}}


MAPPINGS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"stream": True}, {"stream": True}),
    ({"stream": False}, {"stream": False}),
    ({"temperature": 0.5, "top_p": 0.9, "top_k": 4}, {"temperature": 0.5, "top_p": 0.9, "top_k": 4}),
    ({"stop_sequences": ["a"]}, {"stop": ["a"]}),
    ({"stop_sequences": []}, {}),
    ({"metadata": {"user_id": "u1"}}, {"user": "u1"}),
    ({"metadata": {"user_id": None}}, {}),
    ({"service_tier": "auto"}, {"service_tier": "auto"}),
    ({"service_tier": "standard_only"}, {"service_tier": "default"}),
    ({"thinking": {"type": "disabled"}}, {"reasoning_effort": "none"}),
    ({"thinking": {"type": "adaptive", "display": "omitted"}}, {}),
    ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, {"reasoning_effort": "low"}),
    ({"thinking": {"type": "enabled", "budget_tokens": 16384}}, {"reasoning_effort": "medium"}),
    ({"thinking": {"type": "enabled", "budget_tokens": 16385}}, {"reasoning_effort": "high"}),
    ({"output_config": {"effort": "xhigh"}}, {"reasoning_effort": "xhigh"}),
    (
        {"thinking": {"type": "enabled", "budget_tokens": 1024}, "output_config": {"effort": "max"}},
        {"reasoning_effort": "max"},
    ),
    ({"output_config": {"format": {"type": "json_schema", "schema": {"a": 1}}}}, form({"a": 1})),
]  # fmt: skip


@pytest.mark.parametrize(("asked", "expected"), MAPPINGS, ids=lambda value: json.dumps(value)[:60])
def test_parameters_are_mapped(asked: dict[str, Any], expected: dict[str, Any]) -> None:
    made = decode(**asked)
    assert made.pop("messages") == [USER]
    assert made == {"model": "public", "max_completion_tokens": 9} | expected


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def use(call_id: str, **arguments: object) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": "look_up", "input": arguments}


def of_user(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(blocks)}]}


CITED = {"citations": {"enabled": True}}
PLAIN = {"type": "text", "media_type": "text/plain", "data": "Body."}


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"stop_sequences": "a"}, "stop_sequences"),
        ({"service_tier": "flex"}, "service_tier"),
        ({"thinking": {"type": "between_tools"}}, "thinking.type"),
        ({"output_config": {"effort": "huge"}}, "output_config.effort"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format"),
        ({"output_config": {"novelty": 1}}, "output_config"),
        ({"tool_choice": {"type": "some"}}, "tool_choice.type"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"),
        ({"tools": [TOOL | {"defer_loading": True}]}, "tools[0].defer_loading"),
        ({"tools": [TOOL | {"input_examples": [{"q": "a"}]}]}, "tools[0].input_examples"),
        ({"tools": [TOOL | {"allowed_callers": ["code_execution_20260120"]}]}, "tools[0].allowed_callers"),
        ({"tools": [TOOL | {"odd": 1}]}, "tools[0].odd"),
        ({"system": [{"type": "image", "source": {"type": "url", "url": "https://x"}}]}, "system[0].type"),
        ({"messages": [USER, {"role": "tool", "content": "x"}]}, "messages[1].role"),
        ({"messages": [USER | {"odd": 1}]}, "messages[0].odd"),
        ({"messages": [{"role": "user", "content": 4}]}, "messages[0].content"),
        (of_user({"type": "container_upload", "file_id": "f"}), "messages[0].content[0].type"),
        (of_user({"type": "text", "text": "a", "odd": 1}), "messages[0].content[0].odd"),
        (of_user({"type": "text"}), "messages[0].content[0]"),
        (of_user({"type": "thinking", "thinking": "x", "signature": "s"}), "messages[0].content[0].type"),
        (
            of_user({"type": "image", "source": {"type": "file", "file_id": "f"}}),
            "messages[0].content[0].source.type",
        ),
        (
            of_user({"type": "document", "source": {"type": "url", "url": "https://x"}}),
            "messages[0].content[0].source.type",
        ),
        (of_user({"type": "document", "source": PLAIN} | CITED), "messages[0].content[0].citations"),
        (
            of_user({"type": "search_result", "source": "s", "title": "t", "content": []} | CITED),
            "messages[0].content[0].citations",
        ),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "input": {}}]}]},
            "messages[0].content[0]",
        ),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": " "}]}, "messages"),
        (
            {"messages": [{"role": "assistant", "content": [use("a") | {"input": 3}]}]},
            "messages[0].content[0].input",
        ),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "image", "source": {"type": "url"}}]}]},
            "messages[0].content[0].type",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_what_cannot_be_said_is_refused_by_its_place(asked: dict[str, Any], param: str) -> None:
    assert refusal(**asked) == param


# --- tools --------------------------------------------------------------------------------------------------


def test_tools_are_mapped() -> None:
    strict = {
        "type": "custom",
        "name": "f",
        "input_schema": {},
        "strict": True,
        "cache_control": {"type": "ephemeral"},
    }
    assert decode(tools=[TOOL, strict])["tools"] == [
        {
            "type": "function",
            "function": {
                "name": "look_up",
                "description": "Looks it up.",
                "parameters": TOOL["input_schema"],
            },
        },
        {"type": "function", "function": {"name": "f", "parameters": {}, "strict": True}},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "auto"}, {"tool_choice": "auto"}),
        ({"type": "any"}, {"tool_choice": "required"}),
        ({"type": "none"}, {"tool_choice": "none"}),
        (
            {"type": "tool", "name": "look_up"},
            {"tool_choice": {"type": "function", "function": {"name": "look_up"}}},
        ),
        (
            {"type": "auto", "disable_parallel_tool_use": True},
            {"tool_choice": "auto", "parallel_tool_calls": False},
        ),
        ({"type": "any", "disable_parallel_tool_use": False}, {"tool_choice": "required"}),
    ],
)
def test_the_choice_of_tools_is_mapped(choice: object, expected: dict[str, Any]) -> None:
    made = decode(tools=[TOOL], tool_choice=choice)
    assert {name: made[name] for name in ("tool_choice", "parallel_tool_calls") if name in made} == expected


# --- messages -----------------------------------------------------------------------------------------------


def result(call_id: str, content: object = "found", **more: object) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content} | more


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}
IMAGE_PART = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}


def test_the_system_prompt_comes_first_and_system_messages_stay_in_their_place() -> None:
    cached = text("two") | {"cache_control": {"type": "ephemeral"}}
    made = decode(
        system=[text("one"), cached, text(" ")],
        messages=[USER, {"role": "system", "content": [text("now")]}, USER],
    )
    assert made["messages"] == [
        {"role": "system", "content": [text("one"), text("two")]},
        USER,
        {"role": "system", "content": "now"},
        USER,
    ]
    assert decode(system="be")["messages"][0] == {"role": "system", "content": "be"}
    assert decode(system="")["messages"] == [USER]


def test_images_and_documents_are_mapped() -> None:
    by_url = {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}
    pdf = {"type": "base64", "media_type": "application/pdf", "data": "JVBE"}
    blocks = [
        IMAGE,
        by_url,
        {"type": "document", "source": pdf, "title": "a.pdf", "context": "Of old."},
        {"type": "document", "source": PLAIN, "title": "T"},
        {"type": "search_result", "source": "https://s", "title": "Found", "content": [text("It.")]},
    ]
    (message,) = decode_messages({"role": "user", "content": blocks})
    assert message["content"] == [
        IMAGE_PART,
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
        text("Of old."),
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBE"}},
        text("T"),
        text("Body."),
        text("Found"),
        text("https://s"),
        text("It."),
    ]


def test_results_become_messages_of_their_own_before_what_else_is_said() -> None:
    made = decode_messages(
        USER,
        {"role": "assistant", "content": [text("Let me see."), use("a"), use("b", q="x")]},
        {
            "role": "user",
            "content": [
                result("a", [text("one"), IMAGE, text("two")]),
                text("So?"),
                result("b", is_error=True),
            ],
        },
    )
    assert made[1:] == [
        {
            "role": "assistant",
            "content": "Let me see.",
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "look_up", "arguments": "{}"}},
                {"id": "b", "type": "function", "function": {"name": "look_up", "arguments": '{"q": "x"}'}},
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": [text("one"), text("two")]},
        {"role": "tool", "tool_call_id": "b", "content": "found"},
        {"role": "user", "content": [IMAGE_PART, text("So?")]},
    ]


def test_arguments_keep_their_spelling() -> None:
    spelled = b'{"big": 123456789012345678901234567890, "e":1E+2}'
    block = b'{"type":"tool_use","id":"a","name":"f","input":%b}' % spelled
    body = b'{"model":"m","max_tokens":1,"messages":[{"role":"assistant","content":[%b]}]}' % block
    made = json.loads(TRANSLATOR.decode_request(body))
    assert made["messages"][0]["tool_calls"][0]["function"]["arguments"] == spelled.decode()


SIGNED = {"type": "thinking", "thinking": "Hm\n ü", "signature": "c2ln=="}
REDACTED = {"type": "redacted_thinking", "data": "ZGF0YQ=="}
UNSIGNED = {"type": "thinking", "thinking": "Hum", "signature": ""}


def test_thinking_goes_where_it_is_understood() -> None:
    turn = {"role": "assistant", "content": [SIGNED, REDACTED, UNSIGNED, text("So.")]}
    assert decode_messages(USER, turn)[1] == {
        "role": "assistant",
        "content": "So.",
        "reasoning_content": "Hum",
    }
    assert decode_messages(USER, turn, further=True)[1] == {
        "role": "assistant",
        "content": "So.",
        "reasoning_content": "Hum",
        "thinking_blocks": [SIGNED, REDACTED],
    }  # fmt: skip


def test_what_only_translators_understand_goes_to_them_alone() -> None:
    mark = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    asked: dict[str, Any] = {
        "system": [text("s") | mark],
        "messages": [
            {"role": "assistant", "content": [text("a") | mark, use("a")]},
            {
                "role": "user",
                "content": [result("a", [text("r"), IMAGE], is_error=True) | mark, text("So?") | mark],
            },
        ],
        "tools": [TOOL | mark],
    } | mark
    made = decode(FURTHER, **asked)
    assert made["cache_control"] == mark["cache_control"]
    assert made["tools"][0].keys() == {"type", "function", "cache_control"}
    assert made["messages"][0] == {"role": "system", "content": [text("s") | mark]}
    assert made["messages"][1]["content"] == [text("a") | mark]
    assert made["messages"][2:] == [
        {"role": "tool", "tool_call_id": "a", "content": [text("r"), IMAGE_PART], "is_error": True} | mark,
        {"role": "user", "content": [text("So?") | mark]},
    ]
    plain = json.dumps(decode(**asked))
    assert "cache_control" not in plain
    assert "is_error" not in plain


def test_signed_thinking_is_kept_before_a_translator_alone() -> None:
    body = json.dumps(
        ASKED | {"messages": [{"role": "assistant", "content": [SIGNED, text("So.")]}]}
    ).encode()
    way = find_way(Endpoint.MESSAGES, "openai")
    assert way is not None
    assert way.caller is not None
    assert b"thinking_blocks" not in way.caller.decode_request(body)


@pytest.mark.parametrize("content", ["", "  \n", [], [text("")], [text(" ")]])
@pytest.mark.parametrize("role", ["user", "assistant", "system"])
def test_empty_messages_are_left_out(role: str, content: object) -> None:
    assert decode_messages(USER, {"role": role, "content": content}, USER) == [USER, USER]


@pytest.mark.parametrize("content", ["", " ", [], [text("")], None])
def test_an_empty_result_is_an_empty_message_of_the_tool(content: object) -> None:
    made = decode_messages(
        USER,
        {"role": "assistant", "content": [use("a")]},
        {"role": "user", "content": [result("a", content)]},
    )
    assert made[1]["content"] is None
    assert made[2:] == [{"role": "tool", "tool_call_id": "a", "content": ""}]


def test_what_a_well_known_agent_sends_is_taken() -> None:
    cached = {"cache_control": {"type": "ephemeral"}}
    made = decode(
        stream=True,
        system=[text("You help.") | cached],
        messages=[{"role": "user", "content": [text("hi") | cached]}, {"role": "system", "content": "Mind."}],
        tools=[TOOL | cached | {"eager_input_streaming": True}],
        metadata={"user_id": "u"},
        thinking={"type": "adaptive", "display": "omitted"},
        output_config={"effort": "high"},
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    )
    assert [message["role"] for message in made["messages"]] == ["system", "user", "system"]
    assert made["reasoning_effort"] == "high"


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(sorted(MAPPED)), _JSON, max_size=4))
def test_whatever_is_asked_is_translated_or_refused(fields: dict[str, Any]) -> None:
    try:
        made = json.loads(TRANSLATOR.decode_request(json.dumps(ASKED | fields).encode()))
    except (InvalidValue, InvalidJSON):
        return
    assert made["messages"] is not None
