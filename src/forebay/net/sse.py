"""Server-sent events, pure: bytes in, whole raw events out, the same bytes whatever the split.

The grammar is WHATWG HTML, section 9.2.6: lines end with LF, CR or CRLF, and each blank line ends an event.
Two departures, both so that nothing is lost: the rest of a stream without its blank line is handed out by
`finish`, and a BOM is dropped at the head of any event.  This module never decodes a payload, never changes a
byte that it passes on, and knows no clock and no socket.
"""

import re
from itertools import pairwise

import msgspec

from forebay.core.errors import AnswerTooLarge

_CR, _LF = 13, 10
_BOM = b"\xef\xbb\xbf"
#: Bytes that end lines one after the other mean a blank line, but for CR LF, which is one ending.  The group
#: is the blank line itself; looking ahead for it lets the next search start on it, as in `\n\n\n`.
_BLANK_LINE = re.compile(rb"(?:\n(?=[\n\r])|\r(?=\r))(?=(\n|\r\n?))")
_RETRY_DIGITS_MAX = 15


class EventTooLarge(AnswerTooLarge):
    """One event is longer than the splitter may hold."""

    code = "upstream_event_too_large"


class ServerEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One parsed event.

    Attributes:
        event: its type, `message` if it names none.
        data: the data lines joined by LF; None without any, and then a client is told nothing.
        id: None if there is none, or if it holds a NUL.
        retry: milliseconds, None if there is none.
    """

    event: str = "message"
    data: bytes | None = None
    id: str | None = None
    retry: int | None = None


class EventSplitter:
    """Cuts one stream into raw events, each with its blank line; a blank line on its own is an event.

        splitter = EventSplitter(event_max_bytes=1 << 20)
        splitter.feed(b"data: a\\n\\ndata")  # [b"data: a\\n\\n"]
        splitter.feed(b": b\\n\\n")           # [b"data: b\\n\\n"]

    All that `feed`, `feed_block` and `finish` return, put together, is what was fed.  The events depend on
    the stream alone, not on its split; so a CR that ends an event at the very end of a chunk is held until
    the next byte says whether it was half a CRLF.  Each byte is looked at once: time is linear in any split.

    Raises:
        EventTooLarge: from `feed` and `feed_block`; the splitter is of no use after that.
    """

    __slots__ = ("_event_max_bytes", "_held", "_undecided")

    def __init__(self, event_max_bytes: int) -> None:
        self._event_max_bytes = event_max_bytes
        self._held = bytearray()  # an event without its end; empty means that the last byte was its LF
        self._undecided = False  # `_held` is a whole event, unless an LF comes next and belongs to it

    @property
    def holds_part(self) -> bool:
        """Whether an event has begun whose end is not certain yet."""
        return bool(self._held)

    def feed(self, data: bytes) -> list[bytes]:
        """The events that are complete now."""
        if self._held or b"\r" in data or b"\n\n\n" in data or data[:1] == b"\n":
            return self._cut(data)
        *pieces, rest = data.split(b"\n\n")
        self._held += rest
        events = [piece + b"\n\n" for piece in pieces]
        if len(data) > self._event_max_bytes:
            self._check_sizes(events)
        return events

    def feed_block(self, data: bytes) -> bytes:
        """What `feed` would return, as one bytes object; `data` itself if nothing is left to hold."""
        held = self._held
        if len(held) + len(data) > self._event_max_bytes or b"\r" in data or (held and held[-1] == _CR):
            return b"".join(self._cut(data))
        end = data.rfind(b"\n\n") + 2
        if end == 1:  # no blank line inside, but one may begin with the byte before
            last = held[-1] if held else _LF
            if not (last == _LF and data[:1] == b"\n"):
                held += data
                return b""
        if not held:
            if end == len(data):
                return data
            held += memoryview(data)[end:]
            return data[:end]
        block = b"".join((held, memoryview(data)[:end]))
        held[:] = memoryview(data)[end:]
        return block

    def finish(self) -> bytes:
        """The rest: an event without its blank line, or b"".  The splitter is then as new."""
        rest = bytes(self._held)
        self._held.clear()
        self._undecided = False
        return rest

    def _cut(self, data: bytes) -> list[bytes]:
        """`feed` for the whole grammar."""
        if not data:
            return []
        held = self._held
        window = (held[-1:] or b"\n") + data  # with the byte before, on which a blank line depends
        ends = [match.end(1) - 1 for match in _BLANK_LINE.finditer(window)]
        if self._undecided:
            ends.insert(0, 1 if data[0] == _LF else 0)
        self._undecided = bool(ends) and ends[-1] == len(data) and data[-1] == _CR
        if self._undecided:
            ends.pop()
        if not ends:
            held += data
            self._check_sizes([])
            return []
        events = [b"".join((held, memoryview(data)[: ends[0]]))]
        events += [data[start:end] for start, end in pairwise(ends)]
        held[:] = memoryview(data)[ends[-1] :]
        self._check_sizes(events)
        return events

    def _check_sizes(self, events: list[bytes]) -> None:
        longest = max(len(self._held), max(map(len, events), default=0))
        if longest > self._event_max_bytes:
            raise EventTooLarge(
                f"The upstream sent an event of {longest} bytes or more; at most {self._event_max_bytes} are "
                "accepted (gateway.event_max_bytes)."
            )


def parse_event(raw: bytes) -> ServerEvent:
    """The fields of one raw event, as `EventSplitter` gives it; never raises.

    parse_event(b"event: ping\\ndata: a\\ndata: b\\n\\n")  # ServerEvent(event="ping", data=b"a\\nb")
    """
    size = len(raw)
    if raw.startswith(b"data:") and raw.find(b"\n") == size - 2 and b"\r" not in raw and raw[-1] == _LF:
        return ServerEvent(data=raw[6 if raw[5] == 32 else 5 : -2])
    lines = raw.removeprefix(_BOM).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    event, data, last_id, retry = b"", [], None, None
    for line in lines:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            data.append(value)
        elif name == b"event":
            event = value
        elif name == b"id" and b"\0" not in value:
            last_id = value
        elif name == b"retry" and value.isdigit() and len(value) <= _RETRY_DIGITS_MAX:
            retry = int(value)
    return ServerEvent(
        event=event.decode("utf-8", "replace") or "message",
        data=b"\n".join(data) if data else None,
        id=None if last_id is None else last_id.decode("utf-8", "replace"),
        retry=retry,
    )


def encode_event(data: bytes, event: str | None = None) -> bytes:
    """One raw event; each line of `data` becomes a data line, whatever ends it.

    encode_event(b'{"a":1}')  # b'data: {"a":1}\\n\\n'

    Raises ValueError for an event type with a line ending, which the grammar cannot carry.
    """
    if b"\n" in data or b"\r" in data:
        lines = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").replace(b"\n", b"\ndata: ")
    else:
        lines = data
    if event is None:
        return b"data: %b\n\n" % lines
    if "\n" in event or "\r" in event:
        raise ValueError(f"an event type is one line: {event!r}")
    return b"event: %b\ndata: %b\n\n" % (event.encode(), lines)
