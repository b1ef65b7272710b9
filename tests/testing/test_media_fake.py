"""The fake of OpenAI's audio and images behaves as its API says, asked by OpenAI's own client."""

import io
import wave
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from forebay.testing.media import PNG, audio_usage, read_form, wav, well_behaved
from forebay.testing.threaded import ThreadedUpstream


@pytest.fixture(scope="module")
def upstream() -> Iterator[ThreadedUpstream]:
    with ThreadedUpstream(
        well_behaved("Hel", "lo", usage=audio_usage(3, 1, 2), sound=[b"ab", b"c"])
    ) as upstream:
        yield upstream


@pytest.fixture(scope="module")
def client(upstream: ThreadedUpstream) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=upstream.url, api_key="any", max_retries=0) as client:
        yield client


def test_its_sound_is_sound() -> None:
    with wave.open(io.BytesIO(wav(1.5))) as sound:
        assert (sound.getnchannels(), sound.getnframes() / sound.getframerate()) == (1, 1.5)


def test_it_hears(client: openai.OpenAI, upstream: ThreadedUpstream) -> None:
    sound = wav(0.2)
    got: Any = client.audio.transcriptions.create(model="m", file=("ä.wav", sound), prompt="ü\r\n")
    assert (got.text, got.usage.input_token_details.audio_tokens) == ("Hello", 3)
    fields = {field.name: field for field in read_form(upstream.requests[-1])}
    assert (fields["file"].value, fields["prompt"].value) == (sound, "ü\r\n".encode())
    assert fields["file"].filename is not None
    events = list(client.audio.transcriptions.create(model="m", file=("a.wav", sound), stream=True))
    assert [event.type for event in events] == ["transcript.text.delta"] * 2 + ["transcript.text.done"]
    for form in ("srt", "vtt", "text"):
        text: Any = client.audio.transcriptions.create(model="m", file=("a", sound), response_format=form)
        assert "Hello" in text
    verbose = client.audio.transcriptions.create(model="m", file=("a", sound), response_format="verbose_json")
    assert verbose.segments


def test_it_speaks(client: openai.OpenAI) -> None:
    assert client.audio.speech.create(model="m", voice="alloy", input="x").content == b"abc"
    events = client.audio.speech.create(model="m", voice="alloy", input="x", stream_format="sse").content
    assert events.count(b"event: speech.audio.delta") == 2


def test_it_draws(client: openai.OpenAI) -> None:
    assert len(client.images.generate(model="m", prompt="x", n=3).data or ()) == 3
    assert len(client.images.edit(model="m", image=PNG, prompt="x", n=2).data or ()) == 2
    kinds = [event.type for event in client.images.generate(model="m", prompt="x", stream=True)]
    assert kinds == ["image_generation.partial_image", "image_generation.completed"]


def test_it_refuses_what_a_server_would(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError):
        client.post("/audio/transcriptions", body={"model": "m"}, cast_to=object, files={"file": b"x"},
                    options={"headers": {"content-type": "text/plain"}})  # fmt: skip
    with pytest.raises(openai.BadRequestError):
        client.post("/audio/speech", body={"input": "x"}, cast_to=object)
    with pytest.raises(openai.NotFoundError):
        client.post("/audio/nothing", body={"model": "m"}, cast_to=object)
