"""What a stream in the OpenAI dialect says while its bytes flow on.  Pure.

`StreamMeter` takes the bytes of an answer in any split and gives out those for the caller: whole events only,
untouched, less the usage that the caller did not ask for.  On the way it notes the first content, the usage,
the end and an error.  It makes no object for an event unless the event could be one of these.
"""

import re

import msgspec

from forebay.core.events import Tokens
from forebay.net.sse import EventSplitter, parse_event
from forebay.providers.json_edit import NOTHING, UNREADABLE, drop_field
from forebay.providers.openai_usage import Reading, Usage, count_tokens, read_usage

_DONE = b"\n\ndata: [DONE]\n\n"
_DONE_TAILS = (b"[DONE]\n\n", b"[DONE]\r\n\r\n")
_CONTENT = b'"delta":{"content":"'  # how most engines begin it
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


class _UsageEvent(msgspec.Struct, frozen=True):
    choices: list[msgspec.Raw] | None = None
    usage: msgspec.Raw = NOTHING


class _PlainUsageEvent(msgspec.Struct, frozen=True):
    choices: list[msgspec.Raw]
    usage: Usage


class _ErrorEvent(msgspec.Struct, frozen=True):
    error: msgspec.Raw = NOTHING
    object: str | None = None


_decode_event = msgspec.json.Decoder(_Event).decode
_decode_usage_event = msgspec.json.Decoder(_UsageEvent).decode
_decode_plain_usage_event = msgspec.json.Decoder(_PlainUsageEvent).decode
_decode_error_event = msgspec.json.Decoder(_ErrorEvent).decode
_EMPTY = frozenset((b"", b"null", b'""', b"[]", b"{}", b"false"))


class StreamMeter:
    """Reads one stream; see the module.

    Args:
        hide_usage: take usage out again, because it was we who asked for it.
        event_max_bytes: the largest event that is held while its end has not come.

    Attributes:
        content_seen: whether content has come: text, reasoning, a tool call, or the end.  Until then nothing
            is given out, so that another target may still answer instead.
        tokens: the usage that the target reported, or None.
        error: the JSON of an error that came as an event, or None.
        error_told: whether that event has the dialect's form, so that a caller understands it.
    """

    __slots__ = (
        "_events", "_held", "_hide_usage", "_last", "_silent", "_splitter", "_uncounted", "_uncounted_bytes",
        "content_seen", "error", "error_told", "tokens",
    )  # fmt: skip

    def __init__(self, *, hide_usage: bool, event_max_bytes: int) -> None:
        self._splitter = EventSplitter(event_max_bytes)
        self._hide_usage = hide_usage
        self._held = b""
        self._last = b""
        self.content_seen = False
        self.tokens: Tokens | None = None
        self._events = 0
        self._silent = 0  # events before the first content
        self._uncounted: list[bytes] = []  # counted when somebody asks, which is rare
        self._uncounted_bytes = 0
        self.error: bytes | None = None
        self.error_told = False

    @property
    def reading(self) -> Reading | None:
        """What the usage rules of the target found, where it has any."""
        return None

    @property
    def partial(self) -> Tokens | None:
        """What has been spent as far as the stream has said by now, where it does so on its way."""
        return None

    @property
    def content_events(self) -> int:
        """Events that may have brought a token: all but the preamble."""
        if not self.content_seen:
            return 0
        self._count_events()
        return self._events - self._silent

    @property
    def ended_well(self) -> bool:
        """Whether the stream came to its end in the dialect: `[DONE]`, or a reason to finish."""
        if self._last.endswith(_DONE):
            return True
        end = len(self._last)
        while end > 0:
            start, _ = _find_event(self._last, end - 1)
            data = read_data(self._last[start:end]).strip()
            end = start
            if data == b"[DONE]":
                return True
            if not data:
                continue
            try:
                choices = _decode_event(data).choices
            except UNREADABLE:
                return _FINISH.search(data) is not None
            if choices:
                return any(choice.finish_reason for choice in choices)
        return False

    @property
    def is_done(self) -> bool:
        """Whether the last that came is `[DONE]`, so that nothing is to follow; to be asked of each block."""
        last = self._last
        if not last.endswith(_DONE_TAILS) or self._splitter.holds_part:
            return False
        start, _ = _find_event(last, len(last) - 1)
        return read_data(last[start:]) == b"[DONE]"

    def feed(self, data: bytes) -> bytes:
        """The bytes to hand on now, `b""` while nothing may go out yet.

        Raises:
            EventTooLarge: an event outgrew the limit.
        """
        return self._absorb(self._splitter.feed_block(data))

    def finish(self) -> bytes:
        """The rest, once the answer has ended: a last event without its blank line, a preamble still held."""
        rest = self._splitter.finish()
        if rest:
            rest = self._absorb(rest)
        held, self._held = self._held, b""
        return held + rest if held else rest

    def _absorb(self, block: bytes) -> bytes:
        if not block:
            return b""
        self._uncounted.append(block)
        self._uncounted_bytes += len(block)
        if self._uncounted_bytes > _UNCOUNTED_MAX_BYTES:
            self._count_events()
        # Searching from the end is by far the faster way in CPython, present or not.
        at = block.rfind(b'"error"')
        if at >= 0:
            self._note_error(block, at)
        at = block.rfind(b'"usage"')
        if at >= 0:
            block = self._take_usage(block, at)
        # The end stands in the last event or the one before it.
        self._last = block if len(block) > _TAIL_BYTES else self._last[-_TAIL_BYTES:] + block
        if self.content_seen:
            return block
        at = _find_content(block)
        if at < 0 and len(self._held) + len(block) <= _HELD_MAX_BYTES:
            self._held += block
            return b""
        self.content_seen = True
        held, self._held = self._held, b""
        if at >= 0:
            self._silent = held.count(b"data:") + block.count(b"data:", 0, at)
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
        start, end, event = _read_usage_event(block, at)
        if event is not None and block.rfind(b'"usage"', 0, start) < 0:
            self.tokens = count_tokens(event.usage) or self.tokens
            return block[:start] + block[end:] if self._hide_usage else block
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
        data = read_data(raw)
        try:
            event = _decode_usage_event(data)
        except UNREADABLE:
            return raw, None
        is_counted = bytes(event.usage) not in (b"", b"null")
        tokens = read_usage(event.usage) if is_counted else None
        if not self._hide_usage:
            return raw, tokens
        if is_counted and not event.choices:
            return b"", tokens
        try:
            shorter = drop_field(data, "usage") if data and data in raw else data
        except UNREADABLE:
            return raw, tokens
        # A data line that was split over several lines is left alone.
        return (raw if shorter is data else raw.replace(data, shorter)), tokens

    def _note_error(self, block: bytes, at: int) -> None:
        """Notes the first error in a block of events, whose last `"error"` stands at `at`.

        Servers put it in an event of its own, beside the choices of the last chunk, or in an event that only
        its type or its `object` marks.
        """
        if self.error is not None:
            return  # the first of the stream counts, however it is split
        while at >= 0:
            start, end = _find_event(block, at)
            event = parse_event(block[start:end])
            data = event.data or b""
            try:
                view = _decode_error_event(data)
            except UNREADABLE:
                view = _ErrorEvent()
                data = msgspec.json.encode(data.decode("utf-8", "replace"))
            error = bytes(view.error)
            if error not in _EMPTY:
                self.error = error
                self.error_told = True
            elif event.event == "error" or view.object == "error":
                self.error = data
                self.error_told = False
            at = block.rfind(b'"error"', 0, start)


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


