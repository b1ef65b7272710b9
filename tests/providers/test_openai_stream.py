"""The meter of a stream: the same bytes out, usage and verdict for any split, in the whole grammar."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stream_rig import LIMIT, run, verdict

from forebay.core.events import Tokens
from forebay.providers.openai_stream import StreamMeter
from forebay.testing.answers import cut
from forebay.testing.openai import (
    DONE,
    chat_chunk,
    chat_stream,
    completion_stream,
    event,
    usage,
    usage_chunk,
)

few = settings(max_examples=80, deadline=None)


# --- any split ----------------------------------------------------------------------------------------------

TEXTS = st.text(min_size=1, max_size=8) | st.sampled_from(
    ["é", "€", "😀", "data: x", '"usage"', "[DONE]", '","usage":null}', '{"error"', "\n\n", "\r", "\\", '"']
)
TOKENS = st.builds(
    usage,
    st.integers(0, 5000),
    st.integers(0, 5000),
    cached=st.none() | st.integers(0, 100),
    reasoning=st.none() | st.integers(0, 100),
)


def payloads() -> st.SearchStrategy[dict[str, Any]]:
    content = st.builds(lambda text: chat_chunk({"content": text}), TEXTS)
    return st.one_of(
        content,
        content,
        st.just(chat_chunk({"role": "assistant", "content": ""})),
        st.builds(lambda text: chat_chunk({"reasoning_content": text}), TEXTS),
        st.builds(lambda text: {"choices": [{"index": 0, "text": text, "finish_reason": None}]}, TEXTS),
        st.builds(usage_chunk, TOKENS),
        st.builds(lambda text, tokens: chat_chunk({"content": text}) | {"usage": tokens}, TEXTS, TOKENS),
        st.builds(lambda text: chat_chunk({"content": text}) | {"usage": None}, TEXTS),
        st.just(chat_chunk({}, finish_reason="stop")),
        st.just({"error": {"message": "no", "code": 400}}),
        st.just(usage_chunk() | {"usage": {"prompt_tokens": "many"}}),
    )


@st.composite
def raw_events(draw: st.DrawFn) -> bytes:
    """One event in any of the spellings that the grammar allows."""
    newline = draw(st.sampled_from([b"\n", b"\n", b"\r\n", b"\r"]))
    ascii_only, spaced = draw(st.booleans()), draw(st.booleans())
    text = json.dumps(
        draw(payloads()), ensure_ascii=ascii_only, separators=(", ", ": ") if spaced else (",", ":")
    )
    lines = [draw(st.sampled_from([b"data: ", b"data:"])) + text.encode()]
    if draw(st.integers(0, 5)) == 0:
        lines.insert(
            draw(st.integers(0, 1)), draw(st.sampled_from([b": ping", b":", b"id: 7", b"retry: 10", b"odd"]))
        )
    if draw(st.integers(0, 9)) == 0:
        lines = [
            draw(st.sampled_from([b"data: [DONE]", b"data:[DONE]", b": only a comment", b"data: no json"]))
        ]
    return newline.join(lines) + newline * 2


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    bom = draw(st.sampled_from([b"", b"", b"\xef\xbb\xbf"]))
    whole = bom + b"".join(draw(st.lists(raw_events(), max_size=8)))
    return whole[: len(whole) - draw(st.sampled_from([0, 0, 0, 1, 2, 5, 40]))]


@few
@given(streams(), st.data(), st.booleans())
def test_any_split_gives_the_same_bytes_usage_and_verdict(
    stream: bytes, data: st.DataObject, hide: bool
) -> None:
    offsets = data.draw(st.lists(st.integers(0, len(stream)), max_size=10).map(sorted))
    once, expected = run([stream], hide=hide)
    out, meter = run(list(cut(stream, at=offsets)), hide=hide)
    assert out == once
    assert verdict(meter) == verdict(expected)


@few
@given(streams(), st.data())
def test_what_is_not_hidden_passes_byte_for_byte(stream: bytes, data: st.DataObject) -> None:
    offsets = data.draw(st.lists(st.integers(0, len(stream)), max_size=10).map(sorted))
    out, _ = run(list(cut(stream, at=offsets)), hide=False)
    assert out == stream


@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("make", [chat_stream, completion_stream])
def test_a_stream_cut_at_every_offset(make: Any, newline: bytes) -> None:
    whole = b"".join(make(["Grüße, ", "€uro 😀"], tokens=usage(9, 4))).replace(b"\n", newline)
    without = b"".join(make(["Grüße, ", "€uro 😀"], include_usage=False)).replace(b"\n", newline)
    for at in range(len(whole) + 1):
        out, meter = run([whole[:at], whole[at:]], hide=True)
        assert out == without, at
        assert meter.tokens == Tokens(input=9, output=4)
        assert meter.ended_well


def test_one_byte_at_a_time() -> None:
    whole = b"".join(chat_stream(["Grüße, ", "€uro 😀"]))
    out, meter = run(list(cut(whole, every=1)), hide=False)
    assert out == whole
    assert meter.tokens == Tokens(input=7, output=5)


ENDS = [DONE, b"data:[DONE]\n\n", b"data: [DONE]\r\n\r\n", b": bye\n\ndata: [DONE]\n\n"]
NO_ENDS = [
    b"data: [DONE]\n",
    b"data: [DONE]\n\ndata",
    b"data: not [DONE]\n\n",
    b": [DONE]\n\n",
    event(chat_chunk({"content": "[DONE]\n\n"})),
    event(chat_chunk({}, finish_reason="stop")),
]


@pytest.mark.parametrize("every", [1, 5, 1000])
@pytest.mark.parametrize("end", ENDS + NO_ENDS)
def test_a_stream_is_done_with_its_last_event_alone(end: bytes, every: int) -> None:
    meter = StreamMeter(hide_usage=True, event_max_bytes=LIMIT)
    before = event(chat_chunk({"content": "[DONE] " + "x" * 5000}))
    for piece in cut(before, every=every):
        meter.feed(piece)
        assert not meter.is_done
    for piece in cut(end, every=every):
        meter.feed(piece)
    assert meter.is_done is (end in ENDS)


# --- hidden usage -------------------------------------------------------------------------------------------


def openai_like(asked: bool) -> list[bytes]:
    """OpenAI: `usage: null` in each chunk once usage was asked for, with a field behind it."""
    chunks = [
        chat_chunk({"role": "assistant", "content": ""}),
        chat_chunk({"content": "Hi"}),
        chat_chunk({}, finish_reason="stop"),
    ]
    null = {"usage": None} if asked else {}
    events = [event(chunk | null | {"obfuscation": "xyz"}) for chunk in chunks]
    return [*events, *([event(usage_chunk() | {"obfuscation": ""})] if asked else []), DONE]


def vllm_like(asked: bool) -> list[bytes]:
    """vLLM: no field until the last event."""
    return [*chat_stream(include_usage=False, done=False), *([event(usage_chunk())] if asked else []), DONE]


def continuous(asked: bool) -> list[bytes]:
    """vLLM with continuous usage, which counts up in every chunk."""
    chunks = [chat_chunk({"content": text}) for text in ("a", "b", "c")]
    counted = [chunk | ({"usage": usage(5, n)} if asked else {}) for n, chunk in enumerate(chunks, 1)]
    return [*map(event, counted), event(chat_chunk({}, finish_reason="stop")), DONE]


def beside_the_last_choice(asked: bool) -> list[bytes]:
    """Usage beside the finish reason, and no event of its own."""
    last = chat_chunk({}, finish_reason="stop") | ({"usage": usage()} if asked else {})
    return [event(chat_chunk({"content": "Hi"})), event(last), DONE]


def in_python_spelling(asked: bool) -> list[bytes]:
    """A server on `json.dumps`: spaces after commas and colons."""
    chunks: list[dict[str, Any]] = [chat_chunk({"content": "Hi"}), chat_chunk({}, finish_reason="stop")]
    spelled = [chunk | ({"usage": None} if asked else {}) for chunk in chunks] + (
        [usage_chunk()] if asked else []
    )
    return [*(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in spelled), DONE]


def usage_first(asked: bool) -> list[bytes]:
    """The field at the front of each object."""
    front: dict[str, Any] = {"usage": None} if asked else {}
    chunks = [front | chat_chunk({"content": "Hi"}), front | chat_chunk({}, finish_reason="stop")]
    return [
        *map(event, chunks),
        *([event({"usage": usage()} | chat_chunk({}) | {"choices": []})] if asked else []),
        DONE,
    ]


def azure_like(asked: bool) -> list[bytes]:
    """Azure: a first chunk without choices that is not about usage."""
    first = {"choices": [], "prompt_filter_results": [{"prompt_index": 0}]} | (
        {"usage": None} if asked else {}
    )
    return [event(first), *openai_like(asked)]


ENGINES = [
    openai_like,
    vllm_like,
    continuous,
    beside_the_last_choice,
    in_python_spelling,
    usage_first,
    azure_like,
]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("every", [1, 7, 64, 1 << 20])
def test_hidden_usage_leaves_the_bytes_of_a_stream_without(engine: Any, newline: bytes, every: int) -> None:
    asked = b"".join(engine(True)).replace(b"\n", newline)
    out, meter = run(list(cut(asked, every=every)), hide=True)
    assert out == b"".join(engine(False)).replace(b"\n", newline)
    assert meter.tokens is not None
    assert meter.ended_well


@pytest.mark.parametrize("engine", ENGINES)
def test_usage_that_was_asked_for_passes_untouched(engine: Any) -> None:
    asked = b"".join(engine(True))
    out, meter = run(list(cut(asked, every=50)), hide=False)
    assert out == asked
    assert meter.tokens is not None


@pytest.mark.parametrize(
    ("reported", "tokens"),
    [
        (usage(0, 0), Tokens(input=0, output=0)),
        (usage(10, 0), Tokens(input=10, output=0)),
        (usage(10, 30, reasoning=20), Tokens(input=10, output=10, output_reasoning=20)),
        (usage(10, 30, reasoning=30), Tokens(input=10, output=0, output_reasoning=30)),
        (usage(10, 5, cached=8), Tokens(input=2, input_cached=8, output=5)),
        (usage(10, 5, cached=0, reasoning=0), Tokens(input=10, input_cached=0, output=5, output_reasoning=0)),
    ],
)
def test_reported_classes_are_disjoint_and_a_zero_stays(reported: dict[str, Any], tokens: Tokens) -> None:
    _, meter = run([b"".join(chat_stream(tokens=reported))], hide=True)
    assert meter.tokens == tokens


@pytest.mark.parametrize(
    "reported",
    [
        {"prompt_tokens": -1, "completion_tokens": 5},
        {"prompt_tokens": 1 << 70, "completion_tokens": 5},
        {"prompt_tokens": "many"},
        {"prompt_tokens": 5, "completion_tokens": 1, "completion_tokens_details": {"reasoning_tokens": -4}},
        {},
        "all of them",
        [1, 2],
    ],
)
def test_impossible_usage_is_hidden_and_not_believed(reported: object) -> None:
    events = chat_stream(include_usage=False, done=False)
    out, meter = run([b"".join([*events, event(usage_chunk() | {"usage": reported}), DONE])], hide=True)
    assert out == b"".join([*events, DONE])
    assert meter.tokens is None
    assert meter.content_events >= 3


def test_the_newest_usage_counts() -> None:
    for every in (1, 1 << 20):
        _, meter = run(list(cut(b"".join(continuous(True)), every=every)), hide=True)
        assert meter.tokens == Tokens(input=5, output=3)
