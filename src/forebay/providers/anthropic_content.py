"""Messages of OpenAI's chat as Anthropic's system prompt and messages.  Pure.

Turns of one role become one message; what is empty or blank, which Anthropic refuses, is left out, and so is
a message of which nothing is left.  Thinking goes back as it came, byte for byte, if it is signed; unsigned
thinking can't go back, and is left out, as is what Google signed.
"""

import re
from typing import Any

import msgspec

from forebay.core.errors import InvalidValue
from forebay.providers.gemini_signatures import MARK
from forebay.providers.json_edit import NOTHING, UNREADABLE, check_object
from forebay.providers.strict_fields import check_known, read, read_fields, refuse

Block = dict[str, Any]
Message = dict[str, Any]
TARGET = "Anthropic's Messages API"

_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+);base64,", re.ASCII)
_CACHED = {"type": "ephemeral"}

#: What a message may hold.  `name` says nothing that Anthropic has a place for; `annotations` come from the
#: model and mean nothing to it; reasoning without a signature can't go back.
_MESSAGE_FIELDS = frozenset(
    {"role", "content", "name", "tool_calls", "tool_call_id", "refusal", "annotations", "reasoning_content"}
    | {"reasoning", "thinking_blocks", "is_error", "cache_control"}
)
_PART_FIELDS = frozenset(
    {"type", "text", "refusal", "image_url", "file", "cache_control", "prompt_cache_breakpoint"}
)


#: `index` is of streams, `extra_content` what another provider wants back.
_CALL_FIELDS = frozenset({"id", "type", "function", "index", "extra_content"})


class _Image(msgspec.Struct, frozen=True):
    url: str
    detail: str | None = None


class _File(msgspec.Struct, frozen=True):
    file_data: str | None = None
    file_id: str | None = None
    filename: str | None = None


class _Breakpoint(msgspec.Struct, frozen=True):
    ttl: str | None = None


class _Part(msgspec.Struct, frozen=True):
    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: _Image | None = None
    file: _File | None = None
    cache_control: msgspec.Raw = NOTHING
    prompt_cache_breakpoint: _Breakpoint | None = None


class _Function(msgspec.Struct, frozen=True):
    name: str
    arguments: str | None = None


class _ToolCall(msgspec.Struct, frozen=True):
    id: str
    type: str = "function"
    function: _Function | None = None


class _Thinking(msgspec.Struct, frozen=True):
    type: str
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None


class _Message(msgspec.Struct, frozen=True):
    role: str
    content: msgspec.Raw = NOTHING
    tool_calls: list[msgspec.Raw] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    thinking_blocks: list[_Thinking] | None = None
    is_error: bool | None = None
    cache_control: msgspec.Raw = NOTHING


_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_text = msgspec.json.Decoder(str).decode
_decode_part = msgspec.json.Decoder(_Part).decode
_decode_message = msgspec.json.Decoder(_Message).decode
_decode_call = msgspec.json.Decoder(_ToolCall).decode


def encode_messages(raw: msgspec.Raw) -> tuple[list[Block], list[Message]]:
    """The system prompt's blocks and the messages.  Raises InvalidValue, with `param`.

    System and developer messages go before all others, wherever they stood, because most models have no other
    place for them.
    """
    system: list[Block] = []
    messages: list[Message] = []
    for at, item in enumerate(read(_decode_list, raw, "messages")):
        where = f"messages[{at}]"
        check_known(read_fields(item, where), _MESSAGE_FIELDS, where, TARGET)
        message = read(_decode_message, item, where)
        if message.role in ("system", "developer"):
            system += _encode_content(message.content, where, texts_only=True)
            continue
        role, blocks = _encode_message(message, where)
        if not blocks:
            continue
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"] += blocks
        else:
            messages.append({"role": role, "content": blocks})
    if not messages:
        raise refuse("messages", "none of them has any content for the model; Anthropic wants at least one")
    for message_made in messages:  # Anthropic wants the results of tools before all else
        message_made["content"].sort(key=_comes_later)
    return system, messages


def _comes_later(block: Block) -> bool:
    return bool(block["type"] != "tool_result")


def _encode_message(message: _Message, where: str) -> tuple[str, list[Block]]:
    match message.role:
        case "user":
            return "user", _encode_content(message.content, where)
        case "assistant":
            return "assistant", _encode_assistant(message, where)
        case "tool":
            return "user", [_encode_result(message, where)]
        case _:
            raise refuse(
                f"{where}.role", f"there is no role {message.role!r} in {TARGET}; functions are tools now"
            )


