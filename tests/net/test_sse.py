"""The SSE codec: any split of a stream gives the same events and the same bytes, over the whole grammar."""

import time
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from forebay.core.errors import Fault, Next
from forebay.net.sse import EventSplitter, EventTooLarge, ServerEvent, encode_event, parse_event

PLENTY = 1 << 20
ENDINGS = (b"\n", b"\r\n", b"\r")

# --- the oracle: WHATWG HTML 9.2.6, word for word and byte for byte, as slow as it reads --------------------


def read_lines(stream: bytes) -> tuple[list[bytes], bytes]:
    """Lines without their endings, and the rest that has none."""
    lines, line, at = [], b"", 0
    while at < len(stream):
        byte = stream[at : at + 1]
        if byte == b"\r" and stream[at + 1 : at + 2] == b"\n":
            lines.append(line)
            line, at = b"", at + 2
        elif byte in (b"\r", b"\n"):
            lines.append(line)
            line, at = b"", at + 1
        else:
            line, at = line + byte, at + 1
    return lines, line


def interpret(stream: bytes) -> list[tuple[str, str, str | None, int | None]]:
    """What a client is told: type, data, and the id and retry that came with the event."""
    lines, _ = read_lines(stream.removeprefix(b"\xef\xbb\xbf"))
    told: list[tuple[str, str, str | None, int | None]] = []
    data, event = "", ""
    id_: str | None = None
    retry: int | None = None
    for raw in lines:
        line = raw.decode("utf-8", "replace")
        if line == "":
            if data != "":
                told.append((event or "message", data.removesuffix("\n"), id_, retry))
            data, event, id_, retry = "", "", None, None
            continue
        if line.startswith(":"):
            continue
        field, colon, value = line.partition(":")
        if colon and value.startswith(" "):
            value = value[1:]
        if field == "event":
            event = value
        elif field == "data":
            data += value + "\n"
        elif field == "id" and "\0" not in value:
            id_ = value
        elif field == "retry" and value != "" and all("0" <= char <= "9" for char in value):
            retry = int(value)
    return told


def find_boundaries(stream: bytes) -> list[bytes]:
    """Raw events by the same slow reading: every blank line ends one."""
    events, start, at, line_start = [], 0, 0, 0
    while at < len(stream):
        size = 2 if stream[at : at + 2] == b"\r\n" else 1 if stream[at] in b"\r\n" else 0
        if size == 0:
            at += 1
            continue
        blank = at == line_start
        at = line_start = at + size
        if blank:
            events.append(stream[start:at])
            start = at
    return events


# --- streams ------------------------------------------------------------------------------------------------

texts = st.text(st.characters(codec="utf-8", exclude_characters="\r\n\ufeff"), max_size=8)
fields = st.one_of(
    st.sampled_from(["data", "event", "id", "retry", "", "other", "dat", "DATA", " data"]),
    texts,
)
values = st.one_of(
    texts, st.integers(0, 9999).map(str), st.sampled_from(["", " ", "  x", '{"a":"é…"}', "[DONE]"])
)
lines = st.one_of(
    st.builds(lambda name, gap, value: f"{name}:{gap}{value}", fields, st.sampled_from(["", " "]), values),
    fields,
    st.just(""),
).map(str.encode)


@st.composite
def grammar_streams(draw: st.DrawFn) -> bytes:
    """Lines of every kind, ended by one kind of ending or a mix, with or without BOM, cut anywhere."""
    endings = draw(st.sampled_from([*((ending,) for ending in ENDINGS), ENDINGS]))
    parts = [line + draw(st.sampled_from(endings)) for line in draw(st.lists(lines, max_size=12))]
    return (
        draw(st.sampled_from([b"", b"\xef\xbb\xbf"]))
        + b"".join(parts)
        + draw(st.sampled_from([b"", b"data: x"]))
    )


#: Nearly nothing but endings, where boundaries are hard.
ending_streams = st.text("\r\nx", max_size=24).map(str.encode)
usual_streams = st.lists(
    st.sampled_from(['data: {"a":1}\n\n', "data: [DONE]\n\n", ": ping\n\n", "event: e\ndata: é\n\n"]),
    max_size=8,
).map(lambda events: "".join(events).encode())
streams = st.one_of(grammar_streams(), ending_streams, usual_streams)


