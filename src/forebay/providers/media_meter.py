"""What a stream of OpenAI's audio and images says while its bytes flow on.  Pure.

`MediaMeter` does for it what `openai_stream.StreamMeter` does for chat: the bytes of an answer in any split,
out come whole events, each of them untouched.  It knows the events of transcriptions (`transcript.text.…`),
of speech (`speech.audio.…`) and of images (`image_generation.…`, `image_edit.…`), and chunks as vLLM sends
them for transcriptions, which are those of a chat.
"""

from typing import Final

import msgspec

from forebay.core.events import Tokens
from forebay.core.routes import AUDIO_READERS, Endpoint
from forebay.core.usage_rules import UsageRule
from forebay.net.sse import EventSplitter, parse_event
from forebay.providers.json_edit import NOTHING, UNREADABLE
from forebay.providers.media_usage import IMAGES, TOLD_NOTHING, Told, Units, list_units, read_told
from forebay.providers.openai_ruled import UsageReader
from forebay.providers.openai_usage import Reading
from forebay.providers.usage_rules import plant

_DONE: Final = b"[DONE]"
_HELD_MAX_BYTES: Final = 64 * 1024  #: a preamble longer than this is taken for content
#: Behind which nothing follows.
_LAST: Final = frozenset(("transcript.text.done", "speech.audio.done"))
#: An image each.
_IMAGE_DONE: Final = frozenset(("image_generation.completed", "image_edit.completed"))
_EMPTY: Final = frozenset((b"", b"null", b'""', b"[]", b"{}", b"false"))


class _Choice(msgspec.Struct, frozen=True):
    finish_reason: str | None = None


class _Event(msgspec.Struct, frozen=True):
    type: str = ""
    error: msgspec.Raw = NOTHING
    choices: list[_Choice] | None = None


_decode_event = msgspec.json.Decoder(_Event).decode


