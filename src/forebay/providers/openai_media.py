"""Pictures and sound that a chat's request holds in base64, and how many bytes they have.  Pure.

What counts is where they stand, which a caller's text can't feign: in a part of a message that is no text.
The same letters in a text, a tool or a field that nobody knows are text to whoever counts them.
"""

from collections.abc import Callable
from typing import Final, Protocol, TypeVar

import msgspec

from forebay.providers.json_edit import NOTHING, UNREADABLE

#: Of a body with more, also in its texts, none is looked for: each object that is read takes its time.
OBJECTS_MAX: Final = 10_000
_MARKS: Final = (b";base64,", b'"input_audio"')
_MARK: Final = b";base64,"
#: Of both kinds of base64, with its escapes in JSON: `\/`, and `\n` where lines are broken.
_ALPHABET: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=-_\\"


Item = TypeVar("Item")


class MediaFinder(Protocol):
    """Sizes of the media in a request's body; each dialect has its own."""

    def __call__(self, body: bytes, *, files: bool = False) -> list[int]: ...


class _Part(msgspec.Struct, frozen=True, gc=False):
    """Of a message: where media may stand."""

    image_url: msgspec.Raw = NOTHING
    input_audio: msgspec.Raw = NOTHING
    audio_url: msgspec.Raw = NOTHING
    video_url: msgspec.Raw = NOTHING
    file: msgspec.Raw = NOTHING


class _Message(msgspec.Struct, frozen=True, gc=False):
    content: msgspec.Raw = NOTHING


class _Chat(msgspec.Struct, frozen=True):
    messages: list[_Message]


class _Held(msgspec.Struct, frozen=True, gc=False):
    url: msgspec.Raw = NOTHING
    data: msgspec.Raw = NOTHING
    file_data: msgspec.Raw = NOTHING


_decode_chat = msgspec.json.Decoder(_Chat).decode
_decode_parts = msgspec.json.Decoder(list[_Part]).decode
_decode_held = msgspec.json.Decoder(_Held).decode


def find_media(body: bytes, *, files: bool = False) -> list[int]:
    """Sizes in bytes.

    Args:
        files: also those of files, whose text, if they have any, a model is given.
    """
    if not any(mark in body for mark in _MARKS) or body.count(b"{") > OBJECTS_MAX:
        return []
    try:
        messages = _decode_chat(body).messages
    except UNREADABLE:
        return []
    found: list[int] = []
    for message in messages:
        for part in read_list(_decode_parts, message.content):
            held = [part.image_url, part.input_audio, part.audio_url, part.video_url]
            if files:
                held.append(part.file)
            found += [size for raw in held if raw is not NOTHING and (size := measure(bytes(raw)))]
    return found


def read_list(decode: Callable[[msgspec.Raw], list[Item]], raw: msgspec.Raw) -> list[Item]:
    """Nothing where the content is a text, or not what it should be."""
    if not bytes(raw).startswith(b"["):
        return []
    try:
        return decode(raw)
    except UNREADABLE:
        return []


def measure(held: bytes) -> int:
    """Bytes of base64 in a string, or in the field of an object that has it; 0 of anything else."""
    if held.startswith(b"{"):
        try:
            fields = _decode_held(held)
        except UNREADABLE:
            return 0
        held = bytes(fields.url) or bytes(fields.data) or bytes(fields.file_data)
    return measure_run(held)


def measure_run(held: bytes) -> int:
    """Bytes of base64 in a string of JSON, which may begin as a data URL; 0 of anything else."""
    if not held.startswith(b'"'):
        return 0
    at = held.find(_MARK)
    run = held[1 if at < 0 else at + len(_MARK) : -1]
    return 0 if run.translate(None, _ALPHABET) else len(run)