def cut(stream: bytes, cuts: list[int]) -> list[bytes]:
    offsets = [0, *sorted(min(at, len(stream)) for at in cuts), len(stream)]
    return [stream[start:end] for start, end in pairwise(offsets)]


def split_whole(chunks: list[bytes]) -> tuple[list[bytes], bytes]:
    splitter = EventSplitter(PLENTY)
    events = [event for chunk in chunks for event in splitter.feed(chunk)]
    return events, splitter.finish()


# --- properties ---------------------------------------------------------------------------------------------


@given(streams, st.lists(st.integers(0, 200), max_size=30))
@example(b"data: a\r\r\ndata: b\r\r", [9])  # between the CR and the LF of one ending
@example(b"data: a\n\r\ndata: b\n\n", [9])
@example(b"\n\n\n", [1, 2])
@example(b"data: a\n\ndata: b\n\n\n", [9, 19])
def test_any_split_gives_the_same_events_and_bytes(stream: bytes, cuts: list[int]) -> None:
    whole = split_whole([stream])
    assert split_whole(cut(stream, cuts)) == whole
    events, rest = whole
    assert b"".join(events) + rest == stream


@given(streams)
def test_a_stream_fed_byte_by_byte_gives_the_same_events(stream: bytes) -> None:
    assert split_whole([stream[i : i + 1] for i in range(len(stream))]) == split_whole([stream])


@given(streams)
def test_every_blank_line_ends_an_event(stream: bytes) -> None:
    events, rest = split_whole([stream])
    expected = find_boundaries(stream)
    if rest.endswith(b"\r"):  # may be half a CRLF, so it waits for the end
        events = [*events, rest] if len(events) < len(expected) else events
    assert events == expected


@given(streams, st.lists(st.integers(0, 200), max_size=30))
@example(b"data: a\n\n\n\ndata: b\n\n", [10])
@example(b"data: a\n\n\ndata: b\n", [9, 10])
def test_blocks_are_the_events_put_together(stream: bytes, cuts: list[int]) -> None:
    by_event, by_block = EventSplitter(PLENTY), EventSplitter(PLENTY)
    for chunk in cut(stream, cuts):
        assert by_block.feed_block(chunk) == b"".join(by_event.feed(chunk))
    assert by_block.finish() == by_event.finish()


@given(streams, st.data())
def test_events_and_blocks_may_take_turns(stream: bytes, data: st.DataObject) -> None:
    splitter = EventSplitter(PLENTY)
    out = b""
    for chunk in cut(stream, data.draw(st.lists(st.integers(0, 200), max_size=10))):
        out += splitter.feed_block(chunk) if data.draw(st.booleans()) else b"".join(splitter.feed(chunk))
    assert out + splitter.finish() == stream
    assert b"".join(split_whole([stream])[0]).startswith(out)


@given(streams)
def test_parsed_events_are_what_the_standard_tells_a_client(stream: bytes) -> None:
    events, rest = split_whole([stream])
    if rest.endswith((b"\r", b"\n")):
        events = [*events, rest]
        stream += b"\n\n" if rest.endswith(b"\n") else b"\r\r"
    told = [
        (parsed.event, parsed.data.decode("utf-8", "replace"), parsed.id, parsed.retry)
        for parsed in map(parse_event, events)
        if parsed.data is not None
    ]
    assert told == interpret(stream)


@given(st.binary(max_size=200))
def test_parsing_never_raises(raw: bytes) -> None:
    assert isinstance(parse_event(raw), ServerEvent)


@given(
    st.binary(max_size=60),
    st.one_of(st.none(), st.text(st.characters(codec="utf-8", exclude_characters="\r\n"))),
)
def test_an_encoded_event_reads_back(data: bytes, event: str | None) -> None:
    raw = encode_event(data, event)
    assert split_whole([raw]) == ([raw], b"")
    expected = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    assert parse_event(raw) == ServerEvent(event=event or "message", data=expected)


