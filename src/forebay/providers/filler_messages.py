"""A filler before a stream of Anthropic's messages: a block of its own, and the answer's follow.  Pure.

The message is begun by us, so its begin is taken out of the answer; what it says of usage comes with the end.
"""

from typing import Any, Final

import msgspec

from forebay.core.filler import Opening
from forebay.net.sse import EventSplitter, encode_event, parse_event
from forebay.providers.filler_chat import UNBOUNDED, asks_for
from forebay.providers.json_edit import UNREADABLE, set_fields

_FORMS: Final = ("output_format",)


class _Kind(msgspec.Struct, frozen=True):
    type: str = ""


class _Said(msgspec.Struct, frozen=True):
    role: str = ""


class _OutputConfig(msgspec.Struct, frozen=True):
    format: msgspec.Raw = msgspec.Raw(b"null")


class _Asked(msgspec.Struct, frozen=True):
    thinking: _Kind | None = None
    tool_choice: _Kind | None = None
    output_config: _OutputConfig | None = None
    messages: list[_Said] | None = None


class _Message(msgspec.Struct, frozen=True):
    usage: dict[str, msgspec.Raw] | None = None


class _Event(msgspec.Struct, frozen=True):
    type: str = ""
    index: int | None = None
    message: _Message | None = None
    usage: dict[str, msgspec.Raw] | None = None


_decode_asked = msgspec.json.Decoder(_Asked).decode
_decode_event = msgspec.json.Decoder(_Event).decode


def takes_filler(body: bytes) -> bool:
    """Whether more text before the answer leaves it what the request asked for."""
    try:
        asked = _decode_asked(body)
        if asks_for(body, _FORMS):
            return False
    except UNREADABLE:
        return False
    if asked.thinking is not None and asked.thinking.type != "disabled":
        return False  # an answer with thinking has to begin with it when it is sent back
    if asked.tool_choice is not None and asked.tool_choice.type in ("any", "tool"):
        return False
    if asked.output_config is not None and bytes(asked.output_config.format) != b"null":
        return False
    return not asked.messages or asked.messages[-1].role != "assistant"  # else it goes on where that ends


class MessagesFiller:
    """`forebay.core.filler.Filler` of one stream."""

    __slots__ = ("_begun", "_splitter", "opening")

    def __init__(self, opening: Opening) -> None:
        self._splitter = EventSplitter(UNBOUNDED)
        self._begun: dict[str, msgspec.Raw] = {}  # the usage that the answer began with
        message: dict[str, Any] = {
            "id": "msg_" + opening.id,
            "type": "message",
            "role": "assistant",
            "model": opening.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 0, "output_tokens": 0},
        }
        events: list[dict[str, Any]] = [
            {"type": "message_start", "message": message},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            {
                "type": "content_block_delta",
                "index": 0,
                "delta": {"type": "text_delta", "text": opening.text},
            },
            {"type": "content_block_stop", "index": 0},
        ]
        self.opening = b"".join(encode_event(msgspec.json.encode(each), each["type"]) for each in events)

    def feed(self, data: bytes) -> bytes:
        return b"".join(map(self._join, self._splitter.feed(data)))

    def finish(self) -> bytes:
        rest = self._splitter.finish()
        return self._join(rest) if rest else b""

    def _join(self, raw: bytes) -> bytes:
        parsed = parse_event(raw)
        data = parsed.data or b""
        if not data.startswith(b"{"):
            return raw
        try:
            event = _decode_event(data)
            if event.type == "message_start":
                self._begun = (event.message and event.message.usage) or {}
                return b""
            if event.type == "message_delta":
                told = {name: value for name, value in (event.usage or {}).items() if bytes(value) != b"null"}
                usage = self._begun | told
                data = set_fields(data, {"usage": msgspec.json.encode(usage)})
            elif event.index is not None:
                data = set_fields(data, {"index": b"%d" % (event.index + 1)})
            else:
                return raw
        except UNREADABLE:
            return raw
        return encode_event(data, None if parsed.event == "message" else parsed.event)
