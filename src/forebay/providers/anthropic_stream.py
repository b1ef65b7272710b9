"""What a stream in Anthropic's dialect says while its bytes flow on.  Pure.

`MessagesMeter` does for it what `openai_stream.StreamMeter` does for OpenAI's: the bytes of an answer in any
split, out come whole events, each of them untouched.  Nothing is taken out, because nothing is asked for that
the caller did not ask for.
"""

import msgspec

from forebay.core.events import Tokens
from forebay.net.sse import parse_event
from forebay.providers.anthropic_usage import AnthropicUsage, decode_usage
from forebay.providers.event_meter import EventMeter
from forebay.providers.json_edit import NOTHING, UNREADABLE

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


class MessagesMeter(EventMeter):
    """Reads one stream; see the module, and `StreamMeter` for the attributes.

    Args:
        event_max_bytes: the largest event that is held while its end has not come.
    """

    DELTA = b"event: content_block_delta\n"

    __slots__ = ("_usage", "_usage_is_final")

    def __init__(self, *, event_max_bytes: int) -> None:
        super().__init__(event_max_bytes=event_max_bytes)
        self._usage: AnthropicUsage | None = None
        self._usage_is_final = False  # else it is the guess that a stream begins with

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
