"""The words of /v1/embeddings: what is taken, what is refused and how that is said."""

import base64
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.core.errors import CallerError, ForebayError, InvalidJSON, ModelNotFound
from forebay.engines.embeddings_wire import (
    INPUTS_MAX,
    EmbeddingRequest,
    encode_answer,
    encode_error,
    parse_request,
)

VOCABULARY = 100
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def parse(body: bytes) -> EmbeddingRequest:
    return parse_request(body, model="m", dimensions=384, vocabulary=VOCABULARY)


def ask(**fields: Any) -> EmbeddingRequest:
    return parse(json.dumps({"model": "m", "input": "x"} | fields).encode())


@pytest.mark.parametrize(
    ("value", "inputs"),
    [
        ("a text", ("a text",)),
        (["one", "two"], ("one", "two")),
        ([1, 2, 3], ([1, 2, 3],)),
        ([[1], [2, 3]], ([1], [2, 3])),
    ],
)
def test_all_four_shapes_of_input_are_taken(value: Any, inputs: tuple[Any, ...]) -> None:
    assert ask(input=value).inputs == inputs


def test_the_encoding_is_taken() -> None:
    assert not ask().is_base64
    assert not ask(encoding_format="float").is_base64
    assert ask(encoding_format="base64", dimensions=384, user="u", unknown=[1]).is_base64


@pytest.mark.parametrize(
    ("fields", "param", "word"),
    [
        ({"input": None}, "input", "missing"),
        ({"input": ""}, "input", "empty"),
        ({"input": ["a", ""]}, "input", "empty"),
        ({"input": []}, "input", "1 to 2048"),
        ({"input": [[]]}, "input", "empty"),
        ({"input": ["a"] * (INPUTS_MAX + 1)}, "input", "not 2049"),
        ({"input": ["a", [1]]}, "input", "mix"),
        ({"input": ["a", 1]}, "input", "mix"),
        ({"input": [1, True]}, "input", "mix"),
        ({"input": [None]}, "input", "each input"),
        ({"input": [1, VOCABULARY]}, "input", "0 to 99"),
        ({"input": [-1]}, "input", "0 to 99"),
        ({"input": [[1.5]]}, "input", "0 to 99"),
        ({"input": {"text": "a"}}, "input", "a text"),
        ({"input": 7}, "input", "a text"),
        ({"encoding_format": "int8"}, "encoding_format", "base64"),
        ({"encoding_format": ["float"]}, "encoding_format", "base64"),
        ({"dimensions": 256}, "dimensions", "384"),
        ({"dimensions": "384"}, "dimensions", "384"),
        ({"dimensions": True}, "dimensions", "384"),
        ({"model": None}, "model", "missing"),
        ({"model": 3}, "model", "text"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], param: str, word: str) -> None:
    with pytest.raises(CallerError, match=word) as refused:
        ask(**fields)
    assert (refused.value.status, refused.value.param) == (400, param)


def test_another_model_is_not_found() -> None:
    with pytest.raises(ModelNotFound, match=r"'gpt'.*'m'"):
        ask(model="gpt")


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b"\xff", b"[" * 100_000, b'{"model":"\xff"}'])
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidJSON):
        parse(body)


@given(st.dictionaries(st.sampled_from(["model", "input", "encoding_format", "dimensions"]), json_values))
def test_any_json_is_taken_or_refused_in_words(fields: dict[str, Any]) -> None:
    asked: EmbeddingRequest | ForebayError
    try:
        asked = parse(json.dumps({"model": "m"} | fields).encode())
    except ForebayError as error:
        asked = error
    if isinstance(asked, ForebayError):
        assert asked.param in ("model", "input", "encoding_format", "dimensions")
        assert json.loads(encode_error(asked))["error"]["code"] == asked.code
    else:
        assert 1 <= len(asked.inputs) <= INPUTS_MAX


@given(st.integers(0, 2**32 - 1))
def test_both_encodings_hold_the_same_vector(seed: int) -> None:
    row = np.random.default_rng(seed).normal(size=384).astype(np.float32)
    row /= np.linalg.norm(row)
    plain, packed = (
        json.loads(encode_answer([row], model="m", tokens=3, is_base64=is_base64))
        for is_base64 in (False, True)
    )
    assert np.array_equal(np.frombuffer(base64.b64decode(packed["data"][0]["embedding"]), "<f4"), row)
    assert np.abs(np.array(plain["data"][0]["embedding"]) - row).max() < 1e-9
    assert plain["usage"] == {"prompt_tokens": 3, "total_tokens": 3}
    assert plain["object"] == "list"
    assert (plain["data"][0]["object"], plain["data"][0]["index"]) == ("embedding", 0)
