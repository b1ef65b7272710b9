"""What a stream in the OpenAI dialect says while its bytes flow on.  Pure.

`StreamMeter` takes the bytes of an answer in any split and gives out those for the caller: whole events only,
untouched, less the usage that the caller did not ask for.  On the way it notes the first content, the usage,
the end and an error.  It makes no object for an event unless the event could be one of these.
"""

import re

import msgspec

from forebay.core.events import Tokens
from forebay.net.sse import EventSplitter, parse_event
from forebay.providers.json_edit import drop_field
from forebay.providers.openai_usage import Usage, count_tokens

_FINISH = re.compile(rb'"finish_reason"\s*:\s*"')
_NULL_USAGE = b',"usage":null}\n'  # at an event's end: inside a string its quotes would be escaped
_HELD_MAX_BYTES = 64 * 1024  #: a preamble longer than this is taken for content


class _Choice(msgspec.Struct, frozen=True):
    delta: dict[str, msgspec.Raw] | None = None
    text: str | None = None
    finish_reason: str | None = None


class _Event(msgspec.Struct, frozen=True):
    choices: list[_Choice] | None = None
    usage: Usage | None = None
    error: msgspec.Raw | None = None


_decode_event = msgspec.json.Decoder(_Event).decode
_EMPTY = (b"null", b'""', b"[]", b"{}")


class StreamMeter:
    """Reads one stream; see the module.

    Args:
        hide_usage: take usage out again, because it was we who asked for it.
        event_max_bytes: the largest event that is held while its end has not come.

    Attributes:
        content_seen: whether content has come: text, reasoning, a tool call, or the end.  Until then nothing
            is given out, so that another target may still answer instead.
        done: whether `[DONE]` has come.
        tokens: the usage that the target reported, or None.
        events: data events so far.
        error: the bytes of an error object that came as an event, or None.
    """

    __slots__ = (
        "_held", "_hide_usage", "_last", "_splitter", "content_seen", "done", "error", "events", "tokens",
    )  # fmt: skip

    def __init__(self, *, hide_usage: bool, event_max_bytes: int) -> None:
        self._splitter = EventSplitter(event_max_bytes)
        self._hide_usage = hide_usage
        self._held = b""
        self._last = b""
        self.content_seen = False
        self.done = False
        self.tokens: Tokens | None = None
        self.events = 0
        self.error: bytes | None = None

    @property
    def content_events(self) -> int:
        """Events that may have brought a token: all but the preamble."""
        return max(0, self.events - 1)

    @property
    def ended_well(self) -> bool:
        """Whether the stream came to its end in the dialect: `[DONE]`, or a finish reason."""
        return self.done or _FINISH.search(self._last) is not None

    def feed(self, data: bytes) -> bytes:
        """The bytes to hand on now, `b""` while nothing may go out yet.

        Raises:
            EventTooLarge: an event outgrew the limit.
        """
        return self._absorb(self._splitter.feed_block(data))

    def finish(self) -> bytes:
        """The rest, once the answer has ended: a last event without its blank line, a preamble still held."""
        rest = self._absorb(self._splitter.finish())
        held, self._held = self._held, b""
        return held + rest

    def _absorb(self, block: bytes) -> bytes:
        if not block:
            return b""
        self.events += block.count(b"data:")
        if b'{"error"' in block:
            self._note_error(block)
        if b"[DONE]" in block[-24:]:
            self.done = True
        if b'"usage"' in block:
            block = self._take_usage(block)
        if block:
            # A finish reason stands in the last event or the one before it.
            self._last = block if len(block) > 512 else self._last[-4096:] + block
        if self.content_seen:
            return block
        self._held += block
        if not self._has_content(block) and len(self._held) <= _HELD_MAX_BYTES:
            return b""
        self.content_seen = True
        held, self._held = self._held, b""
        return held

    def _has_content(self, block: bytes) -> bool:
        for raw in _split(block):
            data = parse_event(raw).data or b""
            if data == b"[DONE]":
                return True
            if not data:
                continue
            try:
                event = _decode_event(data)
            except (msgspec.DecodeError, UnicodeDecodeError):
                return True  # not in the dialect as we know it: nothing to wait for
            if event.choices and any(_speaks(choice) for choice in event.choices):
                return True
        return False

    def _take_usage(self, block: bytes) -> bytes:
        """Notes the usage in a block of events, and takes it out where it is to be hidden."""
        if self._hide_usage:
            block = block.replace(_NULL_USAGE, b"}\n")
            if b'"usage"' not in block:
                return block
        kept = []
        for raw in _split(block):
            kept.append(self._take_usage_from(raw) if b'"usage"' in raw else raw)
        return b"".join(kept) if self._hide_usage else block

    def _take_usage_from(self, raw: bytes) -> bytes:
        data = parse_event(raw).data or b""
        try:
            event = _decode_event(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return raw
        if event.usage is not None:
            tokens = count_tokens(event.usage)
            if tokens is not None:
                self.tokens = tokens
        if not self._hide_usage:
            return raw
        if event.usage is not None and not event.choices:
            return b""
        # The field stands beside content.  A data line that was split over several lines is left alone.
        return raw.replace(data, drop_field(data, "usage")) if data in raw else raw

    def _note_error(self, block: bytes) -> None:
        for raw in _split(block):
            data = parse_event(raw).data or b""
            if not data.startswith(b'{"error"'):
                continue
            try:
                error = _decode_event(data).error
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue
            if error is not None and bytes(error) != b"null":
                self.error = bytes(error)


def _split(block: bytes) -> list[bytes]:
    splitter = EventSplitter(len(block) + 1)
    events = splitter.feed(block)
    rest = splitter.finish()
    return [*events, rest] if rest else events


def _speaks(choice: _Choice) -> bool:
    if choice.text or choice.finish_reason:
        return True
    delta = choice.delta or {}
    return any(name != "role" and bytes(value) not in _EMPTY for name, value in delta.items())
