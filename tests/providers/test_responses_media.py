"""Pictures in responses: found where OpenAI's Responses hold them, and never feigned by a text."""

import base64
import json
import random
from typing import Any

import pytest

from forebay.core.errors import ContextTooLong
from forebay.core.routes import Endpoint
from forebay.providers.openai_estimate import MEDIA_TOKENS_MAX
from forebay.providers.openai_media import OBJECTS_MAX
from forebay.providers.responses_dialect import ResponsesDialect
from forebay.providers.responses_media import find_media

DIALECT = ResponsesDialect()
DATA = base64.b64encode(random.Random(1).randbytes(30_000)).decode()
URL = f"data:image/png;base64,{DATA}"
PICTURE = {"type": "input_image", "image_url": URL, "detail": "auto"}
SOUND = {"type": "input_audio", "input_audio": {"format": "wav", "data": DATA}}
FILE = {"type": "input_file", "filename": "a.pdf", "file_data": f"data:application/pdf;base64,{DATA}"}


def encode(*parts: Any, **fields: Any) -> bytes:
    return json.dumps({"model": "m", "input": [{"role": "user", "content": list(parts)}], **fields}).encode()


def estimate(body: bytes) -> int:
    return DIALECT.estimate_tokens(body, 0).input or 0


def test_each_kind_counts_by_its_bytes() -> None:
    assert find_media(encode(PICTURE, {"type": "input_text", "text": "?"}, SOUND)) == [len(DATA)] * 2
    assert find_media(encode(FILE)) == []
    assert find_media(encode(FILE), files=True) == [len(DATA)]
    result = {"type": "function_call_output", "call_id": "c", "output": [PICTURE]}
    assert find_media(json.dumps({"input": [result]}).encode()) == [len(DATA)]


def test_a_picture_weighs_no_more_than_it_may() -> None:
    rest = len(encode(PICTURE)) - len(DATA)
    assert estimate(encode(PICTURE)) <= MEDIA_TOKENS_MAX + rest // 4 + 1
    assert DIALECT.weigh_text(encode(PICTURE)) < 0
    assert estimate(encode({"type": "input_text", "text": URL})) > 9_000, "a text that looks like one is text"
    assert estimate(encode(model2=URL)) > 9_000
    assert estimate(json.dumps({"input": URL}).encode()) > 9_000


def test_a_limit_of_context_sees_it_as_the_estimate_does() -> None:
    DIALECT.check_context(encode(PICTURE), Endpoint.RESPONSES, 2_000)
    with pytest.raises(ContextTooLong):
        DIALECT.check_context(encode({"type": "input_text", "text": URL}), Endpoint.RESPONSES, 2_000)


@pytest.mark.parametrize(
    "body",
    [
        b'{";base64,": 1}', b'{"input": ";base64,"}', b'{"input": [1, ";base64,"]}', b';base64,"',
        b'{"input": [{"content": [1, ";base64,"]}]}', b'{"input": [{"content": "\xff;base64,"}]}',
        b'{"input": [{"content": ' + b"[" * 5000 + b';base64,"', b'"input_audio"',
        b'{"input": [{"content": [{"image_url": {"url": 1}, "a": ";base64,"}]}]}',
    ],
)  # fmt: skip
def test_what_is_not_as_it_should_be_holds_none(body: bytes) -> None:
    assert find_media(body) == []


def test_of_many_objects_none_is_looked_for() -> None:
    many = encode(PICTURE, *[{"type": "input_text", "text": ""}] * OBJECTS_MAX)
    assert find_media(many) == []
