"""Messages of OpenAI's chat as Gemini's system instruction and contents.  Pure.

Turns of one role become one content; empty texts, which Google refuses, are left out, and so is a message of
which nothing is left.  Thoughts go back only as far as Google signed them.

Source: Gemini API reference, `Content`, `Part`, `FunctionCall`, `FunctionResponse`.
"""

from dataclasses import dataclass, field
from typing import Any

import msgspec

from forebay.core.errors import InvalidValue
from forebay.providers.gemini_media import (
    TARGET,
    File,
    Image,
    Part,
    Sound,
    encode_file,
    encode_image,
    encode_sound,
)
from forebay.providers.gemini_signatures import FOREIGN, TEXT, THOUGHT, is_old, name_call, read_mark
from forebay.providers.json_edit import NOTHING, UNREADABLE, check_object
from forebay.providers.strict_fields import check_known, read, read_fields, refuse

Content = dict[str, Any]

#: What a message may hold.  `name` has no place there; `annotations` come from the model and mean nothing to
#: it; reasoning without a signature can't go back; caches are Google's own business.
_MESSAGE_FIELDS = frozenset(
    {"role", "content", "name", "tool_calls", "tool_call_id", "refusal", "annotations", "reasoning_content"}
    | {"reasoning", "thinking_blocks", "is_error", "extra_content", "cache_control"}
)
_PART_FIELDS = frozenset(
    {"type", "text", "refusal", "image_url", "input_audio", "file"}
    | {"cache_control", "prompt_cache_breakpoint"}
)
#: `index` is of streams.
_CALL_FIELDS = frozenset({"id", "type", "function", "index", "extra_content"})


class _Google(msgspec.Struct, frozen=True):
    thought_signature: str | None = None


class _Extra(msgspec.Struct, frozen=True):
    google: _Google | None = None

    @property
    def signature(self) -> str:
        return (self.google.thought_signature or "") if self.google is not None else ""


class _Part(msgspec.Struct, frozen=True):
    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: Image | None = None
    input_audio: Sound | None = None
    file: File | None = None


class _Function(msgspec.Struct, frozen=True):
    name: str
    arguments: str | None = None


class _ToolCall(msgspec.Struct, frozen=True):
    id: str
    type: str = "function"
    function: _Function | None = None
    extra_content: _Extra | None = None


class _Thinking(msgspec.Struct, frozen=True):
    type: str
    thinking: str | None = None
    signature: str | None = None


class _Message(msgspec.Struct, frozen=True):
    role: str
    content: msgspec.Raw = NOTHING
    tool_calls: list[msgspec.Raw] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    thinking_blocks: list[_Thinking] | None = None
    extra_content: _Extra | None = None
    is_error: bool | None = None


_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_text = msgspec.json.Decoder(str).decode
_decode_part = msgspec.json.Decoder(_Part).decode
_decode_call = msgspec.json.Decoder(_ToolCall).decode
_decode_message = msgspec.json.Decoder(_Message).decode


