"""OpenAI's own client for audio and images through a worker: what it gets, and what it cost."""

from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from gateway_stage import UPSTREAM_SECRET, Stage

from forebay.core.events import Outcome, Tokens, UsageSource
from forebay.testing.gateway import GatewayProcess
from forebay.testing.media import (
    PNG,
    audio_usage,
    duration_usage,
    image_usage,
    read_form,
    srt,
    vtt,
    wav,
    well_behaved,
)

SOUND = [b"\xff\xfb\x90" + bytes([number]) * 5000 for number in range(20)]


@pytest.fixture(scope="module")
def _official(_gateway: GatewayProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=_gateway.url,
        api_key=_gateway.key,
        max_retries=0,
        http_client=httpx.Client(verify=False, timeout=60),
    ) as client:
        yield client


@pytest.fixture
def official(gateway: GatewayProcess, upstream: Stage, _official: openai.OpenAI) -> openai.OpenAI:
    upstream.answer = well_behaved("Hel", "lo", sound=SOUND)
    return _official


def last_record(gateway: GatewayProcess, upstream: Stage) -> Any:
    """Of the only request, by the id that the target was told."""
    return gateway.wait_record(upstream.request.header("x-request-id") or "")


def sent_fields(upstream: Stage) -> dict[str, bytes]:
    return {field.name: field.value for field in read_form(upstream.request)}


# --- audio that is heard ------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["m", "alias"])
def test_a_transcription(
    official: openai.OpenAI, gateway: GatewayProcess, upstream: Stage, model: str
) -> None:
    upstream.answer = well_behaved("Hello", usage=audio_usage(14, 2, 45))
    sound = wav(1.2)
    got: Any = official.audio.transcriptions.create(
        model=model, file=("tone.wav", sound, "audio/wav"), language="en", extra_body={"odd": "ü"}
    )
    assert got.text == "Hello"
    assert got.usage.input_token_details.audio_tokens == 14
    there = "the-name-there" if model == "alias" else "m"
    assert upstream.request.path == "/v1/audio/transcriptions"
    assert sent_fields(upstream) == {
        "file": sound,
        "model": there.encode(),
        "language": b"en",
        "odd": "ü".encode(),
    }
    record = last_record(gateway, upstream)
    assert (record.endpoint, record.outcome, record.stream) == ("audio/transcriptions", Outcome.OK, False)
    assert record.tokens == Tokens(input=2, input_audio=14, output=45)
    assert (record.usage_source, record.units) == (UsageSource.REPORTED, ())
    assert record.request_bytes > len(sound)


def test_one_that_is_counted_in_seconds(
    official: openai.OpenAI, gateway: GatewayProcess, upstream: Stage
) -> None:
    upstream.answer = well_behaved("Hello", usage=duration_usage(8.2))
    official.audio.transcriptions.create(model="m", file=("a.wav", wav(0.1)))
    record = last_record(gateway, upstream)
    assert record.units == (("audio_seconds", 9),)
    assert (record.tokens, record.usage_source) == (Tokens(), UsageSource.REPORTED)


@pytest.mark.parametrize(
    ("form", "body", "seconds"),
    [("text", b"Hello\n", 2), ("srt", srt(), 4), ("vtt", vtt(), 4)],
)
def test_forms_that_tell_no_usage_pass_untouched(
    official: openai.OpenAI, gateway: GatewayProcess, upstream: Stage, form: Any, body: bytes, seconds: int
) -> None:
    """Seconds are those of the last cue, else of the sound that was sent."""
    got = official.audio.transcriptions.with_raw_response.create(
        model="m", file=("a.wav", wav(1.5)), response_format=form
    )
    assert got.http_response.content == body
    assert got.headers["content-type"] == f"text/{'vtt' if form == 'vtt' else 'plain'}; charset=utf-8"
    record = last_record(gateway, upstream)
    assert record.units == (("audio_seconds", seconds),)
    assert (record.outcome, record.usage_source) == (Outcome.OK, UsageSource.ESTIMATED)


def test_verbose_json(official: openai.OpenAI, gateway: GatewayProcess, upstream: Stage) -> None:
    got = official.audio.transcriptions.create(
        model="m", file=("a.wav", wav(0.5)), response_format="verbose_json"
    )
    assert (got.text, got.duration) == ("Hello", 8.47)
    assert last_record(gateway, upstream).units == (("audio_seconds", 9),)


def test_a_streamed_transcription(official: openai.OpenAI, gateway: GatewayProcess, upstream: Stage) -> None:
    upstream.answer = well_behaved("Hel", "lo", usage=audio_usage(14, 0, 2))
    events = list(official.audio.transcriptions.create(model="m", file=("a.wav", wav(1)), stream=True))
    assert [event.type for event in events] == ["transcript.text.delta"] * 2 + ["transcript.text.done"]
    assert "".join(event.delta for event in events if event.type == "transcript.text.delta") == "Hello"
    record = last_record(gateway, upstream)
    assert (record.outcome, record.stream, record.units) == (Outcome.OK, True, ())
    assert record.tokens == Tokens(input=0, input_audio=14, output=2)
    assert record.first_token_ns is not None


def test_a_stream_that_tells_no_usage_is_counted_by_its_sound(
    official: openai.OpenAI, gateway: GatewayProcess, upstream: Stage
) -> None:
    list(official.audio.transcriptions.create(model="m", file=("a.wav", wav(2.5)), stream=True))
    record = last_record(gateway, upstream)
    assert record.units == (("audio_seconds", 3),)
    assert record.usage_source is UsageSource.ESTIMATED
    assert (record.tokens.input, record.tokens.output) == (31, 3)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of this client, for this path
