"""What tests of streams stand on: a meter that is fed in pieces, and all that it says in the end."""

from typing import Any

from forebay.providers.openai_stream import StreamMeter

LIMIT = 1 << 20


def run(pieces: list[bytes], *, hide: bool) -> tuple[bytes, StreamMeter]:
    meter = StreamMeter(hide_usage=hide, event_max_bytes=LIMIT)
    out = b"".join(meter.feed(piece) for piece in pieces) + meter.finish()
    return out, meter


def verdict(meter: StreamMeter) -> tuple[Any, ...]:
    return (
        meter.tokens,
        meter.content_seen,
        meter.ended_well,
        meter.error,
        meter.error_told,
        meter.content_events,
    )
