"""A request's `metadata` as tags for its record, where it is as OpenAI has it.  Pure.

Anything else is passed through like every other field and is no tag: the target decides what it makes of it.
"""

from typing import Annotated

import msgspec

from forebay.providers.json_edit import UNREADABLE

TAGS_MAX = 16
NAME_MAX = 64  #: characters
VALUE_MAX = 512
#: What tags of that size can come to in JSON, each character escaped and some blanks between.
BYTES_MAX = 64 * 1024

_Name = Annotated[str, msgspec.Meta(max_length=NAME_MAX)]
_Value = Annotated[str, msgspec.Meta(max_length=VALUE_MAX)]
_decode = msgspec.json.Decoder(Annotated[dict[_Name, _Value], msgspec.Meta(max_length=TAGS_MAX)]).decode


def read_tags(metadata: msgspec.Raw) -> tuple[tuple[str, str], ...]:
    """Names and values in the order of the request; nothing where one is no text or too long, or they are too
    many."""
    if len(memoryview(metadata)) > BYTES_MAX:
        return ()
    try:
        tags = tuple(_decode(metadata).items())
    except UNREADABLE:
        return ()
    # No database takes a NUL in a text.
    return () if any("\0" in text for tag in tags for text in tag) else tags