def _read_usage_event(block: bytes, at: int) -> tuple[int, int, _PlainUsageEvent | None]:
    """Start, end and content of an event that brings usage and no choice, as by far the most report it.

    None for every other event, and for one that is not a single line of data; then the places say nothing.
    """
    start = block.rfind(b"\n\n", 0, at) + 2
    if start == 1:
        start = 0
    end = block.find(b"\n\n", at)
    data = block[start + 6 : end]
    if end < 0 or b"\n" in data or b"\r" in data or not block.startswith(b"data: ", start):
        return start, end, None
    try:
        event = _decode_plain_usage_event(data)
    except UNREADABLE:
        return start, end, None
    return start, end + 2, None if event.choices else event


def read_data(raw: bytes) -> bytes:
    """The data of an event: by far the most are one line, which needs no parser."""
    if raw.startswith(b"data: ") and raw.endswith(b"\n\n") and raw.find(b"\n") == len(raw) - 2:
        return raw[6:-2] if b"\r" not in raw else parse_event(raw).data or b""
    return parse_event(raw).data or b""


def _find_content(block: bytes) -> int:
    """Where the first event stands that brings content, -1 if none does."""
    at, size = 0, len(block)
    while at < size:
        start = at
        end = block.find(b"\n\n", at)
        data = block[at + 6 : end]
        if end >= 0 and block.startswith(b"data: ", at) and b"\n" not in data and b"\r" not in data:
            at = end + 2
        else:
            start, at = _find_event(block, at)
            data = read_data(block[start:at])
        if not data:
            continue
        # Where most engines put it, text needs no parser; inside a string its quotes would be escaped.
        text = data.find(_CONTENT)
        if text >= 0 and not data.startswith(b'"', text + len(_CONTENT)):
            return start
        if data == b"[DONE]":
            return start
        try:
            event = _decode_event(data)
        except UNREADABLE:
            return start  # not in the dialect as we know it: nothing to wait for
        for choice in event.choices or ():
            if _speaks(choice):
                return start
    return -1


def _speaks(choice: _Choice) -> bool:
    if choice.text or choice.finish_reason:
        return True
    for name, value in (choice.delta or {}).items():  # noqa: SIM110 - a generator costs more than this
        if name != "role" and bytes(value) not in _EMPTY:
            return True
    return False
