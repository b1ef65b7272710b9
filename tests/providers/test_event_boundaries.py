"""What a meter has given out always ends between two events, so a keep-alive may follow it.  By property."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.gateway.dialect import Meter
from forebay.net.sse import EventSplitter, parse_event
from forebay.providers.anthropic_stream import MessagesMeter
from forebay.providers.openai_stream import StreamMeter
from forebay.providers.responses_meter import ResponsesMeter
from forebay.testing import anthropic, responses
from forebay.testing.openai import chat_stream

LIMIT = 1 << 20
KEEP_ALIVE = b": keep-alive\n\n"
METERS: dict[str, tuple[Callable[[], Meter], list[bytes]]] = {
    "chat": (lambda: StreamMeter(hide_usage=True, event_max_bytes=LIMIT), chat_stream(["Hel", "lö"])),
    "messages": (
        lambda: MessagesMeter(event_max_bytes=LIMIT),
        anthropic.message_events(anthropic.message(anthropic.text("Hellö"))),
    ),
    "responses": (
        lambda: ResponsesMeter(event_max_bytes=LIMIT),
        responses.response_events(responses.response("Hellö")),
    ),
}


def read(body: bytes) -> list[tuple[str, bytes]]:
    splitter = EventSplitter(LIMIT)
    events = map(parse_event, [*splitter.feed(body), splitter.finish()])
    return [(each.event, each.data) for each in events if each.data is not None]


@pytest.mark.parametrize("name", METERS)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_keep_alive_behind_any_piece_is_no_part_of_an_event(name: str, data: st.DataObject) -> None:
    make, events = METERS[name]
    ending = data.draw(st.sampled_from([b"\n", b"\r\n", b"\r"]))
    body = b"".join(events).replace(b"\n", ending)
    ends = sorted(data.draw(st.sets(st.integers(1, len(body) - 1), max_size=12)))
    pieces = [body[a:b] for a, b in zip([0, *ends], [*ends, len(body)], strict=True)]
    straight, meter = make(), make()
    expected = read(straight.feed(body) + straight.finish())
    told = b"".join(meter.feed(piece) + KEEP_ALIVE for piece in pieces) + meter.finish()
    assert read(told) == expected
