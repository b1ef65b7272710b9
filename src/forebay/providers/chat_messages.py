"""Messages of a request of OpenAI's chat, read for a target that speaks something else.  Pure.

Each target has its own parts, and its own rules for what they become; what is here is how messages, contents,
calls and thoughts are walked, and which mistakes in them are named in the same words.
"""

from collections.abc import Callable, Collection, Iterator
from typing import Final, TypeVar

import msgspec

from forebay.core.errors import InvalidValue
from forebay.providers.gemini_signatures import MARK
from forebay.providers.json_edit import NOTHING, UNREADABLE, check_object
from forebay.providers.strict_fields import check_known, read, read_fields, refuse

#: What a message may hold for every target.  `name` says nothing that any has a place for; `annotations` come
#: from the model and mean nothing to it; reasoning without a signature can't go back.
MESSAGE_FIELDS: Final = frozenset(
    {"role", "content", "name", "tool_calls", "tool_call_id", "refusal", "annotations", "reasoning_content"}
    | {"reasoning", "thinking_blocks", "is_error", "cache_control"}
)
PART_FIELDS: Final = frozenset(
    {"type", "text", "refusal", "image_url", "file", "cache_control", "prompt_cache_breakpoint"}
)
#: `index` is of streams, `extra_content` what another provider wants back.
CALL_FIELDS: Final = frozenset({"id", "type", "function", "index", "extra_content"})
_THOUGHTS: Final = ("thinking", "redacted_thinking")


class Thinking(msgspec.Struct, frozen=True):
    """One of `thinking_blocks`."""

    type: str
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None

    @property
    def is_signed(self) -> bool:
        """Whether it can go back to whoever signed it; what Google signed goes back to Google alone."""
        if self.type == "redacted_thinking":
            return bool(self.data)
        return bool(self.signature) and not (self.signature or "").startswith(MARK)


class ChatMessage(msgspec.Struct, frozen=True):
    """A message, as far as every target reads it."""

    role: str
    content: msgspec.Raw = NOTHING
    tool_calls: list[msgspec.Raw] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    thinking_blocks: list[Thinking] | None = None
    is_error: bool | None = None


class ChatPart(msgspec.Struct, frozen=True):
    """A part of a message's content, as far as every target reads it."""

    type: str
    text: str | None = None
    refusal: str | None = None

    @property
    def words(self) -> str:
        """Of a text or a refusal."""
        return (self.text if self.type == "text" else self.refusal) or ""


class _Function(msgspec.Struct, frozen=True):
    name: str
    arguments: str | None = None


class _ToolCall(msgspec.Struct, frozen=True):
    id: str
    type: str = "function"
    function: _Function | None = None
    extra_content: msgspec.Raw = NOTHING


class Call(msgspec.Struct, frozen=True):
    """A call of a function that the model made.

    Attributes:
        arguments: a JSON object, as it was spelled.
        extra_content: what a provider wants back with it.
    """

    id: str
    name: str
    arguments: msgspec.Raw
    extra_content: msgspec.Raw


_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_text = msgspec.json.Decoder(str).decode
_decode_call = msgspec.json.Decoder(_ToolCall).decode
Message = TypeVar("Message", bound=ChatMessage)
Part = TypeVar("Part", bound=ChatPart)


def walk_messages(
    raw: msgspec.Raw,
    decode: Callable[[msgspec.Raw | bytes], Message],
    target: str,
    known: Collection[str] = MESSAGE_FIELDS,
) -> Iterator[tuple[str, Message]]:
    """Each message with its place.  Raises InvalidValue.

    Args:
        target: what errors call the dialect.
        known: the fields that a message may have.
    """
    for at, item in enumerate(read(_decode_list, raw, "messages")):
        where = f"messages[{at}]"
        check_known(read_fields(item, where), known, where, target)
        yield where, read(decode, item, where)


def refuse_role(message: ChatMessage, where: str, target: str) -> InvalidValue:
    """The error for a role that nobody has."""
    return refuse(f"{where}.role", f"there is no role {message.role!r} in {target}; functions are tools now")


def read_text(raw: msgspec.Raw, where: str) -> str | None:
    """A message's `content` where it is a text alone; empty where there is none, None where it has parts."""
    content = bytes(raw)
    if content in (b"", b"null"):
        return ""
    return read(_decode_text, raw, where) if content.startswith(b'"') else None


def walk_parts(
    raw: msgspec.Raw,
    where: str,
    decode: Callable[[msgspec.Raw | bytes], Part],
    target: str,
    *,
    known: Collection[str] = PART_FIELDS,
    texts_only: bool = False,
) -> Iterator[tuple[str, Part]]:
    """Each part of a message's `content` with its place.  Raises InvalidValue.

    Args:
        texts_only: for a system prompt.
    """
    for at, item in enumerate(read(_decode_list, raw, where)):
        place = f"{where}[{at}]"
        check_known(read_fields(item, place), known, place, target)
        part = read(decode, item, place)
        if texts_only and part.type != "text":
            raise refuse(f"{place}.type", f"a system prompt is of text in {target}, not of {part.type!r}")
        yield place, part


def walk_calls(
    message: ChatMessage, where: str, target: str, known: Collection[str] = CALL_FIELDS
) -> Iterator[tuple[str, Call]]:
    """Each call in a message of the assistant with its place.  Raises InvalidValue."""
    for at, raw in enumerate(message.tool_calls or ()):
        place = f"{where}.tool_calls[{at}]"
        yield place, _read_call(raw, place, target, known)


def walk_thoughts(message: ChatMessage, where: str) -> Iterator[Thinking]:
    """Each of `thinking_blocks`.  Raises InvalidValue on what is no kind of thinking."""
    for at, thought in enumerate(message.thinking_blocks or ()):
        if thought.type not in _THOUGHTS:
            raise refuse(f"{where}.thinking_blocks[{at}].type", f"{thought.type!r} is no kind of thinking")
        yield thought


def read_call_id(message: ChatMessage, where: str) -> str:
    """Of which call a message of a tool is the result.  Raises InvalidValue."""
    if message.tool_call_id is None:
        place = f"{where}.tool_call_id"
        raise InvalidValue(f"`{place}` is missing: which call is this the result of?", param=place)
    return message.tool_call_id


def _read_call(raw: msgspec.Raw, where: str, target: str, known: Collection[str]) -> Call:
    check_known(read_fields(raw, where), known, where, target)
    call = read(_decode_call, raw, where)
    if call.type != "function" or call.function is None:
        raise refuse(f"{where}.type", f"{target} knows calls of functions alone, not {call.type!r}")
    arguments = (call.function.arguments or "").strip() or "{}"
    try:
        check_object(arguments)
    except UNREADABLE:
        place = f"{where}.function.arguments"
        raise InvalidValue(f"`{place}` must be a JSON object, in a string", param=place) from None
    return Call(
        id=call.id,
        name=call.function.name,
        arguments=msgspec.Raw(arguments.encode()),
        extra_content=call.extra_content,
    )
