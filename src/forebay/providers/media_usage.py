"""What answers of OpenAI's audio and images cost: tokens where they tell them, else seconds or pieces.  Pure.

The units are `audio_seconds` (of sound that was heard, whole seconds, rounded up), `characters` (of a text
that was spoken) and `images` (that were made).  What an answer does not tell is never taken for 0: whoever
asks gets None, and what its request lets guess is the caller's matter.
"""

import math
from typing import Final

import msgspec

from forebay.core.events import Tokens
from forebay.core.routes import AUDIO_READERS, Endpoint
from forebay.providers.json_edit import NOTHING, UNREADABLE
from forebay.providers.openai_usage import COUNT_MAX, Count, part, read_usage

Units = tuple[tuple[str, int], ...]
AUDIO_SECONDS: Final = "audio_seconds"
CHARACTERS: Final = "characters"
IMAGES: Final = "images"
#: What answers of an endpoint count by themselves.
UNIT_OF: Final = {
    **dict.fromkeys(AUDIO_READERS, AUDIO_SECONDS),
    Endpoint.SPEECH: CHARACTERS,
    **dict.fromkeys((Endpoint.IMAGES, Endpoint.IMAGE_EDITS, Endpoint.IMAGE_VARIATIONS), IMAGES),
}


class _InputDetails(msgspec.Struct, frozen=True):
    """Texts and pictures are no class of their own: they are what is left."""

    audio_tokens: Count | None = None
    cached_tokens: Count | None = None


class _OutputDetails(msgspec.Struct, frozen=True):
    audio_tokens: Count | None = None


class _Usage(msgspec.Struct, frozen=True):
    input_tokens: Count | None = None
    output_tokens: Count | None = None
    input_token_details: _InputDetails | None = None  # of transcriptions
    input_tokens_details: _InputDetails | None = None  # of images
    output_tokens_details: _OutputDetails | None = None
    seconds: msgspec.Raw = NOTHING


class _Answer(msgspec.Struct, frozen=True):
    usage: msgspec.Raw = NOTHING
    duration: msgspec.Raw = NOTHING
    data: list[msgspec.Raw] | None = None


class Told(msgspec.Struct, frozen=True):
    """What one answer, or one event of it, tells; None where it tells nothing.

    Attributes:
        tokens: all unknown where usage says that seconds are counted instead.
    """

    tokens: Tokens | None = None
    seconds: int | None = None
    images: int | None = None


TOLD_NOTHING: Final = Told()
NOT_BY_TOKENS: Final = Tokens()
_decode_answer = msgspec.json.Decoder(_Answer).decode
_decode_usage = msgspec.json.Decoder(_Usage).decode
_decode_number = msgspec.json.Decoder(float, strict=False).decode
_SRT_END: Final = b"-->"


def read_told(body: bytes, endpoint: Endpoint) -> Told:
    """What a whole answer tells, or an event of a stream."""
    if not body.startswith(b"{"):
        return Told(seconds=_read_last_cue(body)) if endpoint in AUDIO_READERS else TOLD_NOTHING
    try:
        answer = _decode_answer(body)
    except UNREADABLE:
        return TOLD_NOTHING
    tokens, seconds = _read_usage(answer.usage, endpoint)
    if endpoint in AUDIO_READERS:
        return Told(tokens=tokens, seconds=_read_seconds(answer.duration) if seconds is None else seconds)
    return Told(tokens=tokens, images=None if answer.data is None else len(answer.data))


def list_units(told: Told) -> Units:
    pairs = ((AUDIO_SECONDS, told.seconds), (IMAGES, told.images))
    return tuple((name, count) for name, count in pairs if count is not None)


def _read_usage(raw: msgspec.Raw, endpoint: Endpoint) -> tuple[Tokens | None, int | None]:
    """Tokens, and seconds where those are what is counted instead."""
    try:
        usage = _decode_usage(raw)
    except UNREADABLE:
        return None, None
    if usage.input_tokens is None and usage.output_tokens is None:
        seconds = _read_seconds(usage.seconds)
        # Without either: of engines that count as in chats.
        return (read_usage(raw) if seconds is None else NOT_BY_TOKENS), seconds
    into = usage.input_token_details or usage.input_tokens_details or _InputDetails()
    out = (usage.output_tokens_details or _OutputDetails()).audio_tokens
    if endpoint is Endpoint.SPEECH and out is None:
        out = usage.output_tokens
    return part(
        usage.input_tokens,
        into.cached_tokens,
        into.audio_tokens,
        None,
        usage.output_tokens,
        None,
        out,
        False,
    ), None


def _read_seconds(raw: msgspec.Raw) -> int | None:
    """Whole seconds of a number; older servers write it as a text."""
    try:
        seconds = _decode_number(raw)
    except UNREADABLE:
        return None
    return math.ceil(seconds) if 0 <= seconds <= COUNT_MAX else None


def _read_last_cue(text: bytes) -> int | None:
    """Seconds until the end of the last cue of subtitles (SRT, WebVTT); None where there is none."""
    at = text.rfind(_SRT_END)
    if at < 0:
        return None
    words = text[at + len(_SRT_END) : at + 64].split()
    try:
        parts = [float(word) for word in words[0].replace(b",", b".").split(b":")] if words else []
    except ValueError:
        return None
    if not 2 <= len(parts) <= 3:
        return None
    seconds = sum(value * scale for value, scale in zip(reversed(parts), (1, 60, 3600), strict=False))
    return math.ceil(seconds) if 0 <= seconds <= COUNT_MAX else None
