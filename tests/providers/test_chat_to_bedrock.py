"""Parameters of a chat request as Bedrock's Converse has them, and the way there: paths and signatures."""

import json
from pathlib import Path
from typing import Any

import pytest
from bedrock_request import ASKED, MODEL, NOVA, NOW, POINT, TRANSLATOR, refuse, translate
from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming

from forebay.core.errors import InvalidJSON, MissingField, UpstreamCredentials
from forebay.providers.chat_to_bedrock import IDLE, MAPPED, REFUSED, find_region

SCHEMA = {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}
LOOK = {
    "type": "function",
    "function": {"name": "look", "description": "Looks.", "parameters": SCHEMA, "strict": True},
}
LOOK_THERE = {
    "toolSpec": {"name": "look", "description": "Looks.", "inputSchema": {"json": SCHEMA}, "strict": True}
}
NOW_THERE = {"toolSpec": {"name": "now", "inputSchema": {"json": {"type": "object"}}}}

#: By name: the chat request beside model and messages, and what is sent beside the messages.
PARAMETERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "nothing": ({}, {}),
    "limits": ({"max_tokens": 10}, {"inferenceConfig": {"maxTokens": 10}}),
    "the newer limit goes before": (
        {"max_tokens": 10, "max_completion_tokens": 20},
        {"inferenceConfig": {"maxTokens": 20}},
    ),
    "sampling": (
        {"temperature": 0.25, "top_p": 0.5, "stop": ["a", "b"]},
        {"inferenceConfig": {"temperature": 0.25, "topP": 0.5, "stopSequences": ["a", "b"]}},
    ),
    "one stop": ({"stop": "END"}, {"inferenceConfig": {"stopSequences": ["END"]}}),
    "no stop": ({"stop": None, "temperature": 0}, {"inferenceConfig": {"temperature": 0.0}}),
    "what the model alone knows": (
        {"top_k": 200, "thinking": {"type": "enabled", "budget_tokens": 2000}},
        {
            "additionalModelRequestFields": {
                "top_k": 200,
                "thinking": {"type": "enabled", "budget_tokens": 2000},
            }
        },
    ),
    "fields of the model's own": (
        {"additionalModelRequestFields": {"inferenceConfig": {"topK": 20}}, "top_k": 3},
        {"additionalModelRequestFields": {"top_k": 3, "inferenceConfig": {"topK": 20}}},
    ),
    "effort": (
        {"reasoning_effort": "minimal"},
        {
            "outputConfig": {"effort": "low"},
            "additionalModelRequestFields": {"thinking": {"type": "adaptive"}},
        },
    ),
    "effort beside thinking": (
        {"reasoning_effort": "max", "thinking": {"type": "disabled"}},
        {
            "outputConfig": {"effort": "max"},
            "additionalModelRequestFields": {"thinking": {"type": "disabled"}},
        },
    ),
    "no effort": (
        {"reasoning_effort": "none"},
        {"additionalModelRequestFields": {"thinking": {"type": "disabled"}}},
    ),
    "tiers": ({"service_tier": "fast"}, {"serviceTier": {"type": "priority"}}),
    "the tier of the project": ({"service_tier": "auto"}, {}),
    "plain text": ({"response_format": {"type": "text"}}, {}),
    "tools": ({"tools": [LOOK, NOW]}, {"toolConfig": {"tools": [LOOK_THERE, NOW_THERE]}}),
    "tools that are cached": (
        {"tools": [LOOK | {"cache_control": {"type": "ephemeral"}}, NOW]},
        {"toolConfig": {"tools": [LOOK_THERE, POINT, NOW_THERE]}},
    ),
    "a tool must be called": (
        {"tools": [NOW], "tool_choice": "required", "parallel_tool_calls": True},
        {"toolConfig": {"tools": [NOW_THERE], "toolChoice": {"any": {}}}},
    ),
    "as the model likes": (
        {"tools": [NOW], "tool_choice": "auto"},
        {"toolConfig": {"tools": [NOW_THERE], "toolChoice": {"auto": {}}}},
    ),
    "this tool": (
        {"tools": [NOW, LOOK], "tool_choice": {"type": "function", "function": {"name": "now"}}},
        {"toolConfig": {"tools": [NOW_THERE, LOOK_THERE], "toolChoice": {"tool": {"name": "now"}}}},
    ),
    "some of the tools": (
        {
            "tools": [NOW, LOOK],
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "required",
                    "tools": [{"type": "function", "function": {"name": "look"}}],
                },
            },
        },
        {"toolConfig": {"tools": [LOOK_THERE], "toolChoice": {"any": {}}}},
    ),
    "no tool": ({"tools": [NOW], "tool_choice": "none"}, {}),
    "no tools, and no call": ({"tools": [], "tool_choice": "auto", "parallel_tool_calls": False}, {}),
    "what changes nothing": (
        {
            "user": "u-1",
            "safety_identifier": "s",
            "metadata": {"team": "x"},
            "prompt_cache_key": "k",
            "stream_options": {"include_usage": True},
        }
        | {"n": 1, "logprobs": False, "presence_penalty": 0, "frequency_penalty": 0.0, "store": False}
        | {"logit_bias": {}, "modalities": ["text"], "verbosity": "medium", "seed": None},
        {},
    ),
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_become_those_of_converse(name: str) -> None:
    asked, sent = PARAMETERS[name]
    assert translate(**asked) == {"messages": ASKED} | sent


