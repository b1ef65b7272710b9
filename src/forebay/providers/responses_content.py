"""Items of OpenAI's Responses as messages of its chat.  Pure.

What the model said, thought and called in one turn are items of their own there and one message here; images
in results of tools, which a message of a tool can't hold, go into one of the user behind them.  Signed
thinking goes along only where a translator stands behind that understands it (`is_extended`): it comes back
in `encrypted_content` behind a mark of ours.  What others encrypted belongs to their models and is left out.
"""

import base64
import binascii
from typing import Any, Final

import msgspec

from forebay.providers.json_edit import NOTHING, UNREADABLE
from forebay.providers.strict_fields import check_known, read, read_fields, refuse

CHAT: Final = "OpenAI's chat"
MARK: Final = "forebay:"  #: before signed thinking in `encrypted_content`

Part = dict[str, Any]
Message = dict[str, Any]

_ROLES: Final = frozenset({"user", "assistant", "system", "developer"})
_ITEM_FIELDS: Final = {
    "message": frozenset({"type", "role", "content", "id", "status", "phase"}),
    "function_call": frozenset({"type", "call_id", "name", "arguments", "id", "status"}),
    "function_call_output": frozenset({"type", "call_id", "output", "id", "status", "name"}),
    "reasoning": frozenset({"type", "id", "summary", "content", "encrypted_content", "status"}),
}
_PART_FIELDS: Final = {
    "input_text": frozenset({"type", "text", "prompt_cache_breakpoint"}),
    "output_text": frozenset({"type", "text", "annotations", "logprobs"}),
    "refusal": frozenset({"type", "refusal"}),
    "input_image": frozenset({"type", "image_url", "detail", "prompt_cache_breakpoint"}),
    "input_file": frozenset(
        {"type", "file_data", "file_id", "filename", "detail", "prompt_cache_breakpoint"}
    ),
}
_OF_THE_MODEL: Final = frozenset({"output_text", "refusal"})


class _Item(msgspec.Struct, frozen=True):
    type: str = "message"
    role: str = ""
    content: msgspec.Raw = NOTHING
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: msgspec.Raw = NOTHING


class _Text(msgspec.Struct, frozen=True):
    text: str = ""


class _Reasoning(msgspec.Struct, frozen=True):
    summary: list[_Text] | None = None
    content: list[_Text] | None = None
    encrypted_content: str | None = None


class _Part(msgspec.Struct, frozen=True):
    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: str | None = None
    detail: str | None = None
    file_data: str | None = None
    file_id: str | None = None
    filename: str | None = None
    prompt_cache_breakpoint: msgspec.Raw = NOTHING


_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_string = msgspec.json.Decoder(str).decode
_decode_item = msgspec.json.Decoder(_Item).decode
_decode_reasoning = msgspec.json.Decoder(_Reasoning).decode
_decode_part = msgspec.json.Decoder(_Part).decode
_decode_blocks = msgspec.json.Decoder(list[dict[str, msgspec.Raw]]).decode


def decode_input(raw: msgspec.Raw, *, is_extended: bool) -> list[Message]:
    """The messages of a request.  Raises InvalidValue, with `param`."""
    if is_text(raw):
        return [{"role": "user", "content": read(_decode_string, raw, "input")}]
    turns = _Turns(is_extended)
    for at, item in enumerate(read(_decode_list, raw, "input")):
        turns.add(item, f"input[{at}]")
    messages = turns.finish()
    if not messages:
        raise refuse("input", "none of it has any content for the model; there must be some")
    return messages


def is_text(raw: msgspec.Raw) -> bool:
    """Whether a value is a string; it is not copied to be told."""
    return memoryview(raw)[:1].tobytes() == b'"'


def pack_thoughts(blocks: list[Any]) -> str:
    """What `encrypted_content` holds of signed thinking, to come back as it is."""
    return MARK + base64.b64encode(msgspec.json.encode(blocks)).decode()


def _unpack_thoughts(packed: str, where: str) -> list[Any]:
    try:
        return _decode_blocks(base64.b64decode(packed.removeprefix(MARK), validate=True))
    except (*UNREADABLE, binascii.Error):
        raise refuse(where, "it is not as this gateway gave it; send it back as it came") from None


