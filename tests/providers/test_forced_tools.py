"""A forced call of a tool at an engine that does not enforce it: the schema that goes there, and the calls
that come back, whole and in streams, whatever the split."""

import json
import re
from itertools import pairwise
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.core.errors import InvalidValue, MissingField, UpstreamProtocol
from forebay.core.routes import Endpoint, ForcedCalls
from forebay.net.sse import EventSplitter, parse_event
from forebay.providers import openai
from forebay.providers.anthropic_dialect import MessagesDialect
from forebay.providers.forced_calls import HEADER_MAX, CallReader
from forebay.providers.forced_schema import CALLS_MAX, count_repeats
from forebay.providers.forced_tools import ForcedTools
from forebay.providers.messages_to_chat import MessagesToChat
from forebay.providers.responses_dialect import ResponsesDialect
from forebay.providers.responses_to_chat import ResponsesToChat
from forebay.providers.translators import find_forced_way
from forebay.testing.openai import DONE, chat_completion, event

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}
ASKED: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
FORCED = ForcedTools()


def tool(name: str = "weather", parameters: Any = CITY, **more: Any) -> dict[str, Any]:
    said = {} if parameters is None else {"parameters": parameters}
    return {"type": "function", "function": {"name": name} | said | more}


def encode(*, stream: bool = False, **said: Any) -> dict[str, Any]:
    body = msgspec.json.encode(ASKED | {"tool_choice": "required"} | said)
    made: dict[str, Any] = json.loads(FORCED.encode_request(body, "there", stream=stream))
    return made


def find_schema(**said: Any) -> dict[str, Any]:
    wanted = encode(**said)["response_format"]
    assert wanted["type"] == "json_schema"
    schema: dict[str, Any] = wanted["json_schema"]["schema"]
    jsonschema.Draft202012Validator.check_schema(schema)
    return schema


def call(name: str, arguments: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"name": {"const": name}, "arguments": arguments},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


WEATHER, NOW = tool(), tool("now", None)
NAMED: Any = {"type": "function", "function": {"name": "now"}}
ALLOWED: Any = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}

#: What is asked, and the schema that goes to the engine.
SCHEMAS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "one tool": ({"tools": [WEATHER]}, call("weather", CITY)),
    "a tool without parameters": ({"tools": [NOW]}, call("now", NO_ARGUMENTS)),
    "with empty parameters": ({"tools": [tool("now", {})]}, call("now", NO_ARGUMENTS)),
    "several tools": (
        {"tools": [WEATHER, NOW]},
        {"anyOf": [call("weather", CITY), call("now", NO_ARGUMENTS)]},
    ),
    "one by its name": ({"tools": [WEATHER, NOW], "tool_choice": NAMED}, call("now", NO_ARGUMENTS)),
    "some of them": ({"tools": [WEATHER, NOW], "tool_choice": ALLOWED}, call("now", NO_ARGUMENTS)),
    "several calls": (
        {"tools": [WEATHER], "parallel_tool_calls": True},
        {"type": "array", "minItems": 1, "maxItems": CALLS_MAX, "items": call("weather", CITY)},
    ),
    "one call alone": ({"tools": [WEATHER], "parallel_tool_calls": False}, call("weather", CITY)),
    "a strict tool": ({"tools": [tool(strict=True)]}, call("weather", CITY)),
    "a schema that refers to itself": (
        {"tools": [NOW, tool("tree", {"type": "object", "properties": {"kid": {"$ref": "#"}}})]},
        {
            "anyOf": [call("now", NO_ARGUMENTS), call("tree", {"$ref": "#/$defs/tool_1"})],
            "$defs": {"tool_1": {"type": "object", "properties": {"kid": {"$ref": "#/$defs/tool_1"}}}},
        },
    ),
    "with definitions": (
        {
            "tools": [
                tool("x", {"properties": {"a": {"$ref": "#/$defs/K"}}, "$defs": {"K": {"type": "integer"}}})
            ]
        },
        {
            **call("x", {"$ref": "#/$defs/tool_0"}),
            "$defs": {
                "tool_0": {
                    "type": "object",
                    "properties": {"a": {"$ref": "#/$defs/tool_0/$defs/K"}},
                    "$defs": {"K": {"type": "integer"}},
                }
            },
        },
    ),
    "names and values that only look like keywords": (
        {
            "tools": [
                tool(
                    "x",
                    {"type": "object", "properties": {"not": {"enum": ["#"], "default": ["$ref"]}}},
                    strict=True,
                )
            ]
        },
        call("x", {"type": "object", "properties": {"not": {"enum": ["#"], "default": ["$ref"]}}}),
    ),
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_answer_is_made_to_be_a_call(name: str) -> None:
    said, schema = SCHEMAS[name]
    assert find_schema(**said) == schema


