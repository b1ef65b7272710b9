"""A request's metadata: tags where it is as OpenAI has it, no reason to refuse anything where it is not."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.core.routes import Endpoint
from forebay.providers import openai
from forebay.providers.openai_tags import BYTES_MAX, NAME_MAX, TAGS_MAX, VALUE_MAX

texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)


def tags_of(metadata: Any, *, ascii_only: bool = True) -> tuple[tuple[str, str], ...]:
    body = json.dumps({"model": "m", "metadata": metadata}, ensure_ascii=ascii_only).encode()
    view = openai.read_request(body)
    assert openai.encode_request(body, view, Endpoint.CHAT, "m") is body
    return view.tags


@given(metadata=st.dictionaries(texts, texts, max_size=TAGS_MAX), ascii_only=st.booleans())
def test_tags_are_what_the_request_says(metadata: dict[str, str], ascii_only: bool) -> None:
    assert tags_of(metadata, ascii_only=ascii_only) == tuple(metadata.items())


def test_the_largest_that_openai_takes_is_taken() -> None:
    largest = {f"{number:03}" + "😀" * (NAME_MAX - 3): "😀" * VALUE_MAX for number in range(TAGS_MAX)}
    assert tags_of(largest) == ()  # 200 KiB of escapes, where 36 KiB of text would do
    assert tags_of(largest, ascii_only=False) == tuple(largest.items())
    assert tags_of({"é" * NAME_MAX: "é" * VALUE_MAX}) == (("é" * NAME_MAX, "é" * VALUE_MAX),)


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        "text",
        7,
        [],
        {},
        {"a": 1},
        {"a": None},
        {"a": {"b": "c"}},
        {"a": "b", "c": True},
        {"n" * (NAME_MAX + 1): "v"},
        {"n": "v" * (VALUE_MAX + 1)},
        {str(number): "v" for number in range(TAGS_MAX + 1)},
        {"a": "nul\0"},
        {"nul\0": "a"},
        {"a": "v" * BYTES_MAX},
    ],
)
def test_anything_else_is_passed_through_and_is_no_tag(metadata: Any) -> None:
    assert tags_of(metadata) == ()


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m"}',
        b'{"model":"m","metadata":{"a":"\xff"}}',
        b'{"model":"m","metadata":' + b"[" * 900 + b"]" * 900 + b"}",
    ],
)
def test_what_can_not_be_read_is_no_tag(body: bytes) -> None:
    assert openai.read_request(body).tags == ()


def test_a_limit_of_the_output_does_not_lose_the_tags() -> None:
    body = b'{"model":"m","metadata":{"a":"b"}}'
    view = openai.cap_output(body, openai.read_request(body), Endpoint.CHAT, 10)
    assert view.tags == (("a", "b"),)