class _Turns:
    """Items, one after the other, and the messages that they make."""

    def __init__(self, is_extended: bool) -> None:
        self._is_extended = is_extended
        self._messages: list[Message] = []
        self._turn: Message = {}  # of the model, while its items come
        self._shown: list[Part] = []  # images in results of tools, for the user's message behind them

    def add(self, raw: msgspec.Raw, where: str) -> None:
        item = read(_decode_item, raw, where)
        known = _ITEM_FIELDS.get(item.type)
        if known is None:
            raise refuse(
                f"{where}.type",
                f"{CHAT}, which this model is served by, has no items of the type {item.type!r}; "
                f"there are {', '.join(_ITEM_FIELDS)}",
            )
        check_known(read_fields(raw, where), known, where, CHAT)
        match item.type:
            case "message":
                self._add_message(item, where)
            case "function_call":
                self._add_call(item, where)
            case "function_call_output":
                self._add_result(item, where)
            case _:
                self._add_reasoning(read(_decode_reasoning, raw, where), f"{where}.encrypted_content")

    def finish(self) -> list[Message]:
        self._end_turn()
        self._show()
        return self._messages

    def _add_message(self, item: _Item, where: str) -> None:
        if item.role not in _ROLES:
            raise refuse(
                f"{where}.role", f"there is no role {item.role!r}; there are {', '.join(sorted(_ROLES))}"
            )
        parts = decode_parts(item.content, f"{where}.content", is_model=item.role == "assistant")
        if item.role != "assistant":
            self._end_turn()
            self._show()
            self._messages.append({"role": item.role, "content": parts})
            return
        self._show()
        if self._turn.get("content") is not None or "tool_calls" in self._turn:
            self._end_turn()
        self._begin_turn()["content"] = parts

    def _add_call(self, item: _Item, where: str) -> None:
        if not item.call_id or not item.name:
            name = "call_id" if not item.call_id else "name"
            raise refuse(f"{where}.{name}", "a call of a function needs it")
        self._show()
        function = {"name": item.name, "arguments": item.arguments or ""}
        call = {"id": item.call_id, "type": "function", "function": function}
        self._begin_turn().setdefault("tool_calls", []).append(call)

    def _add_result(self, item: _Item, where: str) -> None:
        if not item.call_id:
            raise refuse(f"{where}.call_id", "the result of a function needs it")
        self._end_turn()
        parts = decode_parts(item.output, f"{where}.output", is_model=False)
        if isinstance(parts, list) and not self._is_extended:
            self._shown += [part for part in parts if part["type"] != "text"]
            parts = [part for part in parts if part["type"] == "text"] or ""
        self._messages.append({"role": "tool", "tool_call_id": item.call_id, "content": parts})

    def _add_reasoning(self, thought: _Reasoning, where: str) -> None:
        self._show()
        if "tool_calls" in self._turn or self._turn.get("content") is not None:
            self._end_turn()
        turn = self._begin_turn()
        packed = thought.encrypted_content
        if packed:
            if packed.startswith(MARK) and self._is_extended:
                turn.setdefault("thinking_blocks", []).extend(_unpack_thoughts(packed, where))
            return
        words = "".join(text.text for text in thought.content or thought.summary or ())
        if words:
            turn["reasoning_content"] = turn.get("reasoning_content", "") + words

    def _begin_turn(self) -> Message:
        if not self._turn:
            self._turn = {"role": "assistant", "content": None}
        return self._turn

    def _end_turn(self) -> None:
        """The model's message is whole; one in which it only thought is left out."""
        turn, self._turn = self._turn, {}
        if turn.get("content") is not None or "tool_calls" in turn:
            self._messages.append(turn)

    def _show(self) -> None:
        shown, self._shown = self._shown, []
        if shown:
            self._messages.append({"role": "user", "content": shown})


def decode_parts(raw: msgspec.Raw, where: str, *, is_model: bool) -> str | list[Part]:
    """The content of a message: a text as it is, parts as those of chat.  Raises InvalidValue."""
    if is_text(raw):
        return read(_decode_string, raw, where)
    if not bytes(raw):
        raise refuse(where, "it is missing")
    parts = enumerate(read(_decode_list, raw, where))
    return [_decode_one(part, f"{where}[{at}]", is_model) for at, part in parts] or ""


def _decode_one(raw: msgspec.Raw, where: str, is_model: bool) -> Part:
    part = read(_decode_part, raw, where)
    known = _PART_FIELDS.get(part.type)
    if known is None or (is_model and part.type not in (*_OF_THE_MODEL, "input_text")):
        raise refuse(f"{where}.type", f"{part.type!r} can't stand here where {CHAT} serves the model")
    check_known(read_fields(raw, where), known, where, CHAT)
    made: Part
    match part.type:
        case "refusal" if is_model:
            made = {"type": "refusal", "refusal": part.refusal or ""}
        case "input_image":
            if not part.image_url:
                raise refuse(f"{where}.image_url", "an image needs it: an address, or a data URL")
            image = {"url": part.image_url}
            made = {
                "type": "image_url",
                "image_url": image | ({"detail": part.detail} if part.detail else {}),
            }
        case "input_file":
            named = {"file_data": part.file_data, "file_id": part.file_id, "filename": part.filename}
            if not part.file_data and not part.file_id:
                raise refuse(f"{where}.file_data", "a file needs it, or `file_id`")
            made = {"type": "file", "file": {name: value for name, value in named.items() if value}}
        case _:
            made = {"type": "text", "text": part.text or part.refusal or ""}
    if bytes(part.prompt_cache_breakpoint) not in (b"", b"null"):
        made["prompt_cache_breakpoint"] = part.prompt_cache_breakpoint
    return made