# --- single facts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"data: a\n\n", ServerEvent(data=b"a")),
        (b"data:a\n\n", ServerEvent(data=b"a")),
        (b"data:  a\n\n", ServerEvent(data=b" a")),
        (b"data: a\r\n\r\n", ServerEvent(data=b"a")),
        (b"data: a\r\r", ServerEvent(data=b"a")),
        (b"data: a\ndata: b\n\n", ServerEvent(data=b"a\nb")),
        (b"data\n\n", ServerEvent(data=b"")),
        (b"data\ndata\n\n", ServerEvent(data=b"\n")),
        (b"data:\n\n", ServerEvent(data=b"")),
        (b": only a comment\n\n", ServerEvent()),
        (b"\n", ServerEvent()),
        (b"", ServerEvent()),
        (b"\xef\xbb\xbfdata: a\n\n", ServerEvent(data=b"a")),
        (b"data: last", ServerEvent(data=b"last")),
        (b"data: last\n", ServerEvent(data=b"last")),
        (b"event: e\nid: 7\nretry: 250\ndata: a\n\n", ServerEvent(event="e", data=b"a", id="7", retry=250)),
        (b"id: a\0b\nretry: 1s\ndata: a\n\n", ServerEvent(data=b"a")),
        (b"id\ndata: a\n\n", ServerEvent(data=b"a", id="")),
        (b"retry: " + b"9" * 5000 + b"\n\n", ServerEvent()),
        ("event: é\ndata: 語\n\n".encode(), ServerEvent(event="é", data="語".encode())),
    ],
)
def test_fields(raw: bytes, expected: ServerEvent) -> None:
    assert parse_event(raw) == expected


def test_a_block_that_ends_with_an_event_is_not_copied() -> None:
    splitter = EventSplitter(PLENTY)
    data = b'data: {"a":1}\n\ndata: [DONE]\n\n'
    assert splitter.feed_block(data) is data


def test_a_last_event_without_its_blank_line_is_handed_out_at_the_end() -> None:
    splitter = EventSplitter(PLENTY)
    assert splitter.feed(b"data: a\n\ndata: [DONE]\n") == [b"data: a\n\n"]
    assert splitter.finish() == b"data: [DONE]\n"
    assert splitter.finish() == b""


def test_an_event_type_with_a_line_ending_is_refused() -> None:
    with pytest.raises(ValueError, match="one line"):
        encode_event(b"a", "b\nretry: 1")


def feed_events(splitter: EventSplitter, chunk: bytes) -> None:
    splitter.feed(chunk)


def feed_blocks(splitter: EventSplitter, chunk: bytes) -> None:
    splitter.feed_block(chunk)


@pytest.mark.parametrize("feed", [feed_events, feed_blocks])
@pytest.mark.parametrize("ending", [b"\n\n", b"\r\n\r\n", b"\r\r", b""])
@given(cuts=st.lists(st.integers(0, 60), max_size=6), size=st.integers(0, 40))
def test_an_event_over_the_limit_is_an_error_however_it_is_split(
    feed: Callable[[EventSplitter, bytes], None], ending: bytes, cuts: list[int], size: int
) -> None:
    limit = 24
    event = b"data: " + b"x" * size + ending
    splitter = EventSplitter(limit)

    def feed_all() -> None:
        for chunk in cut(b"data: fine\n\n" + event, cuts):
            feed(splitter, chunk)

    if len(event) > limit:
        with pytest.raises(EventTooLarge) as caught:
            feed_all()
        assert (caught.value.fault, caught.value.next) == (Fault.TARGET, Next.STOP)
    else:
        feed_all()


def test_many_events_may_be_longer_together_than_one_may_be() -> None:
    stream = b"data: 0123456789\n\n" * 100
    splitter = EventSplitter(20)
    assert len(splitter.feed(stream)) == 100
    assert splitter.feed_block(stream) == stream


@pytest.mark.parametrize("chunk", [b"x" * 256, b"x\r" * 128, b"x\n" * 128], ids=["no_ending", "cr", "lf"])
def test_time_is_linear_in_the_length_of_a_split_event(chunk: bytes) -> None:
    """16 MiB in 65,536 chunks take half a second; looking at what is held again with each, minutes."""
    splitter = EventSplitter(1 << 25)
    started_s = time.process_time()
    for _ in range(1 << 16):
        if splitter.feed_block(chunk) or time.process_time() - started_s > 5:
            break
    else:
        assert len(splitter.finish()) == 256 << 16
        return
    pytest.fail(f"not linear: {time.process_time() - started_s:.1f} s, or an event where there is none")


def test_an_endless_row_of_blank_lines_is_passed_on_as_it_comes() -> None:
    splitter = EventSplitter(PLENTY)
    assert splitter.feed(b"\n\n\n") == [b"\n"] * 3
    assert splitter.feed_block(b"\n" * 1000) == b"\n" * 1000
    assert splitter.finish() == b""
