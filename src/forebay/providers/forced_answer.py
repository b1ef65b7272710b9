"""Answers that follow `forced_schema`, whole and in streams, as the calls of tools that they are.  Pure.

Every other field passes as its own bytes, usage among them.  What is no call passes as it came.
"""

import re
from typing import Any, Final

import msgspec

from forebay.core.errors import UpstreamProtocol
from forebay.net.sse import EventSplitter, encode_event, parse_event
from forebay.providers.forced_calls import CallReader, Piece
from forebay.providers.json_edit import NOTHING, UNREADABLE

_Fields = dict[str, msgspec.Raw]
_decode_fields = msgspec.json.Decoder(_Fields).decode
_decode_choices = msgspec.json.Decoder(list[_Fields]).decode
_decode_text = msgspec.json.Decoder(str | None).decode
_encode = msgspec.json.encode
_NULL: Final = msgspec.Raw(b"null")
_ABSENT: Final = frozenset((b"", b"null", b"[]"))
_STOP: Final = b'"stop"'
_CALLED: Final = msgspec.Raw(b'"tool_calls"')
_CUT: Final = msgspec.Raw(b'"length"')
_NOT_IN_IDS: Final = re.compile(r"[^A-Za-z0-9]+")


def decode_answer(body: bytes, answer_id: str = "") -> bytes:
    """The answer with its calls in `tool_calls`.  Raises UpstreamProtocol on what is no answer."""
    try:
        answer = _decode_fields(body)
        choices = _decode_choices(answer["choices"])
        for at, choice in enumerate(choices):
            _turn_choice(choice, f"{_read_id(answer, answer_id)}_{at}")
    except (KeyError, *UNREADABLE) as error:
        raise UpstreamProtocol(f"The upstream's answer is no chat completion: {error}") from None
    return _encode(answer | {"choices": choices})


def _turn_choice(choice: _Fields, call_id: str) -> None:
    message = _decode_fields(choice["message"])
    content = _read_text(message)
    if not content or bytes(message.get("tool_calls", _NULL)) not in _ABSENT:
        return
    reader = CallReader()
    pieces, _ = reader.feed(content)
    if not reader.calls:
        return
    made: dict[str, Any] = {**message, "content": None, "tool_calls": _write_calls(pieces, call_id)}
    choice["message"] = msgspec.Raw(_encode(made))
    if bytes(choice.get("finish_reason", _NULL)) == _STOP:
        choice["finish_reason"] = _tell_end(reader)


def _write_calls(pieces: list[Piece], call_id: str, *, with_index: bool = False) -> list[dict[str, Any]]:
    return [
        ({"index": piece.index} if with_index else {})
        | ({} if piece.name is None else {"id": f"call_{call_id}_{piece.index}", "type": "function"})
        | {"function": _write_function(piece)}
        for piece in pieces
    ]


def _write_function(piece: Piece) -> dict[str, str]:
    named = {} if piece.name is None else {"name": piece.name}
    return named | {"arguments": piece.arguments}


def _tell_end(reader: CallReader) -> msgspec.Raw:
    """Why an answer with calls has ended that says `stop`: a text of the request may have cut the last."""
    return _CUT if reader.is_cut else _CALLED


def _read_id(fields: _Fields, answer_id: str) -> str:
    """What is particular to an answer, in letters that every dialect takes in an id."""
    raw = bytes(fields.get("id", NOTHING))
    told = _decode_text(raw) if raw[:1] == b'"' else None
    return _NOT_IN_IDS.sub("", (told or answer_id).removeprefix("chatcmpl-"))


def _read_text(fields: _Fields) -> str | None:
    raw = fields.get("content", _NULL)
    return _decode_text(raw) if bytes(raw)[:1] == b'"' else None


class ForcedStream:
    """One stream on its way; `forebay.core.translation.StreamTranslator`.

    Args:
        event_max_bytes: the longest event that is held while its end has not come.
        answer_id: what names calls where the answer has no id.
    """

    __slots__ = ("_answer_id", "_readers", "_splitter")

    def __init__(self, *, event_max_bytes: int, answer_id: str = "") -> None:
        self._answer_id = answer_id
        self._splitter = EventSplitter(event_max_bytes)
        self._readers: dict[bytes, CallReader] = {}  # by the index of their choice

    def feed(self, data: bytes) -> bytes:
        return b"".join(map(self._translate, self._splitter.feed(data)))

    def finish(self) -> bytes:
        """The last event, if only its blank line is missing."""
        rest = self._splitter.finish()
        return self._translate(rest) if rest else b""

    def _translate(self, raw: bytes) -> bytes:
        data = parse_event(raw).data
        if not data or data[:1] != b"{":
            return raw
        try:
            chunk = _decode_fields(data)
            choices = _decode_choices(chunk["choices"])
            call_id = _read_id(chunk, self._answer_id)
            turned = [self._turn(choice, call_id) for choice in choices]
        except (KeyError, *UNREADABLE):  # an error, or what its reader will complain of
            return raw
        if not any(is_new for _, is_new in turned):
            return raw
        left = [choice for choice, _ in turned if choice is not None]
        if not left and bytes(chunk.get("usage", _NULL)) == b"null":
            return b""
        return encode_event(_encode(chunk | {"choices": left}))

    def _turn(self, choice: _Fields, call_id: str) -> tuple[_Fields | None, bool]:
        """The choice as it goes on, None where nothing of it does; and whether that is another."""
        delta = _decode_fields(choice["delta"]) if "delta" in choice else {}
        index = bytes(choice.get("index", NOTHING)) or b"0"
        reader = self._readers.get(index)
        text = _read_text(delta)
        is_end = bytes(choice.get("finish_reason", _NULL)) != b"null"
        if not text and not (is_end and reader is not None):
            return choice, False
        if reader is None:
            reader = self._readers[index] = CallReader()
        pieces, rest = reader.feed(text or "")
        if is_end:
            rest += reader.finish()
        made: dict[str, Any] = {name: value for name, value in delta.items() if name != "content"}
        if rest:
            made["content"] = rest
        if pieces:
            made["tool_calls"] = _write_calls(pieces, f"{call_id}_{index.decode()}", with_index=True)
        if not made and not is_end:
            return None, True
        turned = choice | {"delta": msgspec.Raw(_encode(made))}
        if is_end and reader.calls and bytes(choice["finish_reason"]) == _STOP:
            turned["finish_reason"] = _tell_end(reader)
        return turned, True
