"""A stream of OpenAI's chat as one of Anthropic's messages.  Pure.

In Anthropic's dialect one block ends before the next begins, while OpenAI's servers may send pieces of
several tool calls in turn.  So the first call is handed on as it comes, and what begins after it waits for
the end of the choice.  The end is told when the chat has come to its own; a stream that was cut has none.
"""

from collections import deque
from typing import Any

import msgspec

from forebay.net.sse import EventTooLarge, encode_event
from forebay.providers import openai
from forebay.providers.anthropic_chat_usage import build_delta_usage
from forebay.providers.chat_answer import Thought
from forebay.providers.chat_events import ChatEvents, Choice, Chunk, ChunkCall, ChunkFunction, Delta
from forebay.providers.messages_answer import (
    build_stop,
    build_text,
    build_tool_use,
    encode_error,
    encode_thought,
    name_call,
    start_message,
)


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


class MessagesStream(ChatEvents):
    """One stream on its way; `forebay.core.translation.StreamTranslator`.

    Args:
        event_max_bytes: the longest event that is held while its end has not come, and how much of further
            tool calls may wait.
    """

    PING = b'event: ping\ndata: {"type":"ping"}\n\n'

    __slots__ = (
        "_blocks", "_calls", "_index", "_is_calling", "_is_refused", "_is_started", "_waiting_bytes",
    )  # fmt: skip

    def __init__(self, *, event_max_bytes: int) -> None:
        super().__init__(event_max_bytes=event_max_bytes)
        self._blocks: deque[_Block] = (
            deque()
        )  # the one that is being handed on, and those that wait behind it
        self._calls: dict[tuple[str, int], _Block] = {}  # of tools, among the blocks
        self._index = 0  # of the block at the head
        self._waiting_bytes = 0
        self._is_started = False
        self._is_calling = False
        self._is_refused = False

    @property
    def _is_begun(self) -> bool:
        return self._is_started

    def _start(self, chunk: Chunk) -> bytes:
        self._is_started = True
        return _write("message_start", {"message": start_message(self._id, chunk.model)})

    def _add_delta(self, delta: Delta) -> bytes:
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

    def _add_call(self, call: ChunkCall) -> bytes:
        self._is_calling = True
        function = call.function or ChunkFunction()
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

    def _close_all(self) -> bytes:
        closed = []
        while self._blocks:
            closed.append(self._close())
        return b"".join(closed)

    def _end(self) -> bytes:
        if not self._is_started:  # an end without a beginning
            return b""
        self._is_over = True
        choice = self._finish or Choice()
        stop = build_stop(
            choice.finish_reason,
            choice.stop_reason,
            is_calling=self._is_calling,
            is_refused=self._is_refused,
        )
        usage = build_delta_usage(self._usage)
        return (
            self._close_all()
            + _write("message_delta", {"delta": stop, "usage": usage})
            + _write("message_stop")
        )

    def _fail(self, raw: msgspec.Raw) -> bytes:
        self._is_over = True
        status = openai.read_error_status(bytes(raw))
        return encode_event(encode_error(openai.wrap_error(bytes(raw)), status), "error")


def _write(kind: str, fields: dict[str, Any] | None = None) -> bytes:
    return encode_event(msgspec.json.encode({"type": kind} | (fields or {})), kind)
