"""What a stream in Anthropic's dialect says while its bytes flow on.  Pure.

`MessagesMeter` does for it what `openai_stream.StreamMeter` does for OpenAI's: the bytes of an answer in any
split, out come whole events, each of them untouched.  Nothing is taken out, because nothing is asked for that
the caller did not ask for.
"""

import msgspec

from forebay.core.events import Tokens
from forebay.net.sse import EventSplitter, parse_event
from forebay.providers.anthropic_usage import AnthropicUsage, decode_usage
from forebay.providers.json_edit import NOTHING, UNREADABLE
from forebay.providers.openai_usage import Reading

_HELD_MAX_BYTES = 64 * 1024  #: a preamble longer than this is taken for content
_DELTA = b"event: content_block_delta\n"
_SILENT_BLOCKS = frozenset({"text", "thinking"})  #: whose start brings nothing yet, unless it says otherwise
_PREAMBLE = frozenset({"ping", "content_block_stop"})


class _Block(msgspec.Struct, frozen=True):
    type: str = ""
    text: str = ""
    thinking: str = ""


class _Delta(msgspec.Struct, frozen=True):
    stop_reason: str | None = None


class _Message(msgspec.Struct, frozen=True):
    usage: msgspec.Raw = NOTHING


class _Event(msgspec.Struct, frozen=True):
    type: str = ""
    message: _Message | None = None
    content_block: _Block | None = None
    delta: _Delta | None = None
    usage: msgspec.Raw = NOTHING
    error: msgspec.Raw = NOTHING


_decode_event = msgspec.json.Decoder(_Event).decode


class MessagesMeter:
    """Reads one stream; see the module, and `StreamMeter` for the attributes.

    Args:
        event_max_bytes: the largest event that is held while its end has not come.
    """

    __slots__ = (
        "_deltas", "_held", "_is_last", "_splitter", "_stopped", "_usage", "_usage_is_final", "content_seen",
        "error", "error_told",
    )  # fmt: skip

    def __init__(self, *, event_max_bytes: int) -> None:
        self._splitter = EventSplitter(event_max_bytes)
        self._held = b""
        self._deltas = 0
        self._usage: AnthropicUsage | None = None
        self._usage_is_final = False  # else it is the guess that a stream begins with
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
    def tokens(self) -> Tokens | None:
        """The usage that the target reported, once it has said how long its answer became."""
        if self._usage is None or not self._usage_is_final:
            return None
        return self._usage.tokens

    @property
    def partial(self) -> Tokens | None:
        """The prompt as the target counted it, and an event for a token of the answer."""
        tokens = None if self._usage is None else self._usage.tokens
        if tokens is None:
            return None
        return msgspec.structs.replace(tokens, output=max(tokens.output or 0, self._deltas))

    @property
    def content_events(self) -> int:
        """Events that may have brought a token."""
        return self._deltas

    @property
    def ended_well(self) -> bool:
        """Whether the stream came to its end in the dialect: `message_stop`, or a reason to stop."""
        return self._stopped

    @property
    def is_done(self) -> bool:
        """Whether the last that came is `message_stop`, so that nothing is to follow."""
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
            if self.content_seen and raw.startswith(_DELTA):
                self._deltas += 1
                self._is_last = False
            else:
                self._look(raw)
        block = b"".join(events)
        if not self.content_seen:
            self._held += block
            if len(self._held) <= _HELD_MAX_BYTES:
                return b""
            self.content_seen = True
            block, self._held = self._held, b""
            return block
        held, self._held = self._held, b""
        return held + block if held else block

    def _look(self, raw: bytes) -> None:
        parsed = parse_event(raw)
        data = parsed.data
        if not data:
            return
        self._is_last = False
        try:
            event = _decode_event(data)
        except UNREADABLE:
            if parsed.event == "error":
                self._note_error(msgspec.json.encode(data.decode("utf-8", "replace")), told=False)
            else:
                self.content_seen = True  # not in the dialect as we know it: nothing to wait for
            return
        match event.type or parsed.event:
            case "error":
                error = bytes(event.error)
                self._note_error(error if error[:1] == b"{" else data, told=error[:1] == b"{")
            case "message_start":
                self._note_usage(event.message.usage if event.message is not None else NOTHING, final=False)
            case "message_delta":
                self._note_usage(event.usage, final=True)
                if event.delta is not None and event.delta.stop_reason is not None:
                    self._stopped = self.content_seen = True
            case "message_stop":
                self._stopped = self._is_last = self.content_seen = True
            case "content_block_start":
                block = event.content_block or _Block()
                if block.type not in _SILENT_BLOCKS or block.text or block.thinking:
                    self.content_seen = True
            case "content_block_delta":
                self._deltas += 1
                self.content_seen = True
            case kind if kind not in _PREAMBLE:
                self.content_seen = True

    def _note_usage(self, raw: msgspec.Raw, *, final: bool) -> None:
        usage = decode_usage(raw)
        if usage is None:
            return
        self._usage = usage if self._usage is None else self._usage.update(usage)
        if final and usage.output_tokens is not None:
            self._usage_is_final = True

    def _note_error(self, error: bytes, *, told: bool) -> None:
        if self.error is None:  # the first of the stream counts
            self.error, self.error_told = error, told
