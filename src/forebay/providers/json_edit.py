"""Edits single top-level fields of a JSON object and leaves every other byte as it was.  Pure.

msgspec finds the fields at C speed and hands out their exact bytes; this module only looks up where they
stand.  It never re-encodes a value.
"""

from collections.abc import Mapping
from typing import Annotated

import msgspec

#: What decoding raises on bytes that are no JSON, not what they should be, or nested deeper than we follow.
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
NOTHING = msgspec.Raw(b"")  #: default of a field that is kept as bytes; `Raw | None` would take null alone
FIELDS_MAX = 1000  #: of an object that is edited: looking up the places of more would keep others waiting


class _Object(msgspec.Struct, frozen=True):
    """Of any fields: all are read over, and none is built."""


#: Raises on what is no JSON object, at the cost of reading it, however many fields it has.
check_object = msgspec.json.Decoder(_Object).decode

_Fields = Annotated[dict[str, msgspec.Raw], msgspec.Meta(max_length=FIELDS_MAX)]
_decode_fields = msgspec.json.Decoder(_Fields).decode
_WHITESPACE = b" \t\r\n"


def _skip_space(data: bytes, at: int) -> int:
    while data[at] in _WHITESPACE:
        at += 1
    return at


def _end_of_string(data: bytes, at: int) -> int:
    """The position behind the closing quote of the string whose opening quote is at `at`."""
    end = data.index(b'"', at + 1)
    while True:
        backslashes = 0
        while data[end - 1 - backslashes] == 0x5C:
            backslashes += 1
        if backslashes % 2 == 0:
            return end + 1
        end = data.index(b'"', end + 1)


def find_fields(data: bytes) -> dict[str, tuple[int, int, int]] | None:
    """Where each top-level field stands: name to (start of its key, start of its value, end of its value).

    None when the object names a field twice, which leaves no single place to edit.

    Raises:
        UNREADABLE: `data` is not a JSON object, or one of more than FIELDS_MAX fields.
    """
    fields = _decode_fields(data)
    places: dict[str, tuple[int, int, int]] = {}
    at = data.index(b"{") + 1
    for name, raw in fields.items():
        value = memoryview(raw)  # into `data`: a body of many megabytes is not copied to look at it
        key_start = data.index(b'"', at)
        after_key = _end_of_string(data, key_start)
        start = _skip_space(data, data.index(b":", after_key) + 1)
        end = start + len(value)
        if not data.startswith(value, start):
            return None
        places[name] = (key_start, start, end)
        at = end
    rest = data[at:].strip(_WHITESPACE)
    return places if rest == b"}" else None


def set_fields(data: bytes, values: Mapping[str, bytes]) -> bytes:
    """Gives top-level fields new values (JSON bytes): in place where they stand, else in front.

    An object that names a field twice is written anew field by field, each value's bytes kept.

    Raises:
        UNREADABLE: `data` is not a JSON object, or one of more than FIELDS_MAX fields.
    """
    return b"".join(split_fields(data, values))


def split_fields(data: bytes, values: Mapping[str, bytes]) -> list[bytes | memoryview]:
    """What `set_fields` gives, in pieces that lie in `data` wherever they can; raises as it does."""
    places = find_fields(data)
    if places is None:
        return _merge_fields(data, values)
    view = memoryview(data)
    opening = data.index(b"{") + 1
    added = [msgspec.json.encode(name) + b":" + value for name, value in values.items() if name not in places]
    parts: list[bytes | memoryview] = [view[:opening]]
    if added:
        parts.append(b",".join(added) + (b"," if places else b""))
    at = opening
    for name, (_, start, end) in places.items():
        if name in values:
            parts += (view[at:start], values[name])
            at = end
    parts.append(view[at:])
    return parts


def _merge_fields(data: bytes, values: Mapping[str, bytes]) -> list[bytes | memoryview]:
    kept = {name: memoryview(raw) for name, raw in _decode_fields(data).items()}
    parts: list[bytes | memoryview] = []
    for name, value in (kept | dict(values)).items():
        parts += (b"," if parts else b"{", msgspec.json.encode(name), b":", value)
    return [*parts, b"}"]


def drop_field(data: bytes, name: str) -> bytes:
    """The object without one top-level field and the comma that belonged to it.

    Raises:
        UNREADABLE: `data` is not a JSON object, or one of more than FIELDS_MAX fields.
    """
    places = find_fields(data)
    if places is None or name not in places:
        return data
    key_start, _, end = places[name]
    after = _skip_space(data, end)
    if data[after : after + 1] == b",":
        return data[:key_start] + data[_skip_space(data, after + 1) :]
    before = data.rfind(b",", 0, key_start)
    others = len(places) > 1
    return (data[:before] if others else data[:key_start]) + data[end:]
