"""What a stream of Anthropic's says: the same for any split of its bytes."""

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.core.events import Tokens
from forebay.net.sse import EventTooLarge
from forebay.providers.anthropic_stream import MessagesMeter
from forebay.providers.anthropic_usage import read_answer_usage
from forebay.testing.anthropic import error, event, message, message_events, text, thinking, tool_use, usage
from forebay.testing.openai import ToolCall

BLOCKS = st.one_of(
    st.text(max_size=12).map(text),
    st.builds(thinking, st.text(max_size=8), st.text("ab+/=", min_size=1, max_size=8)),
    st.sampled_from(['{"a":"{\\"error\\":1}"}', "", '{"usage":{"output_tokens":99}}']).map(
        lambda arguments: tool_use(ToolCall(id="toolu_1", name="look", arguments=arguments))
    ),
)
COUNTS = st.integers(0, 10**6)


def new_meter() -> MessagesMeter:
    return MessagesMeter(event_max_bytes=1 << 20)


def feed(meter: MessagesMeter, data: bytes, cuts: list[int]) -> bytes:
    places = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    out = b"".join(meter.feed(data[start:end]) for start, end in pairwise(places))
    return out + meter.finish()


@given(
    st.lists(BLOCKS, max_size=4),
    st.tuples(COUNTS, COUNTS, COUNTS, COUNTS),
    st.lists(st.integers(0, 3000), max_size=20),
    st.sampled_from([b"\n", b"\r\n", b"\r"]),
)
def test_any_split_gives_the_same_bytes_and_usage(
    blocks: list[dict[str, object]], counts: tuple[int, int, int, int], cuts: list[int], newline: bytes
) -> None:
    tokens = usage(counts[0], counts[1], cache_read=counts[2], cache_write=counts[3])
    answer = message(*blocks, tokens=tokens)
    data = b"".join(message_events(answer)).replace(b"\n", newline)
    meter = new_meter()
    assert feed(meter, data, cuts) == data
    assert meter.tokens == read_answer_usage(msgspec.json.encode(answer))
    assert meter.tokens == Tokens(
        input=counts[0], output=counts[1], input_cached=counts[2], input_cache_write=counts[3]
    )
    assert meter.content_seen
    assert meter.ended_well
    assert meter.is_done
    assert meter.error is None


@given(st.integers(0, 3000), st.lists(st.integers(0, 3000), max_size=5))
def test_a_cut_stream_ended_well_only_if_it_said_so(length: int, cuts: list[int]) -> None:
    data = b"".join(message_events(message(thinking("abcd", "sig"), text("A long answer"))))[:length]
    meter = new_meter()
    assert feed(meter, data, cuts) == data
    said = b'"usage":{"output_tokens":5}}' in data  # with which the event that names the reason ends
    assert meter.ended_well is said
    assert (meter.tokens is not None) is said


def test_nothing_goes_out_before_the_first_content() -> None:
    start, ping, block, delta, *_ = message_events(message(text("Hello")))
    meter = new_meter()
    assert meter.feed(start + ping + block) == b""
    assert not meter.content_seen
    assert meter.feed(delta) == start + ping + block + delta
    assert meter.content_seen


def test_a_tool_call_is_content_from_its_start_on() -> None:
    call = tool_use(ToolCall(id="toolu_1", name="now"))
    events = message_events(message(call))
    meter = new_meter()
    assert meter.feed(b"".join(events[:3])) == b"".join(events[:3])


def test_what_was_seen_of_a_cut_stream() -> None:
    events = message_events(message(text("A long answer"), tokens=usage(7, 50, cache_read=3)))
    meter = new_meter()
    meter.feed(b"".join(events[:6]))
    assert meter.tokens is None
    assert meter.partial == Tokens(input=7, input_cached=3, output=3)
    assert meter.content_events == 3


def test_thinking_is_told_apart_where_the_target_does() -> None:
    tokens = usage(7, 50) | {"output_tokens_details": {"thinking_tokens": 30}}
    assert read_answer_usage(msgspec.json.encode(message(tokens=tokens))) == Tokens(
        input=7, output=20, output_reasoning=30
    )


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (event(error("overloaded_error", "Overloaded")), True),
        (b"event: error\ndata: {\"message\":\"odd\"}\n\n", False),
        (b"event: error\ndata: Internal Server Error\n\n", False),
    ],
)  # fmt: skip
def test_errors_in_any_form(raw: bytes, told: bool) -> None:
    meter = new_meter()
    meter.feed(raw)
    assert meter.error is not None
    assert meter.error_told is told
    assert not meter.content_seen


def test_words_of_the_answer_are_no_error_and_no_usage() -> None:
    words = '"error" event: error\n\ndata: {"type":"error"} "usage":{"output_tokens":1000}'
    meter = new_meter()
    meter.feed(b"".join(message_events(message(text(words)), fragment_chars=1000)))
    assert meter.error is None
    assert meter.tokens == Tokens(input=7, output=5)


def test_an_event_outgrows_the_limit() -> None:
    meter = MessagesMeter(event_max_bytes=100)
    with pytest.raises(EventTooLarge):
        meter.feed(b"event: ping\ndata: " + b"x" * 200)


@pytest.mark.parametrize(
    "raw", [b'{"usage":{"input_tokens":-1,"output_tokens":1}}', b"{}", b"[]", b"x", b'{"usage":null}']
)
def test_usage_that_can_not_be_believed(raw: bytes) -> None:
    assert read_answer_usage(raw) is None
