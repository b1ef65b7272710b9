"""Meters of streams as everybody knows them, and what stands around one.  Holds no reading of a stream."""

from typing import Protocol

from forebay.core.events import Tokens


class Metered(Protocol):
    """Reads a stream while its bytes flow on; `forebay.providers.openai_stream.StreamMeter` explains it."""

    @property
    def content_seen(self) -> bool: ...
    @property
    def tokens(self) -> Tokens | None: ...
    @property
    def error(self) -> bytes | None: ...
    @property
    def error_told(self) -> bool: ...
    @property
    def partial(self) -> Tokens | None: ...
    @property
    def content_events(self) -> int: ...
    @property
    def ended_well(self) -> bool: ...
    @property
    def is_done(self) -> bool: ...
    def feed(self, data: bytes) -> bytes: ...
    def finish(self) -> bytes: ...


class Around:
    """Says what the meter inside it says."""

    __slots__ = ("_meter",)

    def __init__(self, meter: Metered) -> None:
        self._meter = meter

    @property
    def content_seen(self) -> bool:
        return self._meter.content_seen

    @property
    def tokens(self) -> Tokens | None:
        return self._meter.tokens

    @property
    def error(self) -> bytes | None:
        return self._meter.error

    @property
    def error_told(self) -> bool:
        return self._meter.error_told

    @property
    def partial(self) -> Tokens | None:
        return self._meter.partial

    @property
    def content_events(self) -> int:
        return self._meter.content_events

    @property
    def ended_well(self) -> bool:
        return self._meter.ended_well

    @property
    def is_done(self) -> bool:
        return self._meter.is_done
