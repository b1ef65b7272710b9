"""A stream of OpenAI's chat as one of Anthropic's messages.  Pure.

In Anthropic's dialect one block ends before the next begins, while OpenAI's servers may send pieces of
several tool calls in turn.  So the first call is handed on as it comes, and what begins after it waits for
the end of the choice.  The end is told when the chat has come to its own; a stream that was cut has none.
"""

from collections import deque
from typing import Any, Final

import msgspec

from forebay.core.errors import UpstreamProtocol
from forebay.net.sse import EventSplitter, EventTooLarge, encode_event, parse_event
from forebay.providers import openai
from forebay.providers.anthropic_chat_usage import build_delta_usage
from forebay.providers.json_edit import NOTHING, UNREADABLE
from forebay.providers.messages_answer import (
    Thought,
    build_stop,
    build_text,
    build_tool_use,
    encode_error,
    encode_thought,
    name_call,
    start_message,
)

_PING: Final = b'event: ping\ndata: {"type":"ping"}\n\n'
_EMPTY: Final = frozenset((b"", b"null", b'""', b"{}", b"[]", b"false"))  #: no error, in an event's `error`


class _Function(msgspec.Struct, frozen=True):
    name: str | None = None
    arguments: str | None = None


class _ToolCall(msgspec.Struct, frozen=True):
    index: int = 0
    id: str | None = None
    function: _Function | None = None


class _Delta(msgspec.Struct, frozen=True):
    content: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    thinking_blocks: list[Thought] | None = None
    tool_calls: list[_ToolCall] | None = None


class _Choice(msgspec.Struct, frozen=True):
    delta: _Delta | None = None
    index: int = 0
    finish_reason: str | None = None
    stop_reason: str | int | None = None  # vLLM: what stopped it


class _Chunk(msgspec.Struct, frozen=True):
    choices: list[_Choice] | None = None
    id: str | None = None
    model: str | None = None
    usage: msgspec.Raw = NOTHING
    error: msgspec.Raw = NOTHING


class _Block:
    """One block of the answer: what it is, how it begins, and which pieces of it wait.

    Attributes:
        key: pieces with the same key belong to it.
        start: its `content_block`.
        pieces: deltas that have not been handed on.
        is_open: whether its start has been handed on, and its end has not.
    """

    __slots__ = ("is_open", "key", "pieces", "start")

    def __init__(self, key: tuple[str, int], start: dict[str, Any]) -> None:
        self.key = key
        self.start = start
        self.pieces: list[dict[str, str]] = []
        self.is_open = False


_decode_chunk = msgspec.json.Decoder(_Chunk).decode


