"""Reads a form (`multipart/form-data`, RFC 7578) while it comes, whatever the pieces.  Pure.

For forms whose file is too large to be held: it hands the bytes of each part on as they come and holds no
more than a boundary's length of them.  A form that two readers may read in two ways is refused.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote_to_bytes

from forebay.core.errors import InvalidValue

HEAD_MAX_BYTES: Final = 16 * 1024  #: of one part
PARTS_MAX: Final = 16
EPILOGUE_MAX_BYTES: Final = 1024
_BOUNDARY: Final = re.compile(r"[0-9A-Za-z'()+_,./:=? -]{0,69}[0-9A-Za-z'()+_,./:=?-]")
_PARAMETER: Final = re.compile(r';\s*([A-Za-z0-9*_-]+)=(?:"((?:[^"\\]|\\.)*)"|([^\s";]+))')
_END: Final = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class PartBegin:
    name: str
    filename: str | None  #: None for a plain field


@dataclass(frozen=True, slots=True)
class PartData:
    data: bytes


@dataclass(frozen=True, slots=True)
class PartEnd:
    pass


Event = PartBegin | PartData | PartEnd


def read_boundary(content_type: str) -> bytes:
    """Raises InvalidValue where it is no form."""
    kind, _, _ = content_type.partition(";")
    if kind.strip().lower() != "multipart/form-data":
        raise InvalidValue("send the file as a form: content-type multipart/form-data")
    for name, quoted, plain in _PARAMETER.findall(content_type):
        if name.lower() == "boundary" and _BOUNDARY.fullmatch(quoted or plain):
            boundary: str = quoted or plain
            return boundary.encode("latin-1")
    raise InvalidValue("the form has no boundary of 1 to 70 characters in its content-type")


class FormReader:
    """The parts of one form, in their order.

    Args:
        boundary: as `read_boundary` gives it.
    """

    def __init__(self, boundary: bytes) -> None:
        self._delimiter = b"\r\n--" + boundary
        self._held = bytearray(b"\r\n")  # so that the first boundary is as all others
        self._step = self._find_first
        self._parts = 0
        self._epilogue = 0
        self._is_whole = False

    def feed(self, data: bytes) -> Iterator[Event]:
        """Raises InvalidValue for what is no form."""
        self._held += data
        while (events := self._step()) is not None:
            yield from events

    def finish(self) -> None:
        """Nothing more comes.  Raises InvalidValue where the form has no end."""
        if not self._is_whole:
            raise InvalidValue("the form breaks off: its last boundary is missing")

    # Each step returns what it found, or None where it needs more bytes.

    def _find_first(self) -> tuple[Event, ...] | None:
        if len(self._held) > HEAD_MAX_BYTES and not self._held.startswith(self._delimiter):
            raise InvalidValue("the form does not begin with its boundary")
        at = self._held.find(self._delimiter)
        if at < 0:
            return None
        if at:
            raise InvalidValue("something stands before the form's first boundary")
        del self._held[: len(self._delimiter)]
        self._step = self._read_delimiter_end
        return ()

    def _read_delimiter_end(self) -> tuple[Event, ...] | None:
        if len(self._held) < 2:
            return None
        mark = bytes(self._held[:2])
        del self._held[:2]
        if mark == b"--":
            self._is_whole, self._step = True, self._skip_epilogue
        elif mark == b"\r\n":
            self._step = self._read_head
        else:
            raise InvalidValue("a boundary of the form is followed by other bytes than it may be")
        return ()

    def _read_head(self) -> tuple[Event, ...] | None:
        at = self._held.find(_END)
        if at > HEAD_MAX_BYTES or (at < 0 and len(self._held) > HEAD_MAX_BYTES):
            raise InvalidValue(f"a part of the form has more than {HEAD_MAX_BYTES} bytes of headers")
        if at < 0:
            return None
        head = bytes(self._held[:at])
        del self._held[: at + len(_END)]
        self._parts += 1
        if self._parts > PARTS_MAX:
            raise InvalidValue(f"the form has more than {PARTS_MAX} parts")
        begin = _read_part_head(head)
        self._step = self._read_body
        return (begin,)

    def _read_body(self) -> tuple[Event, ...] | None:
        at = self._held.find(self._delimiter)
        if at >= 0:
            data = bytes(self._held[:at])
            del self._held[: at + len(self._delimiter)]
            self._step = self._read_delimiter_end
            return (PartData(data), PartEnd()) if data else (PartEnd(),)
        size = len(self._held) - len(self._delimiter) + 1  # the rest may be the begin of a boundary
        if size <= 0:
            return None
        data = bytes(self._held[:size])
        del self._held[:size]
        return (PartData(data),)

    def _skip_epilogue(self) -> tuple[Event, ...] | None:
        self._epilogue += len(self._held)
        if self._held.strip() or self._epilogue > EPILOGUE_MAX_BYTES:
            raise InvalidValue("something stands behind the form's last boundary")
        self._held.clear()
        return None


def _read_part_head(head: bytes) -> PartBegin:
    lines = head.decode("utf-8", "replace").split("\r\n")
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip().lower() != "content-disposition":
            continue
        found = {key.lower(): _unquote(quoted) or plain for key, quoted, plain in _PARAMETER.findall(value)}
        if value.partition(";")[0].strip().lower() == "form-data" and found.get("name"):
            filename = found.get("filename")
            if filename is None and "filename*" in found:
                filename = unquote_to_bytes(found["filename*"].rpartition("'")[2]).decode("utf-8", "replace")
            return PartBegin(found["name"], filename)
    raise InvalidValue("a part of the form has no name")


def _unquote(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)
