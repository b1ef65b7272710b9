"""Messages of OpenAI's chat as Anthropic's system prompt and messages.  Pure.

Turns of one role become one message; what is empty or blank, which Anthropic refuses, is left out, and so is
a message of which nothing is left.  Thinking goes back as it came, byte for byte, if it is signed; unsigned
thinking can't go back, and is left out, as is what Google signed.
"""

import re
from typing import Any

import msgspec

from forebay.providers.chat_messages import (
    ChatMessage,
    ChatPart,
    Thinking,
    read_call_id,
    read_text,
    refuse_role,
    walk_calls,
    walk_messages,
    walk_parts,
    walk_thoughts,
)
from forebay.providers.json_edit import NOTHING
from forebay.providers.strict_fields import refuse

Block = dict[str, Any]
Message = dict[str, Any]
TARGET = "Anthropic's Messages API"

_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+);base64,", re.ASCII)
_CACHED = {"type": "ephemeral"}


class _Image(msgspec.Struct, frozen=True):
    url: str
    detail: str | None = None


class _File(msgspec.Struct, frozen=True):
    file_data: str | None = None
    file_id: str | None = None
    filename: str | None = None


class _Breakpoint(msgspec.Struct, frozen=True):
    ttl: str | None = None


class _Part(ChatPart, frozen=True):
    image_url: _Image | None = None
    file: _File | None = None
    cache_control: msgspec.Raw = NOTHING
    prompt_cache_breakpoint: _Breakpoint | None = None


class _Message(ChatMessage, frozen=True):
    cache_control: msgspec.Raw = NOTHING


_decode_part = msgspec.json.Decoder(_Part).decode
_decode_message = msgspec.json.Decoder(_Message).decode


def encode_messages(raw: msgspec.Raw) -> tuple[list[Block], list[Message]]:
    """The system prompt's blocks and the messages.  Raises InvalidValue, with `param`.

    System and developer messages go before all others, wherever they stood, because most models have no other
    place for them.
    """
    system: list[Block] = []
    messages: list[Message] = []
    for where, message in walk_messages(raw, _decode_message, TARGET):
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
            raise refuse_role(message, where, TARGET)


def _encode_assistant(message: _Message, where: str) -> list[Block]:
    blocks = [_encode_thought(thought) for thought in walk_thoughts(message, where) if thought.is_signed]
    blocks += _encode_content(message.content, where)
    if message.refusal and message.refusal.strip():
        blocks.append({"type": "text", "text": message.refusal})
    blocks += [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments}
        for _, call in walk_calls(message, where, TARGET)
    ]
    return blocks


def _encode_thought(thought: Thinking) -> Block:
    if thought.type == "redacted_thinking":
        return {"type": thought.type, "data": thought.data}
    return {"type": thought.type, "thinking": thought.thinking or "", "signature": thought.signature}


def _encode_result(message: _Message, where: str) -> Block:
    block: Block = {"type": "tool_result", "tool_use_id": read_call_id(message, where)}
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
    text = read_text(raw, where)
    if text is not None:
        return [{"type": "text", "text": text}] if text.strip() else []
    blocks = []
    for place, part in walk_parts(raw, where, _decode_part, TARGET, texts_only=texts_only):
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
            return {"type": "text", "text": part.words} if part.words.strip() else None
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
