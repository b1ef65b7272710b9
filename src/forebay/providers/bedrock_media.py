"""Images, sounds and documents of OpenAI's chat as blocks of Bedrock's Converse.  Pure.

Bedrock fetches nothing from the web: what is not in the request itself must lie in S3.

Source: Amazon Bedrock API Reference, `ImageBlock`, `AudioBlock`, `DocumentBlock`.
"""

import re
from typing import Any, Final

from forebay.core.errors import InvalidValue
from forebay.providers.strict_fields import refuse

Block = dict[str, Any]
TARGET: Final = "Bedrock's Converse API"

_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+)(?:;[\w-]+=[\w.-]+)*;base64,", re.ASCII)
_IMAGES: Final = {"image/png": "png", "image/jpeg": "jpeg", "image/gif": "gif", "image/webp": "webp"}
_IMAGE_ENDINGS: Final = {"png": "png", "jpg": "jpeg", "jpeg": "jpeg", "gif": "gif", "webp": "webp"}
_SOUNDS: Final = frozenset({"mp3", "wav"})  #: that OpenAI names; Bedrock takes more
_OFFICE: Final = "application/vnd.openxmlformats-officedocument"
_DOCUMENTS: Final = {
    "application/pdf": "pdf",
    "text/csv": "csv",
    "application/msword": "doc",
    f"{_OFFICE}.wordprocessingml.document": "docx",
    "application/vnd.ms-excel": "xls",
    f"{_OFFICE}.spreadsheetml.sheet": "xlsx",
    "text/html": "html",
    "text/plain": "txt",
    "text/markdown": "md",
}
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9 ()\[\]-]+")
_BLANKS = re.compile(r" {2,}")
_NAME_MAX: Final = 180  #: of 200, with room for a number


def encode_image(url: str, where: str) -> Block:
    """The block of an image.  Raises InvalidValue on an address that Bedrock would have to fetch."""
    if url.startswith("s3://"):
        kind = _IMAGE_ENDINGS.get(url.rpartition(".")[2].lower())
        if kind is None:
            raise refuse(where, f"the name of an image in S3 must end in one of {', '.join(_IMAGE_ENDINGS)}")
        return {"image": {"format": kind, "source": {"s3Location": {"uri": url}}}}
    found = _DATA_URL.match(url)
    if found is None:
        raise refuse(
            where, f"{TARGET} fetches no images; send it as data:image/png;base64,…, or as s3://BUCKET/NAME"
        )
    if found[1] not in _IMAGES:
        raise refuse(where, f"{TARGET} takes {', '.join(_IMAGES)}, and no {found[1]}")
    return {"image": {"format": _IMAGES[found[1]], "source": {"bytes": url[found.end() :]}}}


def encode_audio(data: str, kind: str, where: str) -> Block:
    """The block of a sound, whose data is base64.  Raises InvalidValue."""
    if kind not in _SOUNDS:
        raise refuse(f"{where}.format", f"there is no format {kind!r}, but {', '.join(sorted(_SOUNDS))}")
    return {"audio": {"format": kind, "source": {"bytes": data}}}


class Documents:
    """Those of one request, each under a name of its own, as Bedrock wants them."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    def encode(self, data: str | None, filename: str | None, where: str) -> Block:
        """The block of a document.

        Args:
            data: a data URL with base64.

        Raises:
            InvalidValue: it is not in the request, or of no kind that Bedrock takes.
        """
        if data is None:
            raise InvalidValue(
                f"`{where}.file_data` is missing: {TARGET} takes files in the request alone",
                param=f"{where}.file_data",
            )
        found = _DATA_URL.match(data)
        kind = None if found is None else _DOCUMENTS.get(found[1])
        if found is None or kind is None:
            raise refuse(
                f"{where}.file_data",
                f"it must be data:TYPE;base64,… with TYPE one of {', '.join(_DOCUMENTS)}",
            )
        source = {"bytes": data[found.end() :]}
        return {"document": {"format": kind, "name": self._name(filename), "source": source}}

    def _name(self, filename: str | None) -> str:
        """What is left of a file's name in the letters that Bedrock allows; "document" without any."""
        stem = (filename or "").rpartition("/")[2]
        if "." in stem:
            stem = stem.rpartition(".")[0]
        base = _BLANKS.sub(" ", _NOT_IN_NAMES.sub(" ", stem)).strip()[:_NAME_MAX] or "document"
        name, number = base, 1
        while name in self._names:
            number += 1
            name = f"{base} {number}"
        self._names.add(name)
        return name
