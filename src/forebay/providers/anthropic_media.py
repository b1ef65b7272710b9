"""Pictures that a request in Anthropic's dialect holds in base64, and how many bytes they have.  Pure.

As `openai_media`: what counts is where they stand, which a caller's text can't feign, in the source of a
block that is no text, of a message or of what a tool brought.
"""

from typing import Final

import msgspec

from forebay.providers.json_edit import NOTHING, UNREADABLE
from forebay.providers.openai_media import OBJECTS_MAX, measure_run, read_list

_MARK: Final = b'"base64"'


class _Source(msgspec.Struct, frozen=True, gc=False):
    type: str = ""
    media_type: str = ""
    data: msgspec.Raw = NOTHING


class _Block(msgspec.Struct, frozen=True, gc=False):
    type: str = ""
    source: msgspec.Raw = NOTHING
    content: msgspec.Raw = NOTHING


class _Message(msgspec.Struct, frozen=True, gc=False):
    content: msgspec.Raw = NOTHING


class _Request(msgspec.Struct, frozen=True):
    messages: list[_Message]


_decode_request = msgspec.json.Decoder(_Request).decode
_decode_blocks = msgspec.json.Decoder(list[_Block]).decode
_decode_source = msgspec.json.Decoder(_Source).decode


def find_media(body: bytes, *, files: bool = False) -> list[int]:
    """Sizes in bytes.

    Args:
        files: also those of documents, whose text a model is given.
    """
    if _MARK not in body or body.count(b"{") > OBJECTS_MAX:
        return []
    try:
        messages = _decode_request(body).messages
    except UNREADABLE:
        return []
    kinds = {"image": "image/", "document": "application/pdf"} if files else {"image": "image/"}
    found: list[int] = []
    for message in messages:
        for block in read_list(_decode_blocks, message.content):
            held = read_list(_decode_blocks, block.content) if block.type == "tool_result" else [block]
            found += [size for each in held if (size := _measure(each, kinds.get(each.type)))]
    return found


def _measure(block: _Block, media_type: str | None) -> int:
    """Bytes of base64 in a block whose media are of this type; 0 of anything else."""
    if media_type is None or not bytes(block.source).startswith(b"{"):
        return 0
    try:
        source = _decode_source(block.source)
    except UNREADABLE:
        return 0
    if source.type != "base64" or not source.media_type.startswith(media_type):
        return 0
    return measure_run(bytes(source.data))
