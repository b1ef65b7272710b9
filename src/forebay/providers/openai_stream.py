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
_NULL_USAGE = b',"usage":null}\n\n'  # at an event's end: inside a string its quotes would be escaped
_UNCOUNTED_MAX_BYTES = 64 * 1024
_TAIL_BYTES = 4096
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
        error: the bytes of an error object that came as an event, or None.
    """

    __slots__ = (
        "_events", "_held", "_hide_usage", "_last", "_splitter", "_uncounted", "_uncounted_bytes",
        "content_seen", "done", "error", "tokens",
    )  # fmt: skip

    def __init__(self, *, hide_usage: bool, event_max_bytes: int) -> None:
        self._splitter = EventSplitter(event_max_bytes)
        self._hide_usage = hide_usage
        self._held = b""
        self._last = b""
        self.content_seen = False
        self.done = False
        self.tokens: Tokens | None = None
        self._events = 0
        self._uncounted: list[bytes] = []  # counted when somebody asks, which is rare
        self._uncounted_bytes = 0
        self.error: bytes | None = None

    @property
    def content_events(self) -> int:
        """Events that may have brought a token: all but the preamble."""
        self._count_events()
        return max(0, self._events - 1)

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
        self._uncounted.append(block)
        self._uncounted_bytes += len(block)
        if self._uncounted_bytes > _UNCOUNTED_MAX_BYTES:
            self._count_events()
        # Searching from the end is by far the faster way in CPython, present or not.
        if block.rfind(b'{"error"') >= 0:
            self._note_error(block)
        if b"[DONE]" in block[-24:]:
            self.done = True
        at = block.rfind(b'"usage"')
        if at >= 0:
            block = self._take_usage(block, at)
        # A finish reason stands in the last event or the one before it.
        self._last = block if len(block) > _TAIL_BYTES else self._last[-_TAIL_BYTES:] + block
        if self.content_seen:
            return block
        if not _has_content(block) and len(self._held) + len(block) <= _HELD_MAX_BYTES:
            self._held += block
            return b""
        self.content_seen = True
        held, self._held = self._held, b""
        return held + block

    def _count_events(self) -> None:
        self._events += sum(block.count(b"data:") for block in self._uncounted)
        self._uncounted.clear()
        self._uncounted_bytes = 0

    def _take_usage(self, block: bytes, at: int) -> bytes:
        """Notes the usage in a block of events, and takes it out where it is to be hidden.

        Args:
            at: where the last `"usage"` of the block stands.
        """
        parts: list[bytes] = []  # from the end to the start
        kept = len(block)  # from where on the block has been taken over
        latest: Tokens | None = None
        while at >= 0:
            start, end = _find_event(block, at)
            raw = block[start:end]
            changed, tokens = self._take_usage_from(raw)
            if latest is None:
                latest = tokens
            if changed is not raw:
                parts += (block[end:kept], changed)
                kept = start
            at = block.rfind(b'"usage"', 0, start)
        if latest is not None:
            self.tokens = latest
        if not parts:
            return block
        parts.append(block[:kept])
        return b"".join(reversed(parts))

    def _take_usage_from(self, raw: bytes) -> tuple[bytes, Tokens | None]:
        """An event as it is handed on, `raw` itself if nothing changes, and the tokens that it reports."""
        if raw.endswith(_NULL_USAGE):
            return (raw[: -len(_NULL_USAGE)] + b"}\n\n" if self._hide_usage else raw), None
        data = _read_data(raw)
        try:
            event = _decode_event(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return raw, None
        tokens = None if event.usage is None else count_tokens(event.usage)
        if not self._hide_usage:
            return raw, tokens
        if event.usage is not None and not event.choices:
            return b"", tokens
        shorter = drop_field(data, "usage") if data and data in raw else data
        # A data line that was split over several lines is left alone.
        return (raw if shorter is data else raw.replace(data, shorter)), tokens

    def _note_error(self, block: bytes) -> None:
        at = block.find(b'{"error"')
        while at >= 0:
            start, end = _find_event(block, at)
            data = _read_data(block[start:end])
            if data.startswith(b'{"error"'):
                try:
                    error = _decode_event(data).error
                except (msgspec.DecodeError, UnicodeDecodeError):
                    error = None
                if error is not None and bytes(error) != b"null":
                    self.error = bytes(error)
            at = block.find(b'{"error"', end)


def _find_event(block: bytes, at: int) -> tuple[int, int]:
    """Start and end of the event in which a position of a block of whole events lies."""
    if b"\r" not in block:
        # Two line feeds end an event; inside one they can't stand.
        start = block.rfind(b"\n\n", 0, at) + 2 if at else 0
        end = block.find(b"\n\n", at)
        return (start if start > 1 else 0), (end + 2 if end >= 0 else len(block))
    splitter = EventSplitter(len(block) + 1)
    start = 0
    for raw in splitter.feed(block):
        if start + len(raw) > at:
            return start, start + len(raw)
        start += len(raw)
    return start, len(block)


def _read_data(raw: bytes) -> bytes:
    """The data of an event: by far the most are one line, which needs no parser."""
    if raw.startswith(b"data: ") and raw.endswith(b"\n\n") and raw.find(b"\n") == len(raw) - 2:
        return raw[6:-2] if b"\r" not in raw else parse_event(raw).data or b""
    return parse_event(raw).data or b""


def _has_content(block: bytes) -> bool:
    at = 0
    while at < len(block):
        _, end = _find_event(block, at)
        data = _read_data(block[at:end])
        at = end
        if not data:
            continue
        if data == b"[DONE]":
            return True
        try:
            event = _decode_event(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return True  # not in the dialect as we know it: nothing to wait for
        if event.choices and any(_speaks(choice) for choice in event.choices):
            return True
    return False


def _speaks(choice: _Choice) -> bool:
    if choice.text or choice.finish_reason:
        return True
    delta = choice.delta or {}
    return any(name != "role" and bytes(value) not in _EMPTY for name, value in delta.items())
