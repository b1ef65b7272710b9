"""Messages of OpenAI's chat as Bedrock's Converse has them: system prompt, turns, content blocks.  Pure.

Turns of one role become one message, with the results of tools before all else; what is blank, which models
there refuse, is left out, and so is a message of which nothing is left.  Thinking goes back as it came, byte
for byte, if it is signed; unsigned thinking can't go back, and is left out.

Source: Amazon Bedrock API Reference, `Message` and `ContentBlock`.
"""

import re
from typing import Any, Final

import msgspec

from forebay.providers.bedrock_media import TARGET, Documents, encode_audio, encode_image
from forebay.providers.chat_messages import (
    CALL_FIELDS,
    PART_FIELDS,
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
from forebay.providers.strict_fields import refuse

Block = dict[str, Any]
Message = dict[str, Any]

_PART_FIELDS: Final = PART_FIELDS | {"input_audio"}
_CALL_FIELDS: Final = CALL_FIELDS | {"custom"}
_SAID = re.compile(r"\S")


class _Image(msgspec.Struct, frozen=True):
    url: str


class _Audio(msgspec.Struct, frozen=True):
    data: str
    format: str


class _File(msgspec.Struct, frozen=True):
    file_data: str | None = None
    filename: str | None = None


class _Cache(msgspec.Struct, frozen=True):
    ttl: str | None = None


class _Part(ChatPart, frozen=True):
    image_url: _Image | None = None
    input_audio: _Audio | None = None
    file: _File | None = None
    cache_control: _Cache | None = None
    prompt_cache_breakpoint: _Cache | None = None


class _Message(ChatMessage, frozen=True):
    cache_control: _Cache | None = None


_decode_part = msgspec.json.Decoder(_Part).decode
_decode_message = msgspec.json.Decoder(_Message).decode
decode_cache = msgspec.json.Decoder(_Cache | None).decode


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the messages."""

    system: list[Block]
    messages: list[Message]

    @property
    def has_tools(self) -> bool:
        """Whether a tool was called in it."""
        return any(
            "toolUse" in block or "toolResult" in block
            for message in self.messages
            for block in message["content"]
        )


def encode_messages(raw: msgspec.Raw) -> Conversation:
    """The system prompt's blocks and the messages.  Raises InvalidValue, with `param`.

    System and developer messages go before all others, wherever they stood, because most models have no other
    place for them.
    """
    system: list[Block] = []
    turns: list[tuple[str, list[Block], list[Block]]] = []  # role, results of tools, all else
    documents = Documents()
    for where, message in walk_messages(raw, _decode_message, TARGET):
        if message.role in ("system", "developer"):
            system += _encode_content(message.content, where, documents, texts_only=True)
            continue
        role, results, others = _encode_message(message, where, documents)
        if not results and not others:
            continue
        if not turns or turns[-1][0] != role:
            turns.append((role, results, others))
        else:
            turns[-1][1].extend(results)
            turns[-1][2].extend(others)
    if not turns:
        raise refuse("messages", f"none of them has any content for the model; {TARGET} wants at least one")
    messages = [{"role": role, "content": results + others} for role, results, others in turns]
    return Conversation(system=system, messages=messages)


def _encode_message(
    message: _Message, where: str, documents: Documents
) -> tuple[str, list[Block], list[Block]]:
    match message.role:
        case "user":
            return "user", [], _encode_content(message.content, where, documents)
        case "assistant":
            return "assistant", [], _encode_assistant(message, where, documents)
        case "tool":
            return "user", _encode_result(message, where, documents), []
        case _:
            raise refuse_role(message, where, TARGET)


def _encode_assistant(message: _Message, where: str, documents: Documents) -> list[Block]:
    blocks = [_encode_thought(thought) for thought in walk_thoughts(message, where) if thought.is_signed]
    blocks += _encode_content(message.content, where, documents)
    if message.refusal and _is_said(message.refusal):
        blocks.append({"text": message.refusal})
    blocks += [
        {"toolUse": {"toolUseId": call.id, "name": call.name, "input": call.arguments}}
        for _, call in walk_calls(message, where, TARGET, _CALL_FIELDS)
    ]
    if message.cache_control is not None:
        mark_cached(blocks, encode_cache_point(message.cache_control, f"{where}.cache_control"))
    return blocks


def _encode_thought(thought: Thinking) -> Block:
    if thought.type == "redacted_thinking":
        return {"reasoningContent": {"redactedContent": thought.data}}
    text = {"text": thought.thinking or "", "signature": thought.signature}
    return {"reasoningContent": {"reasoningText": text}}


def _encode_result(message: _Message, where: str, documents: Documents) -> list[Block]:
    call_id = read_call_id(message, where)
    content = _encode_content(message.content, where, documents)
    points = [block for block in content if "cachePoint" in block]
    result: Block = {
        "toolUseId": call_id,
        "content": [block for block in content if "cachePoint" not in block],
    }
    if message.is_error:
        result["status"] = "error"
    if message.cache_control is not None:
        points.append(encode_cache_point(message.cache_control, f"{where}.cache_control"))
    blocks: list[Block] = [{"toolResult": result}]
    for point in points:  # a result holds none itself: it stands behind it
        mark_cached(blocks, point)
    return blocks


def _encode_content(
    raw: msgspec.Raw, where: str, documents: Documents, *, texts_only: bool = False
) -> list[Block]:
    """The blocks of a message's `content`, less the blank ones."""
    where = f"{where}.content"
    text = read_text(raw, where)
    if text is not None:
        return [{"text": text}] if _is_said(text) else []
    blocks = []
    parts = walk_parts(raw, where, _decode_part, TARGET, known=_PART_FIELDS, texts_only=texts_only)
    for place, part in parts:
        block = _encode_part(part, place, documents)
        if block is None:
            continue
        blocks.append(block)
        if part.cache_control is not None:
            blocks.append(encode_cache_point(part.cache_control, f"{place}.cache_control"))
        elif part.prompt_cache_breakpoint is not None:
            where_point = f"{place}.prompt_cache_breakpoint"
            blocks.append(encode_cache_point(part.prompt_cache_breakpoint, where_point))
    return blocks


def _encode_part(part: _Part, where: str, documents: Documents) -> Block | None:
    match part.type:
        case "text" | "refusal":
            return {"text": part.words} if _is_said(part.words) else None
        case "image_url" if part.image_url is not None:
            return encode_image(part.image_url.url, f"{where}.image_url.url")
        case "input_audio" if part.input_audio is not None:
            return encode_audio(part.input_audio.data, part.input_audio.format, f"{where}.input_audio")
        case "file" if part.file is not None:
            return documents.encode(part.file.file_data, part.file.filename, f"{where}.file")
        case _:
            raise refuse(
                f"{where}.type", f"{TARGET} takes no {part.type!r}, but text, images, audio and files"
            )


def encode_cache_point(cache: _Cache, where: str) -> Block:
    """The mark behind what is to be cached.  OpenAI's times become the least one that holds it so long."""
    match cache.ttl:
        case None:
            return {"cachePoint": {"type": "default"}}
        case "5m":
            return {"cachePoint": {"type": "default", "ttl": "5m"}}
        case "1h" | "30m":
            return {"cachePoint": {"type": "default", "ttl": "1h"}}
        case _:
            raise refuse(f"{where}.ttl", f"{TARGET} caches for 5m or 1h")


def mark_cached(blocks: list[Block], point: Block) -> None:
    """Puts the mark behind the last block.  Two in a row are refused: the one that holds longer stays."""
    if not blocks:
        return
    if "cachePoint" not in blocks[-1]:
        blocks.append(point)
    elif point["cachePoint"].get("ttl") == "1h":
        blocks[-1] = point


def _is_said(text: str) -> bool:
    return _SAID.search(text) is not None
