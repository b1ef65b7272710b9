"""How broad a request may be that is translated: counted as a reader of JSON would, before it is built."""

import json
import time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.core.errors import Untranslatable
from forebay.core.routes import Endpoint
from forebay.core.translation import Way
from forebay.gateway.breadth import VALUES_MAX, has_more_values
from forebay.gateway.crossing import Crossing
from forebay.gateway.dialect import Dialect
from forebay.providers import openai
from forebay.providers.translators import SPOKEN, find_way

words = st.text(st.sampled_from('a",{[]}:\\/\n\t é\u2028'), max_size=12)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | words,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(words, inner, max_size=5),
    max_leaves=40,
)


def count(value: Any) -> int:
    """Objects and lists, and each thing beyond the first that one of them holds."""
    if isinstance(value, dict | list):
        held = list(value.values()) if isinstance(value, dict) else value
        return 1 + max(0, len(held) - 1) + sum(map(count, held))
    return 0


@given(values, st.sampled_from([None, 2]), st.booleans(), st.integers(-2, 2))
def test_what_is_counted_is_what_stands_outside_of_texts(
    value: Any, indent: int | None, ascii_only: bool, more: int
) -> None:
    body = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode()
    there = count(value)
    assert has_more_values(body, max(0, there + more)) is (there > max(0, there + more))


@given(st.binary(max_size=200), st.integers(0, 20))
def test_any_bytes_have_an_answer(body: bytes, values_max: int) -> None:
    assert has_more_values(body, values_max) in (True, False)


@pytest.mark.parametrize(
    "text",
    ["A" * 20_000_000, ",{[" * 7_000_000, json.dumps([{"a": "b"}] * 500_000)],
    ids=["plain", "marks", "json"],
)
def test_a_long_text_is_one_value(text: str) -> None:
    assert not has_more_values(json.dumps({"messages": [{"role": "user", "content": text}]}).encode())


def cross(endpoint: Endpoint, dialect: str) -> Crossing:
    way = find_way(endpoint, dialect)
    assert isinstance(way, Way)
    return Crossing(
        endpoint=endpoint,
        inner=openai,
        caller=way.caller,
        target=way.target,
        heads=(b"", b""),
    )


MESSAGE = {"role": "user", "content": "a"}
BROAD: dict[str, tuple[Endpoint, dict[str, Any]]] = {
    "chat": (Endpoint.CHAT, {"messages": [MESSAGE] * VALUES_MAX}),
    "messages": (Endpoint.MESSAGES, {"max_tokens": 5, "messages": [MESSAGE] * VALUES_MAX}),
    "parts": (
        Endpoint.MESSAGES,
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * VALUES_MAX}]},
    ),
    "tools": (
        Endpoint.MESSAGES,
        {"messages": [MESSAGE], "tools": [{"name": "t", "input_schema": {}}] * VALUES_MAX},
    ),
    "responses": (Endpoint.RESPONSES, {"input": [MESSAGE] * VALUES_MAX}),
    "numbers": (Endpoint.RESPONSES, {"input": [1] * 2 * VALUES_MAX}),
}


def list_crossings() -> list[tuple[str, str]]:
    found = []
    for name, (endpoint, _) in BROAD.items():
        for dialect in ("openai", "anthropic", "bedrock", "gemini"):
            way = find_way(endpoint, dialect)
            if way is not None and (way.caller or way.target):
                found.append((name, dialect))
    return found


@pytest.mark.parametrize(("name", "dialect"), list_crossings())
def test_what_is_too_broad_is_refused_before_it_is_built(name: str, dialect: str) -> None:
    endpoint, fields = BROAD[name]
    body = json.dumps({"model": "m", **fields}).encode()
    crossing = cross(endpoint, dialect)
    speech: Dialect = SPOKEN.get(endpoint, openai)
    view = speech.read_request(body)
    begun = time.process_time()
    with pytest.raises(Untranslatable, match=str(VALUES_MAX)) as caught:
        crossing.encode(speech, body, view, "there", stream=False)
    took_s = time.process_time() - begun
    assert caught.value.param == ("input" if endpoint is Endpoint.RESPONSES else "messages")
    assert took_s < 0.5, "far less than it takes to build"


def test_a_long_conversation_is_translated() -> None:
    body = json.dumps({"model": "m", "max_tokens": 5, "messages": [MESSAGE] * 10_000}).encode()
    speech = SPOKEN[Endpoint.MESSAGES]
    crossing = cross(Endpoint.MESSAGES, "openai")
    sent = crossing.encode(speech, body, speech.read_request(body), "there", stream=False)
    assert json.loads(b"".join(map(bytes, sent if isinstance(sent, list) else [sent])))["messages"]


@pytest.mark.parametrize("dialect", ["anthropic", "bedrock", "gemini"])
def test_arguments_of_a_tool_are_a_text_however_many_fields_they_have(dialect: str) -> None:
    arguments = "{" + ",".join(f'"{at}":1' for at in range(2_000_000)) + "}"
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    result = {"role": "tool", "tool_call_id": "c", "content": "done"}
    asked = {"model": "m", "messages": [MESSAGE, {"role": "assistant", "tool_calls": [call]}, result]}
    body = json.dumps(asked).encode()
    crossing = cross(Endpoint.CHAT, dialect)
    begun = time.process_time()
    assert len(msgspec.json.decode(arguments, type=dict[str, msgspec.Raw])) == 2_000_000
    built = time.process_time()
    sent = crossing.encode(openai, body, openai.read_request(body), "there", stream=False)
    assert time.process_time() - built < 0.6 * (built - begun)
    assert arguments.encode() in sent
