"""Reads forms (`multipart/form-data`, RFC 7578) where they lie: it finds the fields, copies no file.  Pure.

It is stricter than a server has to be.  A target reads the same bytes with a parser of its own, and has to
find the same model in them: what two parsers may read in two ways (a field that stands twice, a folded
header, a boundary within a part) is refused with words that say so.  It must never change a byte.
"""

import re
from typing import Final

import msgspec

from forebay.core.errors import InvalidValue, MissingField

FORM_TYPE: Final = b"multipart/form-data"
BOUNDARY_MAX_BYTES: Final = 70  #: RFC 2046
PARTS_MAX: Final = 1000
HEAD_MAX_BYTES: Final = 16 * 1024  #: of one part
VALUE_MAX_BYTES: Final = 1024  #: of a field that is read here
_END_MAX_BYTES: Final = 1024  #: blank, behind the last boundary
_PLAIN_ENCODINGS: Final = frozenset((b"binary", b"8bit", b"7bit"))

_TOKEN: Final = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_PARAMETER: Final = re.compile(
    rb";[ \t]*(%b)=(?:\"((?:[^\"\\\x00-\x08\x0a-\x1f\x7f]|\\[^\x00-\x08\x0a-\x1f\x7f])*)\"|([^\s\";]+))[ \t]*"
    % _TOKEN
)
_BOUNDARY: Final = re.compile(rb"[0-9A-Za-z'()+_,./:=? -]*[0-9A-Za-z'()+_,./:=?-]")
_ESCAPED: Final = re.compile(rb"\\(.)", re.DOTALL)


class Part(msgspec.Struct, frozen=True):
    """One field, and where its value lies in the body."""

    name: str
    start: int
    end: int
    is_file: bool
    is_encoded: bool = False  #: its bytes are not its value, but base64 or the like

    @property
    def size(self) -> int:
        return self.end - self.start


class Form:
    """The fields of one body, in their order.

    Args:
        body: all of it.
        content_type: the header.

    Raises:
        InvalidValue: it is no form that every reader would read alike.
    """

    __slots__ = ("_body", "parts")

    def __init__(self, body: bytes, content_type: bytes) -> None:
        self._body = body
        self.parts = _read_parts(body, read_boundary(content_type))

    def find(self, name: str) -> Part | None:
        """The field of this name, None where there is none.  Raises InvalidValue on two, and on a file."""
        found = [part for part in self.parts if part.name == name]
        if not found:
            return None
        if len(found) > 1:
            raise InvalidValue(f"`{name}` stands {len(found)} times in the form; send it once", param=name)
        part = found[0]
        if part.is_file or part.is_encoded:
            what = "a file" if part.is_file else "encoded (`content-transfer-encoding`)"
            raise InvalidValue(f"`{name}` is {what}; send it as a plain field of the form", param=name)
        if part.size > VALUE_MAX_BYTES:
            raise InvalidValue(f"`{name}` is longer than {VALUE_MAX_BYTES} bytes", param=name)
        return part

    def read(self, name: str) -> str:
        """The text of a field, empty where there is none; raises as `find`, and on what is no text."""
        part = self.find(name)
        return "" if part is None else self.decode(part)

    def decode(self, part: Part) -> str:
        try:
            return self._body[part.start : part.end].decode()
        except UnicodeDecodeError:
            raise InvalidValue(f"`{part.name}` is not text in UTF-8", param=part.name) from None

    def require(self, name: str, mend: str) -> tuple[Part, str]:
        """A field that has to be there, and its text; raises as `read`, and MissingField.

        Args:
            mend: what to do where it is missing.
        """
        part = self.find(name)
        if part is None:
            raise MissingField(f"the form has no field `{name}`; {mend}", param=name)
        return part, self.decode(part)


def read_boundary(content_type: bytes) -> bytes:
    """What separates the parts, as the header `content-type` says.  Raises InvalidValue where it does not."""
    kind, parameters = _split_header(content_type)
    if kind != FORM_TYPE:
        told = kind.decode("latin-1")[:100] or "nothing"
        raise InvalidValue(
            f"this path takes a form: send it as `multipart/form-data; boundary=…`, not as {told} "
            "(header `content-type`)"
        )
    if parameters is None or "boundary" not in parameters:
        raise InvalidValue(
            "the header `content-type` of a form has to name its `boundary` once, in plain form"
        )
    boundary = parameters["boundary"]
    if len(boundary) > BOUNDARY_MAX_BYTES or _BOUNDARY.fullmatch(boundary) is None:
        raise InvalidValue(
            f"the `boundary` in the header `content-type` has to be 1 to {BOUNDARY_MAX_BYTES} letters, "
            "digits and signs as RFC 2046 has them"
        )
    return boundary


