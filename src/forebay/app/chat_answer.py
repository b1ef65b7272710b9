"""Reads a streamed chat completion, whoever fetched it: bytes in, pieces out.  No I/O.

Takes what the gateway sends and nothing more; whatever else an answer holds is ignored.
"""

from collections.abc import Iterator
from typing import ClassVar, Final

import msgspec

from forebay.core.errors import AnswerTooLarge, ForebayError
from forebay.net.sse import EventSplitter, parse_event

EVENT_MAX_BYTES: Final = 16 * 1024 * 1024


class Text(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of the answer."""

    text: str


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens that the request took, as the target counted them."""

    input_tokens: int | None = None
    output_tokens: int | None = None


class Finish(msgspec.Struct, frozen=True, kw_only=True):
    """Why the answer ended: `stop`, `length` and others."""

    reason: str


Piece = Text | Spent | Finish


class AnswerBroken(ForebayError):
    """The answer ended before its end, or is none that the API allows."""

    code: ClassVar[str] = "answer_broken"


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """Why there is no answer, in the words of whoever refused."""

    message: str = ""
    code: str | int | None = None


class _Delta(msgspec.Struct, kw_only=True):
    content: str | None = None


class _Choice(msgspec.Struct, kw_only=True):
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Usage(msgspec.Struct, kw_only=True):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Chunk(msgspec.Struct, kw_only=True):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Reason | str | None = None


class ChatAnswer:
    """One answer, from its first byte to its last."""

    def __init__(self) -> None:
        self.is_whole = False  #: the answer has come to its end; nothing more is to be read
        self._splitter = EventSplitter(EVENT_MAX_BYTES)

    def feed(self, data: bytes) -> Iterator[Piece]:
        """The pieces that are complete with these bytes.

        Raises:
            AnswerBroken: an error was told inside the stream, or this is none of a chat.
        """
        try:
            for raw in self._splitter.feed(data):
                if not self.is_whole:
                    yield from self._read_event(raw)
        except AnswerTooLarge:
            raise AnswerBroken("the answer holds an event that is too large") from None

    def finish(self) -> Iterator[Piece]:
        """What is left when no more bytes come.

        Raises:
            AnswerBroken: also where the end had not come.
        """
        if not self.is_whole:
            yield from self._read_event(self._splitter.finish())
        if not self.is_whole:
            raise AnswerBroken("the answer broke off")

    def _read_event(self, raw: bytes) -> Iterator[Piece]:
        data = parse_event(raw).data
        if data == b"[DONE]":
            self.is_whole = True
        elif data:
            yield from _read_chunk(data)


def _read_chunk(data: bytes) -> Iterator[Piece]:
    try:
        chunk = msgspec.json.decode(data, type=_Chunk)
    except msgspec.DecodeError:
        raise AnswerBroken("the answer holds something that is not a chat completion") from None
    if chunk.error is not None:
        reason = chunk.error if isinstance(chunk.error, Reason) else Reason(message=chunk.error)
        raise AnswerBroken(reason.message or "the target reports an error without words")
    for choice in chunk.choices[:1]:
        if choice.delta is not None and choice.delta.content:
            yield Text(text=choice.delta.content)
        if choice.finish_reason:
            yield Finish(reason=choice.finish_reason)
    if chunk.usage is not None:
        yield Spent(input_tokens=chunk.usage.prompt_tokens, output_tokens=chunk.usage.completion_tokens)


def read_refusal(status: int, body: bytes, otherwise: str = "") -> Reason:
    """Why an answer with another status than 200 is one; `otherwise` where it does not say."""
    try:
        error = msgspec.json.decode(body, type=_Chunk).error
    except msgspec.DecodeError:
        error = None
    if isinstance(error, Reason) and (error.message or otherwise):
        return Reason(message=error.message or otherwise, code=error.code)
    said = error if isinstance(error, str) else otherwise
    return Reason(message=f"HTTP {status} {said}".strip())
