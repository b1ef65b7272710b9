"""Usage rules of targets whose answers are not OpenAI's chat, or are translated into it.  Pure.

Rules point into what the target itself said: into its whole answer, and into each event of its stream.  So a
`TappedMeter` reads the target's own bytes beside the meter that reads the stream as ever; what that one
counted is corrected by what the rules found.
"""

from typing import Final

import msgspec

from forebay.core.events import Tokens
from forebay.core.metering import Around, Metered
from forebay.core.usage_rules import UsageRule
from forebay.net.sse import EventSplitter
from forebay.providers.json_edit import NOTHING, UNREADABLE
from forebay.providers.openai_ruled import UsageReader
from forebay.providers.openai_stream import read_data
from forebay.providers.openai_usage import Reading
from forebay.providers.translation import DocumentSplitter
from forebay.providers.usage_rules import plant


class _Whole(msgspec.Struct, frozen=True):
    """Where some events have a whole answer, into which rules point as well."""

    response: msgspec.Raw = NOTHING  # OpenAI's Responses
    message: msgspec.Raw = NOTHING  # Anthropic


_decode_whole = msgspec.json.Decoder(_Whole).decode
_WHOLES: Final = (b'"response"', b'"message"')


class EventDocuments:
    """The JSON documents in a stream of server-sent events; `forebay.core.translation.DocumentSplitter`."""

    __slots__ = ("_splitter",)

    def __init__(self, event_max_bytes: int) -> None:
        self._splitter = EventSplitter(event_max_bytes)

    def feed(self, data: bytes) -> list[bytes]:
        return [read_data(raw) for raw in self._splitter.feed(data)]

    def finish(self) -> list[bytes]:
        rest = self._splitter.finish()
        return [read_data(rest)] if rest else []


class TappedMeter(Around):
    """Reads one stream of a target that has usage rules.

    Args:
        meter: reads it as ever.
        documents: finds what the target's own bytes hold.
    """

    __slots__ = ("_documents", "_reader")

    def __init__(self, meter: Metered, rules: tuple[UsageRule, ...], documents: DocumentSplitter) -> None:
        super().__init__(meter)
        self._documents = documents
        self._reader = UsageReader(plant(rules))

    @property
    def reading(self) -> Reading:
        """What has come until now says."""
        self._reader.note_tokens(self._meter.tokens)
        return self._reader.finish()

    def feed(self, data: bytes) -> bytes:
        """As the meter does.  Raises EventTooLarge, UpstreamProtocol."""
        self._look(self._documents.feed(data))
        return self._meter.feed(data)

    def finish(self) -> bytes:
        """As the meter does.  Raises as `feed`."""
        self._look(self._documents.finish())
        return self._meter.finish()

    def _look(self, documents: list[bytes]) -> None:
        for document in documents:
            if not self._reader.may_match(document):
                continue
            self._reader.look_by_rules(document)
            if any(name in document for name in _WHOLES):
                try:
                    whole = _decode_whole(document)
                except UNREADABLE:
                    continue
                for raw in (whole.response, whole.message):
                    if raw is not NOTHING:
                        self._reader.look_by_rules(bytes(raw))


def tap_meter(
    meter: Metered,
    rules: tuple[UsageRule, ...],
    documents: DocumentSplitter | None = None,
    *,
    event_max_bytes: int,
) -> TappedMeter:
    """A reader for one stream of a target that has usage rules.

    Args:
        documents: how the target's stream is cut; None for server-sent events.
    """
    return TappedMeter(meter, rules, documents or EventDocuments(event_max_bytes))


def read_by_rules(rules: tuple[UsageRule, ...], body: bytes, tokens: Tokens | None) -> Reading:
    """What a whole answer says.

    Args:
        body: as the target sent it.
        tokens: what its dialect says that it cost.
    """
    reader = UsageReader(plant(rules))
    reader.look_by_rules(body)
    reader.note_tokens(tokens)
    return reader.finish()
