"""What requests for audio and images ask for, and what they will take before anybody has counted.  Pure.

Forms are read where they lie (`multipart`), and JSON only as far as a decision needs it.  Guesses are for
limits: sound counts by its seconds, a picture by its bytes up to a bound, a text as everywhere.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from forebay.core.errors import InvalidValue
from forebay.core.routes import AUDIO_READERS, Endpoint
from forebay.providers import openai
from forebay.providers.json_edit import NOTHING, UNREADABLE
from forebay.providers.media_usage import AUDIO_SECONDS, CHARACTERS, IMAGES, Units
from forebay.providers.multipart import Form
from forebay.providers.openai import RequestView
from forebay.providers.openai_estimate import BYTES_PER_TOKEN, MEDIA_TOKENS_MAX, estimate_input

AUDIO_BYTES_PER_S: Final = 16_000  #: of sound whose length its head does not say: MP3 at 128 kbit/s
AUDIO_TOKENS_PER_S: Final = 10  #: as OpenAI counts what it hears
_WAV_BYTES_PER_S_MAX: Final = (
    1_536_000  #: 192 kHz, two channels of 32 bits; whoever says more is not believed
)
_IMAGES_MAX: Final = 1000  #: more than this nobody means
_YES: Final = frozenset(("true", "1", "yes", "on"))
#: Fields of forms that are text and hold sound (data URLs).
_SOUND_FIELDS: Final = frozenset(("known_speaker_references", "known_speaker_references[]"))
_MODELS: Final = "GET /v1/models lists what can be called"


class MediaView(RequestView, frozen=True):
    """What policy reads of a request.

    Attributes:
        model_at: where the model's name lies in a form; None in JSON.
        text_bytes: of what stands in the request beside files.
        input_tokens: a guess.
        guessed_units: by their names; characters and pictures are no guess.
    """

    model_at: tuple[int, int] | None = None
    text_bytes: int = 0
    input_tokens: int = 1
    guessed_units: Units = ()

    @property
    def wants_usage(self) -> bool:
        return True  # what an answer tells of it is the caller's to see


class _Asked(msgspec.Struct, frozen=True):
    """Kept as bytes: nothing here is ours to refuse."""

    input: msgspec.Raw = NOTHING
    n: msgspec.Raw = NOTHING


_decode_asked = msgspec.json.Decoder(_Asked).decode
_decode_text = msgspec.json.Decoder(str).decode


def read_json(body: bytes, endpoint: Endpoint) -> MediaView:
    """The view of a body in JSON; raises as `openai.read_request`.

    Speech is a stream whatever its request says: its bytes are handed on as they come.
    """
    view = openai.read_request(body)
    asked = _decode_asked(body)
    if endpoint is Endpoint.SPEECH:
        units = ((CHARACTERS, _count_characters(asked.input)),)
    else:
        units = ((IMAGES, _count_images(bytes(asked.n).decode("latin-1"))),)
    return MediaView(
        model=view.model,
        stream=True if endpoint is Endpoint.SPEECH else view.stream,
        metadata=view.metadata,
        text_bytes=len(body),
        input_tokens=estimate_input(body),
        guessed_units=units,
    )


def read_form(body: bytes, content_type: bytes, endpoint: Endpoint) -> MediaView:
    """The view of a form.

    Raises:
        InvalidValue: it is none, or a field that is read here is of no use.
        MissingField: it has no `model`.
    """
    form = Form(body, content_type)
    part, model = form.require("model", _MODELS)
    if not model:
        raise InvalidValue(f"`model` is empty; {_MODELS}", param="model")
    stream = form.read("stream").lower() in _YES
    for name in ("response_format", "stream_format"):
        form.find(name)  # another reader may take the other of two
    text = sum(each.size for each in form.parts if not each.is_file and each.name not in _SOUND_FIELDS)
    files = [(each.start, each.end) for each in form.parts if each.is_file or each.name in _SOUND_FIELDS]
    units: Units
    if endpoint in AUDIO_READERS:
        seconds = guess_seconds(body, files)
        units, tokens = ((AUDIO_SECONDS, seconds),), seconds * AUDIO_TOKENS_PER_S
    else:
        units = ((IMAGES, _count_images(form.read("n"))),)
        tokens = sum(min(MEDIA_TOKENS_MAX, (end - start) // BYTES_PER_TOKEN) for start, end in files)
    return MediaView(
        model=model,
        stream=stream,
        model_at=(part.start, part.end),
        text_bytes=text,
        input_tokens=max(1, tokens + text // BYTES_PER_TOKEN),
        guessed_units=units,
    )


def guess_seconds(body: bytes, files: Iterable[tuple[int, int]]) -> int:
    """Seconds of sound in the files of a form: of a WAV as its head says, of others by their bytes."""
    return sum(-(-(end - start) // _find_rate(body, start)) for start, end in files)


def _find_rate(body: bytes, start: int) -> int:
    """Bytes a second."""
    head = body[start : start + 32]
    if len(head) == 32 and head[:4] == b"RIFF" and head[8:16] == b"WAVEfmt ":
        rate = int.from_bytes(head[28:32], "little")
        if 0 < rate <= _WAV_BYTES_PER_S_MAX:
            return rate
    return AUDIO_BYTES_PER_S


def _count_characters(raw: msgspec.Raw) -> int:
    try:
        return len(_decode_text(raw))
    except UNREADABLE:
        return 0  # the target will tell the caller


def _count_images(text: str) -> int:
    return min(int(text), _IMAGES_MAX) if text.isascii() and text.isdigit() and len(text) < 20 else 1
