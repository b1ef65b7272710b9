"""Edits of single fields: the field gets its value, and every other byte stays where it was."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.providers.json_edit import FIELDS_MAX, UNREADABLE, drop_field, find_fields, set_fields

few = settings(max_examples=60, deadline=None)
SPACE = st.text(alphabet=" \t\r\n", max_size=3)
#: Keys with what makes a search go astray: quotes, backslashes, braces, names of fields that are edited.
KEYS = st.one_of(
    st.sampled_from(
        ["model", "stream_options", "usage", "", "a", 'mo"del', "model\\", "{", "}", ",", ":", "é", "\0"]
    ),
    st.text(max_size=6),
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**30), 10**30),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=12),
    st.sampled_from(['"', "\\", '\\"', '","model":"x', '{"model":"x"}', "\\\\", "}", "\u2028", "😀"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@st.composite
def spelled(draw: st.DrawFn, text: str) -> bytes:
    """One of the ways to write a string: as it is, or with any of its characters as an escape."""
    plain = json.dumps(text, ensure_ascii=draw(st.booleans()))
    if draw(st.booleans()) and text:
        at = draw(st.integers(0, len(text) - 1))
        escape = _escape(text[at])
        plain = json.dumps(text[:at])[:-1] + escape + json.dumps(text[at + 1 :])[1:]
    return plain.encode("utf-8", "surrogatepass")


def _escape(character: str) -> str:
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[at] << 8 | units[at + 1]:04x}" for at in range(0, len(units), 2))


@st.composite
def objects(draw: st.DrawFn, *, unique: bool = True) -> tuple[list[tuple[str, bytes]], bytes]:
    """Fields with the bytes of their values, and the bytes of the object, with odd whitespace anywhere."""
    names = draw(st.lists(KEYS, max_size=6, unique=unique))
    fields = [(name, json.dumps(draw(VALUES), ensure_ascii=draw(st.booleans())).encode()) for name in names]
    parts = []
    for name, value in fields:
        key = draw(spelled(name))
        gaps = [draw(SPACE).encode() for _ in range(4)]
        parts.append(gaps[0] + key + gaps[1] + b":" + gaps[2] + value + gaps[3])
    before, inside, after = (draw(SPACE).encode() for _ in range(3))
    body = before + b"{" + (b",".join(parts) if parts else inside) + b"}" + after
    return fields, body


def read(body: bytes) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(body)
    return result


@few
@given(objects())
def test_each_field_is_found_where_its_bytes_stand(made: tuple[list[tuple[str, bytes]], bytes]) -> None:
    fields, body = made
    places = find_fields(body)
    assert places is not None
    assert {name: body[start:end] for name, (_, start, end) in places.items()} == dict(fields)
    for name, (key, start, _) in places.items():
        assert json.loads(body[key:start].rstrip(b" \t\r\n:")) == name


@few
@given(objects(), st.sampled_from(["model", "stream_options", "é", 'mo"del']), VALUES)
def test_a_field_is_set_and_every_other_byte_stays(
    made: tuple[list[tuple[str, bytes]], bytes], name: str, value: Any
) -> None:
    fields, body = made
    new = json.dumps(value).encode()
    edited = set_fields(body, {name: new})
    assert read(edited) == read(body) | {name: json.loads(new)}
    old = dict(fields).get(name)
    if old is not None:
        # In place: what comes before and after is the same, byte for byte.
        places = find_fields(body)
        assert places is not None
        _, start, end = places[name]
        assert edited == body[:start] + new + body[end:]
    else:
        opening = body.index(b"{") + 1
        assert edited.startswith(body[:opening])
        assert edited.endswith(body[opening:])


@few
@given(objects(), VALUES, VALUES)
def test_two_fields_at_once_are_the_same_as_one_after_the_other(
    made: tuple[list[tuple[str, bytes]], bytes], model: Any, options: Any
) -> None:
    values = {"model": json.dumps(model).encode(), "stream_options": json.dumps(options).encode()}
    at_once = set_fields(made[1], values)
    in_turn = set_fields(
        set_fields(made[1], {"stream_options": values["stream_options"]}), {"model": values["model"]}
    )
    assert read(at_once) == read(in_turn)


@few
@given(objects(), VALUES)
def test_setting_a_field_and_setting_it_back_gives_the_same_bytes(
    made: tuple[list[tuple[str, bytes]], bytes], value: Any
) -> None:
    fields, body = made
    for name, old in fields:
        there = set_fields(body, {name: json.dumps(value).encode()})
        assert set_fields(there, {name: old}) == body


@few
@given(objects(), st.sampled_from(["usage", "model", "absent-as-can-be"]))
def test_a_field_is_dropped_with_its_comma(made: tuple[list[tuple[str, bytes]], bytes], name: str) -> None:
    fields, body = made
    dropped = drop_field(body, name)
    expected = read(body)
    expected.pop(name, None)
    assert read(dropped) == expected
    if name not in dict(fields):
        assert dropped == body
    places, left = find_fields(body), find_fields(dropped)
    assert places is not None
    assert left is not None
    for kept, (_, start, end) in places.items():
        if kept != name:
            assert dropped[left[kept][1] : left[kept][2]] == body[start:end]


@pytest.mark.parametrize(
    ("body", "dropped"),
    [
        (b'{"a": 1, "usage": null}', b'{"a": 1}'),
        (b'{"usage": null, "a": 1}', b'{"a": 1}'),
        (b'{"a": 1, "usage": null, "b": 2}', b'{"a": 1, "b": 2}'),
        (b'{"a":1,"usage":null,"b":2}', b'{"a":1,"b":2}'),
        (b'{"usage":{"x":[1,"}"]}}', b"{}"),
        (b'{"a":{"usage":1},"usage":2}', b'{"a":{"usage":1}}'),
        (b'{"a":"\\"usage\\":1"}', b'{"a":"\\"usage\\":1"}'),
    ],
)
def test_dropping_leaves_what_a_server_would_have_written_without_the_field(
    body: bytes, dropped: bytes
) -> None:
    assert drop_field(body, "usage") == dropped


@few
@given(objects(unique=False), st.sampled_from(["model", "a"]), VALUES)
def test_a_field_named_twice_means_its_last_value_as_everywhere(
    made: tuple[list[tuple[str, bytes]], bytes], name: str, value: Any
) -> None:
    fields, body = made
    edited = set_fields(body, {name: json.dumps(value).encode()})
    assert read(edited) == read(body) | {name: value} or value != value
    # Values keep their bytes, also those of other fields that stand twice.
    for other, raw in dict(fields).items():
        if other != name:
            assert raw in edited


@few
@given(objects(unique=False))
def test_places_are_only_given_where_they_are_certain(made: tuple[list[tuple[str, bytes]], bytes]) -> None:
    fields, body = made
    names = [name for name, _ in fields]
    assert (find_fields(body) is None) == (len(set(names)) != len(names))


NO_OBJECTS = [
    b"",
    b"[]",
    b"1",
    b'"{}"',
    b"{",
    b'{"a":}',
    b'{"a":1,}',
    b'{"a":1}{}',
    b'{"\xff":1}',
    b"\xef\xbb\xbf{}",
]


@pytest.mark.parametrize("body", NO_OBJECTS)
def test_what_is_no_object_is_refused(body: bytes) -> None:
    for edit in (
        lambda: find_fields(body),
        lambda: set_fields(body, {"a": b"1"}),
        lambda: drop_field(body, "a"),
    ):
        with pytest.raises(UNREADABLE):
            edit()


def test_deep_nesting_is_refused_and_wide_objects_too() -> None:
    with pytest.raises(UNREADABLE):
        set_fields(b'{"a":' + b"[" * 10_000 + b"]" * 10_000 + b"}", {"b": b"1"})
    wide = b"{" + b",".join(b'"%d":1' % number for number in range(FIELDS_MAX)) + b"}"
    assert set_fields(wide, {"5": b"2"}) == wide.replace(b'"5":1', b'"5":2')
    with pytest.raises(msgspec.ValidationError):
        set_fields(wide[:-1] + b',"one too many":1}', {"5": b"2"})
