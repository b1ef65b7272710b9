"""Messages of Anthropic's dialect as those of OpenAI's chat.  Pure.

The results of tools become messages of their own, before what else the user says in the same turn.  What is
empty or blank is left out.  Thinking that was signed goes along only where something behind understands it
(`keeps_thinking`): OpenAI's API refuses fields that it does not know.  Thinking without a signature came from
a server of OpenAI's dialect, by way of `messages_answer`, and goes back as `reasoning_content`.
"""

from typing import Any

import msgspec

from forebay.providers.json_edit import NOTHING
from forebay.providers.strict_fields import check_known, read, read_fields, refuse

Message = dict[str, Any]
Part = dict[str, Any]
CHAT = "OpenAI's chat"

_DOCUMENT_NAME = "document.pdf"
_MESSAGE_FIELDS = frozenset({"role", "content"})
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


class _Citations(msgspec.Struct, frozen=True):
    enabled: bool | None = None


class _Source(msgspec.Struct, frozen=True):
    type: str
    media_type: str = ""
    data: str = ""
    url: str = ""


class _Typed(msgspec.Struct, frozen=True):
    type: str


class _Message(msgspec.Struct, frozen=True):
    role: str
    content: msgspec.Raw = NOTHING


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


class _Thinking(msgspec.Struct, frozen=True):
    thinking: str = ""
    signature: str = ""
    data: str = ""


class _Call(msgspec.Struct, frozen=True):
    id: str
    name: str
    input: msgspec.Raw


class _Result(msgspec.Struct, frozen=True):
    tool_use_id: str
    content: msgspec.Raw = NOTHING
    is_error: bool | None = None


_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_text = msgspec.json.Decoder(str).decode
_decode_message = msgspec.json.Decoder(_Message).decode
_decode_typed = msgspec.json.Decoder(_Typed).decode
_decode_text_block = msgspec.json.Decoder(_Text).decode
_decode_image = msgspec.json.Decoder(_Image).decode
_decode_document = msgspec.json.Decoder(_Document).decode
_decode_search_result = msgspec.json.Decoder(_SearchResult).decode
_decode_thinking = msgspec.json.Decoder(_Thinking).decode
_decode_call = msgspec.json.Decoder(_Call).decode
_decode_result = msgspec.json.Decoder(_Result).decode
_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def decode_system(raw: msgspec.Raw) -> list[Message]:
    """The system prompt as a message, or none where it says nothing."""
    parts = _read_texts(raw, "system")
    return [{"role": "system", "content": _join(parts)}] if parts else []


def decode_messages(raw: msgspec.Raw, *, keeps_thinking: bool) -> list[Message]:
    """The messages of a request.  Raises InvalidValue, with `param`."""
    messages: list[Message] = []
    for at, item in enumerate(read(_decode_list, raw, "messages")):
        where = f"messages[{at}]"
        check_known(read_fields(item, where), _MESSAGE_FIELDS, where, CHAT)
        message = read(_decode_message, item, where)
        match message.role:
            case "user":
                messages += _decode_user(message.content, f"{where}.content")
            case "assistant":
                messages += _decode_assistant(message.content, f"{where}.content", keeps_thinking)
            case "system":
                parts = _read_texts(message.content, f"{where}.content")
                messages += [{"role": "system", "content": _join(parts)}] if parts else []
            case _:
                raise refuse(
                    f"{where}.role", f"there is no role {message.role!r}; there are user and assistant"
                )
    if not messages:
        raise refuse("messages", "none of them has any content for the model; there must be one")
    return messages


def _read_blocks(raw: msgspec.Raw, where: str) -> list[tuple[str, msgspec.Raw, str]]:
    """(type, block, place) of each; a text on its own is one block."""
    content = bytes(raw)
    if content in (b"", b"null"):
        return []
    if content.startswith(b'"'):
        text = read(_decode_text, raw, where)
        return [("text", msgspec.Raw(msgspec.json.encode({"type": "text", "text": text})), where)]
    blocks = []
    for at, item in enumerate(read(_decode_list, raw, where)):
        place = f"{where}[{at}]"
        kind = read(_decode_typed, item, place).type
        fields = _BLOCK_FIELDS.get(kind)
        if fields is None:
            raise refuse(f"{place}.type", f"{CHAT}, which this model is served by, has no {kind!r}")
        check_known(read_fields(item, place), fields, place, CHAT)
        blocks.append((kind, item, place))
    return blocks


