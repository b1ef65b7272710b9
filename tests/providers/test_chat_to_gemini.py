"""Requests in chat at a target that is Google's Gemini API or Vertex AI: what becomes of each parameter."""

import json
import re
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from gemini_request import (
    ASKED,
    GEMINI,
    SCHEMA,
    TOOL,
    USER,
    VERTEX,
    assistant,
    call,
    encode,
    refusal,
    result,
    user,
)
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import completion_create_params

from forebay.core.errors import InvalidJSON, InvalidValue, MissingField
from forebay.providers.chat_to_gemini import IDLE, MAPPED, REFUSED

DOCS = Path(__file__).parents[2] / "docs" / "dialects.md"
DECLARATION = {"name": "look_up", "description": "Looks it up.", "parametersJsonSchema": SCHEMA}


# --- parameters ---------------------------------------------------------------------------------------------


def test_every_parameter_of_chat_is_mapped_idle_or_refused_and_none_twice() -> None:
    documented = get_type_hints(completion_create_params.CompletionCreateParamsBase).keys() | {"stream"}
    assert documented <= MAPPED | IDLE | REFUSED.keys()
    assert len(MAPPED) + len(IDLE) + len(REFUSED) == len(MAPPED | IDLE | REFUSED.keys())


@pytest.mark.parametrize("name", sorted(MAPPED | IDLE | REFUSED.keys()))
def test_what_becomes_of_a_parameter_is_documented(name: str) -> None:
    part = DOCS.read_text().split("## Chat at Google's Gemini API and Vertex AI")[1].split("\n## ")[0]
    row = re.search(rf"^\| [^|]*`{name}`[^|]* \| (.+?) \|", part, re.MULTILINE)
    assert row is not None, f"no row for {name}"
    fate = "refused" if name in REFUSED else "without meaning" if name in IDLE else "mapped"
    assert row[1].startswith(fate)


#: Values that ask for something.
WISHES: dict[str, object] = {
    "audio": {"voice": "alloy", "format": "wav"},
    "function_call": "auto",
    "functions": [{"name": "f"}],
    "logit_bias": {"50256": -100},
    "modalities": ["text", "audio"],
    "moderation": {"model": "omni-moderation-latest"},
    "store": True,
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


@pytest.mark.parametrize("name", sorted(MAPPED - {"messages"}))
def test_null_asks_for_nothing(name: str) -> None:
    assert encode(**{name: None}) == encode()


def test_a_parameter_that_nobody_knows_is_named() -> None:
    assert refusal(min_p=0.1) == "min_p"
    assert refusal(extra_body={"google": {"novelty": 1}}) == "extra_body.google.novelty"
    assert refusal(extra_body={"other": {"a": 1}}) == "extra_body.other"
    assert encode(min_p=None) == encode()


def test_model_and_stream_are_in_the_address_alone() -> None:
    assert encode(ASKED | {"stream": True}, stream=True) == {
        "contents": [{"role": "user", "parts": [{"text": "hi"}]}]
    }


def config(**values: Any) -> dict[str, Any]:
    return {"generationConfig": values}


JSON = "application/json"
WANTED = {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": SCHEMA}}
MAPPINGS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"max_tokens": 5}, config(maxOutputTokens=5)),
    ({"max_completion_tokens": 6, "max_tokens": 5}, config(maxOutputTokens=6)),
    ({"temperature": 0, "top_p": 0.5, "top_k": 40}, config(temperature=0, topP=0.5, topK=40)),
    ({"stop": "end"}, config(stopSequences=["end"])),
    ({"stop": ["a", "b"]}, config(stopSequences=["a", "b"])),
    ({"stop": []}, {}),
    ({"n": 1}, {}),
    ({"n": 3}, config(candidateCount=3)),
    ({"seed": 7}, config(seed=7)),
    (
        {"frequency_penalty": 0.5, "presence_penalty": -1},
        config(frequencyPenalty=0.5, presencePenalty=-1),
    ),
    ({"logprobs": True}, config(responseLogprobs=True)),
    ({"logprobs": True, "top_logprobs": 3}, config(responseLogprobs=True, logprobs=3)),
    ({"logprobs": False, "top_logprobs": 0}, {}),
    ({"response_format": {"type": "text"}}, {}),
    ({"response_format": {"type": "json_object"}}, config(responseMimeType=JSON)),
    ({"response_format": WANTED}, config(responseMimeType=JSON, responseJsonSchema=SCHEMA)),
    ({"service_tier": "auto"}, {}),
    ({"service_tier": "default"}, {"serviceTier": "standard"}),
    ({"service_tier": "flex"}, {"serviceTier": "flex"}),
    ({"service_tier": "priority"}, {"serviceTier": "priority"}),
    ({"tools": [TOOL]}, {"tools": [{"functionDeclarations": [DECLARATION]}]}),
    ({"tools": [TOOL], "tool_choice": "auto"}, {"tools": [{"functionDeclarations": [DECLARATION]}]}),
    ({"tools": [], "tool_choice": "none", "parallel_tool_calls": False}, {}),
    (
        {"extra_body": {"google": {"cached_content": "cachedContents/1", "thinking_config": None}}},
        {"cachedContent": "cachedContents/1"},
    ),
    (
        {"extra_body": {"google": {"safety_settings": [{"category": "C", "threshold": "OFF", "new": 1}]}}},
        {"safetySettings": [{"category": "C", "threshold": "OFF", "new": 1}]},
    ),
    (
        {
            "reasoning_effort": "low",
            "extra_body": {"google": {"thinking_config": {"include_thoughts": True, "thinking_budget": 9}}},
        },
        config(thinkingConfig={"include_thoughts": True, "thinking_budget": 9}),
    ),
]


