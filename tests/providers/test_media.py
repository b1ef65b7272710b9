"""What requests, answers and streams of audio and images say, whatever they are split into."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.core.errors import InvalidJSON, InvalidValue, MissingField
from forebay.core.events import Tokens
from forebay.core.routes import MEDIA, Endpoint
from forebay.core.usage_rules import UsageRule
from forebay.net.sse import EventTooLarge
from forebay.providers.media_dialect import SPOKEN, MediaDialect
from forebay.providers.media_meter import MediaMeter
from forebay.providers.media_request import AUDIO_BYTES_PER_S, guess_seconds
from forebay.providers.media_usage import NOT_BY_TOKENS, Told, read_told
from forebay.providers.translators import can_answer, list_dialects
from forebay.testing.media import (
    audio_usage,
    duration_usage,
    image_stream,
    image_usage,
    images,
    named_event,
    speech_stream,
    srt,
    transcription,
    transcription_stream,
    verbose_transcription,
    vtt,
    wav,
)
from forebay.testing.openai import DONE

HEARD, SPOKE, DREW = Endpoint.TRANSCRIPTIONS, Endpoint.SPEECH, Endpoint.IMAGES
RULE = UsageRule(name="pictures_in", steps=("usage", "input_tokens_details", "image_tokens"), is_unit=True)


@pytest.mark.parametrize(
    ("endpoint", "answer", "told"),
    [
        (HEARD, transcription(usage=audio_usage(14, 2, 45)),
         Told(Tokens(input=2, input_audio=14, output=45))),
        (HEARD, transcription(usage=duration_usage(9)), Told(NOT_BY_TOKENS, 9)),
        (HEARD, transcription(usage=duration_usage(9.01)), Told(NOT_BY_TOKENS, 10)),
        (HEARD, transcription(usage=duration_usage(0)), Told(NOT_BY_TOKENS, 0)),
        (HEARD, transcription(usage=duration_usage(-1)), Told()),
        (HEARD, transcription(), Told()),
        (HEARD, verbose_transcription(duration=8.47), Told(None, 9)),
        (HEARD, verbose_transcription() | {"duration": "8.47"}, Told(None, 9)),
        (HEARD, verbose_transcription() | {"duration": None}, Told()),
        (HEARD, verbose_transcription() | {"duration": [1]}, Told()),
        (HEARD, verbose_transcription(usage=audio_usage(1, 0, 2)),
         Told(Tokens(input=0, input_audio=1, output=2), 9)),
        (HEARD, {"usage": {"prompt_tokens": 3, "completion_tokens": 2}}, Told(Tokens(input=3, output=2))),
        (HEARD, {"usage": {"input_tokens": -3}}, Told()),
        (HEARD, {"usage": "much"}, Told()),
        (HEARD, [], Told()),
        (DREW, images(2, usage=image_usage(50, 10, 100)), Told(Tokens(input=60, output=100), None, 2)),
        (DREW, images(3), Told(None, None, 3)),
        (DREW, {"data": []}, Told(None, None, 0)),
        (DREW, {"data": None}, Told()),
        (DREW, {"usage": {"input_tokens": 9, "input_tokens_details": {"cached_tokens": 4}}},
         Told(Tokens(input=5, input_cached=4))),
        (SPOKE, {"usage": {"input_tokens": 3, "output_tokens": 5}},
         Told(Tokens(input=3, output=0, output_audio=5))),
    ],
)  # fmt: skip
def test_what_answers_tell(endpoint: Endpoint, answer: Any, told: Told) -> None:
    assert read_told(json.dumps(answer).encode(), endpoint) == told


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (srt(seconds=3661.2), 3662),
        (vtt(seconds=59.0), 59),
        (b"WEBVTT\n\n00:01.000 --> 01:02.500 align:start\nHi", 63),
        (srt(seconds=1) + b"\n2\n00:00:01,000 --> 00:00:09,000\nthere --> here", None),
        (b"Hello", None),
        (b"a -->", None),
        (b"00:00 --> 1:2:3:4", None),
        (b"", None),
    ],
)
def test_seconds_of_subtitles(text: bytes, seconds: int | None) -> None:
    assert read_told(text, HEARD).seconds == seconds


@given(st.binary(max_size=200))
def test_any_answer_is_read_or_passed_over(body: bytes) -> None:
    for endpoint in MEDIA:
        for data in (body, b"{" + body, b'{"usage":' + body + b"}", body + b" --> " + body):
            read_told(data, endpoint)


# --- requests -----------------------------------------------------------------------------------------------


@given(st.integers(1, 5000), st.binary(max_size=3000))
def test_how_long_sound_is(milliseconds: int, other: bytes) -> None:
    sound = wav(milliseconds / 1000)
    assert milliseconds / 1000 <= guess_seconds(sound, [(0, len(sound))]) <= milliseconds / 1000 + 1.01
    liar = b"RIFF" + other[:4].ljust(4) + b"WAVEfmt " + b"\0" * 12 + b"\xff\xff\xff\x7f" + other
    assert guess_seconds(liar, [(0, len(liar))]) == -(-len(liar) // AUDIO_BYTES_PER_S)
    assert guess_seconds(b"", [(0, 0)]) == 0


@pytest.mark.parametrize(
    ("endpoint", "body", "stream", "units"),
    [
        (SPOKE, {"model": "m", "input": "Grüße 👋"}, True, (("characters", 7),)),
        (SPOKE, {"model": "m", "input": ["no text"]}, True, (("characters", 0),)),
        (SPOKE, {"model": "m"}, True, (("characters", 0),)),
        (DREW, {"model": "m", "prompt": "x", "n": 4, "stream": True}, True, (("images", 4),)),
        (DREW, {"model": "m", "prompt": "x", "n": None}, None, (("images", 1),)),
        (DREW, {"model": "m", "n": "4"}, None, (("images", 1),)),
        (DREW, {"model": "m", "n": 10**8}, None, (("images", 1000),)),
        (DREW, {"model": "m", "n": -1}, None, (("images", 1),)),
    ],
)
def test_what_json_asks_for(endpoint: Endpoint, body: Any, stream: bool | None, units: Any) -> None:
    view = MediaDialect(endpoint).read_request(json.dumps(body, ensure_ascii=False).encode())
    assert (view.model, view.stream, view.guessed_units) == ("m", stream, units)
    assert view.wants_usage


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"{}", MissingField),
        (b"[", InvalidJSON),
        (b'{"model":3}', InvalidValue),
        (b'{"model":""}', InvalidValue),
    ],
)
def test_json_that_names_no_model(body: bytes, error: type[Exception]) -> None:
    for endpoint in (SPOKE, DREW):
        with pytest.raises(error):
            MediaDialect(endpoint).read_request(body)


def test_a_stream_of_images_asks_for_nothing_more() -> None:
    """No `stream_options`, as in chats: these endpoints know none."""
    body = b'{"model":"m","stream":true}'
    dialect = MediaDialect(DREW)
    assert dialect.encode_request(body, dialect.read_request(body), DREW, "m") == body


def test_who_can_answer() -> None:
    able = {each for each in list_dialects() if can_answer(each, SPOKE)}
    assert able == {"azure", "openai", "openai-responses"}
    assert not can_answer("azure", Endpoint.IMAGE_VARIATIONS)
    assert set(SPOKEN) == MEDIA


# --- streams ------------------------------------------------------------------------------------------------


def read_stream(endpoint: Endpoint, pieces: list[bytes], *rules: UsageRule) -> tuple[MediaMeter, bytes]:
    meter = MediaMeter(endpoint, rules, (("guessed", 1),), event_max_bytes=1 << 20)
    out = b"".join(meter.feed(piece) for piece in pieces)
    return meter, out + meter.finish()


STREAMS = {
    "heard": (HEARD, transcription_stream(("Hel", "lo"), usage=audio_usage(14, 2, 45)),
              Tokens(input=2, input_audio=14, output=45), ()),
    "heard, seconds": (HEARD, transcription_stream(("Hel", "lo"), usage=duration_usage(9)), NOT_BY_TOKENS,
                       (("audio_seconds", 9),)),
    "heard, untold": (HEARD, transcription_stream(), None, (("guessed", 1),)),
    "spoke": (SPOKE, speech_stream(), Tokens(input=14, output=0, output_audio=101), (("guessed", 1),)),
    "drew": (DREW, image_stream(2), Tokens(input=50, output=1056), (("images", 1),)),
    "drew two": (DREW, image_stream(1) + image_stream(0), Tokens(input=100, output=2112), (("images", 2),)),
    "edited": (Endpoint.IMAGE_EDITS, image_stream(1, kind="image_edit"), Tokens(input=50, output=1056),
               (("images", 1),)),
}  # fmt: skip


@pytest.mark.parametrize("name", STREAMS)
@given(data=st.data())
def test_any_split_of_a_stream_says_the_same(name: str, data: st.DataObject) -> None:
    endpoint, events, tokens, units = STREAMS[name]
    whole = b": hello\n\n" + b"".join(events) + (DONE if data.draw(st.booleans()) else b"")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    pieces = [whole[start:end] for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    meter, out = read_stream(endpoint, pieces)
    assert out == whole
    assert (meter.content_seen, meter.ended_well, meter.error) == (True, True, None)
    assert (meter.reading.tokens, meter.reading.units) == (tokens, units)


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_that_was_cut_has_not_ended_well(name: str) -> None:
    endpoint, events, _, _ = STREAMS[name]
    first = [each for each in events if b".completed" not in each and b".done" not in each]
    meter, _ = read_stream(endpoint, first)
    assert not meter.ended_well
    assert meter.reading.tokens is None
    assert meter.reading.units == (("guessed", 1),)


def test_when_a_stream_is_done() -> None:
    for endpoint, events in (
        (HEARD, transcription_stream()),
        (SPOKE, speech_stream()),
        (DREW, image_stream()),
    ):
        meter = MediaMeter(endpoint, (), (), event_max_bytes=1 << 20)
        done = []
        for event in events:
            meter.feed(event)
            done.append(meter.is_done)
        assert done[:-1] == [False] * (len(events) - 1)
        assert done[-1] is (endpoint is not DREW)  # another picture may follow
        meter.feed(DONE)
        assert meter.is_done


@pytest.mark.parametrize(
    ("event", "told"),
    [
        (named_event({"type": "error", "error": {"message": "no"}}), True),
        (b'data: {"error":{"message":"no"}}\n\n', True),
        (b"event: error\ndata: it broke\n\n", False),
        (b'data: {"error":"no"}\n\n', False),
    ],
)
def test_errors_in_a_stream(event: bytes, told: bool) -> None:
    meter, _ = read_stream(HEARD, [b": comment\n\n", event])
    assert meter.error is not None
    assert (meter.content_seen, meter.error_told) == (False, told)
    later, out = read_stream(HEARD, [transcription_stream()[0], event])
    assert later.error is not None
    assert out.endswith(event)
    assert not later.ended_well


def test_a_stream_in_no_dialect_that_is_known_ends_with_its_bytes() -> None:
    meter = MediaMeter(HEARD, (), (), event_max_bytes=1 << 20)
    assert meter.feed(b"data: Hello there\n\n") == b"data: Hello there\n\n"
    assert not meter.ended_well
    assert meter.finish() == b""
    assert meter.ended_well


def test_nothing_goes_out_before_the_first_event() -> None:
    meter = MediaMeter(HEARD, (), (), event_max_bytes=1 << 20)
    assert meter.feed(b": wait\n\n") == b""
    assert not meter.content_seen
    event = transcription_stream()[0]
    assert meter.feed(event) == b": wait\n\n" + event


def test_a_preamble_that_is_too_long_is_content() -> None:
    """Or what was held of it would be lost, for nothing goes out before the first content."""
    meter = MediaMeter(HEARD, (), (), event_max_bytes=1 << 20)
    comment = b": " + b"x" * 1000 + b"\n\n"
    out = b"".join(meter.feed(comment) for _ in range(100))
    assert meter.content_seen
    assert out == comment * 100


def test_an_event_that_is_too_large() -> None:
    meter = MediaMeter(DREW, (), (), event_max_bytes=1000)
    with pytest.raises(EventTooLarge):
        meter.feed(b"data: " + b"x" * 2000)


def test_usage_rules_count_more_and_go_first() -> None:
    meter, _ = read_stream(DREW, image_stream(usage=image_usage(50, 30, 9)), RULE)
    assert meter.reading.units == (("pictures_in", 30), ("images", 1))
    assert meter.reading.tokens == Tokens(input=80, output=9)
    dialect = MediaDialect(DREW)
    dialect.read_request(b'{"model":"m"}')
    answer = json.dumps(images(1, usage=image_usage(50, 30, 9))).encode()
    own = UsageRule(name="images", steps=("usage", "output_tokens"), is_unit=True)
    reading = dialect.read_ruled_answer((RULE, own), answer)
    assert reading.units == (("pictures_in", 30), ("images", 9))
    assert reading.tokens == Tokens(input=80, output=9)
