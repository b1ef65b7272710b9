"""Answers, streams and errors of a target that speaks Anthropic's messages, as OpenAI's chat.  Pure.

What was thought goes into `reasoning_content`, as many servers of OpenAI's dialect have it, and beside it
with its signatures into `thinking_blocks`, which a caller may send back.  Blocks and events of kinds that we
don't know are passed over, as Anthropic asks its clients to.
"""

from typing import Any, Final

import msgspec

from forebay.core.errors import UpstreamProtocol
from forebay.net.sse import EventSplitter, encode_event, parse_event
from forebay.providers.anthropic_chat_usage import NO_USAGE, build_chat_usage, read_messages_usage
from forebay.providers.anthropic_usage import AnthropicUsage
from forebay.providers.chat_answer import start_message
from forebay.providers.json_edit import NOTHING, UNREADABLE

_FINISH: Final = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
_DONE: Final = b"data: [DONE]\n\n"
_PING: Final = b": ping\n\n"
#: How Anthropic begins to say that a prompt is too long; OpenAI has a code for it.
_TOO_LONG: Final = ("prompt is too long", "input length and `max_tokens` exceed context limit")
_CODES: Final = {"rate_limit_error": "rate_limit_exceeded"}


class _Details(msgspec.Struct, frozen=True):
    explanation: str | None = None


class _Block(msgspec.Struct, frozen=True):
    type: str
    text: str = ""
    thinking: str = ""
    signature: str = ""
    data: str = ""
    id: str = ""
    name: str = ""
    input: msgspec.Raw = NOTHING


class _Answer(msgspec.Struct, frozen=True):
    content: list[_Block]
    id: str = ""
    stop_reason: str | None = None
    stop_details: _Details | None = None
    usage: msgspec.Raw = NOTHING


class _Delta(msgspec.Struct, frozen=True):
    type: str = ""
    text: str = ""
    thinking: str = ""
    signature: str = ""
    partial_json: str = ""
    stop_reason: str | None = None
    stop_details: _Details | None = None


class _Start(msgspec.Struct, frozen=True):
    id: str = ""
    usage: msgspec.Raw = NOTHING


class _Event(msgspec.Struct, frozen=True):
    type: str
    index: int = 0
    message: _Start | None = None
    content_block: _Block | None = None
    delta: _Delta | None = None
    usage: msgspec.Raw = NOTHING
    error: msgspec.Raw = NOTHING


class _Error(msgspec.Struct, frozen=True):
    message: str
    type: str | None = None


class _Envelope(msgspec.Struct, frozen=True):
    error: _Error


_decode_answer = msgspec.json.Decoder(_Answer).decode
_decode_event = msgspec.json.Decoder(_Event).decode
_decode_envelope = msgspec.json.Decoder(_Envelope).decode
_decode_error = msgspec.json.Decoder(_Error).decode


def decode_answer(body: bytes, model: str) -> bytes:
    """A chat completion.  Raises UpstreamProtocol.  The time of its making is 0, because none is told."""
    try:
        answer = _decode_answer(body)
    except UNREADABLE as error:
        raise UpstreamProtocol(
            f"The upstream's answer is no message in Anthropic's dialect: {error}"
        ) from None
    calls = [_decode_call(block) for block in answer.content if block.type == "tool_use"]
    text = "".join(block.text for block in answer.content if block.type == "text")
    message = start_message(text if text or not calls else None)
    if answer.stop_reason == "refusal" and answer.stop_details and answer.stop_details.explanation:
        message["refusal"] = answer.stop_details.explanation
    thought = "".join(block.thinking for block in answer.content if block.type == "thinking")
    if thought:
        message["reasoning_content"] = thought
    kept = [made for block in answer.content if (made := _decode_thinking(block)) is not None]
    if kept:
        message["thinking_blocks"] = kept
    if calls:
        message["tool_calls"] = calls
    completion = _build_head(answer.id, model, "chat.completion") | {
        "choices": [
            {
                "index": 0,
                "message": message,
                "logprobs": None,
                "finish_reason": _FINISH.get(answer.stop_reason or "", "stop"),
            }
        ]
    }
    usage = build_chat_usage(read_messages_usage(answer.usage))
    return msgspec.json.encode(completion if usage is None else completion | {"usage": usage})


