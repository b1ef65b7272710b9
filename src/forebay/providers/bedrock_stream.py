"""A stream of Bedrock's ConverseStream as OpenAI's chat.  Pure.

Messages of AWS's binary event stream come in, server-sent events go out.  `metadata`, which brings the usage,
is the last of a stream that is whole, and only it becomes `[DONE]`: a stream that was cut has no such end.

Source: Amazon Bedrock API Reference, `ConverseStreamOutput`.
"""

from typing import Any, Final

import msgspec

from forebay.core.errors import UpstreamProtocol
from forebay.net.sse import encode_event
from forebay.providers.bedrock_answer import (
    FAILED,
    FINISH,
    Tier,
    ToolUse,
    build_head,
    describe_cost,
    describe_error,
    explain_failure,
    is_call,
)
from forebay.providers.eventstream import EventStreamDecoder, Message
from forebay.providers.json_edit import NOTHING, UNREADABLE

_DONE: Final = b"data: [DONE]\n\n"
_CHUNK: Final = "chat.completion.chunk"


class _Start(msgspec.Struct, frozen=True, rename="camel"):
    tool_use: ToolUse | None = None


class _ToolDelta(msgspec.Struct, frozen=True):
    input: str = ""


class _ReasoningDelta(msgspec.Struct, frozen=True, rename="camel"):
    text: str | None = None
    signature: str | None = None
    redacted_content: str | None = None


class _Delta(msgspec.Struct, frozen=True, rename="camel"):
    text: str | None = None
    tool_use: _ToolDelta | None = None
    reasoning_content: _ReasoningDelta | None = None


class _Event(msgspec.Struct, frozen=True, rename="camel"):
    """What any of the events may hold; which one it is says its header."""

    content_block_index: int = 0
    start: _Start | None = None
    delta: _Delta | None = None
    stop_reason: str = ""
    usage: msgspec.Raw = NOTHING
    service_tier: Tier | None = None


class _Failure(msgspec.Struct, frozen=True):
    message: str = ""


_decode_event = msgspec.json.Decoder(_Event).decode
_decode_failure = msgspec.json.Decoder(_Failure).decode


class _Call:
    """A call of a tool whose arguments are coming."""

    __slots__ = ("has_arguments", "place")

    def __init__(self, place: int) -> None:
        self.place = place
        self.has_arguments = False


class BedrockStream:
    """One stream on its way; `forebay.core.translation.StreamTranslator`.

    Args:
        model: what the chunks call the model.
        event_max_bytes: the longest message that is held while its end has not come.
        answer_id: what they call the answer.
    """

    __slots__ = ("_answer_id", "_calls", "_decoder", "_is_over", "_model", "_open", "_thoughts")

    def __init__(self, model: str, *, event_max_bytes: int, answer_id: str = "") -> None:
        self._answer_id = answer_id
        self._decoder = EventStreamDecoder(event_max_bytes)
        self._model = model
        self._open: dict[int, _Call] = {}  # by the index of their block
        self._calls = 0
        self._thoughts: list[int] = []  # indices of blocks of thinking, in their order
        self._is_over = False  # by the last event, or by an error: nothing follows

    def feed(self, data: bytes) -> bytes:
        return b"".join(map(self._translate, self._decoder.feed(data)))

    def finish(self) -> bytes:
        """Nothing: a message that is not whole says nothing."""
        return b""

    def _translate(self, message: Message) -> bytes:
        if self._is_over:
            return b""
        headers = message.headers
        match headers.get(":message-type"):
            case "event":
                return self._read(headers.get(":event-type", ""), message.payload)
            case "exception":
                return self._fail(headers.get(":exception-type", ""), _read_failure(message.payload))
            case "error":
                return self._fail(headers.get(":error-code", ""), headers.get(":error-message", ""))
            case kind:
                raise UpstreamProtocol(f"The upstream sent a message of an unknown kind: {kind!r}")

    def _read(self, kind: str, payload: bytes) -> bytes:
        try:
            event = _decode_event(payload)
        except UNREADABLE as error:
            raise UpstreamProtocol(
                f"The upstream sent an event that is none of ConverseStream's: {error}"
            ) from None
        match kind:
            case "messageStart":
                return self._write({"role": "assistant", "content": ""})
            case "contentBlockStart" if event.start is not None and is_call(event.start.tool_use):
                assert event.start.tool_use is not None
                return self._begin_call(event.content_block_index, event.start.tool_use)
            case "contentBlockDelta" if event.delta is not None:
                return self._continue(event.content_block_index, event.delta)
            case "contentBlockStop":
                call = self._open.pop(event.content_block_index, None)
                return self._write_arguments(call, "{}") if call and not call.has_arguments else b""
            case "messageStop":
                if event.stop_reason in FAILED:
                    return self._fail("", explain_failure(event.stop_reason))
                return self._write({}, FINISH.get(event.stop_reason, "stop"))
            case "metadata":
                return self._end(event)
        return b""

    def _begin_call(self, index: int, tool_use: ToolUse) -> bytes:
        call = self._open[index] = _Call(self._calls)
        self._calls += 1
        head = {"index": call.place, "id": tool_use.tool_use_id, "type": "function"}
        function = {"name": tool_use.name, "arguments": ""}
        return self._write({"tool_calls": [head | {"function": function}]})

    def _continue(self, index: int, delta: _Delta) -> bytes:
        if delta.text:
            return self._write({"content": delta.text})
        if delta.reasoning_content is not None:
            return self._think(index, delta.reasoning_content)
        call = self._open.get(index)
        if delta.tool_use is None or not delta.tool_use.input or call is None:
            return b""
        call.has_arguments = True
        return self._write_arguments(call, delta.tool_use.input)

    def _think(self, index: int, delta: _ReasoningDelta) -> bytes:
        if index not in self._thoughts:
            self._thoughts.append(index)
        place = self._thoughts.index(index)
        if delta.redacted_content is not None:
            thought = {"index": place, "type": "redacted_thinking", "data": delta.redacted_content}
            return self._write({"thinking_blocks": [thought]})
        thought = {"index": place, "type": "thinking"}
        out = b""
        if delta.text:
            piece = thought | {"thinking": delta.text}
            out += self._write({"reasoning_content": delta.text, "thinking_blocks": [piece]})
        if delta.signature:
            out += self._write({"thinking_blocks": [thought | {"signature": delta.signature}]})
        return out

    def _write_arguments(self, call: _Call, fragment: str) -> bytes:
        return self._write({"tool_calls": [{"index": call.place, "function": {"arguments": fragment}}]})

    def _end(self, event: _Event) -> bytes:
        self._is_over = True
        cost = describe_cost(event.usage, event.service_tier)
        if "usage" not in cost:
            return _DONE
        chunk = build_head(self._model, _CHUNK, self._answer_id) | {"choices": []} | cost
        return encode_event(msgspec.json.encode(chunk)) + _DONE

    def _fail(self, name: str, message: str) -> bytes:
        self._is_over = True
        words = message or f"The upstream's stream ended with {name or 'an error that says nothing'}."
        return encode_event(msgspec.json.encode({"error": describe_error(name, words)}))

    def _write(self, delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        chunk = build_head(self._model, _CHUNK, self._answer_id) | {"choices": [choice]}
        return encode_event(msgspec.json.encode(chunk))


def _read_failure(payload: bytes) -> str:
    try:
        return _decode_failure(payload).message
    except UNREADABLE:
        return ""