def test_a_translation(official: openai.OpenAI, gateway: GatewayProcess, upstream: Stage) -> None:
    got = official.audio.translations.create(model="alias", file=("a.wav", wav(1)))
    assert got.text == "Hello"
    assert upstream.request.path == "/v1/audio/translations"
    assert sent_fields(upstream)["model"] == b"the-name-there"
    assert last_record(gateway, upstream).endpoint == "audio/translations"


# --- audio that is spoken -----------------------------------------------------------------------------------


def test_speech_is_streamed(official: openai.OpenAI, gateway: GatewayProcess, upstream: Stage) -> None:
    with official.audio.speech.with_streaming_response.create(
        model="alias", voice="alloy", input="Hellö there"
    ) as answer:
        got = b"".join(answer.iter_bytes())
        assert answer.headers["content-type"] == "audio/mpeg"
    assert got == b"".join(SOUND)
    assert upstream.request.json() == {"model": "the-name-there", "voice": "alloy", "input": "Hellö there"}
    assert upstream.request.header("accept") == "*/*"
    record = last_record(gateway, upstream)
    assert (record.endpoint, record.outcome) == ("audio/speech", Outcome.OK)
    assert (record.units, record.answer_bytes) == ((("characters", 11),), len(got))
    assert (record.usage_source, record.tokens.output) == (UsageSource.ESTIMATED, None)
    assert record.first_token_ns is not None


def test_speech_as_events(official: openai.OpenAI, gateway: GatewayProcess, upstream: Stage) -> None:
    got = official.audio.speech.create(model="m", voice="alloy", input="Hello", stream_format="sse")
    assert got.content.count(b"event: speech.audio.delta") == len(SOUND)
    assert got.response.headers["content-type"] == "text/event-stream"
    record = last_record(gateway, upstream)
    assert record.tokens == Tokens(input=14, output=0, output_audio=101)
    assert (record.usage_source, record.units) == (UsageSource.REPORTED, (("characters", 5),))


# --- images -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["m", "alias"])
def test_images_are_made(
    official: openai.OpenAI, gateway: GatewayProcess, upstream: Stage, model: str
) -> None:
    upstream.answer = well_behaved(usage=image_usage(50, 0, 2112))
    got = official.images.generate(model=model, prompt="a forebay", n=2)
    assert got.data
    assert len(got.data) == 2
    assert upstream.request.json()["model"] == ("the-name-there" if model == "alias" else "m")
    record = last_record(gateway, upstream)
    assert record.tokens == Tokens(input=50, output=2112)
    assert (record.units, record.usage_source) == ((("images", 2),), UsageSource.REPORTED)


def test_images_without_usage_are_counted(
    official: openai.OpenAI, gateway: GatewayProcess, upstream: Stage
) -> None:
    official.images.generate(model="m", prompt="a forebay", n=3)
    record = last_record(gateway, upstream)
    assert (record.units, record.usage_source) == ((("images", 3),), UsageSource.ESTIMATED)
    assert record.tokens.output is None  # of which nobody knows


def test_images_are_streamed(official: openai.OpenAI, gateway: GatewayProcess, upstream: Stage) -> None:
    events = list(official.images.generate(model="m", prompt="x", stream=True, partial_images=1))
    assert [event.type for event in events] == [
        "image_generation.partial_image",
        "image_generation.completed",
    ]
    record = last_record(gateway, upstream)
    assert (record.tokens, record.units) == (Tokens(input=50, output=1056), (("images", 1),))
    assert (record.outcome, record.stream) == (Outcome.OK, True)


@pytest.mark.parametrize("stream", [False, True])
def test_images_are_edited(
    official: openai.OpenAI, gateway: GatewayProcess, upstream: Stage, stream: bool
) -> None:
    more: dict[str, Any] = {"stream": True} if stream else {}
    got = official.images.edit(
        model="alias", image=[("a.png", PNG), ("b.png", PNG)], prompt="more water", **more
    )
    if stream:
        assert [event.type for event in got][-1] == "image_edit.completed"
    fields = read_form(upstream.request)
    assert [field.value for field in fields if field.name == "image[]"] == [PNG, PNG]
    assert sent_fields(upstream)["model"] == b"the-name-there"
    record = last_record(gateway, upstream)
    assert (record.endpoint, record.units) == ("images/edits", (("images", 1),))


def test_edits_as_json(client: httpx.Client, gateway: GatewayProcess, upstream: Stage) -> None:
    upstream.answer = well_behaved()
    asked = {"model": "alias", "prompt": "x", "images": [{"file_id": "f"}]}
    got = client.post("/images/edits", json=asked)
    assert got.status_code == 200
    assert upstream.request.json() == asked | {"model": "the-name-there"}
    assert upstream.request.header("content-type") == "application/json"
    assert last_record(gateway, upstream).units == (("images", 1),)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_variations(official: openai.OpenAI, gateway: GatewayProcess, upstream: Stage) -> None:
    got = official.images.create_variation(model="m", image=("a.png", PNG), n=2)
    assert got.data
    assert last_record(gateway, upstream).units == (("images", 2),)


# --- credentials --------------------------------------------------------------------------------------------


def test_credentials_do_not_cross(official: openai.OpenAI, gateway: GatewayProcess, upstream: Stage) -> None:
    official.audio.transcriptions.create(model="secret", file=("a.wav", wav(0.1)))
    official.audio.speech.create(model="secret", voice="alloy", input="x")
    for request in upstream.requests:
        assert request.header("authorization") == f"Bearer {UPSTREAM_SECRET}"
        told = repr(request.headers).encode() + bytes(request.body)
        assert gateway.key.encode() not in told