def _split_header(value: bytes) -> tuple[bytes, dict[str, bytes] | None]:
    """The word before a header's parameters, and these; None where they can be read in two ways."""
    word, semicolon, _ = value.partition(b";")
    kind = word.strip(b" \t").lower()
    parameters: dict[str, bytes] = {}
    rest = value.rstrip(b" \t;")
    at = len(word)
    while semicolon and at < len(rest):
        found = _PARAMETER.match(rest, at)
        if found is None:
            return kind, None
        name = found[1].decode().lower()
        if name in parameters:
            return kind, None
        quoted = found[2]
        parameters[name] = found[3] if quoted is None else _ESCAPED.sub(rb"\1", quoted)
        at = found.end()
    return kind, parameters


def _read_parts(body: bytes, boundary: bytes) -> list[Part]:
    delimiter = b"\r\n--" + boundary
    at = 2 if body.startswith(b"\r\n") else 0
    if not body.startswith(delimiter[2:], at):
        raise _explain("does not begin with the boundary that its header `content-type` names")
    at += len(delimiter) - 2
    parts: list[Part] = []
    while (mark := body[at : at + 2]) != b"--":
        if mark != b"\r\n":
            raise _explain(
                "has a boundary that is not followed by a line break: it stands within a part, or is cut"
            )
        if len(parts) == PARTS_MAX:
            raise _explain(f"has more than {PARTS_MAX} parts")
        head_end = body.find(b"\r\n\r\n", at, at + HEAD_MAX_BYTES)
        if head_end < 0:
            raise _explain(f"has a part whose headers do not end within {HEAD_MAX_BYTES} bytes")
        start = head_end + 4
        end = body.find(delimiter, start)
        if end < 0 or body.startswith(delimiter[2:], start):
            raise _explain("ends in the middle of a part: its last boundary is missing")
        # Some readers take a bare CR or LF for a line break: to them such a part ends in its middle.
        if any(body.find(mark + delimiter[2:], start, end) >= 0 for mark in (b"\n", b"\r")):
            raise _explain("has its boundary at the start of a line within a part, behind a bare CR or LF")
        parts.append(_read_head(body[at + 2 : head_end], start, end))
        at = end + len(delimiter)
    if len(body) - at > _END_MAX_BYTES or body[at + 2 :].strip():
        raise _explain("goes on behind its last boundary")
    return parts


def _read_head(head: bytes, start: int, end: int) -> Part:
    disposition: bytes | None = None
    is_encoded = False
    for line in head.split(b"\r\n"):
        name, colon, value = line.partition(b":")
        lower = name.lower()
        if not colon or not re.fullmatch(_TOKEN, name) or b"\r" in value or b"\n" in value or b"\0" in value:
            raise _explain("has a part with a header that can't be read")
        if lower == b"content-disposition":
            if disposition is not None:
                raise _explain("has a part with two headers `content-disposition`")
            disposition = value
        elif lower == b"content-transfer-encoding":
            is_encoded = value.strip().lower() not in _PLAIN_ENCODINGS
    kind, parameters = _split_header(disposition or b"")
    named = b"" if parameters is None else parameters.get("name", b"")
    if kind != b"form-data" or not named or parameters is None or "name*" in parameters:
        raise _explain("has a part whose header `content-disposition` does not plainly name a field")
    if b'"' in named or b"\\" in named or b";" in named:
        raise _explain("has a field with a quote, a backslash or a semicolon in its name")
    try:
        field = named.decode()
    except UnicodeDecodeError:
        raise _explain("has a part whose name is not text in UTF-8") from None
    is_file = "filename" in parameters or "filename*" in parameters
    return Part(field, start, end, is_file, is_encoded)


def _explain(what: str) -> InvalidValue:
    return InvalidValue(
        f"the form {what}; send it as RFC 7578 has it, as HTTP clients write it by themselves"
    )