class MessagesStream:
    """One stream on its way; `forebay.core.translation.StreamTranslator`.

    Args:
        event_max_bytes: the longest event that is held while its end has not come, and how much of further
            tool calls may wait.
    """

    __slots__ = (
        "_blocks", "_calls", "_event_max_bytes", "_finish", "_id", "_index", "_is_calling", "_is_over",
        "_is_refused", "_is_started", "_splitter", "_usage", "_waiting_bytes",
    )  # fmt: skip

    def __init__(self, *, event_max_bytes: int) -> None:
        self._splitter = EventSplitter(event_max_bytes)
        self._event_max_bytes = event_max_bytes
        self._id = ""
        self._blocks: deque[_Block] = (
            deque()
        )  # the one that is being handed on, and those that wait behind it
        self._calls: dict[tuple[str, int], _Block] = {}  # of tools, among the blocks
        self._index = 0  # of the block at the head
        self._waiting_bytes = 0
        self._usage = NOTHING
        self._finish: _Choice | None = None
        self._is_started = False
        self._is_calling = False
        self._is_refused = False
        self._is_over = False  # by the dialect's end, or by an error: nothing follows

    def feed(self, data: bytes) -> bytes:
        return b"".join(map(self._translate, self._splitter.feed(data)))

    def finish(self) -> bytes:
        """The last event, if only its blank line is missing, and the end if the choice has come to one."""
        rest = self._splitter.finish()
        try:
            out = self._translate(rest) if rest else b""
        except UpstreamProtocol:  # half an event is none
            out = b""
        if self._finish is not None and not self._is_over:
            out += self._end()
        return out

    def _translate(self, raw: bytes) -> bytes:
        event = parse_event(raw)
        data = event.data
        if self._is_over:
            return b""
        if not data:  # a comment keeps a connection alive
            return _PING if self._is_started and raw.startswith(b":") else b""
        if data.strip() == b"[DONE]":
            return self._end()
        try:
            chunk = _decode_chunk(data)
        except UNREADABLE as error:
            if event.event == "error":
                return self._fail(
                    msgspec.Raw(msgspec.json.encode({"message": data.decode("utf-8", "replace")}))
                )
            raise UpstreamProtocol(
                f"The upstream sent an event that is no chunk of a chat: {error}"
            ) from None
        if bytes(chunk.error) not in _EMPTY:
            return self._fail(chunk.error)
        if event.event == "error":
            return self._fail(msgspec.Raw(data))
        if bytes(chunk.usage) not in (b"", b"null"):
            self._usage = chunk.usage
        return b"".join(
            self._start(chunk) + self._continue(choice) for choice in chunk.choices or () if choice.index == 0
        )

    def _start(self, chunk: _Chunk) -> bytes:
        if self._is_started:
            return b""
        self._is_started = True
        self._id = chunk.id or ""
        return _write("message_start", {"message": start_message(self._id, chunk.model)})

    def _continue(self, choice: _Choice) -> bytes:
        out = b"" if choice.delta is None or self._finish is not None else self._add_delta(choice.delta)
        if choice.finish_reason and self._finish is None:
            self._finish = choice
            out += self._flush()
        return out

    def _add_delta(self, delta: _Delta) -> bytes:
        out = b"".join(map(self._add_thought, delta.thinking_blocks or ()))
        thinking = delta.reasoning_content or delta.reasoning
        if thinking and not delta.thinking_blocks:
            out += self._add_thought(Thought(thinking=thinking))
        for text in (delta.content, delta.refusal):
            if text:
                out += self._add(("text", 0), build_text(), {"type": "text_delta", "text": text})
        self._is_refused = self._is_refused or bool(delta.refusal)
        return out + b"".join(map(self._add_call, delta.tool_calls or ()))

    def _add_thought(self, thought: Thought) -> bytes:
        key = ("thinking", thought.index)
        if thought.type == "redacted_thinking":
            return self._add(key, encode_thought(thought))
        start = encode_thought(Thought())
        out = b""
        if thought.thinking:
            out += self._add(key, start, {"type": "thinking_delta", "thinking": thought.thinking})
        if thought.signature:
            out += self._add(key, start, {"type": "signature_delta", "signature": thought.signature})
        return out

    def _add_call(self, call: _ToolCall) -> bytes:
        self._is_calling = True
        function = call.function or _Function()
        start = build_tool_use(call.id or name_call(self._id, call.index), function.name or "", {})
        piece = (
            {"type": "input_json_delta", "partial_json": function.arguments} if function.arguments else None
        )
        return self._add(("tool_use", call.index), start, piece)

    def _add(self, key: tuple[str, int], start: dict[str, Any], piece: dict[str, str] | None = None) -> bytes:
        """A piece of a block, which begins with it if it has not begun."""
        tail = self._blocks[-1] if self._blocks else None
        block = tail if tail is not None and tail.key == key else None
        if block is None and key[0] == "tool_use":
            block = self._calls.get(key)
        out = b""
        if block is None:
            block = _Block(key, start)
            if tail is not None and tail.key[0] != "tool_use" and len(self._blocks) == 1:
                out += self._close()
            self._blocks.append(block)
            if key[0] == "tool_use":
                self._calls[key] = block
        if piece is not None:
            block.pieces.append(piece)
        if block is self._blocks[0]:
            return out + self._hand_on(block)
        self._waiting_bytes += 64 + sum(map(len, (piece or {}).values()))
        if self._waiting_bytes > self._event_max_bytes:
            raise EventTooLarge(
                f"The upstream called several tools at once, with more than {self._event_max_bytes} bytes of "
                "arguments (gateway.event_max_bytes)."
            )
        return out

    def _hand_on(self, block: _Block) -> bytes:
        out = b""
        if not block.is_open:
            block.is_open = True
            out += _write("content_block_start", {"index": self._index, "content_block": block.start})
        pieces, block.pieces = block.pieces, []
        return out + b"".join(
            _write("content_block_delta", {"index": self._index, "delta": piece}) for piece in pieces
        )

    def _close(self) -> bytes:
        """The end of the block at the head, and all of it that has not been handed on."""
        block = self._blocks.popleft()
        self._calls.pop(block.key, None)
        out = self._hand_on(block) + _write("content_block_stop", {"index": self._index})
        self._index += 1
        return out

    def _flush(self) -> bytes:
        closed = []
        while self._blocks:
            closed.append(self._close())
        return b"".join(closed)

    def _end(self) -> bytes:
        if not self._is_started:  # an end without a beginning
            return b""
        self._is_over = True
        choice = self._finish or _Choice()
        stop = build_stop(
            choice.finish_reason,
            choice.stop_reason,
            is_calling=self._is_calling,
            is_refused=self._is_refused,
        )
        usage = build_delta_usage(self._usage)
        return (
            self._flush() + _write("message_delta", {"delta": stop, "usage": usage}) + _write("message_stop")
        )

    def _fail(self, raw: msgspec.Raw) -> bytes:
        self._is_over = True
        status = openai.read_error_status(bytes(raw))
        return encode_event(encode_error(openai.wrap_error(bytes(raw)), status), "error")


def _write(kind: str, fields: dict[str, Any] | None = None) -> bytes:
    return encode_event(msgspec.json.encode({"type": kind} | (fields or {})), kind)
