"""The reader of forms: finds every field where it lies, and refuses what is in doubt."""

import random
import re
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.core.errors import InvalidValue, MissingField
from forebay.core.routes import Endpoint
from forebay.providers.media_dialect import MediaDialect
from forebay.providers.multipart import HEAD_MAX_BYTES, PARTS_MAX, VALUE_MAX_BYTES, Form, read_boundary

TYPE = b"multipart/form-data; boundary=B"


def field(name: str, value: bytes, more: str = "", headers: str = "") -> bytes:
    head = f'Content-Disposition: form-data; name="{name}"{more}\r\n{headers}\r\n'
    return b"--B\r\n" + head.encode() + value + b"\r\n"


def close(*parts: bytes) -> bytes:
    return b"".join(parts) + b"--B--\r\n"


MODEL = field("model", b"whisper")
FILE = field("file", b"\0\xff\r\n--C\r\n" * 50, '; filename="a.wav"', "Content-Type: audio/wav\r\n")

names = st.text(
    st.characters(codec="utf-8", exclude_characters='"\\;\r\n\0\x7f', exclude_categories=["C"]),
    min_size=1,
    max_size=20,
)
values = st.binary(max_size=200).filter(lambda value: b"--B" not in value)
fields = st.lists(st.tuples(names, values, st.booleans()), max_size=20)


@given(fields, st.sampled_from([b"", b"\r\n"]), st.sampled_from([b"", b"\r\n", b"\r\n\r\n", b" "]))
def test_every_field_is_found_where_it_lies(
    given_fields: list[tuple[str, bytes, bool]], before: bytes, behind: bytes
) -> None:
    made = [field(name, value, '; filename="f"' if is_file else "") for name, value, is_file in given_fields]
    body = before + b"".join(made) + b"--B--" + behind
    if not made:
        body = before + b"--B--" + behind
    form = Form(body, TYPE)
    found = [(part.name, body[part.start : part.end], part.is_file) for part in form.parts]
    assert found == given_fields


@given(st.binary(max_size=300))
def test_garbage_is_refused_and_nothing_else_happens(garbage: bytes) -> None:
    for body in (garbage, b"--B\r\n" + garbage, MODEL + garbage, close(MODEL) + garbage):
        try:
            form = Form(body, TYPE)
        except InvalidValue:
            continue
        assert not garbage.strip() or form.parts


@given(st.binary(max_size=120))
def test_any_header_of_a_content_type(header: bytes) -> None:
    for content_type in (
        header,
        b"multipart/form-data;" + header,
        b"multipart/form-data; boundary=" + header,
    ):
        try:
            boundary = read_boundary(content_type)
        except InvalidValue:
            continue
        assert 1 <= len(boundary) <= 70


@pytest.mark.parametrize("seed", range(40))
def test_a_body_that_was_cut_or_bent_is_never_read_otherwise(seed: int) -> None:
    """Either it is refused, or the model is the one that stands there."""
    draw = random.Random(seed)
    body = bytearray(close(FILE, MODEL, field("stream", b"true")))
    for _ in range(draw.randint(1, 3)):
        at = draw.randrange(len(body))
        body[at : at + draw.randint(0, 2)] = draw.choice([b"", b"\r\n", b"--B", b"\n", b'"', b";", b"\0"])
    try:
        view = MediaDialect(Endpoint.TRANSCRIPTIONS, TYPE).read_request(bytes(body))
    except (InvalidValue, MissingField):
        return
    assert re.search(rb'name="model"[^\n]*\r\n\r\n' + re.escape(view.model.encode()) + rb"\r\n", bytes(body))


@pytest.mark.parametrize("order", [(MODEL, FILE), (FILE, MODEL)])
def test_the_model_is_found_in_any_place_and_its_bytes_alone_change(order: tuple[bytes, ...]) -> None:
    body = close(*order, field("odd", "ü".encode()))
    dialect = MediaDialect(Endpoint.TRANSCRIPTIONS, TYPE)
    view = dialect.read_request(body)
    assert (view.model, view.stream) == ("whisper", False)
    sent = dialect.encode_request(body, view, Endpoint.TRANSCRIPTIONS, "there-ü")
    assert sent == body.replace(b"\r\n\r\nwhisper\r\n", "\r\n\r\nthere-ü\r\n".encode())
    assert dialect.encode_request(body, view, Endpoint.TRANSCRIPTIONS, "whisper") is body


def test_of_a_large_form_nothing_is_copied() -> None:
    body = close(field("file", b"x" * 200_000, '; filename="a"'), MODEL)
    dialect = MediaDialect(Endpoint.TRANSCRIPTIONS, TYPE)
    parts = dialect.encode_request(body, dialect.read_request(body), Endpoint.TRANSCRIPTIONS, "other")
    assert isinstance(parts, list)
    assert [part.obj is body for part in parts if isinstance(part, memoryview)] == [True, True]
    assert b"".join(parts) == body.replace(b"whisper", b"other")


