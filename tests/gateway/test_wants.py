"""What a request needs and how it begins, as its bytes say; what is quoted in a text is neither."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.core.events import Tokens
from forebay.core.routes import CAPABILITIES
from forebay.gateway.policy.fleet import ALL_CAPABILITIES, compute_mask
from forebay.gateway.policy.load import OUTPUT_GUESS
from forebay.gateway.wants import OUTPUT_MAX, find_prefix, guess_output, read_needs

TOOL = {"type": "function", "function": {"name": "f"}}
NEEDS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "text": ({"messages": [{"role": "user", "content": "Hello"}]}, ()),
    "text parts": ({"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]}, ()),
    "tools": ({"tools": [TOOL]}, ("tools",)),
    "no tools": ({"tools": []}, ()),
    "functions": ({"functions": [{"name": "f"}]}, ("tools",)),
    "an image": ({"content": [{"type": "image_url", "image_url": {"url": "x"}}]}, ("images",)),
    "an image in messages": ({"content": [{"type": "image", "source": {"type": "base64"}}]}, ("images",)),
    "sound": ({"content": [{"type": "input_audio", "input_audio": {}}]}, ("audio",)),
    "a file": ({"content": [{"type": "file", "file": {}}]}, ("documents",)),
    "a document": ({"content": [{"type": "document", "source": {}}]}, ("documents",)),
    "a schema": ({"response_format": {"type": "json_schema", "json_schema": {}}}, ("json_schema",)),
    "JSON": ({"response_format": {"type": "json_object"}}, ()),
    "all": (
        {
            "tools": [TOOL],
            "content": [{"type": "image"}, {"type": "input_audio"}, {"type": "file"}],
            "response_format": {"type": "json_schema"},
        },
        CAPABILITIES,
    ),
}


@pytest.mark.parametrize("name", NEEDS)
@pytest.mark.parametrize("indent", [None, 2])
def test_what_a_request_needs_is_seen_however_it_is_written(name: str, indent: int | None) -> None:
    body, needs = NEEDS[name]
    data = json.dumps(body, indent=indent).encode()
    assert read_needs(data, ALL_CAPABILITIES) == compute_mask(needs)
    assert read_needs(data, compute_mask(("tools",))) == compute_mask(needs) & compute_mask(("tools",))


@given(st.text(), st.sampled_from(sorted(NEEDS)))
def test_what_a_text_quotes_is_no_need(text: str, name: str) -> None:
    quoted = text + json.dumps(NEEDS[name][0])
    data = json.dumps({"messages": [{"role": "user", "content": quoted}]}).encode()
    assert read_needs(data, ALL_CAPABILITIES) == 0


def test_a_prompt_begins_where_its_messages_do() -> None:
    one = b'{"model":"m","temperature":0.1,"messages":[{"role":"system","content":"You are"}]}'
    other = b'{"temperature":0.7,"model":"m","messages":[{"role":"system","content":"You are not"}]}'
    assert find_prefix(one, 30) == find_prefix(other, 30)
    assert find_prefix(one, 60) != find_prefix(other, 60)
    assert find_prefix(b'{"input":"abc"}', 4) == b'"input":"ab'
    assert find_prefix(b"{}", 16) == b"{}"


@pytest.mark.parametrize(
    ("output", "named", "guess"),
    [
        (None, True, OUTPUT_GUESS),
        (5, True, 5),
        (2_000_000_000, True, OUTPUT_GUESS),
        (1000, False, 1000),
        (2_000_000_000, False, OUTPUT_MAX),
    ],
)
def test_what_a_caller_names_never_makes_its_answer_longer(
    output: int | None, named: bool, guess: int
) -> None:
    assert guess_output(Tokens(input=1, output=output), named=named) == guess
    assert guess_output(None, named=named) == OUTPUT_GUESS
