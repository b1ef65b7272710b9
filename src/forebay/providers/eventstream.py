"""The framing of AWS's event streams, `application/vnd.amazon.eventstream`.  Pure.

A message is a prelude (its whole length, the length of its headers, and the CRC of both), headers, a payload,
and the CRC of all that.  Source: Amazon's documentation of the event stream encoding, and the specification
in Smithy, which has all ten types of header values.  This module knows no service, and never looks into a
payload.
"""

import struct
import zlib
from collections.abc import Iterator
from typing import Final

import msgspec

from forebay.core.errors import UpstreamProtocol
from forebay.net.sse import EventTooLarge

MEDIA_TYPE: Final = "application/vnd.amazon.eventstream"

_PRELUDE = struct.Struct(">III")
_CRC = struct.Struct(">I")
_LENGTH = struct.Struct(">H")
_FRAME: Final = _PRELUDE.size + _CRC.size  #: of a message without headers and payload
_STRING: Final = 7
_BYTES: Final = 6
#: Bytes of a header's value by its type, where the type says it: two booleans, whole numbers of 1, 2, 4 and 8
#: bytes, a time, a UUID.
_FIXED: Final = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}


class Message(msgspec.Struct, frozen=True):
    """One message.

    Attributes:
        headers: those whose values are strings; others have been checked and passed over.
    """

    headers: dict[str, str]
    payload: bytes


class EventStreamDecoder:
    """Cuts one stream into messages, the same ones in any split of it.

        decoder = EventStreamDecoder(message_max_bytes=1 << 20)
        decoder.feed(data)  # [Message(headers={":event-type": "messageStart"}, payload=b"{...}")]

    Each byte is looked at once.  It is of no use after an error, which is raised as soon as the bytes that
    show it are here; messages before it in the same piece are lost then.
    """

    __slots__ = ("_held", "_message_max_bytes", "_needed")

    def __init__(self, message_max_bytes: int) -> None:
        self._message_max_bytes = message_max_bytes
        self._held = bytearray()
        self._needed = _PRELUDE.size  # bytes until something can be said

    @property
    def holds_part(self) -> bool:
        """Whether a message has begun that is not whole."""
        return bool(self._held)

    def feed(self, data: bytes) -> list[Message]:
        """The messages that are whole now.

        Raises:
            UpstreamProtocol: a CRC or a length is wrong, or a header can't be read.
            EventTooLarge: a message is longer than may be held.
        """
        self._held += data
        messages = []
        at = 0
        while len(self._held) - at >= self._needed:
            if self._needed == _PRELUDE.size:
                self._needed = self._read_prelude(at)
                continue
            messages.append(_decode_message(bytes(memoryview(self._held)[at : at + self._needed])))
            at += self._needed
            self._needed = _PRELUDE.size
        del self._held[:at]
        return messages

    def _read_prelude(self, at: int) -> int:
        """The length of the message that begins at a place."""
        whole, headers, crc = _PRELUDE.unpack_from(self._held, at)
        if zlib.crc32(self._held[at : at + 8]) != crc:
            raise UpstreamProtocol(
                "the target's event stream is damaged: a prelude does not fit its checksum"
            )
        if whole < _FRAME + headers:
            raise UpstreamProtocol(
                "the target's event stream is damaged: a message is shorter than its parts"
            )
        if whole > self._message_max_bytes:
            raise EventTooLarge(
                f"The upstream sent an event of {whole} bytes; at most {self._message_max_bytes} are "
                "accepted (gateway.event_max_bytes)."
            )
        return int(whole)


class EventStreamDocuments:
    """The payloads of a stream alone; `forebay.core.translation.DocumentSplitter`."""

    __slots__ = ("_decoder",)

    def __init__(self, message_max_bytes: int) -> None:
        self._decoder = EventStreamDecoder(message_max_bytes)

    def feed(self, data: bytes) -> list[bytes]:
        return [message.payload for message in self._decoder.feed(data)]

    def finish(self) -> list[bytes]:
        return []  # half a message has no meaning


def _decode_message(raw: bytes) -> Message:
    whole, headers_size, _ = _PRELUDE.unpack_from(raw)
    end = whole - _CRC.size
    if zlib.crc32(memoryview(raw)[:end]) != _CRC.unpack_from(raw, end)[0]:
        raise UpstreamProtocol("the target's event stream is damaged: a message does not fit its checksum")
    payload_at = _PRELUDE.size + headers_size
    return Message(dict(_decode_headers(raw[_PRELUDE.size : payload_at])), raw[payload_at:end])


def _decode_headers(raw: bytes) -> Iterator[tuple[str, str]]:
    at = 0
    try:
        while at < len(raw):
            name, at = _take(raw, at + 1, raw[at])
            kind, at = raw[at], at + 1
            if kind in _FIXED:
                _, at = _take(raw, at, _FIXED[kind])
            elif kind in (_BYTES, _STRING):
                value, at = _take(raw, at + _LENGTH.size, _LENGTH.unpack_from(raw, at)[0])
                if kind == _STRING:
                    yield name.decode(), value.decode()
            else:
                raise ValueError("no such type")
    except (IndexError, ValueError, struct.error):
        raise UpstreamProtocol("the target's event stream is damaged: a header can't be read") from None


def _take(raw: bytes, at: int, size: int) -> tuple[bytes, int]:
    end = at + size
    if end > len(raw):
        raise ValueError("cut")
    return raw[at:end], end


def encode_message(headers: dict[str, str], payload: bytes) -> bytes:
    """One message on the wire, for servers."""
    head = b""
    for name, value in headers.items():
        spelled, said = name.encode(), value.encode()
        head += bytes((len(spelled),)) + spelled + bytes((_STRING,)) + _LENGTH.pack(len(said)) + said
    lengths = struct.pack(">II", _FRAME + len(head) + len(payload), len(head))
    body = lengths + _CRC.pack(zlib.crc32(lengths)) + head + payload
    return body + _CRC.pack(zlib.crc32(body))