@pytest.mark.parametrize(
    ("body", "param", "word"),
    [
        (close(FILE), "model", "no field `model`"),
        (close(MODEL, MODEL), "model", "2 times"),
        (close(MODEL, FILE, field("model", b"other")), "model", "2 times"),
        (close(field("model", b"")), "model", "empty"),
        (close(field("model", b"\xff")), "model", "UTF-8"),
        (close(field("model", b"m" * (VALUE_MAX_BYTES + 1))), "model", "longer"),
        (close(field("model", b"m", '; filename="x"')), "model", "file"),
        (close(field("model", b"m", "; filename*=UTF-8''x")), "model", "file"),
        (close(field("model", b"bQ==", "", "Content-Transfer-Encoding: base64\r\n")), "model", "encoded"),
        (close(MODEL, field("stream", b"true"), field("stream", b"false")), "stream", "2 times"),
        (close(MODEL, *[field("response_format", b"a")] * 2), "response_format", "2 times"),
        (b"", None, "does not begin"),
        (b"junk\r\n" + close(MODEL), None, "does not begin"),
        (MODEL, None, "missing"),
        (MODEL[:-2], None, "missing"),
        (close(MODEL)[:-4], None, "line break"),
        (close(MODEL) + b"more", None, "behind its last boundary"),
        (close(MODEL).replace(b"whisper", b"a\r\n--Bc"), None, "not followed by a line break"),
        (close(MODEL).replace(b"\r\n", b"\n"), None, "line break"),
        (close(field("file", b"x\n" + MODEL.replace(b"\r\n", b"\n"), '; filename="a"'), MODEL), None, "bare"),
        (close(field("file", b"x\r" + MODEL.replace(b"\r\n", b"\r"), '; filename="a"'), MODEL), None, "bare"),
        (close(field("model", b"whisper\n--B--\n")), None, "bare"),
        (close(b"--B\r\n\r\nx\r\n", MODEL), None, "header"),
        (close(field("model", b"m", '; name="stream"')), None, "does not plainly name"),
        (close(field("x", b"m", "; name*=utf-8''model")), None, "does not plainly name"),
        (close(field('x\\"; name=\\"model', b"m"), MODEL), None, "in its name"),
        (close(field("x", b"m", "", " folded: 1\r\n"), MODEL), None, "header"),
        (close(field("x", b"m", "", "no colon\r\n"), MODEL), None, "header"),
        (close(field("x", b"m", "", 'content-disposition: form-data; name="y"\r\n')), None, "two headers"),
        (close(field("x", b"m", "", "a: " + "b" * HEAD_MAX_BYTES + "\r\n")), None, "do not end"),
        (close(*[field("x", b"")] * (PARTS_MAX + 1)), None, f"more than {PARTS_MAX}"),
    ],
)  # fmt: skip
def test_what_is_in_doubt_is_refused_in_clear_words(body: bytes, param: str | None, word: str) -> None:
    with pytest.raises((InvalidValue, MissingField)) as caught:
        MediaDialect(Endpoint.TRANSCRIPTIONS, TYPE).read_request(body)
    assert caught.value.status == 400
    assert caught.value.param == param
    assert word in caught.value.message


@pytest.mark.parametrize(
    ("content_type", "boundary"),
    [
        (b"multipart/form-data; boundary=abc", b"abc"),
        (b"Multipart/Form-Data;BOUNDARY=abc", b"abc"),
        (b'multipart/form-data; charset=utf-8; boundary="a b?c"', b"a b?c"),
        (b"multipart/form-data; boundary=abc;", b"abc"),
        (b"", None),
        (b"application/json", None),
        (b"multipart/mixed; boundary=abc", None),
        (b"multipart/form-data", None),
        (b"multipart/form-data; boundary=", None),
        (b"multipart/form-data; boundary=a; boundary=b", None),
        (b"multipart/form-data; boundary=" + b"a" * 71, None),
        (b'multipart/form-data; boundary="a"b"', None),
        (b"multipart/form-data; boundary*=utf-8''abc", None),
    ],
)
def test_boundaries(content_type: bytes, boundary: bytes | None) -> None:
    if boundary is not None:
        assert read_boundary(content_type) == boundary
        return
    with pytest.raises(InvalidValue) as caught:
        read_boundary(content_type)
    assert "content-type" in caught.value.message


@given(
    st.lists(st.tuples(st.sampled_from(["a", "model", "ü"]), st.text(max_size=20)), max_size=5), st.binary()
)
def test_what_a_real_client_writes_is_read(pairs: list[tuple[str, str]], data: bytes) -> None:
    files: list[tuple[str, Any]] = [(name, (None, value)) for name, value in pairs]
    files.append(("file", ('odd "name".wav', data, "audio/wav")))
    request = httpx.Request("POST", "http://x/", files=files)
    body = request.read()
    form = Form(body, request.headers["content-type"].encode())
    assert [part.name for part in form.parts] == [name for name, _ in files]
    assert [body[part.start : part.end] for part in form.parts] == [*(v.encode() for _, v in pairs), data]