@pytest.mark.parametrize(("asked", "expected"), MAPPINGS)
def test_a_mapped_parameter_says_the_same_there(asked: dict[str, Any], expected: dict[str, Any]) -> None:
    assert encode(**asked) == encode() | expected


CHOICES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"tool_choice": "required"}, {"mode": "ANY"}),
    ({"tool_choice": "none"}, {"mode": "NONE"}),
    (
        {"tool_choice": {"type": "function", "function": {"name": "look_up"}}},
        {"mode": "ANY", "allowedFunctionNames": ["look_up"]},
    ),
]


@pytest.mark.parametrize(("asked", "expected"), CHOICES)
def test_a_choice_of_tools_is_a_mode(asked: dict[str, Any], expected: dict[str, Any]) -> None:
    assert encode(tools=[TOOL], **asked)["toolConfig"] == {"functionCallingConfig": expected}


def test_of_allowed_tools_only_these_are_offered() -> None:
    other = {"type": "function", "function": {"name": "now"}}
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "now"}}]}
    made = encode(tools=[TOOL, other], tool_choice={"type": "allowed_tools", "allowed_tools": allowed})
    assert made["tools"] == [{"functionDeclarations": [{"name": "now"}]}]
    assert made["toolConfig"] == {"functionCallingConfig": {"mode": "ANY"}}


def test_strict_functions_are_kept_to_their_schemas_without_forcing_a_call() -> None:
    strict = {"type": "function", "function": TOOL["function"] | {"strict": True}}  # type: ignore[operator]
    made = encode(tools=[TOOL, strict])
    assert made["toolConfig"] == {"functionCallingConfig": {"mode": "VALIDATED"}}
    assert encode(tools=[strict], tool_choice="required")["toolConfig"] == {
        "functionCallingConfig": {"mode": "ANY"}
    }


def test_parameters_are_an_object_whatever_else_is_said() -> None:
    bare = {"type": "function", "function": {"name": "f", "parameters": {"properties": {}}}}
    made = encode(tools=[bare, {"type": "function", "function": {"name": "g", "parameters": {}}}])
    assert made["tools"][0]["functionDeclarations"] == [
        {"name": "f", "parametersJsonSchema": {"type": "object", "properties": {}}},
        {"name": "g"},
    ]


EFFORTS = [
    ("gemini-3-pro-preview", "minimal", {"thinkingLevel": "MINIMAL", "includeThoughts": True}),
    ("gemini-3.1-flash", "high", {"thinkingLevel": "HIGH", "includeThoughts": True}),
    ("gemini-flash-latest", "medium", {"thinkingLevel": "MEDIUM", "includeThoughts": True}),
    ("gemini-20-pro", "xhigh", {"thinkingLevel": "XHIGH", "includeThoughts": True}),
    ("gemini-2.5-flash", "none", {"thinkingBudget": 0}),
    ("gemini-2.5-flash", "minimal", {"thinkingBudget": 1024, "includeThoughts": True}),
    ("models/gemini-2.5-pro", "low", {"thinkingBudget": 1024, "includeThoughts": True}),
    ("gemini-2.5-pro", "medium", {"thinkingBudget": 8192, "includeThoughts": True}),
    ("gemini-2.5-pro", "high", {"thinkingBudget": 24576, "includeThoughts": True}),
]


@pytest.mark.parametrize(("model", "effort", "expected"), EFFORTS)
def test_effort_is_a_level_or_a_budget_by_the_models_generation(
    model: str, effort: str, expected: dict[str, Any]
) -> None:
    made = encode(model=model, reasoning_effort=effort)
    assert made["generationConfig"] == {"thinkingConfig": expected}