def test_a_schema_for_the_output_is_a_string_there() -> None:
    named = {"name": "place", "description": "A place.", "schema": SCHEMA, "strict": True}
    form = translate(response_format={"type": "json_schema", "json_schema": named})["outputConfig"][
        "textFormat"
    ]
    definition = form["structure"]["jsonSchema"]
    assert (form["type"], definition["name"], definition["description"]) == (
        "json_schema",
        "place",
        "A place.",
    )
    assert json.loads(definition["schema"]) == SCHEMA


@pytest.mark.parametrize(
    ("param", "asked"),
    [
        ("temperature", {"temperature": 1.5}),
        ("top_p", {"top_p": -0.1}),
        ("n", {"n": 2}),
        ("logprobs", {"logprobs": True}),
        ("seed", {"seed": 7}),
        ("stop", {"stop": 5}),
        ("response_format.type", {"response_format": {"type": "json_object"}}),
        ("response_format.json_schema.schema", {"response_format": {"type": "json_schema"}}),
        ("reasoning_effort", {"reasoning_effort": "much"}),
        ("reasoning_effort", {"reasoning_effort": "none", "model": NOVA}),
        ("service_tier", {"service_tier": "scale"}),
        ("parallel_tool_calls", {"tools": [NOW], "parallel_tool_calls": False}),
        ("tool_choice", {"tool_choice": "required"}),
        ("tool_choice", {"tools": [NOW], "tool_choice": "sometimes"}),
        ("tools[0].type", {"tools": [{"type": "custom", "custom": {"name": "x"}}]}),
        ("tools[0].function.odd", {"tools": [{"type": "function", "function": {"name": "x", "odd": 1}}]}),
        ("odd", {"odd": 1}),
        ("additionalModelRequestFields", {"additionalModelRequestFields": "x"}),
    ],
)
def test_what_has_no_counterpart_is_named(param: str, asked: dict[str, Any]) -> None:
    asked = dict(asked)
    error = refuse(model=asked.pop("model", MODEL), **asked)
    assert (error.param, error.status) == (param, 400)
    assert param in error.message


