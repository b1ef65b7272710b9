"""Pictures and sound in requests: found where they stand, and never feigned by a text."""

import base64
import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.core.errors import ContextTooLong
from forebay.core.routes import Endpoint
from forebay.providers.openai_bounds import check_context
from forebay.providers.openai_estimate import MEDIA_TOKENS_MAX, estimate_input
from forebay.providers.openai_media import OBJECTS_MAX, find_media

DATA = base64.b64encode(random.Random(1).randbytes(30_000)).decode()
PICTURE = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{DATA}"}}
SOUND = {"type": "input_audio", "input_audio": {"format": "wav", "data": DATA}}
FILE = {"type": "file", "file": {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{DATA}"}}


def encode_chat(*parts: Any, **fields: Any) -> bytes:
    return json.dumps(
        {"model": "m", "messages": [{"role": "user", "content": list(parts)}], **fields}
    ).encode()


def test_each_kind_counts_by_its_bytes() -> None:
    assert find_media(encode_chat(PICTURE, {"type": "text", "text": "?"}, SOUND)) == [len(DATA)] * 2
    for name in ("video_url", "audio_url"):
        part = {"type": name, name: {"url": f"data:x/y;base64,{DATA}"}}
        assert find_media(encode_chat(part)) == [len(DATA)]
    plain = {"type": "image_url", "image_url": f"data:image/png;base64,{DATA}"}
    assert find_media(encode_chat(plain)) == [len(DATA)]
    lines = {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD\nQUJD"}}
    assert find_media(encode_chat(lines)) == [10], "as its bytes in JSON"
    slashes = encode_chat(lines).replace(rb"\n", rb"\/")
    assert find_media(slashes) == [10]


def test_what_is_no_base64_is_no_picture() -> None:
    for text in ("a b c d " * 3000, "x.y", DATA + "!", "https://x.example/a.png;base64,"):
        part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{text}"}}
        assert find_media(encode_chat(part)) == []


@pytest.mark.parametrize(
    "body",
    [
        b'{";base64,": 1}', b'{"messages": 1, "a": ";base64,"}', b';base64,"', b'"input_audio"', b"[" * 5000,
        b'{"messages": [1, ";base64,"]}', b'{"messages": [{"content": [1, ";base64,"]}]}',
        b'{"messages": [{"content": [{"image_url": {"url": 1}, "a": ";base64,"}]}]}',
        b'{"messages": [{"content": [{"image_url": [";base64,"]}]}]}',
        b'{"messages": [{"content": ' + b"[" * 5000 + b';base64,"',
        b'{"messages": [{"content": "\xff;base64,"}]}',
    ],
)  # fmt: skip
def test_what_is_not_as_it_should_be_holds_none(body: bytes) -> None:
    assert find_media(body) == []


def test_in_a_body_of_very_many_objects_none_is_looked_for() -> None:
    """So that no caller keeps a worker busy with it."""
    assert find_media(encode_chat(*[{}] * (OBJECTS_MAX // 2), PICTURE)) == [len(DATA)]
    assert find_media(encode_chat(*[{}] * OBJECTS_MAX, PICTURE)) == []


def test_a_file_is_text_to_the_estimate_and_not_to_the_bound_of_a_context() -> None:
    body = encode_chat(FILE)
    assert estimate_input(body) * 4 >= len(DATA)
    check_context(body, Endpoint.CHAT, 100)
    with pytest.raises(ContextTooLong):
        check_context(encode_chat({"type": "text", "text": ";base64," + DATA}), Endpoint.CHAT, 100)


pieces = st.sampled_from(
    [
        ";base64,", "data:image/png;base64,", '"input_audio"', '"data":"', '"image_url":{"url":"',
        '"', "\\", "}]", DATA[:9000], f"data:image/png;base64,{DATA}",
        "a b c " * 2000, "A" * 6000, "é" * 3000, "\x00" * 1000, "\n",
    ]
)  # fmt: skip
texts = st.lists(pieces, min_size=1, max_size=6).map("".join)


@given(st.lists(texts, min_size=9, max_size=9), st.booleans(), st.integers(0, 2), st.randoms())
def test_no_text_takes_more_than_four_times_its_estimate_whoever_made_it(
    given_texts: list[str], ascii_only: bool, media: int, luck: random.Random
) -> None:
    """No byte of text is more than one token; each of these places may be text to a model."""
    one, two, three, four, five, six, seven, eight, nine = given_texts
    parts = [{"type": "text", "text": one, "note": {"image_url": {"url": two}}}, *[PICTURE, SOUND][:media]]
    luck.shuffle(parts)
    call = {
        "type": "function",
        "function": {"name": "f", "arguments": json.dumps({"image_url": {"url": three}})},
    }
    as_object = {"type": "function", "function": {"name": "f", "arguments": {"image_url": {"url": four}}}}
    held = {"image_url": {"url": five}, "input_audio": {"data": six}}
    body = {
        "messages": [
            {"role": "system", "content": seven},
            {"role": "user", "content": parts},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [call, as_object],
                "extra": {"content": [held]},
            },
        ],
        "tools": [
            {"type": "function", "function": {"name": "f", "parameters": {"properties": {eight: held}}}}
        ],
        "prompt": nine,
    }
    size = sum(len(text.encode()) for text in (*given_texts, five, six))
    encoded = json.dumps(body, ensure_ascii=ascii_only).encode()
    assert 4 * estimate_input(encoded) >= size + media * 4 * MEDIA_TOKENS_MAX
