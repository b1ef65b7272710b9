"""Messages of OpenAI's chat as Gemini's system instruction and contents.  Pure.

Turns of one role become one content; empty texts, which Google refuses, are left out, and so is a message of
which nothing is left.  Thoughts go back only as far as Google signed them.

Source: Gemini API reference, `Content`, `Part`, `FunctionCall`, `FunctionResponse`.
"""

from dataclasses import dataclass, field
from typing import Any

import msgspec

from forebay.core.errors import InvalidValue
from forebay.providers.chat_messages import (
    CALL_FIELDS,
    MESSAGE_FIELDS,
    PART_FIELDS,
    Call,
    ChatMessage,
    ChatPart,
    read_call_id,
    read_text,
    refuse_role,
    walk_calls,
    walk_messages,
    walk_parts,
    walk_thoughts,
)
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
from forebay.providers.strict_fields import read, refuse

Content = dict[str, Any]

_MESSAGE_FIELDS = MESSAGE_FIELDS | {"extra_content"}
_PART_FIELDS = PART_FIELDS | {"input_audio"}
_CALL_FIELDS = CALL_FIELDS | {"custom"}
_NOTHING_SAID = (b"", b"null")


class _Google(msgspec.Struct, frozen=True):
    thought_signature: str | None = None


class _Extra(msgspec.Struct, frozen=True):
    google: _Google | None = None

    @property
    def signature(self) -> str:
        return (self.google.thought_signature or "") if self.google is not None else ""


class _Part(ChatPart, frozen=True):
    image_url: Image | None = None
    input_audio: Sound | None = None
    file: File | None = None


class _Message(ChatMessage, frozen=True):
    extra_content: _Extra | None = None


_decode_part = msgspec.json.Decoder(_Part).decode
_decode_extra = msgspec.json.Decoder(_Extra).decode
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
        for where, message in walk_messages(raw, _decode_message, TARGET, _MESSAGE_FIELDS):
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
                raise refuse_role(message, where, TARGET)

    def _encode_assistant(self, message: _Message, where: str) -> list[Part]:
        parts, signatures = _read_thoughts(message, where)
        texts = self._encode_content(message.content, where)
        if message.refusal:
            texts.append({"text": message.refusal})
        if signature := signatures.get(TEXT):
            texts = texts or [{"text": ""}]  # a part of its own, as a stream brings it
            texts[-1]["thoughtSignature"] = signature
        calls = [
            self._encode_call(call, place, signatures.get(name_call(at), ""))
            for at, (place, call) in enumerate(walk_calls(message, where, TARGET, _CALL_FIELDS))
        ]
        if calls and not is_old(self.model) and not any("thoughtSignature" in call for call in calls):
            calls[0]["thoughtSignature"] = FOREIGN
        return [*parts, *texts, *calls]

    def _encode_call(self, call: Call, where: str, signature: str) -> Part:
        self._names[call.id] = call.name
        self._order[call.id] = len(self._order)
        made: Part = {"id": call.id} if self.sends_ids else {}
        made |= {"name": call.name, "args": call.arguments}
        part: Part = {"functionCall": made}
        if bytes(call.extra_content) not in _NOTHING_SAID:
            extra = read(_decode_extra, call.extra_content, f"{where}.extra_content")
            signature = extra.signature or signature
        if signature:
            part["thoughtSignature"] = signature
        return part

    def _encode_result(self, message: _Message, where: str) -> Part:
        call_id = read_call_id(message, where)
        name = self._names.get(call_id)
        if name is None:
            place = f"{where}.tool_call_id"
            raise InvalidValue(
                f"`{place}`: no call before it has the id {call_id!r}, and Google wants to know "
                "the name of the function",
                param=place,
            )
        content = self._encode_content(message.content, where)
        text = "".join(part["text"] for part in content if "text" in part)
        media = [part for part in content if "text" not in part]
        made: Part = {"id": call_id} if self.sends_ids else {}
        made |= {"name": name, "response": {"error" if message.is_error else "output": text}}
        if media:
            made["parts"] = media
        return {"functionResponse": made, "_at": self._order[call_id]}

    def _encode_content(self, raw: msgspec.Raw, where: str, *, texts_only: bool = False) -> list[Part]:
        """The parts of a message's `content`, less the empty ones."""
        where = f"{where}.content"
        text = read_text(raw, where)
        if text is not None:
            return [{"text": text}] if text else []
        parts = []
        found = walk_parts(raw, where, _decode_part, TARGET, known=_PART_FIELDS, texts_only=texts_only)
        for place, part in found:
            made = self._encode_part(part, place)
            if made is not None:
                parts.append(made)
        return parts

    def _encode_part(self, part: _Part, where: str) -> Part | None:
        match part.type:
            case "text" | "refusal":
                return {"text": part.words} if part.words else None
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
    for thought in walk_thoughts(message, where):
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
