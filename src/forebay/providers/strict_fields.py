"""Reads JSON objects so that nothing in them is passed over: each field is mapped, refused or named as idle.

For translators between dialects, which decode what they map and must say of everything else that they can't.
Pure; knows no dialect.
"""

from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

import msgspec

from forebay.core.errors import InvalidJSON, InvalidValue
from forebay.providers.json_edit import UNREADABLE

Value = TypeVar("Value")
Fields = dict[str, msgspec.Raw]
#: Refused parameters, each with the values that ask for nothing, beside null.
Refused = Mapping[str, tuple[object, ...]]

_decode_fields = msgspec.json.Decoder(Fields).decode
_decode_any = msgspec.json.Decoder().decode
_EMPTY = frozenset((b"null", b"[]", b"{}", b'""', b"false"))


def read_body(body: bytes) -> Fields:
    """The fields of a request's body, undecoded.  Raises InvalidJSON."""
    try:
        return _decode_fields(body)
    except msgspec.ValidationError:
        raise InvalidJSON("the request body must be a JSON object") from None
    except UNREADABLE as error:
        raise InvalidJSON(f"the request body is not valid JSON: {error}") from None


def read_fields(raw: msgspec.Raw | bytes, where: str) -> Fields:
    """The fields of an object inside a request, undecoded.  Raises InvalidValue naming `where`."""
    return read(_decode_fields, raw, where)


def read(decode: Callable[[msgspec.Raw | bytes], Value], raw: msgspec.Raw | bytes, where: str) -> Value:
    """A value in its type.

    Args:
        where: its place in the request, such as `messages[2]`.

    Raises:
        InvalidValue: it is of another type; `param` is the exact place.
    """
    try:
        return decode(raw)
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at `$")
        place = where + path.rstrip("`")
        raise InvalidValue(
            f"`{place}` has the wrong type: {what[:1].lower()}{what[1:]}", param=place
        ) from None
    except UNREADABLE as error:
        raise InvalidValue(f"`{where}` can't be read: {error}", param=where) from None


def read_top(decode: Callable[[msgspec.Raw | bytes], Value], body: bytes) -> Value:
    """A request's body in its type.  Raises InvalidValue, whose `param` is the parameter itself."""
    try:
        return read(decode, body, "")
    except InvalidValue as error:  # the place begins at the top, where no name stands before the dot
        place = (error.param or "").removeprefix(".")
        raise InvalidValue(error.message.replace(f"`.{place}`", f"`{place}`"), param=place or None) from None


def check_known(fields: Fields, known: Collection[str], where: str, dialect: str) -> None:
    """Raises InvalidValue on a field that is not known, unless it is empty."""
    for name, value in fields.items():
        if name not in known and bytes(value) not in _EMPTY:
            place = f"{where}.{name}" if where else name
            raise InvalidValue(
                f"`{place}` has no counterpart in {dialect}, which this model is served by; leave it out",
                param=place,
            )


def check_refused(fields: Fields, refused: Refused, where: str, dialect: str) -> None:
    """Raises InvalidValue on the first refused parameter whose value asks for anything."""
    for name, idle in refused.items():
        raw = fields.get(name)
        if raw is None or bytes(raw) == b"null":
            continue
        place = f"{where}.{name}" if where else name
        if not any(
            value == wanted for wanted in idle if (value := read(_decode_any, raw, place)) is not None
        ):
            allowed = " or ".join(msgspec.json.encode(value).decode() for value in idle)
            mend = f"leave it out, or say {allowed}" if idle else "leave it out"
            raise InvalidValue(
                f"`{place}` has no counterpart in {dialect}, which this model is served by; {mend}",
                param=place,
            )


def refuse(where: str, what: str) -> InvalidValue:
    """The error for a value that the other dialect has no word for."""
    return InvalidValue(f"`{where}`: {what}", param=where)
