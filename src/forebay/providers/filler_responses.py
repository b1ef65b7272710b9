"""A filler before a stream of OpenAI's Responses: a message of its own, and the answer's items follow.  Pure.

The response is begun by us, so its begin is taken out of the answer; the last event holds both.
"""

from typing import Any, Final

import msgspec

from forebay.core.filler import Opening
from forebay.net.sse import EventSplitter, encode_event, parse_event
from forebay.providers.filler_chat import SILENT, UNBOUNDED, asks_for, has_to_call
from forebay.providers.json_edit import NOTHING, UNREADABLE, set_fields
from forebay.providers.responses_answer import build_message, build_response, build_text
from forebay.providers.responses_echo import read_echo

_BEGIN: Final = frozenset({"response.created", "response.queued", "response.in_progress"})
_OTHERS: Final = ("top_logprobs",)


class _Format(msgspec.Struct, frozen=True):
    type: str = "text"


class _Text(msgspec.Struct, frozen=True):
    format: _Format | None = None


class _Asked(msgspec.Struct, frozen=True):
    tool_choice: msgspec.Raw = NOTHING
    include: msgspec.Raw = NOTHING
    text: _Text | None = None


class _Event(msgspec.Struct, frozen=True):
    type: str = ""
    output_index: int | None = None
    sequence_number: int | None = None
    response: msgspec.Raw = NOTHING


class _Output(msgspec.Struct, frozen=True):
    output: list[msgspec.Raw] | None = None


_decode_asked = msgspec.json.Decoder(_Asked).decode
_decode_event = msgspec.json.Decoder(_Event).decode
_decode_output = msgspec.json.Decoder(_Output).decode


def takes_filler(body: bytes) -> bool:
    """Whether more text before the answer leaves it what the request asked for."""
    try:
        asked = _decode_asked(body)
        if asks_for(body, _OTHERS):
            return False
    except UNREADABLE:
        return False
    if b"logprobs" in bytes(asked.include) or has_to_call(asked.tool_choice):
        return False
    return asked.text is None or asked.text.format is None or asked.text.format.type == "text"


class ResponsesFiller:
    """`forebay.core.filler.Filler` of one stream.

    Args:
        request: the caller's, of which a response repeats much.
    """

    __slots__ = ("_item", "_sequence", "_splitter", "_told", "opening")

    def __init__(self, opening: Opening, request: bytes) -> None:
        self._splitter = EventSplitter(UNBOUNDED)
        self._sequence = 0
        response = build_response(opening.id, opening.created_s, opening.model, read_echo(request))
        begun = build_message(f"{opening.id}_filler", 0, "in_progress")  # an answer may have the id alone
        empty, part = build_text(), build_text(opening.text)
        item = begun | {"status": "completed", "content": [part]}
        place = {"item_id": begun["id"], "output_index": 0, "content_index": 0}
        self._item = msgspec.Raw(msgspec.json.encode(item))
        self._told = {name: msgspec.json.encode(response[name]) for name in ("id", "created_at", "model")}
        words: dict[str, Any] = {"logprobs": []}
        self.opening = b"".join(
            (
                self._write("response.created", {"response": response}),
                self._write("response.in_progress", {"response": response}),
                self._write("response.output_item.added", {"output_index": 0, "item": begun}),
                self._write("response.content_part.added", place | {"part": empty}),
                self._write("response.output_text.delta", place | words | {"delta": opening.text}),
                self._write("response.output_text.done", place | words | {"text": opening.text}),
                self._write("response.content_part.done", place | {"part": part}),
                self._write("response.output_item.done", {"output_index": 0, "item": item}),
            )
        )

    def feed(self, data: bytes) -> bytes:
        return b"".join(map(self._join, self._splitter.feed(data)))

    def finish(self) -> bytes:
        rest = self._splitter.finish()
        return self._join(rest) if rest else b""

    def _write(self, kind: str, fields: dict[str, Any]) -> bytes:
        told = {"type": kind, "sequence_number": self._sequence} | fields
        self._sequence += 1
        return encode_event(msgspec.json.encode(told), kind)

    def _join(self, raw: bytes) -> bytes:
        parsed = parse_event(raw)
        data = parsed.data or b""
        if not data.startswith(b"{"):
            return raw
        changes: dict[str, bytes] = {}
        try:
            event = _decode_event(data)
            if event.type in _BEGIN:
                return b""
            if event.sequence_number is not None:
                changes["sequence_number"] = b"%d" % self._sequence
            if event.output_index is not None:
                changes["output_index"] = b"%d" % (event.output_index + 1)
            if bytes(event.response) not in SILENT:
                changes["response"] = self._join_response(bytes(event.response))
            joined = set_fields(data, changes) if changes else data
        except UNREADABLE:
            return raw
        self._sequence += event.sequence_number is not None
        return encode_event(joined, None if parsed.event == "message" else parsed.event)

    def _join_response(self, response: bytes) -> bytes:
        output = [self._item, *(_decode_output(response).output or ())]
        return set_fields(response, self._told | {"output": msgspec.json.encode(output)})
