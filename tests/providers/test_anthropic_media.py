"""Pictures in messages: found where Anthropic's dialect holds them, and never feigned by a text."""

import base64
import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.core.errors import ContextTooLong
from forebay.core.routes import Endpoint
from forebay.providers import openai
from forebay.providers.anthropic_dialect import MessagesDialect
from forebay.providers.anthropic_media import find_media
from forebay.providers.openai_estimate import MEDIA_TOKENS_MAX
from forebay.providers.openai_media import OBJECTS_MAX

DIALECT = MessagesDialect()
DATA = base64.b64encode(random.Random(1).randbytes(30_000)).decode()


def hold(data: str = DATA, media_type: str = "image/png", **source: Any) -> dict[str, Any]:
    return {"type": "base64", "media_type": media_type, "data": data, **source}


PICTURE = {"type": "image", "source": hold()}
DOCUMENT = {"type": "document", "source": hold(media_type="application/pdf")}


def encode(*blocks: Any, ascii_only: bool = True, **fields: Any) -> bytes:
    body = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": list(blocks)}], **fields}
    return json.dumps(body, ensure_ascii=ascii_only).encode()


def estimate(body: bytes) -> int:
    return DIALECT.estimate_tokens(body, 0).input or 0


def test_a_picture_counts_by_its_bytes_also_where_a_tool_brought_it() -> None:
    result = {"type": "tool_result", "tool_use_id": "t", "content": [PICTURE, {"type": "text", "text": "?"}]}
    body = encode(PICTURE, {"type": "text", "text": "?"}, result)
    assert find_media(body) == [len(DATA)] * 2
    assert 2 * MEDIA_TOKENS_MAX <= estimate(body) < 2 * MEDIA_TOKENS_MAX + 200
    assert 4 * estimate(body) == pytest.approx(len(body) + DIALECT.weigh_text(body), abs=4)


def test_a_document_is_text_to_the_estimate_and_not_to_the_bound_of_a_context() -> None:
    body = encode(DOCUMENT)
    assert 4 * estimate(body) >= len(DATA)
    DIALECT.check_context(body, Endpoint.MESSAGES, 100)
    with pytest.raises(ContextTooLong):
        DIALECT.check_context(encode({"type": "text", "text": '"base64"' + DATA}), Endpoint.MESSAGES, 100)


@pytest.mark.parametrize(
    "block",
    [
        {"type": "text", "text": "?", "source": hold()},
        {"type": "image", "source": hold("a b c " * 5000)},
        {"type": "image", "source": hold(media_type="text/plain")},
        {"type": "image", "source": {"type": "text", "media_type": "image/png", "data": DATA}},
        {"type": "document", "source": hold(media_type="text/plain")},
        {"type": "tool_use", "id": "t", "name": "f", "input": {"content": [PICTURE]}},
        {"type": "tool_use", "id": "t", "name": "f", "input": PICTURE, "content": [PICTURE]},
        {"type": "tool_result", "tool_use_id": "t", "content": json.dumps([PICTURE])},
        {"type": "text", "text": json.dumps(PICTURE)},
        {"type": "image", "source": [hold()]},
        {"type": "image", "source": {"type": 1, "base64": "base64"}},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{DATA}"}},
        1,
    ],
)  # fmt: skip
def test_what_is_not_as_it_should_be_is_text(block: Any) -> None:
    assert find_media(encode(block, note="base64"), files=True) == []


@pytest.mark.parametrize("body", [b'"base64"', b'{"messages":"base64"}', b'{"messages":["base64"]}', b"["])
def test_what_is_no_request_holds_none(body: bytes) -> None:
    assert find_media(body) == []


def test_in_a_body_of_very_many_objects_none_is_looked_for() -> None:
    assert find_media(encode(*[{}] * (OBJECTS_MAX // 2), PICTURE)) == [len(DATA)]
    assert find_media(encode(*[{}] * OBJECTS_MAX, PICTURE)) == []


def test_to_a_chat_it_is_text() -> None:
    """Whoever serves chat may write what he does not know into the prompt."""
    assert 4 * (openai.estimate_tokens(encode(PICTURE), 0).input or 0) >= len(DATA)


pieces = st.sampled_from(
    [
        '"base64"', '"type":"image"', '"source":{"type":"base64","media_type":"image/png","data":"', '"',
        "\\", "}]", DATA[:9000], json.dumps(PICTURE), "a b c " * 2000, "A" * 6000, "é" * 3000,
        "\x00" * 1000, "\n",
    ]
)  # fmt: skip
texts = st.lists(pieces, min_size=1, max_size=6).map("".join)


@given(st.lists(texts, min_size=7, max_size=7), st.booleans(), st.integers(0, 2), st.randoms())
def test_no_text_takes_more_than_four_times_its_estimate_whoever_made_it(
    given_texts: list[str], ascii_only: bool, media: int, luck: random.Random
) -> None:
    one, two, three, four, five, six, seven = given_texts
    blocks: list[Any] = [
        {"type": "text", "text": one, "source": hold(two), "image": {"source": hold(three)}},
        {"type": "tool_use", "id": "t", "name": "f", "input": {"type": "image", "source": hold(four)}},
        {"type": "tool_result", "tool_use_id": "t", "content": five},
        *[PICTURE] * media,
    ]
    luck.shuffle(blocks)
    tools = [{"name": "f", "input_schema": {"properties": {"p": {"type": "image", "source": hold(six)}}}}]
    body = encode(*blocks, ascii_only=ascii_only, system=[{"type": "text", "text": seven}], tools=tools)
    size = sum(len(text.encode()) for text in given_texts)
    assert 4 * estimate(body) >= size + media * 4 * MEDIA_TOKENS_MAX