@pytest.mark.parametrize(
    ("model", "effort"),
    [("gemini-3-pro", "none"), ("gemini-3-pro", "max"), ("gemini-2.5-pro", "xhigh"), ("gemini-2.5-pro", "x")],
)
def test_an_effort_that_a_model_does_not_have_is_refused(model: str, effort: str) -> None:
    assert refusal(model=model, reasoning_effort=effort) == "reasoning_effort"


REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"response_format": {"type": "grammar"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
    ({"service_tier": "scale"}, "service_tier"),
    ({"tool_choice": "sometimes"}, "tool_choice"),
    ({"tools": [{"type": "custom", "custom": {"name": "c"}}]}, "tools[0].type"),
    ({"tools": [{"type": "function", "function": {"name": "f", "x": 1}}]}, "tools[0].function.x"),
    ({"tools": [TOOL], "parallel_tool_calls": False}, "parallel_tool_calls"),
    ({"tools": [TOOL], "tool_choice": {"type": "custom", "custom": {}}}, "tool_choice.type"),
    ({"temperature": "hot"}, "temperature"),
    ({"extra_body": 3}, "extra_body"),
    ({"extra_body": {"google": 3}}, "extra_body.google"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "system", "content": "Be."}]}, "messages"),
    ({"messages": [{"role": "function", "name": "f", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": "x", "novelty": 1}]}, "messages[0].novelty"),
    ({"messages": [user({"type": "video_url"})]}, "messages[0].content[0].type"),
    (
        {"messages": [{"role": "system", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        "messages[0].content[0].type",
    ),
    (
        {"messages": [user({"type": "image_url", "image_url": {"url": "ftp://x/y.png"}})]},
        "messages[0].content[0].image_url.url",
    ),
    (
        {"messages": [user({"type": "input_audio", "input_audio": {"data": "", "format": "ogg"}})]},
        "messages[0].content[0].input_audio.format",
    ),
    (
        {"messages": [user({"type": "file", "file": {"file_id": "file-abc"}})]},
        "messages[0].content[0].file.file_id",
    ),
    (
        {"messages": [user({"type": "file", "file": {"file_data": "plain"}})]},
        "messages[0].content[0].file.file_data",
    ),
    ({"messages": [USER, result("nobody")]}, "messages[1].tool_call_id"),
    ({"messages": [USER, {"role": "tool", "content": "x"}]}, "messages[1].tool_call_id"),
    ({"messages": [USER, assistant(call("a", "["))]}, "messages[1].tool_calls[0].function.arguments"),
    ({"messages": [USER, assistant(call("a", novelty=1))]}, "messages[1].tool_calls[0].novelty"),
    (
        {"messages": [USER, assistant({"id": "a", "type": "custom", "custom": {}})]},
        "messages[1].tool_calls[0].type",
    ),
    (
        {"messages": [USER, {"role": "assistant", "thinking_blocks": [{"type": "x"}]}]},
        "messages[1].thinking_blocks[0].type",
    ),
]


@pytest.mark.parametrize(("asked", "param"), REFUSALS)
def test_what_can_not_be_said_is_refused_by_its_place(asked: dict[str, Any], param: str) -> None:
    assert refusal(**asked) == param


def test_a_request_without_messages_or_without_json_says_so() -> None:
    with pytest.raises(MissingField) as caught:
        GEMINI.encode_request(b'{"model":"m"}', "m", stream=False)
    assert caught.value.param == "messages"
    for body in (b"", b"[]", b"{", b"\xff"):
        with pytest.raises(InvalidJSON):
            GEMINI.encode_request(body, "m", stream=False)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(sorted(MAPPED)), _JSON, max_size=4))
def test_whatever_is_asked_is_translated_or_refused(fields: dict[str, Any]) -> None:
    try:
        made = json.loads(GEMINI.encode_request(json.dumps(ASKED | fields).encode(), "c", stream=False))
    except (InvalidValue, InvalidJSON):
        return
    assert made["contents"]


# --- the way there ------------------------------------------------------------------------------------------


def test_requests_are_addressed_as_google_wants_it() -> None:
    assert (
        GEMINI.build_path("/v1beta", "gemini-3-pro", stream=False)
        == GEMINI.build_path("/v1beta", "models/gemini-3-pro", stream=False)
        == "/v1beta/models/gemini-3-pro:generateContent"
    )
    base = "/v1/projects/p/locations/l/publishers/google"
    assert VERTEX.build_path(base, "a b", stream=True) == (
        f"{base}/models/a%20b:streamGenerateContent?alt=sse"
    )
    assert GEMINI.build_headers("k") == [("x-goog-api-key", "k")]
    assert VERTEX.build_headers("t") == [("authorization", "Bearer t")]
    assert GEMINI.build_headers("") == VERTEX.build_headers("") == []
