"""Pictures and sound in base64 in a request of OpenAI's Responses, and how many bytes they have.  Pure.

As `openai_media`: what counts is where they stand, which a caller's text can't feign, in a part of an item
that is no text, of a message or of what a function gave.
"""

from typing import Final

import msgspec

from forebay.providers.json_edit import NOTHING, UNREADABLE
from forebay.providers.openai_media import OBJECTS_MAX, measure, read_list

_MARKS: Final = (b";base64,", b'"input_audio"')


class _Part(msgspec.Struct, frozen=True, gc=False):
    """Of an item: where media may stand."""

    image_url: msgspec.Raw = NOTHING
    input_audio: msgspec.Raw = NOTHING
    file_data: msgspec.Raw = NOTHING


class _Item(msgspec.Struct, frozen=True, gc=False):
    content: msgspec.Raw = NOTHING
    output: msgspec.Raw = NOTHING


class _Request(msgspec.Struct, frozen=True):
    input: list[_Item]


_decode_request = msgspec.json.Decoder(_Request).decode
_decode_parts = msgspec.json.Decoder(list[_Part]).decode


def find_media(body: bytes, *, files: bool = False) -> list[int]:
    """Sizes in bytes.

    Args:
        files: also those of files, whose text, if they have any, a model is given.
    """
    if not any(mark in body for mark in _MARKS) or body.count(b"{") > OBJECTS_MAX:
        return []
    try:
        items = _decode_request(body).input
    except UNREADABLE:
        return []
    found: list[int] = []
    for item in items:
        for part in (*read_list(_decode_parts, item.content), *read_list(_decode_parts, item.output)):
            held = [part.image_url, part.input_audio, *([part.file_data] if files else [])]
            found += [size for raw in held if raw is not NOTHING and (size := measure(bytes(raw)))]
    return found
