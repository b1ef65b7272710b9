"""Messages of OpenAI's chat as Bedrock's Converse has them: system prompt, turns, content blocks.  Pure.

Turns of one role become one message, with the results of tools before all else; what is blank, which models
there refuse, is left out, and so is a message of which nothing is left.  Thinking goes back as it came, byte
for byte, if it is signed; unsigned thinking can't go back, and is left out.

Source: Amazon Bedrock API Reference, `Message` and `ContentBlock`.
"""

import re
from typing import Any, Final

import msgspec

from forebay.core.errors import InvalidValue
from forebay.providers.bedrock_media import TARGET, Documents, encode_audio, encode_image
from forebay.providers.gemini_signatures import MARK
from forebay.providers.json_edit import NOTHING, UNREADABLE, check_object
from forebay.providers.strict_fields import check_known, read, read_fields, refuse

Block = dict[str, Any]
Message = dict[str, Any]

#: What a message may hold.  `name` says nothing that Converse has a place for; `annotations` come from the
#: model and mean nothing to it; reasoning without a signature can't go back.
_MESSAGE_FIELDS: Final = frozenset(
    {"role", "content", "name", "tool_calls", "tool_call_id", "refusal", "annotations", "reasoning_content"}
    | {"reasoning", "thinking_blocks", "is_error", "cache_control"}
)
_PART_FIELDS: Final = frozenset(
    {"type", "text", "refusal", "image_url", "input_audio", "file", "cache_control"}
    | {"prompt_cache_breakpoint"}
)
#: `index` is of streams, `extra_content` what another provider wants back.
_CALL_FIELDS: Final = frozenset({"id", "type", "function", "index", "extra_content"})
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


class _Part(msgspec.Struct, frozen=True):
    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: _Image | None = None
    input_audio: _Audio | None = None
    file: _File | None = None
    cache_control: _Cache | None = None
    prompt_cache_breakpoint: _Cache | None = None


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
    cache_control: _Cache | None = None


_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_text = msgspec.json.Decoder(str).decode
_decode_part = msgspec.json.Decoder(_Part).decode
_decode_message = msgspec.json.Decoder(_Message).decode
_decode_call = msgspec.json.Decoder(_ToolCall).decode
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
    for at, item in enumerate(read(_decode_list, raw, "messages")):
        where = f"messages[{at}]"
        check_known(read_fields(item, where), _MESSAGE_FIELDS, where, TARGET)
        message = read(_decode_message, item, where)
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
            raise refuse(
                f"{where}.role", f"there is no role {message.role!r} in {TARGET}; functions are tools now"
            )


def _encode_assistant(message: _Message, where: str, documents: Documents) -> list[Block]:
    blocks: list[Block] = []
    for at, thought in enumerate(message.thinking_blocks or ()):
        if thought.type == "thinking" and thought.signature and not thought.signature.startswith(MARK):
            text = {"text": thought.thinking or "", "signature": thought.signature}
            blocks.append({"reasoningContent": {"reasoningText": text}})
        elif thought.type == "redacted_thinking" and thought.data:
            blocks.append({"reasoningContent": {"redactedContent": thought.data}})
        elif thought.type not in ("thinking", "redacted_thinking"):
            raise refuse(f"{where}.thinking_blocks[{at}].type", f"{thought.type!r} is no kind of thinking")
    blocks += _encode_content(message.content, where, documents)
    if message.refusal and _is_said(message.refusal):
        blocks.append({"text": message.refusal})
    blocks += [
        _encode_call(raw, f"{where}.tool_calls[{at}]") for at, raw in enumerate(message.tool_calls or ())
    ]
    if message.cache_control is not None:
        mark_cached(blocks, encode_cache_point(message.cache_control, f"{where}.cache_control"))
    return blocks


def _encode_call(raw: msgspec.Raw, where: str) -> Block:
    check_known(read_fields(raw, where), _CALL_FIELDS | {"custom"}, where, TARGET)
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
        "toolUse": {
            "toolUseId": call.id,
            "name": call.function.name,
            "input": msgspec.Raw(arguments.encode()),
        }
    }


def _encode_result(message: _Message, where: str, documents: Documents) -> list[Block]:
    if message.tool_call_id is None:
        place = f"{where}.tool_call_id"
        raise InvalidValue(f"`{place}` is missing: which call is this the result of?", param=place)
    content = _encode_content(message.content, where, documents)
    points = [block for block in content if "cachePoint" in block]
    result: Block = {
        "toolUseId": message.tool_call_id,
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
    content = bytes(raw)
    if content in (b"", b"null"):
        return []
    if content.startswith(b'"'):
        text = read(_decode_text, raw, where)
        return [{"text": text}] if _is_said(text) else []
    blocks = []
    for at, item in enumerate(read(_decode_list, raw, where)):
        place = f"{where}[{at}]"
        check_known(read_fields(item, place), _PART_FIELDS, place, TARGET)
        part = read(_decode_part, item, place)
        if texts_only and part.type != "text":
            raise refuse(f"{place}.type", f"a system prompt is of text in {TARGET}, not of {part.type!r}")
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
            text = part.text if part.type == "text" else part.refusal
            return {"text": text} if text and _is_said(text) else None
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