def _encode_assistant(message: _Message, where: str) -> list[Block]:
    blocks: list[Block] = []
    for at, thought in enumerate(message.thinking_blocks or ()):
        if thought.type == "thinking" and thought.signature and not thought.signature.startswith(MARK):
            blocks.append(
                {"type": "thinking", "thinking": thought.thinking or "", "signature": thought.signature}
            )
        elif thought.type == "redacted_thinking" and thought.data:
            blocks.append({"type": "redacted_thinking", "data": thought.data})
        elif thought.type not in ("thinking", "redacted_thinking"):
            raise refuse(f"{where}.thinking_blocks[{at}].type", f"{thought.type!r} is no kind of thinking")
    blocks += _encode_content(message.content, where)
    if message.refusal and message.refusal.strip():
        blocks.append({"type": "text", "text": message.refusal})
    blocks += [
        _encode_call(raw, f"{where}.tool_calls[{at}]") for at, raw in enumerate(message.tool_calls or ())
    ]
    return blocks


def _encode_call(raw: msgspec.Raw, where: str) -> Block:
    check_known(read_fields(raw, where), _CALL_FIELDS, where, TARGET)
    call = read(_decode_call, raw, where)
    if call.type != "function" or call.function is None:
        raise refuse(f"{where}.type", f"{TARGET} knows calls of functions alone, not {call.type!r}")
    arguments = (call.function.arguments or "").strip() or "{}"
    try:
        check_object(arguments)
    except UNREADABLE:
        place = f"{where}.function.arguments"
        raise InvalidValue(f"`{place}` must be a JSON object, in a string", param=place) from None
    return {
        "type": "tool_use",
        "id": call.id,
        "name": call.function.name,
        "input": msgspec.Raw(arguments.encode()),
    }


def _encode_result(message: _Message, where: str) -> Block:
    if message.tool_call_id is None:
        place = f"{where}.tool_call_id"
        raise InvalidValue(f"`{place}` is missing: which call is this the result of?", param=place)
    block: Block = {"type": "tool_result", "tool_use_id": message.tool_call_id}
    content = _encode_content(message.content, where)
    if len(content) == 1 and content[0].keys() == {"type", "text"}:
        block["content"] = content[0]["text"]
    elif content:
        block["content"] = content
    if message.is_error:
        block["is_error"] = True
    if message.cache_control is not NOTHING:
        block["cache_control"] = message.cache_control
    return block


def _encode_content(raw: msgspec.Raw, where: str, *, texts_only: bool = False) -> list[Block]:
    """The blocks of a message's `content`, less the blank ones."""
    where = f"{where}.content"
    content = bytes(raw)
    if content in (b"", b"null"):
        return []
    if content.startswith(b'"'):
        text = read(_decode_text, raw, where)
        return [{"type": "text", "text": text}] if text.strip() else []
    blocks = []
    for at, item in enumerate(read(_decode_list, raw, where)):
        place = f"{where}[{at}]"
        check_known(read_fields(item, place), _PART_FIELDS, place, TARGET)
        part = read(_decode_part, item, place)
        if texts_only and part.type != "text":
            raise refuse(f"{place}.type", f"a system prompt is of text in {TARGET}, not of {part.type!r}")
        block = _encode_part(part, place)
        if block is None:
            continue
        if part.cache_control is not NOTHING:
            block["cache_control"] = part.cache_control
        elif part.prompt_cache_breakpoint is not None:
            block["cache_control"] = _encode_breakpoint(part.prompt_cache_breakpoint, place)
        blocks.append(block)
    return blocks


def _encode_part(part: _Part, where: str) -> Block | None:
    match part.type:
        case "text" | "refusal":
            text = part.text if part.type == "text" else part.refusal
            return {"type": "text", "text": text} if text and text.strip() else None
        case "image_url" if part.image_url is not None:
            return {"type": "image", "source": _encode_source(part.image_url.url, f"{where}.image_url.url")}
        case "file" if part.file is not None:
            return _encode_file(part.file, f"{where}.file")
        case _:
            raise refuse(f"{where}.type", f"{TARGET} takes no {part.type!r}, but text, images and PDF files")


def _encode_source(url: str, where: str) -> Block:
    if url.startswith(("http://", "https://")):
        return {"type": "url", "url": url}
    found = _DATA_URL.match(url)
    if found is None:
        raise refuse(where, "an image is given by a URL that begins with http(s), or with data:TYPE;base64,")
    return {"type": "base64", "media_type": found[1], "data": url[found.end() :]}


def _encode_file(file: _File, where: str) -> Block:
    found = _DATA_URL.match(file.file_data or "")
    if file.file_data is None or found is None or found[1] != "application/pdf":
        raise refuse(
            f"{where}.file_data", f"{TARGET} takes files in the request as data:application/pdf;base64, alone"
        )
    source = {"type": "base64", "media_type": found[1], "data": file.file_data[found.end() :]}
    block: Block = {"type": "document", "source": source}
    if file.filename:
        block["title"] = file.filename
    return block


def _encode_breakpoint(point: _Breakpoint, where: str) -> Block:
    match point.ttl:
        case None:
            return dict(_CACHED)
        case "30m":  # the least time that holds it so long
            return _CACHED | {"ttl": "1h"}
        case _:
            raise refuse(f"{where}.prompt_cache_breakpoint.ttl", f"{TARGET} caches for an hour at most")
