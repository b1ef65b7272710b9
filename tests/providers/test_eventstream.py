"""Frames of AWS's event streams: in any split, never when damaged, and as AWS's own client reads them."""

import struct
import zlib
from itertools import pairwise

import pytest
from botocore.eventstream import EventStreamBuffer
from hypothesis import given
from hypothesis import strategies as st

from forebay.core.errors import ForebayError, UpstreamProtocol
from forebay.net.sse import EventTooLarge
from forebay.providers.eventstream import EventStreamDecoder, Message, encode_message

MAX = 1 << 20
HEADERS = st.dictionaries(st.text("abc:-", min_size=1, max_size=20), st.text(max_size=30), max_size=4)
MESSAGES = st.lists(st.builds(Message, HEADERS, st.binary(max_size=100)), max_size=5)


def encode(messages: list[Message]) -> bytes:
    return b"".join(encode_message(message.headers, message.payload) for message in messages)


def frame(headers: bytes, payload: bytes = b"") -> bytes:
    lengths = struct.pack(">II", 16 + len(headers) + len(payload), len(headers))
    body = lengths + struct.pack(">I", zlib.crc32(lengths)) + headers + payload
    return body + struct.pack(">I", zlib.crc32(body))


@given(messages=MESSAGES, cuts=st.lists(st.integers(0, 600)))
def test_any_split_brings_the_same_messages(messages: list[Message], cuts: list[int]) -> None:
    data = encode(messages)
    decoder = EventStreamDecoder(MAX)
    found: list[Message] = []
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    for start, end in pairwise(places):
        found += decoder.feed(data[start:end])
    assert found == messages
    assert not decoder.holds_part


@given(messages=MESSAGES)
def test_the_client_of_aws_reads_what_is_written_here(messages: list[Message]) -> None:
    buffer = EventStreamBuffer()
    buffer.add_data(encode(messages))
    assert [(each.headers, each.payload) for each in buffer] == [
        (message.headers, message.payload) for message in messages
    ]


def test_the_empty_message_is_the_known_one() -> None:
    known = bytes.fromhex("000000100000000005c248eb7d98c8ff")
    assert encode_message({}, b"") == known
    assert EventStreamDecoder(MAX).feed(known) == [Message({}, b"")]


@given(message=st.builds(Message, HEADERS, st.binary(max_size=60)), data=st.data())
def test_a_damaged_message_is_never_one(message: Message, data: st.DataObject) -> None:
    raw = bytearray(encode([message]))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(UpstreamProtocol, match="damaged"):
        EventStreamDecoder(MAX).feed(bytes(raw))


@given(message=st.builds(Message, HEADERS, st.binary(max_size=60)), data=st.data())
def test_a_cut_message_is_none_yet(message: Message, data: st.DataObject) -> None:
    raw = encode([message])
    decoder = EventStreamDecoder(MAX)
    assert decoder.feed(raw[: data.draw(st.integers(1, len(raw) - 1))]) == []
    assert decoder.holds_part


@given(data=st.binary(max_size=200))
def test_any_bytes_bring_messages_or_an_error_of_ours(data: bytes) -> None:
    try:
        EventStreamDecoder(MAX).feed(data)
    except ForebayError:
        pass


def test_headers_of_every_type_are_passed_over_but_for_strings() -> None:
    values = [
        (0, b""),
        (1, b""),
        (2, b"\x01"),
        (3, b"\x00\x01"),
        (4, b"\x00\x00\x00\x01"),
        (5, b"\x00" * 8),
        (6, b"\x00\x03abc"),
        (8, b"\x00" * 8),
        (9, b"\x00" * 16),
        (7, b"\x00\x04last"),
    ]
    headers = b"".join(b"\x01" + b"%d" % kind + bytes((kind,)) + value for kind, value in values)
    assert EventStreamDecoder(MAX).feed(frame(headers, b"{}")) == [Message({"7": "last"}, b"{}")]


@pytest.mark.parametrize(
    "headers",
    [
        b"\x05a",
        b"\x01a",
        b"\x01a\x0a",
        b"\x01a\x07\x00",
        b"\x01a\x07\x00\x09abc",
        b"\x01\xff\x07\x00\x00",
    ],
)
def test_headers_that_can_t_be_read_are_an_error(headers: bytes) -> None:
    with pytest.raises(UpstreamProtocol, match="header"):
        EventStreamDecoder(MAX).feed(frame(headers))


def test_a_message_that_is_too_long_is_refused_before_it_is_held() -> None:
    raw = encode_message({}, b"x" * 1000)
    assert len(EventStreamDecoder(len(raw)).feed(raw)) == 1
    with pytest.raises(EventTooLarge, match="event_max_bytes"):
        EventStreamDecoder(len(raw) - 1).feed(raw[:12])


def test_lengths_that_contradict_each_other_are_an_error() -> None:
    lengths = struct.pack(">II", 20, 8)
    with pytest.raises(UpstreamProtocol, match="shorter"):
        EventStreamDecoder(MAX).feed(lengths + struct.pack(">I", zlib.crc32(lengths)))
