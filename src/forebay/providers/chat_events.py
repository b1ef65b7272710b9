"""A stream of OpenAI's chat, read for callers who speak something else.  Pure.

`ChatEvents` cuts the stream into chunks and knows its ends: `[DONE]`, an error in whichever form, the wire's
own end.  What a chunk becomes is the business of each dialect's stream, which builds upon it.
"""

from abc import ABC, abstractmethod
from typing import ClassVar, Final

import msgspec

from forebay.core.errors import UpstreamProtocol
from forebay.net.sse import EventSplitter, parse_event
from forebay.providers.chat_answer import Thought
from forebay.providers.json_edit import NOTHING, UNREADABLE

_EMPTY: Final = frozenset((b"", b"null", b'""', b"{}", b"[]", b"false"))  #: no error, in an event's `error`


class ChunkFunction(msgspec.Struct, frozen=True):
    name: str | None = None
    arguments: str | None = None


class ChunkCall(msgspec.Struct, frozen=True):
    """A piece of a call of a tool; pieces with the same index belong together."""

    index: int = 0
    id: str | None = None
    function: ChunkFunction | None = None


class Delta(msgspec.Struct, frozen=True):
    content: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    thinking_blocks: list[Thought] | None = None
    tool_calls: list[ChunkCall] | None = None


class Choice(msgspec.Struct, frozen=True):
    delta: Delta | None = None
    index: int = 0
    finish_reason: str | None = None
    stop_reason: str | int | None = None  # vLLM: what stopped it


class Chunk(msgspec.Struct, frozen=True):
    choices: list[Choice] | None = None
    id: str | None = None
    created: int | float | None = None
    model: str | None = None
    usage: msgspec.Raw = NOTHING
    error: msgspec.Raw = NOTHING


_decode_chunk = msgspec.json.Decoder(Chunk).decode


class ChatEvents(ABC):
    """One stream on its way; `forebay.core.translation.StreamTranslator`.

    Args:
        event_max_bytes: the longest event that is held while its end has not come.
    """

    #: What keeps a connection alive in the caller's dialect.
    PING: ClassVar[bytes]

    __slots__ = ("_event_max_bytes", "_finish", "_id", "_is_over", "_splitter", "_usage")

    def __init__(self, *, event_max_bytes: int) -> None:
        self._splitter = EventSplitter(event_max_bytes)
        self._event_max_bytes = event_max_bytes
        self._id = ""
        self._usage = NOTHING  # the newest that was told
        self._finish: Choice | None = None  # with the reason to finish
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
            return self.PING if self._is_begun and raw.startswith(b":") else b""
        if data.strip() == b"[DONE]":
            return self._end()
        try:
            chunk = _decode_chunk(data)
        except UNREADABLE as error:
            if event.event == "error":
                told = {"message": data.decode("utf-8", "replace")}
                return self._fail(msgspec.Raw(msgspec.json.encode(told)))
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
            self._begin(chunk) + self._continue(choice) for choice in chunk.choices or () if choice.index == 0
        )

    def _begin(self, chunk: Chunk) -> bytes:
        if self._is_begun:
            return b""
        self._id = chunk.id or ""
        return self._start(chunk)

    def _continue(self, choice: Choice) -> bytes:
        out = b"" if choice.delta is None or self._finish is not None else self._add_delta(choice.delta)
        if choice.finish_reason and self._finish is None:
            self._finish = choice
            out += self._close_all()
        return out

    @property
    @abstractmethod
    def _is_begun(self) -> bool:
        """Whether anything has been told."""

    @abstractmethod
    def _start(self, chunk: Chunk) -> bytes:
        """The beginning, from the first chunk with a choice."""

    @abstractmethod
    def _add_delta(self, delta: Delta) -> bytes:
        """What a delta becomes."""

    @abstractmethod
    def _close_all(self) -> bytes:
        """The ends of all that has begun, when the choice has come to its own."""

    @abstractmethod
    def _end(self) -> bytes:
        """The end of the stream."""

    @abstractmethod
    def _fail(self, raw: msgspec.Raw) -> bytes:
        """An error that came inside the stream."""