@dataclass(slots=True)
class MessageEncoder:
    """Encodes the messages of one request.

    Attributes:
        model: its name at the target, which says what is demanded of signatures.
        sends_ids: whether calls and their results are told apart by ids; else by their order.
        needs_types: whether an address wants the type of what lies there.
    """

    model: str
    sends_ids: bool
    needs_types: bool
    _names: dict[str, str] = field(default_factory=dict)  # of functions, by the ids of calls
    _order: dict[str, int] = field(default_factory=dict)  # of calls, by their ids

    def encode(self, raw: msgspec.Raw) -> tuple[list[Part], list[Content]]:
        """The parts of the system instruction and the contents.  Raises InvalidValue, with `param`."""
        system: list[Part] = []
        contents: list[Content] = []
        for at, item in enumerate(read(_decode_list, raw, "messages")):
            where = f"messages[{at}]"
            check_known(read_fields(item, where), _MESSAGE_FIELDS, where, TARGET)
            message = read(_decode_message, item, where)
            if message.role in ("system", "developer"):
                system += self._encode_content(message.content, where, texts_only=True)
                continue
            role, parts = self._encode_message(message, where)
            if not parts:
                continue
            if contents and contents[-1]["role"] == role:
                contents[-1]["parts"] += parts
            else:
                contents.append({"role": role, "parts": parts})
        if not contents:
            raise refuse("messages", "none of them has any content for the model; Google wants one at least")
        for content in contents:
            self._arrange(content["parts"])
        return system, contents

    def _arrange(self, parts: list[Part]) -> None:
        """Results stand before all else of their turn, in the order of the calls, and need no marks then."""
        last = len(self._order)
        parts.sort(key=lambda part: part.get("_at", last))
        for part in parts:
            part.pop("_at", None)

    def _encode_message(self, message: _Message, where: str) -> tuple[str, list[Part]]:
        match message.role:
            case "user":
                return "user", self._encode_content(message.content, where)
            case "assistant":
                return "model", self._encode_assistant(message, where)
            case "tool":
                return "user", [self._encode_result(message, where)]
            case _:
                raise refuse(
                    f"{where}.role",
                    f"there is no role {message.role!r} in {TARGET}; functions are tools now",
                )

    def _encode_assistant(self, message: _Message, where: str) -> list[Part]:
        parts, signatures = _read_thoughts(message, where)
        texts = self._encode_content(message.content, where)
        if message.refusal:
            texts.append({"text": message.refusal})
        if signature := signatures.get(TEXT):
            texts = texts or [{"text": ""}]  # a part of its own, as a stream brings it
            texts[-1]["thoughtSignature"] = signature
        calls = [
            self._encode_call(raw, f"{where}.tool_calls[{at}]", signatures.get(name_call(at), ""))
            for at, raw in enumerate(message.tool_calls or ())
        ]
        if calls and not is_old(self.model) and not any("thoughtSignature" in call for call in calls):
            calls[0]["thoughtSignature"] = FOREIGN
        return [*parts, *texts, *calls]

    def _encode_call(self, raw: msgspec.Raw, where: str, signature: str) -> Part:
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
        self._names[call.id] = call.function.name
        self._order[call.id] = len(self._order)
        made: Part = {"id": call.id} if self.sends_ids else {}
        made |= {"name": call.function.name, "args": msgspec.Raw(arguments.encode())}
        part: Part = {"functionCall": made}
        signature = (call.extra_content.signature if call.extra_content is not None else "") or signature
        if signature:
            part["thoughtSignature"] = signature
        return part

    def _encode_result(self, message: _Message, where: str) -> Part:
        place = f"{where}.tool_call_id"
        if message.tool_call_id is None:
            raise InvalidValue(f"`{place}` is missing: which call is this the result of?", param=place)
        name = self._names.get(message.tool_call_id)
        if name is None:
            raise InvalidValue(
                f"`{place}`: no call before it has the id {message.tool_call_id!r}, and Google wants to know "
                "the name of the function",
                param=place,
            )
        content = self._encode_content(message.content, where)
        text = "".join(part["text"] for part in content if "text" in part)
        media = [part for part in content if "text" not in part]
        made: Part = {"id": message.tool_call_id} if self.sends_ids else {}
        made |= {"name": name, "response": {"error" if message.is_error else "output": text}}
        if media:
            made["parts"] = media
        return {"functionResponse": made, "_at": self._order[message.tool_call_id]}

    def _encode_content(self, raw: msgspec.Raw, where: str, *, texts_only: bool = False) -> list[Part]:
        """The parts of a message's `content`, less the empty ones."""
        where = f"{where}.content"
        content = bytes(raw)
        if content in (b"", b"null"):
            return []
        if content.startswith(b'"'):
            text = read(_decode_text, raw, where)
            return [{"text": text}] if text else []
        parts = []
        for at, item in enumerate(read(_decode_list, raw, where)):
            place = f"{where}[{at}]"
            check_known(read_fields(item, place), _PART_FIELDS, place, TARGET)
            part = read(_decode_part, item, place)
            if texts_only and part.type != "text":
                raise refuse(f"{place}.type", f"a system prompt is of text in {TARGET}, not of {part.type!r}")
            made = self._encode_part(part, place)
            if made is not None:
                parts.append(made)
        return parts

    def _encode_part(self, part: _Part, where: str) -> Part | None:
        match part.type:
            case "text" | "refusal":
                text = part.text if part.type == "text" else part.refusal
                return {"text": text} if text else None
            case "image_url" if part.image_url is not None:
                return encode_image(part.image_url, f"{where}.image_url", needs_type=self.needs_types)
            case "input_audio" if part.input_audio is not None:
                return encode_sound(part.input_audio, f"{where}.input_audio")
            case "file" if part.file is not None:
                return encode_file(part.file, f"{where}.file", needs_type=self.needs_types)
            case _:
                raise refuse(
                    f"{where}.type", f"{TARGET} takes no {part.type!r}, but text, images, sound and files"
                )


def _read_thoughts(message: _Message, where: str) -> tuple[list[Part], dict[str, str]]:
    """Thoughts that Google signed as such, and its signatures of other parts, by their names."""
    parts: list[Part] = []
    signatures: dict[str, str] = {}
    for at, thought in enumerate(message.thinking_blocks or ()):
        if thought.type not in ("thinking", "redacted_thinking"):
            raise refuse(f"{where}.thinking_blocks[{at}].type", f"{thought.type!r} is no kind of thinking")
        marked = read_mark(thought.signature or "")
        if marked is None:
            continue
        name, signature = marked
        if name == THOUGHT:
            parts.append({"text": thought.thinking or "", "thought": True, "thoughtSignature": signature})
        else:
            signatures[name] = signature
    if message.extra_content is not None and message.extra_content.signature:
        signatures[TEXT] = message.extra_content.signature
    return parts, signatures