def test_every_parameter_of_a_chat_request_has_a_fate() -> None:
    documented = set(CompletionCreateParamsStreaming.__annotations__)
    assert documented <= MAPPED | IDLE | REFUSED.keys(), documented - MAPPED - IDLE - REFUSED.keys()
    assert not MAPPED & IDLE
    assert not (MAPPED | IDLE) & REFUSED.keys()
    docs = Path(__file__).parents[2] / "docs" / "dialects.md"
    section = docs.read_text().partition("## Chat at Amazon Bedrock")[2].partition("\n## ")[0]
    missing = [name for name in sorted(MAPPED | IDLE | REFUSED.keys()) if f"`{name}`" not in section]
    assert not missing, f"docs/dialects.md does not say what becomes of {missing}"


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_refused_parameters_are_refused_unless_they_ask_for_nothing(name: str) -> None:
    assert refuse(**{name: {"some": "thing"}}).param == name
    for idle in (None, *REFUSED[name]):
        translate(**{name: idle})


def test_bodies_that_are_none_are_the_caller_s_fault() -> None:
    for body, error in ((b"[]", InvalidJSON), (b"{", InvalidJSON), (b'{"model":"m"}', MissingField)):
        with pytest.raises(error):
            TRANSLATOR.encode_request(body, MODEL, stream=False)


# --- the way there ------------------------------------------------------------------------------------------


def test_a_model_s_name_is_escaped_in_the_path() -> None:
    arn = "arn:aws:bedrock:eu-central-1:123456789012:inference-profile/eu.amazon.nova-lite-v1:0"
    assert TRANSLATOR.build_path("", NOVA, stream=False) == "/model/amazon.nova-pro-v1%3A0/converse"
    assert TRANSLATOR.build_path("/b", arn, stream=True) == (
        "/b/model/arn%3Aaws%3Abedrock%3Aeu-central-1%3A123456789012%3Ainference-profile%2F"
        "eu.amazon.nova-lite-v1%3A0/converse-stream"
    )


def test_a_key_of_bedrock_s_own_is_a_bearer_token_and_credentials_sign() -> None:
    def sign(secret: str, host: str = "bedrock-runtime.us-west-2.amazonaws.com") -> dict[str, str]:
        headers = [("host", host), ("content-type", "application/json"), ("accept", "*/*")]
        return dict(
            TRANSLATOR.sign("POST", "/", headers, b"{}", secret=secret, region="", wall_s=1_800_000_000)
        )

    assert ("authorization", "Bearer ABSKkey") in TRANSLATOR.build_headers("ABSKkey")
    assert sign("ABSKkey") == {}
    assert [name for name, _ in TRANSLATOR.build_headers("AKID:secret")] == ["accept"]
    signed = sign("AKID:secret:token=")
    assert signed["x-amz-security-token"] == "token="
    assert "Credential=AKID/20270115/us-west-2/bedrock/aws4_request" in signed["authorization"]
    assert "SignedHeaders=content-type;host;x-amz-date;x-amz-security-token," in signed["authorization"]
    with pytest.raises(UpstreamCredentials):
        sign("AKID:secret:token:more")
    with pytest.raises(UpstreamCredentials, match="region"):
        sign("AKID:secret", host="127.0.0.1:8000")


@pytest.mark.parametrize(
    ("host", "region", "found"),
    [
        ("bedrock-runtime.eu-central-1.amazonaws.com", "us-east-1", "eu-central-1"),
        ("bedrock-runtime-fips.us-gov-west-1.amazonaws.com:443", "", "us-gov-west-1"),
        ("bedrock-runtime.cn-north-1.amazonaws.com.cn", "", "cn-north-1"),
        ("bedrock-runtime.us-east-1.api.aws", "", "us-east-1"),
        ("vpce-0123-abc.bedrock-runtime.ap-southeast-2.vpce.amazonaws.com", "", "ap-southeast-2"),
        ("bedrock.internal", "ap-northeast-1", "ap-northeast-1"),
    ],
)
def test_the_region_is_the_host_s_or_else_the_target_s(host: str, region: str, found: str) -> None:
    assert find_region(host, region) == found


@pytest.mark.parametrize("region", ["", "eu", "onprem-1x", "EU-CENTRAL-1"])
def test_a_label_that_is_no_region_does_not_sign(region: str) -> None:
    with pytest.raises(UpstreamCredentials):
        find_region("bedrock.internal", region)
