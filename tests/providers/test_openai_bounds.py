"""How long an output may become and how long a prompt is, read from bodies of every kind."""

import base64
import json
import os
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.core.errors import CallerError, ContextTooLong, InvalidValue, OutputTooLong
from forebay.core.routes import Endpoint
from forebay.providers import openai
from forebay.providers.openai_bounds import check_context, find_output_cap
from forebay.providers.openai_media import find_media

CHAT, COMPLETIONS, EMBEDDINGS = Endpoint.CHAT, Endpoint.COMPLETIONS, Endpoint.EMBEDDINGS
LIMITS = ("max_tokens", "max_completion_tokens", "n_predict")


def encode(**fields: Any) -> bytes:
    return json.dumps({"model": "m", **fields}).encode()


counts = st.integers(0, 60)
no_or_times = st.none() | st.integers(1, 8)
prompts = st.one_of(
    st.text(max_size=5),
    st.lists(st.text(max_size=3), max_size=5),
    st.lists(st.integers(0, 9), max_size=5),
    st.lists(st.lists(st.integers(0, 9), max_size=3), max_size=5),
)


@settings(max_examples=500)
@given(
    st.fixed_dictionaries({}, optional=dict.fromkeys(LIMITS, st.none() | counts)),
    st.fixed_dictionaries({}, optional={"n": no_or_times, "best_of": no_or_times, "prompt": prompts}),
    st.sampled_from([CHAT, COMPLETIONS]),
    st.integers(1, 100),
)
def test_no_request_that_passes_can_become_longer_than_the_limit(
    limits: dict[str, int | None], others: dict[str, Any], endpoint: Endpoint, tokens_max: int
) -> None:
    choices = max(others.get("n") or 1, others.get("best_of") or 1)
    prompt = others.get("prompt")
    texts = 1
    if endpoint is COMPLETIONS and isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        texts = len(prompt)
    named = [tokens for tokens in limits.values() if tokens is not None]
    longest = max(named, default=1) * choices * texts
    body = encode(**limits, **others)
    if longest > tokens_max:
        with pytest.raises(OutputTooLong, match=str(tokens_max)) as caught:
            find_output_cap(body, endpoint, tokens_max)
        assert caught.value.param in (*LIMITS, "n", "prompt")
        return
    cap = find_output_cap(body, endpoint, tokens_max)
    if named:
        assert cap is None
    else:
        assert cap is not None
        assert cap * choices * texts <= tokens_max < (cap + 1) * choices * texts


@pytest.mark.parametrize(
    ("fields", "endpoint", "cap"),
    [
        ({}, CHAT, 100),
        ({"n": 3}, CHAT, 33),
        ({"n": 2, "best_of": 4}, COMPLETIONS, 25),
        ({"prompt": ["a", "b"]}, COMPLETIONS, 50),
        ({"prompt": [[1, 2], [3]], "n": 5}, COMPLETIONS, 10),
        ({"prompt": [1, 2, 3]}, COMPLETIONS, 100),
        ({"prompt": "abc"}, COMPLETIONS, 100),
        ({"prompt": []}, COMPLETIONS, 100),
        ({"prompt": ["a", "b"]}, CHAT, 100),
        ({"max_tokens": None, "n": None}, CHAT, 100),
        ({"max_tokens": 100}, CHAT, None),
        ({"max_tokens": 0}, CHAT, None),
    ],
)
def test_the_limit_is_shared_by_all_that_is_answered(
    fields: dict[str, Any], endpoint: Endpoint, cap: int | None
) -> None:
    assert find_output_cap(encode(**fields), endpoint, 100) == cap


@pytest.mark.parametrize("name", [*LIMITS, "n", "best_of"])
@pytest.mark.parametrize("value", [-1, 1.5, 1e3, "7", True, [], {}, 10**30])
def test_what_an_engine_might_read_otherwise_is_refused(name: str, value: Any) -> None:
    """llama.cpp takes -1 for no limit at all."""
    with pytest.raises(CallerError) as caught:
        find_output_cap(encode(**{name: value}), CHAT, 100)
    assert isinstance(caught.value, InvalidValue | OutputTooLong)
    assert caught.value.param == name


def test_a_body_that_is_no_json_is_the_callers_fault() -> None:
    with pytest.raises(CallerError):
        find_output_cap(b"{", CHAT, 100)


def test_the_limit_stands_beside_what_else_a_target_is_told() -> None:
    body = b'{"model":"m","stream":true,"max_tokens":null}'
    view = openai.cap_output(body, openai.read_request(body), CHAT, 50)
    sent = openai.encode_request(body, view, CHAT, "there")
    assert json.loads(sent) == {  # type: ignore[arg-type]
        "model": "there",
        "stream": True,
        "max_tokens": 50,
        "stream_options": {"include_usage": True},
    }
    assert openai.cap_output(body, view, EMBEDDINGS, 50) is view


# --- context ------------------------------------------------------------------------------------------------


def is_refused(body: bytes, endpoint: Endpoint = CHAT, tokens_max: int = 100) -> bool:
    try:
        check_context(body, endpoint, tokens_max)
    except ContextTooLong:
        return True
    return False


@given(st.integers(1, 2000), st.integers(0, 40_000))
def test_a_prompt_is_refused_from_sixteen_bytes_a_token_on(tokens_max: int, size: int) -> None:
    body = encode(messages="x" * size)
    assert is_refused(body, tokens_max=tokens_max) == (len(body) > 16 * tokens_max)


def test_pictures_and_sound_are_no_text() -> None:
    media = base64.b64encode(os.urandom(30_000)).decode()
    picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{media}"}}
    sound = {"type": "input_audio", "input_audio": {"format": "wav", "data": media}}
    words = {"type": "text", "text": "x" * 2000}
    for parts, refused in (([picture, picture], False), ([sound, picture], False), ([picture, words], True)):
        assert is_refused(encode(messages=[{"role": "user", "content": parts}])) is refused


@given(
    st.lists(st.sampled_from([b";base64,", b'"input_audio"', b'"data"', b'"', b":", b"AAAA"]), max_size=30)
)
def test_whatever_stands_around_media_no_more_is_left_out_than_there_is(parts: list[bytes]) -> None:
    body = b"".join(parts)
    assert 0 <= sum(find_media(body)) <= len(body)


def test_of_many_inputs_the_mean_counts() -> None:
    texts = ["x" * 1000] * 50
    assert not is_refused(encode(input=texts), EMBEDDINGS)
    assert not is_refused(encode(prompt=texts), COMPLETIONS)
    with pytest.raises(ContextTooLong) as caught:
        check_context(encode(input="".join(texts)), EMBEDDINGS, 100)
    assert caught.value.param == "input"
    assert is_refused(encode(messages="x" * 5000, prompt=texts), CHAT), "a chat has one, whatever it says"
    assert is_refused(encode(input=list(range(10_000))), EMBEDDINGS), "one text, given as tokens"