def _decode_call(block: _Block) -> dict[str, Any]:
    arguments = bytes(block.input).decode() if block.input is not NOTHING else "{}"
    return {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": arguments}}


def _decode_thinking(block: _Block) -> dict[str, str] | None:
    if block.type == "thinking":
        return {"type": "thinking", "thinking": block.thinking, "signature": block.signature}
    return {"type": "redacted_thinking", "data": block.data} if block.type == "redacted_thinking" else None


def _build_head(answer_id: str, model: str, kind: str) -> dict[str, Any]:
    return {"id": answer_id, "object": kind, "created": 0, "model": model}


# --- errors -------------------------------------------------------------------------------------------------


def decode_error(status: int, body: bytes) -> bytes:
    """OpenAI's error from an answer with that status, in the target's words as far as it has any."""
    try:
        error = _decode_envelope(body).error
    except UNREADABLE:
        error = _Error(f"The upstream answered with status {status}, and no error in Anthropic's dialect.")
    return msgspec.json.encode({"error": _describe(error)})


def _describe(error: _Error) -> dict[str, str | None]:
    kind = error.type or "upstream_error"
    code = "context_length_exceeded" if error.message.startswith(_TOO_LONG) else _CODES.get(kind)
    return {"message": error.message, "type": kind, "param": None, "code": code}


# --- streams ------------------------------------------------------------------------------------------------


class AnthropicStream:
    """One stream on its way; `forebay.core.translation.StreamTranslator`.

    Args:
        model: what the chunks call the model.
        event_max_bytes: the longest event that is held while its end has not come.
    """

    __slots__ = (
        "_calls", "_finished", "_id", "_is_over", "_model", "_open", "_splitter", "_thoughts", "_usage",
    )  # fmt: skip

    def __init__(self, model: str, *, event_max_bytes: int) -> None:
        self._splitter = EventSplitter(event_max_bytes)
        self._model = model
        self._id = ""
        self._open: dict[int, _OpenBlock] = {}
        self._calls = 0
        self._thoughts = 0
        self._usage: AnthropicUsage = NO_USAGE
        self._finished = False  # the reason to stop has been handed on
        self._is_over = False  # by the dialect's end, or by an error: nothing follows

    def feed(self, data: bytes) -> bytes:
        return b"".join(map(self._translate, self._splitter.feed(data)))

    def finish(self) -> bytes:
        """The last event, if only its blank line is missing; half an event is none.

        What was counted is told even where the end is missing, if the choice has come to its own.
        """
        rest = self._splitter.finish()
        try:
            out = self._translate(rest) if rest else b""
        except UpstreamProtocol:
            out = b""
        if self._finished and not self._is_over:
            self._is_over = True
            out += self._write_usage()
        return out

    def _translate(self, raw: bytes) -> bytes:
        data = parse_event(raw).data
        if self._is_over or not data:
            return b""
        try:
            event = _decode_event(data)
        except UNREADABLE as error:
            raise UpstreamProtocol(
                f"The upstream sent an event that is none in Anthropic's dialect: {error}"
            ) from None
        match event.type:
            case "message_start" if event.message is not None:
                self._id = event.message.id
                self._note_usage(event.message.usage)
                return self._write({"role": "assistant", "content": ""})
            case "content_block_start" if event.content_block is not None:
                return self._start(event.index, event.content_block)
            case "content_block_delta" if event.delta is not None:
                return self._continue(event.index, event.delta)
            case "content_block_stop":
                return self._stop(event.index)
            case "message_delta" if event.delta is not None:
                self._note_usage(event.usage)
                return self._end_choice(event.delta)
            case "message_stop":
                return self._end()
            case "error":
                return self._fail(event.error)
            case "ping":
                return _PING
        return b""

    def _note_usage(self, raw: msgspec.Raw) -> None:
        if raw is not NOTHING:
            self._usage = self._usage.update(read_messages_usage(raw))

    def _start(self, index: int, block: _Block) -> bytes:
        opened = _OpenBlock(kind=block.type)
        self._open[index] = opened
        match block.type:
            case "text":
                return self._write({"content": block.text}) if block.text else b""
            case "thinking":
                opened.place = self._thoughts
                self._thoughts += 1
                return self._think(opened, block.thinking, block.signature)
            case "redacted_thinking":
                self._thoughts += 1
                thought = {"index": self._thoughts - 1, "type": block.type, "data": block.data}
                return self._write({"thinking_blocks": [thought]})
            case "tool_use":
                opened.place = self._calls
                opened.arguments = bytes(block.input).decode() or "{}"
                self._calls += 1
                call = {"index": opened.place, "id": block.id, "type": "function"}
                return self._write(
                    {"tool_calls": [call | {"function": {"name": block.name, "arguments": ""}}]}
                )
        return b""

    def _continue(self, index: int, delta: _Delta) -> bytes:
        opened = self._open.get(index)
        match delta.type:
            case "text_delta" if delta.text:
                return self._write({"content": delta.text})
            case "thinking_delta" | "signature_delta" if opened is not None:
                return self._think(opened, delta.thinking, delta.signature)
            case "input_json_delta" if (
                opened is not None and opened.kind == "tool_use" and delta.partial_json
            ):
                opened.arguments = ""
                return self._write_arguments(opened, delta.partial_json)
        return b""

    def _stop(self, index: int) -> bytes:
        opened = self._open.pop(index, None)
        if opened is None or not opened.arguments:
            return b""
        return self._write_arguments(opened, opened.arguments)  # all that there is: no fragment came

    def _think(self, opened: "_OpenBlock", thinking: str, signature: str) -> bytes:
        thought = {"index": opened.place, "type": "thinking"}
        if thinking:
            piece = thought | {"thinking": thinking}
            return self._write({"reasoning_content": thinking, "thinking_blocks": [piece]}) + (
                self._think(opened, "", signature) if signature else b""
            )
        return self._write({"thinking_blocks": [thought | {"signature": signature}]}) if signature else b""

    def _write_arguments(self, opened: "_OpenBlock", fragment: str) -> bytes:
        return self._write({"tool_calls": [{"index": opened.place, "function": {"arguments": fragment}}]})

    def _end_choice(self, delta: _Delta) -> bytes:
        if delta.stop_reason is None or self._finished:
            return b""
        self._finished = True
        said: dict[str, Any] = {}
        if delta.stop_reason == "refusal" and delta.stop_details and delta.stop_details.explanation:
            said["refusal"] = delta.stop_details.explanation
        return self._write(said, _FINISH.get(delta.stop_reason, "stop"))

    def _end(self) -> bytes:
        self._is_over = True
        return self._write_usage() + _DONE

    def _write_usage(self) -> bytes:
        usage = build_chat_usage(self._usage)
        if usage is None:
            return b""
        chunk = _build_head(self._id, self._model, "chat.completion.chunk") | {"choices": [], "usage": usage}
        return encode_event(msgspec.json.encode(chunk))

    def _fail(self, raw: msgspec.Raw) -> bytes:
        self._is_over = True
        try:
            error = _decode_error(raw)
        except UNREADABLE:
            error = _Error("The upstream's stream ended with an error that says nothing.")
        return encode_event(msgspec.json.encode({"error": _describe(error)}))

    def _write(self, delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        chunk = _build_head(self._id, self._model, "chat.completion.chunk") | {"choices": [choice]}
        return encode_event(msgspec.json.encode(chunk))


class _OpenBlock:
    """A block whose end has not come.

    Attributes:
        place: among the calls, or among the thoughts.
        arguments: what is to be told at its end if no fragment comes.
    """

    __slots__ = ("arguments", "kind", "place")

    def __init__(self, *, kind: str) -> None:
        self.kind = kind
        self.place = 0
        self.arguments = ""
