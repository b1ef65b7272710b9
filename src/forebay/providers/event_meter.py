"""What meters of streams whose events pass untouched have in common.  Pure.

The bytes of an answer come in in any split, out come whole events, each of them untouched; until content has
come nothing goes out, so that another target may still answer instead.  What an event says is the business of
each dialect's meter.
"""

from abc import ABC, abstractmethod
from typing import ClassVar, Final

from forebay.net.sse import EventSplitter
from forebay.providers.openai_usage import Reading

_HELD_MAX_BYTES: Final = 64 * 1024  #: a preamble longer than this is taken for content


class EventMeter(ABC):
    """Reads one stream; for the attributes see `openai_stream.StreamMeter`.

    Args:
        event_max_bytes: the largest event that is held while its end has not come.
    """

    #: How an event begins that brings text and says nothing else; it is counted without being read.
    DELTA: ClassVar[bytes]

    __slots__ = (
        "_deltas", "_held", "_is_last", "_splitter", "_stopped", "content_seen", "error", "error_told",
    )  # fmt: skip

    def __init__(self, *, event_max_bytes: int) -> None:
        self._splitter = EventSplitter(event_max_bytes)
        self._held = b""
        self._deltas = 0
        self._stopped = False  # a reason to stop has come, or the end itself
        self._is_last = False  # the last event was the end
        self.content_seen = False
        self.error: bytes | None = None
        self.error_told = False

    @property
    def reading(self) -> Reading | None:
        """Usage rules are read beside it, by a `ruled_meter.TappedMeter`."""
        return None

    @property
    def content_events(self) -> int:
        """Events that may have brought a token."""
        return self._deltas

    @property
    def ended_well(self) -> bool:
        """Whether the stream came to its end in the dialect."""
        return self._stopped

    @property
    def is_done(self) -> bool:
        """Whether the last that came is the end, so that nothing is to follow."""
        return self._is_last and not self._splitter.holds_part

    def feed(self, data: bytes) -> bytes:
        """The bytes to hand on now, `b""` while nothing may go out yet.

        Raises:
            EventTooLarge: an event outgrew the limit.
        """
        return self._absorb(self._splitter.feed(data))

    def finish(self) -> bytes:
        """The rest, once the answer has ended: a last event without its blank line, a preamble still held."""
        rest = self._splitter.finish()
        out = self._absorb([rest]) if rest else b""
        held, self._held = self._held, b""
        return held + out

    def _absorb(self, events: list[bytes]) -> bytes:
        if not events:
            return b""
        for raw in events:
            if self.content_seen and raw.startswith(self.DELTA):
                self._deltas += 1
                self._is_last = False
            else:
                self._look(raw)
        block = b"".join(events)
        if self._held:
            block = self._held + block
        if not self.content_seen and len(block) <= _HELD_MAX_BYTES:
            self._held = block
            return b""
        self.content_seen = True
        self._held = b""
        return block

    @abstractmethod
    def _look(self, raw: bytes) -> None:
        """Notes what an event says."""

    def _note_error(self, error: bytes, *, told: bool) -> None:
        if self.error is None:  # the first of the stream counts
            self.error, self.error_told = error, told
