"""Parts of OpenAI's chat that are no text, as Gemini has them: in the request, or by their address.  Pure."""

import re
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from forebay.providers.strict_fields import refuse

Part = dict[str, Any]
TARGET: Final = "Google's Gemini API"

_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+);base64,", re.ASCII)
_ADDRESSES: Final = ("http://", "https://", "gs://")
#: OpenAI's names of formats of sound, and Google's types of media.
_SOUNDS: Final = {"wav": "audio/wav", "mp3": "audio/mp3"}
#: By the end of an address: Google does not look at what lies there to tell its type.
_TYPES: Final = {
    "png": "image/png",
    "jpg": "image/jpeg",
    "jpeg": "image/jpeg",
    "webp": "image/webp",
    "heic": "image/heic",
    "heif": "image/heif",
    "pdf": "application/pdf",
    "txt": "text/plain",
    "mp3": "audio/mp3",
    "wav": "audio/wav",
    "flac": "audio/flac",
    "mp4": "video/mp4",
    "mov": "video/mov",
    "webm": "video/webm",
}


class Image(msgspec.Struct, frozen=True):
    url: str
    detail: str | None = None


class Sound(msgspec.Struct, frozen=True):
    data: str
    format: str


class File(msgspec.Struct, frozen=True):
    file_data: str | None = None
    file_id: str | None = None
    filename: str | None = None


def encode_image(image: Image, where: str, *, needs_type: bool) -> Part:
    """A part from an image's URL.  Raises InvalidValue."""
    return _encode_url(image.url, f"{where}.url", needs_type)


def encode_sound(sound: Sound, where: str) -> Part:
    if sound.format not in _SOUNDS:
        raise refuse(f"{where}.format", f"{TARGET} takes {' and '.join(_SOUNDS)}, not {sound.format!r}")
    return {"inlineData": {"mimeType": _SOUNDS[sound.format], "data": sound.data}}


def encode_file(file: File, where: str, *, needs_type: bool) -> Part:
    """A part from a file in the request, or from the address of one that Google can reach."""
    if file.file_data is not None:
        if _DATA_URL.match(file.file_data) is None:
            raise refuse(f"{where}.file_data", "a file is given as data:TYPE;base64,")
        return _encode_url(file.file_data, f"{where}.file_data", needs_type)
    if file.file_id is None or not file.file_id.startswith(_ADDRESSES):
        raise refuse(
            f"{where}.file_id",
            f"{TARGET} knows files by their address (https:// or gs://), or in the request",
        )
    return _encode_url(file.file_id, f"{where}.file_id", needs_type)


def _encode_url(url: str, where: str, needs_type: bool) -> Part:
    found = _DATA_URL.match(url)
    if found is not None:
        return {"inlineData": {"mimeType": found[1], "data": url[found.end() :]}}
    if not url.startswith(_ADDRESSES):
        raise refuse(where, "it begins with https://, gs://, or data:TYPE;base64,")
    try:
        name = urlsplit(url).path.rpartition("/")[2]
    except ValueError:
        raise refuse(where, "it is no address") from None
    kind = _TYPES.get(name.rpartition(".")[2].lower())
    if kind is not None:
        return {"fileData": {"mimeType": kind, "fileUri": url}}
    if needs_type:
        raise refuse(
            where,
            "Vertex AI wants to know the type of what lies there, and the address does not end in one, such "
            "as .png; send it as data:TYPE;base64,",
        )
    return {"fileData": {"fileUri": url}}
