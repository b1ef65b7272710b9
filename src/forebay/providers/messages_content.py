"""Messages of Anthropic's dialect as those of OpenAI's chat.  Pure.

The results of tools become messages of their own, before what else the user says in the same turn; a message
of which nothing is left is left out.  What OpenAI's chat has no place for goes along only where a translator
stands behind that understands it (`is_extended`), because OpenAI's API refuses fields that it does not know:
thinking that was signed, marks for the cache, images in results and whether a result is an error.  Thinking
without a signature came from a server of OpenAI's dialect, by way of `messages_answer`, and goes back to it.
"""

from typing import Any

import msgspec

from forebay.providers.json_edit import NOTHING, check_object
from forebay.providers.messages_parts import CHAT, Item, Part, decode_part, decode_texts, join, read_blocks
from forebay.providers.strict_fields import check_known, read, read_fields, refuse

Message = dict[str, Any]

_MESSAGE_FIELDS = frozenset({"role", "content"})


class _Message(msgspec.Struct, frozen=True):
    role: str
    content: msgspec.Raw = NOTHING


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
_decode_message = msgspec.json.Decoder(_Message).decode
_decode_thinking = msgspec.json.Decoder(_Thinking).decode
_decode_call = msgspec.json.Decoder(_Call).decode
_decode_result = msgspec.json.Decoder(_Result).decode


def decode_system(raw: msgspec.Raw, where: str = "system", *, is_extended: bool) -> list[Message]:
    """The system prompt as a message, or none where it says nothing."""
    parts = decode_texts(raw, where, is_extended=is_extended)
    return [{"role": "system", "content": join(parts)}] if parts else []


def decode_messages(raw: msgspec.Raw, *, is_extended: bool) -> list[Message]:
    """The messages of a request.  Raises InvalidValue, with `param`."""
    messages: list[Message] = []
    for at, item in enumerate(read(_decode_list, raw, "messages")):
        where = f"messages[{at}]"
        check_known(read_fields(item, where), _MESSAGE_FIELDS, where, CHAT)
        message = read(_decode_message, item, where)
        content = f"{where}.content"
        match message.role:
            case "user":
                messages += _decode_user(message.content, content, is_extended)
            case "assistant":
                messages += _decode_assistant(message.content, content, is_extended)
            case "system":
                messages += decode_system(message.content, content, is_extended=is_extended)
            case role:
                raise refuse(f"{where}.role", f"there is no role {role!r}; there are user and assistant")
    if not messages:
        raise refuse("messages", "none of them has any content for the model; there must be one")
    return messages


def _decode_user(raw: msgspec.Raw, where: str, is_extended: bool) -> list[Message]:
    """The results of tools as a message each, then the rest, with the images of results first."""
    results: list[Message] = []
    shown: list[Part] = []
    said: list[Part] = []
    for item in read_blocks(raw, where):
        if item.kind == "tool_result":
            result, images = _decode_result_block(item, is_extended)
            results.append(result)
            shown += images
        else:
            said += decode_part(item, is_extended=is_extended)
    parts = shown + said
    return results + ([{"role": "user", "content": join(parts)}] if parts else [])


def _decode_result_block(item: Item, is_extended: bool) -> tuple[Message, list[Part]]:
    """The message of a tool, and what must go into one of the user, because OpenAI's can only be of text."""
    result = read(_decode_result, item.raw, item.where)
    parts = [
        part
        for block in read_blocks(result.content, f"{item.where}.content")
        for part in decode_part(block, is_extended=is_extended)
    ]
    others: list[Part] = []
    if not is_extended:
        others = [part for part in parts if part["type"] != "text"]
        parts = [part for part in parts if part["type"] == "text"]
    message: Message = {"role": "tool", "tool_call_id": result.tool_use_id}
    message["content"] = join(parts) if parts else ""
    if is_extended and result.is_error:
        message["is_error"] = True
    if is_extended and item.mark is not None:
        message["cache_control"] = item.mark
    return message, others


def _decode_assistant(raw: msgspec.Raw, where: str, is_extended: bool) -> list[Message]:
    parts: list[Part] = []
    calls: list[Part] = []
    signed: list[Part] = []
    unsigned = ""
    for item in read_blocks(raw, where):
        match item.kind:
            case "text":
                parts += decode_part(item, is_extended=is_extended)
            case "tool_use":
                calls.append(_decode_call_block(item))
            case "thinking" | "redacted_thinking":
                thought = read(_decode_thinking, item.raw, item.where)
                if item.kind == "redacted_thinking":
                    signed.append({"type": item.kind, "data": thought.data})
                elif thought.signature:
                    told = {"thinking": thought.thinking, "signature": thought.signature}
                    signed.append({"type": item.kind, **told})
                else:
                    unsigned += thought.thinking
            case kind:
                raise refuse(f"{item.where}.type", f"{kind!r} can't stand in a turn of the model")
    if not is_extended:
        signed = []
    if not (parts or calls or signed):
        return []
    message: Message = {"role": "assistant", "content": join(parts) if parts else None}
    if unsigned:
        message["reasoning_content"] = unsigned
    if signed:
        message["thinking_blocks"] = signed
    if calls:
        message["tool_calls"] = calls
    return [message]


def _decode_call_block(item: Item) -> Part:
    call = read(_decode_call, item.raw, item.where)
    read(check_object, call.input, f"{item.where}.input")
    function = {"name": call.name, "arguments": bytes(call.input).decode()}
    return {"id": call.id, "type": "function", "function": function}