class MediaMeter:
    """Reads one stream; see the module, and `StreamMeter` for the attributes.

    Args:
        guessed_units: what counts where the stream never comes to tell it.
        event_max_bytes: the largest event that is held while its end has not come.
    """

    __slots__ = (
        "_endpoint",
        "_events",
        "_guessed",
        "_held",
        "_images",
        "_is_known",
        "_is_last",
        "_is_whole",
        "_reader",
        "_splitter",
        "_stopped",
        "_tokens",
        "_told",
        "content_seen",
        "error",
        "error_told",
    )  # fmt: skip

    def __init__(
        self, endpoint: Endpoint, rules: tuple[UsageRule, ...], guessed_units: Units, *, event_max_bytes: int
    ) -> None:
        self._endpoint = endpoint
        self._guessed = guessed_units
        self._splitter = EventSplitter(event_max_bytes)
        self._reader = UsageReader(plant(rules)) if rules else None
        self._held = b""
        self._events = 0
        self._images = 0
        self._told = TOLD_NOTHING
        self._tokens: Tokens | None = None
        self._is_known = False  # an event came that the dialect has
        self._is_last = False  # the last event was the end
        self._is_whole = False  # the answer has ended on the wire
        self._stopped = False
        self.content_seen = False
        self.error: bytes | None = None
        self.error_told = False

    @property
    def tokens(self) -> Tokens | None:
        return self._tokens

    @property
    def reading(self) -> Reading:
        """What has come until now says."""
        units = self._guessed
        if self._endpoint in AUDIO_READERS:
            if self._tokens is not None:
                units = list_units(self._told)
        elif self._images:
            units = ((IMAGES, self._images),)
        ruled = None if self._reader is None else self._reader.finish()
        return merge(self._tokens, units, ruled)

    @property
    def partial(self) -> Tokens | None:
        """Nothing is counted before the end."""
        return None

    @property
    def content_events(self) -> int:
        """Events that may have brought a token: none of a picture."""
        return self._events if self._endpoint in AUDIO_READERS else 0

    @property
    def ended_well(self) -> bool:
        """Whether the stream came to its end; what is in no dialect that is known ends with its bytes."""
        return self._stopped or (self._is_whole and self.content_seen and not self._is_known)

    @property
    def is_done(self) -> bool:
        """Whether the last that came is the end, so that nothing is to follow."""
        return self._is_last and not self._splitter.holds_part

    def feed(self, data: bytes) -> bytes:
        """The bytes to hand on now.

        Raises:
            EventTooLarge: an event outgrew the limit.
        """
        return self._absorb(self._splitter.feed(data))

    def finish(self) -> bytes:
        """The rest, once the answer has ended: a last event without its blank line, what is still held."""
        rest = self._splitter.finish()
        self._is_whole = True
        out = self._absorb([rest]) if rest else b""
        held, self._held = self._held, b""
        return held + out

    def _absorb(self, events: list[bytes]) -> bytes:
        for raw in events:
            self._look(raw)
        block = self._held + b"".join(events)
        if not self.content_seen and len(block) <= _HELD_MAX_BYTES:
            self._held = block  # comments, or an error: another target may still answer
            return b""
        self.content_seen = True
        self._held = b""
        return block

    def _look(self, raw: bytes) -> None:
        parsed = parse_event(raw)
        data = parsed.data
        if not data:
            return
        if data == _DONE:
            self._is_known = self._is_last = self._stopped = self.content_seen = True
            return
        self._is_last = False
        try:
            event = _decode_event(data)
        except UNREADABLE:
            if parsed.event == "error":
                told = {"message": data.decode("utf-8", "replace"), "type": "server_error"}
                self._note_error(msgspec.json.encode(told), told=False)
            else:
                self.content_seen = True
            return
        kind = event.type or parsed.event
        if kind == "error" or bytes(event.error) not in _EMPTY:
            nested = bytes(event.error)
            self._note_error(nested if nested[:1] == b"{" else data, told=nested[:1] == b"{")
            return
        self.content_seen = True
        self._events += 1
        if self._reader is not None and self._reader.may_find(data):
            self._reader.look(data)
        self._note_end(kind, event)
        if b'"usage"' in data:
            self._note_usage(read_told(data, self._endpoint), each=kind in _IMAGE_DONE)

    def _note_end(self, kind: str, event: _Event) -> None:
        if kind.startswith(("transcript.", "speech.", "image_")) or event.choices is not None:
            self._is_known = True
        if kind in _LAST:
            self._is_last = self._stopped = True
        elif kind in _IMAGE_DONE:
            self._images += 1
            self._stopped = True
        elif event.choices and any(choice.finish_reason for choice in event.choices):
            self._stopped = True

    def _note_usage(self, told: Told, *, each: bool) -> None:
        """Keeps what an event tells; `each`: of one picture, of which several are added up."""
        if told.seconds is not None:
            self._told = told
        if told.tokens is not None:
            self._tokens = told.tokens if self._tokens is None or not each else add(self._tokens, told.tokens)

    def _note_error(self, error: bytes, *, told: bool) -> None:
        if self.error is None:  # the first of the stream counts
            self.error, self.error_told = error, told


def add(one: Tokens, other: Tokens) -> Tokens:
    """Class by class; unknown where neither knows it."""
    counts: dict[str, int | None] = {}
    for name in Tokens.__struct_fields__:
        pair = [count for count in (getattr(one, name), getattr(other, name)) if count is not None]
        counts[name] = sum(pair) if pair else None
    return Tokens(**counts)


def merge(tokens: Tokens | None, units: Units, ruled: Reading | None) -> Reading:
    """What the dialect found with what a target's rules found, which go before it."""
    if ruled is None:
        return Reading(tokens=tokens, units=units, found=())
    named = {name for name, _ in ruled.units}
    more = tuple(pair for pair in units if pair[0] not in named)
    return Reading(tokens=ruled.tokens or tokens, units=ruled.units + more, found=ruled.found)