def test_all_else_of_the_request_stays() -> None:
    more = {"temperature": 0.5, "seed": 3, "top_k": 4, "cache_prompt": True, "stop": ["x"], "max_tokens": 9}
    made = encode(tools=[WEATHER], parallel_tool_calls=False, response_format={"type": "text"}, **more)
    kept = {name: value for name, value in made.items() if name != "response_format"}
    assert kept == ASKED | more | {"model": "there", "tools": [WEATHER], "tool_choice": "none"}


def test_usage_is_asked_for_in_streams() -> None:
    made = encode(tools=[WEATHER], stream=True, stream_options={"more": 1})
    assert made["stream_options"] == {"more": 1, "include_usage": True}
    assert encode(tools=[WEATHER], stream=True)["stream_options"] == {"include_usage": True}
    assert "stream_options" not in encode(tools=[WEATHER])


#: What can't be enforced, and which parameter is told.
REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "no tool": ({}, "tools", "no `tools`"),
    "no such tool": (
        {"tools": [WEATHER], "tool_choice": NAMED},
        "tool_choice",
        "no tool 'now'",
    ),
    "a custom tool": ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0]", "custom"),
    "a pattern at which it would hang": (
        {"tools": [tool(parameters={"properties": {"a": {"pattern": "^(a{0,200}){0,200}$"}}})]},
        "tools[0].function.parameters",
        "repetitions",
    ),
    "a reference to elsewhere": (
        {"tools": [tool(parameters={"properties": {"a": {"$ref": "https://h/x.json"}}})]},
        "tools[0].function.parameters",
        "$defs",
    ),
    "arguments that are no object": (
        {"tools": [tool(parameters={"type": "string"})]},
        "tools[0].function.parameters.type",
        "object",
    ),
    "strict, and a keyword that is not enforced": (
        {"tools": [tool(parameters={"properties": {"a": {"not": {"type": "null"}}}}, strict=True)]},
        "tools[0].function.parameters",
        "`not`",
    ),
    "strict, and a pattern that is not enforced": (
        {"tools": [tool(parameters={"properties": {"a": {"pattern": "[a-z]+"}}}, strict=True)]},
        "tools[0].function.parameters",
        "[a-z]+",
    ),
    "a name that is none": ({"tools": [tool("")]}, "tools[0].function.name", "characters"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_can_not_be_enforced_is_refused_with_its_place(name: str) -> None:
    said, param, words = REFUSED[name]
    with pytest.raises((InvalidValue, MissingField)) as caught:
        encode(**said)
    assert (caught.value.param or "").startswith(param)
    assert words in caught.value.message


def test_a_schema_that_is_nested_too_deep_is_refused() -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(100):
        schema = {"type": "array", "items": schema}
    with pytest.raises(InvalidValue, match="deeper"):
        encode(tools=[tool(parameters={"properties": {"a": schema}})])


def test_what_is_not_enforced_goes_where_the_tool_is_not_strict() -> None:
    schema = {"type": "object", "properties": {"a": {"uniqueItems": True, "pattern": "[a-z]+"}}}
    assert find_schema(tools=[tool(parameters=schema)]) == call("weather", schema)


@pytest.mark.parametrize(
    ("pattern", "least", "most"),
    [
        ("^[a-z]{1,100}$", 100, 101),
        ("^(a{0,200}){0,200}$", 40_000, 41_000),
        (r"^\d{3}-\d{4}$", 7, 9),
        ("a+b*c?", 3, 3),
        ("[]a{9}]{5}", 5, 5),
        (r"\{9\}", 1, 4),
        ("(((a|b){30}){30}){30}", 27_000, 60_000),
        ("a{99999999999999999999}", 10**8, 10**10),
        ("(", 0, 0),
        ("[", 1, 1),
        ("{2}", 0, 0),
    ],
)
def test_repetitions_of_a_pattern_are_counted(pattern: str, least: int, most: int) -> None:
    assert least <= count_repeats(pattern) <= most


@pytest.mark.parametrize("pattern", ["a" + "{999999999}" * 2_000, "(" * 2_000 + "a" + "){999999999}" * 2_000])
def test_a_count_stays_a_small_number(pattern: str) -> None:
    assert 10**9 <= count_repeats(pattern) < 10**23


@given(st.text("ab()[]{}0123456789,^$\\|*?", max_size=40))
def test_counting_takes_any_pattern(pattern: str) -> None:
    assert count_repeats(pattern) >= 0


def test_who_may_not_be_forced_is_told_so() -> None:
    body = msgspec.json.encode(ASKED | {"tools": [WEATHER], "tool_choice": "required"})
    with pytest.raises(InvalidValue, match="say auto") as caught:
        ForcedTools(refuses=True).encode_request(body, "there", stream=False)
    assert caught.value.param == "tool_choice"


# --- which requests force a call ---------------------------------------------------------------------------

FORMS: list[tuple[Any, Any, bool]] = [
    (openai, None, False),
    (openai, "auto", False),
    (openai, "none", False),
    (openai, "required", True),
    (openai, NAMED, True),
    (openai, ALLOWED, True),
    (openai, {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}, False),
    (openai, {"type": "custom", "custom": {"name": "x"}}, True),
    (openai, 7, False),
    (MessagesDialect(), {"type": "auto"}, False),
    (MessagesDialect(), {"type": "none"}, False),
    (MessagesDialect(), {"type": "any"}, True),
    (MessagesDialect(), {"type": "tool", "name": "now"}, True),
    (ResponsesDialect(), "required", True),
    (ResponsesDialect(), {"type": "function", "name": "now"}, True),
    (ResponsesDialect(), {"type": "allowed_tools", "mode": "required", "tools": []}, True),
    (ResponsesDialect(), {"type": "allowed_tools", "mode": "auto", "tools": []}, False),
]


@pytest.mark.parametrize(("speech", "choice", "is_forced"), FORMS)
def test_each_dialect_says_in_its_own_way_that_a_call_is_forced(
    speech: Any, choice: Any, is_forced: bool
) -> None:
    assert speech.read_request(msgspec.json.encode(ASKED | {"tool_choice": choice})).forces_call is is_forced
    assert speech.read_request(msgspec.json.encode(ASKED)).forces_call is False


def test_whoever_speaks_to_chat_meets_it() -> None:
    for endpoint in Endpoint:
        way = find_forced_way(endpoint, ForcedCalls.SCHEMA)
        is_met = endpoint in (Endpoint.CHAT, Endpoint.MESSAGES, Endpoint.RESPONSES)
        assert (way is not None and way.target is not None) == is_met
    assert find_forced_way(Endpoint.CHAT, ForcedCalls.NATIVE) is None


# --- what comes back ---------------------------------------------------------------------------------------

ONE = '{\n  "name": "weather",\n  "arguments": {"city": "Par\\"is}", "at": [{"x": 1}]}\n}'
TWO = f'[{ONE}, {{"name": "now", "arguments": {{}}}}\n]'
CALLS = [("weather", '{"city": "Par\\"is}", "at": [{"x": 1}]}'), ("now", "{}")]


def read_all(text: str, cuts: list[int]) -> tuple[list[tuple[str, str]], str]:
    reader, calls, rest = CallReader(), [], ""
    edges = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    for start, end in pairwise(edges):
        pieces, said = reader.feed(text[start:end])
        rest += said
        for piece in pieces:
            if piece.name is not None:
                assert piece.index == len(calls)
                calls.append([piece.name, ""])
            calls[piece.index][1] += piece.arguments
    rest += reader.finish()
    return [(name, arguments) for name, arguments in calls], rest


@given(st.lists(st.integers(0, 500), max_size=12))
def test_any_split_of_the_text_gives_the_same_calls(cuts: list[int]) -> None:
    assert read_all(ONE, cuts) == (CALLS[:1], "")
    assert read_all(TWO, cuts) == (CALLS, "")


@pytest.mark.parametrize(
    "text",
    [
        "Paris is nice.",
        " [1] is it",
        '{"city": "Paris"}',
        "",
        "  ",
        '{"name": 3}',
        "[" * 9000,
        '{"name": "wea',
    ],
)
@pytest.mark.parametrize("cuts", [[], [1], [2, 5], list(range(40))])
def test_what_is_no_call_stays_text(text: str, cuts: list[int]) -> None:
    assert read_all(text, cuts) == ([], text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.lists(
        st.tuples(st.text(min_size=1, max_size=12), st.dictionaries(st.text(max_size=5), JSON, max_size=3)),
        min_size=1,
        max_size=3,
    ),
    st.lists(st.integers(0, 2000), max_size=8),
    st.sampled_from([None, 1, 4]),
    st.booleans(),
)
def test_calls_come_back_as_they_were(
    calls: list[tuple[str, dict[str, Any]]], cuts: list[int], indent: int | None, ascii: bool
) -> None:
    told = [{"name": name, "arguments": arguments} for name, arguments in calls]
    found, rest = read_all(json.dumps(told, indent=indent, ensure_ascii=ascii), cuts)
    assert rest == ""
    assert [(name, json.loads(arguments)) for name, arguments in found] == calls


def test_what_is_held_before_a_name_is_bounded() -> None:
    reader = CallReader()
    reader.feed("{")
    for _ in range(HEADER_MAX):
        reader.feed("  ")
    assert len(reader._held) <= HEADER_MAX + 2
    reader = CallReader()
    reader.feed(ONE)
    for _ in range(HEADER_MAX):
        reader.feed("  ")
    assert len(reader._held) <= HEADER_MAX + 2


def answer(text: str | None, *, reason: str = "stop", **more: Any) -> bytes:
    told = chat_completion(text or "", model="there")
    told["choices"][0] |= {"finish_reason": reason}
    told["choices"][0]["message"] |= {"content": text} | more
    return msgspec.json.encode(told | {"id": "chatcmpl-Ab_9", "timings": {"predicted_ms": 1.50}})


def test_a_whole_answer_is_its_calls() -> None:
    raw = answer(TWO)
    made, told = json.loads(FORCED.decode_answer(raw, "m")), json.loads(raw)
    message = made["choices"][0]["message"]
    assert message["content"] is None
    assert message["tool_calls"] == [
        {"id": f"call_Ab9_0_{at}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for at, (name, arguments) in enumerate(CALLS)
    ]
    assert made["choices"][0]["finish_reason"] == "tool_calls"
    assert {**made, "choices": None} == {**told, "choices": None}, "usage and all else untouched"


@pytest.mark.parametrize(
    ("text", "reason", "told", "arguments"),
    [
        (ONE[:40], "length", "length", '{"ci'),
        (ONE[:40], "stop", "length", '{"ci'),
        (ONE[:-20], "content_filter", "content_filter", CALLS[0][1][: len(ONE[:-20]) - 36]),
    ],
)
def test_a_call_that_was_cut_says_so(text: str, reason: str, told: str, arguments: str) -> None:
    choice = json.loads(FORCED.decode_answer(answer(text, reason=reason), "m"))["choices"][0]
    assert choice["finish_reason"] == told
    assert CALLS[0][1].startswith(choice["message"]["tool_calls"][0]["function"]["arguments"])
    assert gather(turn(stream(text, reason=reason) + DONE))[2] == told


@pytest.mark.parametrize("text", ["Paris is nice.", None, '{"name": "wea'])
def test_a_whole_answer_that_is_no_call_stays(text: str | None) -> None:
    raw = answer(text, reason="length")
    assert json.loads(FORCED.decode_answer(raw, "m")) == json.loads(raw)


def test_calls_of_the_engines_own_stay() -> None:
    own = [{"id": "c", "type": "function", "function": {"name": "now", "arguments": "{}"}}]
    raw = answer(ONE, tool_calls=own)
    assert json.loads(FORCED.decode_answer(raw, "m")) == json.loads(raw)


@pytest.mark.parametrize("raw", [b"{}", b"[]", b"x", b'{"choices":[{}]}', b'{"choices":[{"message":3}]}'])
def test_what_is_no_answer_is_the_targets_fault(raw: bytes) -> None:
    with pytest.raises(UpstreamProtocol):
        FORCED.decode_answer(raw, "m")


def chunk(delta: dict[str, Any], reason: str | None = None, index: int = 0) -> bytes:
    choice = {"index": index, "delta": delta, "finish_reason": reason}
    told = {"id": "chatcmpl-9", "created": 1, "model": "there", "object": "chat.completion.chunk"}
    return event({**told, "choices": [choice]})


def stream(text: str, *, size: int = 3, reason: str = "stop", index: int = 0) -> bytes:
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    first = chunk({"role": "assistant", "content": None}, index=index)
    return (
        first + b"".join(chunk({"content": each}, index=index) for each in pieces) + chunk({}, reason, index)
    )


USAGE = event({"id": "chatcmpl-9", "choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 5}})


def turn(raw: bytes, cuts: list[int] | None = None) -> bytes:
    made = FORCED.name_answer("a-1").new_stream("m")
    edges = [0, *sorted(cut % (len(raw) + 1) for cut in cuts or ()), len(raw)]
    return b"".join(made.feed(raw[start:end]) for start, end in pairwise(edges)) + made.finish()


def gather(raw: bytes, index: int = 0) -> tuple[list[Any], str, str | None, int]:
    """The calls, the text, the reason to finish, and how many events brought arguments."""
    splitter, calls, text, reason, brought = EventSplitter(1 << 20), [], "", None, 0
    for each in splitter.feed(raw):
        data = parse_event(each).data or b""
        for choice in [] if data == b"[DONE]" else json.loads(data)["choices"]:
            if choice["index"] != index:
                continue
            delta, reason = choice["delta"], choice["finish_reason"] or reason
            text += delta.get("content") or ""
            brought += any(part["function"]["arguments"] for part in delta.get("tool_calls", ()))
            for part in delta.get("tool_calls", ()):
                if "id" in part:
                    assert part["index"] == len(calls)
                    calls.append([part["id"], part["function"]["name"], ""])
                calls[part["index"]][2] += part["function"]["arguments"]
    return calls, text, reason, brought


@given(st.lists(st.integers(0, 20_000), max_size=10), st.sampled_from([1, 3, 17, 1000]))
def test_any_split_of_a_stream_gives_the_same_bytes(cuts: list[int], size: int) -> None:
    raw = stream(TWO, size=size) + USAGE + DONE
    whole = turn(raw)
    assert turn(raw, cuts) == whole
    calls, text, reason, _ = gather(whole)
    assert calls == [[f"call_9_0_{at}", name, arguments] for at, (name, arguments) in enumerate(CALLS)]
    assert (text, reason) == ("", "tool_calls")
    assert whole.endswith(USAGE + DONE), "usage as its own bytes"


def test_arguments_flow_while_they_come() -> None:
    made = FORCED.new_stream("m")
    made.feed(chunk({"role": "assistant", "content": None}))
    assert made.feed(chunk({"content": '{"name": "weather", '})) == b"", "its name is not certain"
    assert b'"weather"' in made.feed(chunk({"content": '"arguments": {"ci'}))
    assert b"ty" in made.feed(chunk({"content": "ty"}))


def test_a_stream_that_is_cut_has_no_end() -> None:
    raw = stream(ONE)
    cut = raw[: raw.rindex(b"data: ")]
    assert gather(turn(cut))[2] is None
    assert b'finish_reason":"' not in turn(cut)


@pytest.mark.parametrize("reason", ["length", "stop"])
@pytest.mark.parametrize("text", ["Paris is nice.", '{"name": "wea', '{"city": "Paris"}'])
def test_a_stream_that_is_no_call_is_its_text(text: str, reason: str) -> None:
    assert gather(turn(stream(text, reason=reason) + DONE)) == ([], text, reason, 0)


def test_choices_are_read_apart() -> None:
    raw = b"".join(
        first + second
        for first, second in zip(
            EventSplitter(1 << 20).feed(stream(ONE)),
            EventSplitter(1 << 20).feed(stream(ONE.replace("weather", "another"), index=1)),
            strict=True,
        )
    )
    out = turn(raw)
    assert [each[:2] for each in gather(out)[0]] == [["call_9_0_0", "weather"]]
    assert [each[:2] for each in gather(out, 1)[0]] == [["call_9_1_0", "another"]]


@pytest.mark.parametrize(
    "raw",
    [b": comment\n\n", event({"error": {"message": "x"}}), b"data: [DONE]\n\n", b"data: {broken\n\n", USAGE],
)
def test_what_is_no_chunk_passes_as_its_own_bytes(raw: bytes) -> None:
    assert turn(raw) == raw
    assert turn(raw.rstrip(b"\n")) == raw.rstrip(b"\n")


def test_what_was_thought_passes() -> None:
    out = turn(chunk({"reasoning_content": "hm"}) + stream(ONE) + DONE)
    assert out.startswith(chunk({"reasoning_content": "hm"}))
    assert gather(out)[0][0][1] == "weather"


def test_anthropics_callers_get_a_block_of_the_tool() -> None:
    asked = {
        "model": "m",
        "max_tokens": 9,
        "messages": ASKED["messages"],
        "tools": [{"name": "weather", "input_schema": CITY}],
        "tool_choice": {"type": "any"},
    }
    caller = MessagesToChat()
    sent = json.loads(
        FORCED.encode_request(caller.decode_request(msgspec.json.encode(asked)), "there", stream=False)
    )
    assert sent["response_format"]["json_schema"]["schema"] == call("weather", CITY)
    told = json.loads(caller.encode_answer(FORCED.decode_answer(answer(ONE), "m")))
    assert told["stop_reason"] == "tool_use"
    (block,) = told["content"]
    assert (block["type"], block["name"], block["input"]) == ("tool_use", "weather", json.loads(CALLS[0][1]))


def test_callers_of_responses_get_a_call_of_the_function() -> None:
    asked = {
        "model": "m",
        "input": "hi",
        "tools": [{"type": "function", "name": "weather", "parameters": CITY}],
        "tool_choice": {"type": "function", "name": "weather"},
    }
    caller = ResponsesToChat()
    chat = caller.decode_request(msgspec.json.encode(asked))
    assert json.loads(FORCED.encode_request(chat, "there", stream=True))["tool_choice"] == "none"
    told = json.loads(caller.encode_answer(FORCED.decode_answer(answer(ONE), "m")))
    assert [(item["type"], item["name"], item["arguments"]) for item in told["output"]] == [
        ("function_call", *CALLS[0])
    ]


def test_an_engine_that_can_not_take_a_schema_is_understood() -> None:
    told = {"error": {"code": 400, "message": "failed to parse grammar", "type": "invalid_request_error"}}
    error = json.loads(FORCED.decode_error(400, msgspec.json.encode(told)))["error"]
    assert error["param"] == "tools"
    assert re.search(r"schema of a forced tool.*grammar", error["message"])
    for status, body in ((500, told), (400, {"error": {"message": "too long"}}), (400, {"error": "x"})):
        raw = msgspec.json.encode(body)
        assert FORCED.decode_error(status, raw) == raw
    assert FORCED.decode_error(400, b"<html>") == b"<html>"
