"""A form is read the same however it is cut, and what is no form is told so."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.batch.upload import FormReader, PartBegin, PartData, PartEnd, read_boundary
from forebay.core.errors import InvalidValue

BOUNDARY = b"xYz"
names = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=8)
values = st.binary(max_size=60) | st.sampled_from(
    [b"", b"\r\n", b"--xYz", b"\r\n--xY", b"\r\n--", b"a\r\n-", b"\r\n--xY\r\n--x"]
)
forms = st.lists(st.tuples(names, st.none() | names, values), min_size=1, max_size=5)
Read = list[tuple[str, str | None, bytes]]


def write(parts: Read) -> bytes:
    out = b""
    for name, filename, value in parts:
        file = "" if filename is None else f'; filename="{filename}"'
        head = f'content-disposition: form-data; name="{name}"{file}\r\n\r\n'
        out += b"--" + BOUNDARY + b"\r\n" + head.encode() + value + b"\r\n"
    return out + b"--" + BOUNDARY + b"--\r\n"


def read(pieces: list[bytes]) -> Read:
    reader, found, held = FormReader(BOUNDARY), [], b""
    begin = PartBegin("", None)
    for piece in pieces:
        for event in reader.feed(piece):
            match event:
                case PartBegin():
                    begin, held = event, b""
                case PartData(data):
                    held += data
                case PartEnd():
                    found.append((begin.name, begin.filename, held))
    reader.finish()
    return found


@given(forms, st.lists(st.integers(1, 40), min_size=1, max_size=30))
def test_a_form_is_read_the_same_however_it_is_cut(parts: Read, sizes: list[int]) -> None:
    if any(b"\r\n--" + BOUNDARY in b"\r\n" + value for _, _, value in parts):
        parts = [(name, filename, b"plain") for name, filename, _ in parts]
    body, pieces, turn = write(parts), [], 0
    while body:
        size = sizes[turn % len(sizes)]
        pieces.append(body[:size])
        body, turn = body[size:], turn + 1
    assert read(pieces) == parts


@given(st.binary(max_size=200), st.integers(1, 20))
def test_what_is_no_form_never_breaks_the_reader(data: bytes, size: int) -> None:
    try:
        read([data[at : at + size] for at in range(0, len(data), size)])
    except InvalidValue:
        return
    assert b"--xYz--" in data


@pytest.mark.parametrize(
    "body",
    [
        b"--xYz\r\n\r\n\r\nvalue\r\n--xYz--",
        b"before\r\n--xYz--\r\n",
        b"--xYz--\r\nbehind",
        b'--xYz\r\ncontent-disposition: form-data; name="a"\r\n\r\nvalue',
        b"--xYz\r\n" + b"x-odd: 1\r\n" * 2000,
        b'--xYz\r\ncontent-disposition: form-data; name="a"\r\n\r\n\r\n' * 20,
        b"--xYzodd",
    ],
)
def test_a_form_that_is_wrong_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidValue):
        read([body])


@pytest.mark.parametrize(
    ("kind", "boundary"),
    [
        ("multipart/form-data; boundary=abc", b"abc"),
        ('Multipart/Form-Data; charset=utf-8; boundary="a b"', b"a b"),
        ("multipart/form-data", None),
        ("application/json", None),
        (f"multipart/form-data; boundary={'x' * 71}", None),
    ],
)
def test_a_boundary_is_found(kind: str, boundary: bytes | None) -> None:
    if boundary is None:
        with pytest.raises(InvalidValue):
            read_boundary(kind)
    else:
        assert read_boundary(kind) == boundary
