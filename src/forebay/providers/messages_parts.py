"""Blocks of Anthropic's messages as parts of those of OpenAI's chat.  Pure.

What is empty or blank is left out.  A mark for the cache is kept where something behind understands it
(`is_extended`).
"""

from typing import Any, NamedTuple

import msgspec

from forebay.providers.json_edit import NOTHING
from forebay.providers.strict_fields import check_known, read, read_fields, refuse

Part = dict[str, Any]
CHAT = "OpenAI's chat"

_DOCUMENT_NAME = "document.pdf"
#: `citations` of a text are the model's own; `cache_control` and `caller` change nothing of an answer.
_BLOCK_FIELDS = {
    "text": frozenset({"type", "text", "citations", "cache_control"}),
    "image": frozenset({"type", "source", "cache_control"}),
    "document": frozenset({"type", "source", "title", "context", "citations", "cache_control"}),
    "search_result": frozenset({"type", "source", "title", "content", "citations", "cache_control"}),
    "thinking": frozenset({"type", "thinking", "signature"}),
    "redacted_thinking": frozenset({"type", "data"}),
    "tool_use": frozenset({"type", "id", "name", "input", "cache_control", "caller"}),
    "tool_result": frozenset({"type", "tool_use_id", "content", "is_error", "cache_control"}),
}


class Item(NamedTuple):
    """One block of a message, not decoded yet.

    Attributes:
        kind: its type.
        where: its place in the request.
        mark: its `cache_control`, None without.
    """

    kind: str
    raw: msgspec.Raw
    where: str
    mark: msgspec.Raw | None = None


class _Citations(msgspec.Struct, frozen=True):
    enabled: bool | None = None


class _Source(msgspec.Struct, frozen=True):
    type: str
    media_type: str = ""
    data: str = ""
    url: str = ""


class _Typed(msgspec.Struct, frozen=True):
    type: str
    cache_control: msgspec.Raw = NOTHING


class _Text(msgspec.Struct, frozen=True):
    text: str


class _Image(msgspec.Struct, frozen=True):
    source: _Source


class _Document(msgspec.Struct, frozen=True):
    source: _Source
    title: str | None = None
    context: str | None = None
    citations: _Citations | None = None


class _SearchResult(msgspec.Struct, frozen=True):
    source: str
    title: str
    content: list[_Text]
    citations: _Citations | None = None


_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_string = msgspec.json.Decoder(str).decode
_decode_typed = msgspec.json.Decoder(_Typed).decode
_decode_text = msgspec.json.Decoder(_Text).decode
_decode_image = msgspec.json.Decoder(_Image).decode
_decode_document = msgspec.json.Decoder(_Document).decode
_decode_search_result = msgspec.json.Decoder(_SearchResult).decode


def read_blocks(raw: msgspec.Raw, where: str) -> list[Item]:
    """The blocks of a `content`; a text on its own is one.  Raises InvalidValue on what chat has not."""
    content = bytes(raw)
    if content in (b"", b"null"):
        return []
    if content.startswith(b'"'):
        text = read(_decode_string, raw, where)
        return [Item("text", msgspec.Raw(msgspec.json.encode({"type": "text", "text": text})), where)]
    blocks = []
    for at, item in enumerate(read(_decode_list, raw, where)):
        place = f"{where}[{at}]"
        typed = read(_decode_typed, item, place)
        known = _BLOCK_FIELDS.get(typed.type)
        if known is None:
            raise refuse(f"{place}.type", f"{CHAT}, which this model is served by, has no {typed.type!r}")
        check_known(read_fields(item, place), known, place, CHAT)
        mark = None if bytes(typed.cache_control) in (b"", b"null") else typed.cache_control
        blocks.append(Item(typed.type, item, place, mark))
    return blocks


def decode_texts(raw: msgspec.Raw, where: str, *, is_extended: bool) -> list[Part]:
    """The parts of a `content` that can be of text alone."""
    parts: list[Part] = []
    for item in read_blocks(raw, where):
        if item.kind != "text":
            raise refuse(f"{item.where}.type", f"only text can stand here, not {item.kind!r}")
        parts += decode_part(item, is_extended=is_extended)
    return parts


def join(parts: list[Part]) -> str | list[Part]:
    """A text on its own as a string, which every server takes."""
    if len(parts) == 1 and parts[0].keys() == {"type", "text"}:
        return str(parts[0]["text"])
    return parts


def decode_part(item: Item, *, is_extended: bool) -> list[Part]:
    """What a block of a user becomes: one part, several, or none where it is blank."""
    parts = _decode_block(item)
    if is_extended and parts and item.mark is not None:
        parts[-1]["cache_control"] = item.mark
    return parts


def _decode_block(item: Item) -> list[Part]:
    match item.kind:
        case "text":
            return _say(read(_decode_text, item.raw, item.where).text)
        case "image":
            source = read(_decode_image, item.raw, item.where).source
            return [{"type": "image_url", "image_url": {"url": _find_url(source, f"{item.where}.source")}}]
        case "document":
            return _decode_document_block(item.raw, item.where)
        case "search_result":
            found = read(_decode_search_result, item.raw, item.where)
            _refuse_citations(found.citations, item.where)
            texts = (found.title, found.source, *(text.text for text in found.content))
            return [part for text in texts for part in _say(text)]
        case _:
            raise refuse(f"{item.where}.type", f"{item.kind!r} can't stand here")


def _say(text: str | None) -> list[Part]:
    return [{"type": "text", "text": text}] if text and text.strip() else []


def _find_url(source: _Source, where: str) -> str:
    match source.type:
        case "url":
            return source.url
        case "base64":
            return f"data:{source.media_type};base64,{source.data}"
        case _:
            raise refuse(f"{where}.type", f"there is no {source.type!r} in {CHAT}, but url and base64")


def _decode_document_block(raw: msgspec.Raw, where: str) -> list[Part]:
    document = read(_decode_document, raw, where)
    _refuse_citations(document.citations, where)
    source = document.source
    if source.type == "text":
        return [part for text in (document.title, document.context, source.data) for part in _say(text)]
    if source.type != "base64":
        raise refuse(f"{where}.source.type", f"there is no {source.type!r} in {CHAT}, but text and base64")
    file = {
        "filename": document.title or _DOCUMENT_NAME,
        "file_data": f"data:{source.media_type};base64,{source.data}",
    }
    return [*_say(document.context), {"type": "file", "file": file}]


def _refuse_citations(citations: _Citations | None, where: str) -> None:
    if citations is not None and citations.enabled:
        raise refuse(f"{where}.citations", f"there are no citations in {CHAT}, which this model is served by")