def _read_texts(raw: msgspec.Raw, where: str) -> list[Part]:
    parts: list[Part] = []
    for kind, item, place in _read_blocks(raw, where):
        if kind != "text":
            raise refuse(f"{place}.type", f"only text can stand here, not {kind!r}")
        parts += _say(read(_decode_text_block, item, place).text)
    return parts


def _join(parts: list[Part]) -> str | list[Part]:
    """A text on its own as a string, which every server takes."""
    if len(parts) == 1 and parts[0]["type"] == "text":
        return str(parts[0]["text"])
    return parts


def _say(text: str | None) -> list[Part]:
    return [{"type": "text", "text": text}] if text and text.strip() else []


# --- users --------------------------------------------------------------------------------------------------


def _decode_user(raw: msgspec.Raw, where: str) -> list[Message]:
    """The results of tools as a message each, then the rest, with the images of results first."""
    results: list[Message] = []
    shown: list[Part] = []
    said: list[Part] = []
    for kind, item, place in _read_blocks(raw, where):
        if kind == "tool_result":
            result, images = _decode_result_block(item, place)
            results.append(result)
            shown += images
        else:
            said += _decode_part(kind, item, place)
    parts = shown + said
    return results + ([{"role": "user", "content": _join(parts)}] if parts else [])


def _decode_result_block(item: msgspec.Raw, where: str) -> tuple[Message, list[Part]]:
    """The message of a tool, which can only be of text, and what must go into one of the user."""
    result = read(_decode_result, item, where)
    texts: list[Part] = []
    others: list[Part] = []
    for kind, block, place in _read_blocks(result.content, f"{where}.content"):
        for part in _decode_part(kind, block, place):
            (texts if part["type"] == "text" else others).append(part)
    content = _join(texts) if texts else ""
    return {"role": "tool", "tool_call_id": result.tool_use_id, "content": content}, others


def _decode_part(kind: str, item: msgspec.Raw, where: str) -> list[Part]:
    match kind:
        case "text":
            return _say(read(_decode_text_block, item, where).text)
        case "image":
            source = read(_decode_image, item, where).source
            return [{"type": "image_url", "image_url": {"url": _find_url(source, f"{where}.source")}}]
        case "document":
            return _decode_document_block(item, where)
        case "search_result":
            found = read(_decode_search_result, item, where)
            _refuse_citations(found.citations, where)
            texts = (found.title, found.source, *(text.text for text in found.content))
            return [part for text in texts for part in _say(text)]
        case _:
            raise refuse(f"{where}.type", f"{kind!r} can't stand here")


def _find_url(source: _Source, where: str) -> str:
    match source.type:
        case "url":
            return source.url
        case "base64":
            return f"data:{source.media_type};base64,{source.data}"
        case _:
            raise refuse(f"{where}.type", f"there is no {source.type!r} in {CHAT}, but url and base64")


def _decode_document_block(item: msgspec.Raw, where: str) -> list[Part]:
    document = read(_decode_document, item, where)
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


# --- the model ----------------------------------------------------------------------------------------------


def _decode_assistant(raw: msgspec.Raw, where: str, keeps_thinking: bool) -> list[Message]:
    parts: list[Part] = []
    calls: list[Part] = []
    signed: list[Part] = []
    unsigned = ""
    for kind, item, place in _read_blocks(raw, where):
        match kind:
            case "text":
                parts += _say(read(_decode_text_block, item, place).text)
            case "tool_use":
                calls.append(_decode_call_block(item, place))
            case "thinking" | "redacted_thinking":
                thought = read(_decode_thinking, item, place)
                if kind == "redacted_thinking":
                    signed.append({"type": kind, "data": thought.data})
                elif thought.signature:
                    told = {"thinking": thought.thinking, "signature": thought.signature}
                    signed.append({"type": kind, **told})
                else:
                    unsigned += thought.thinking
            case _:
                raise refuse(f"{place}.type", f"{kind!r} can't stand in a turn of the model")
    if not keeps_thinking:
        signed = []
    if not (parts or calls or signed):
        return []
    message: Message = {"role": "assistant", "content": _join(parts) if parts else None}
    if unsigned:
        message["reasoning_content"] = unsigned
    if signed:
        message["thinking_blocks"] = signed
    if calls:
        message["tool_calls"] = calls
    return [message]


def _decode_call_block(item: msgspec.Raw, where: str) -> Part:
    call = read(_decode_call, item, where)
    read(_decode_object, call.input, f"{where}.input")
    function = {"name": call.name, "arguments": bytes(call.input).decode()}
    return {"id": call.id, "type": "function", "function": function}
