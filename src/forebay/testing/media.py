"""Payloads of OpenAI's audio and images as a server sends them, and a handler that is a good server.

Pure.  Payloads are plain dicts, so that a test can bend them: `transcription("hi") | {"odd": 1}`.
"""

import base64
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from forebay.testing.answers import Framing, Headers, answer, json_answer, sse_answer
from forebay.testing.openai import CREATED_S, Payload, error_answer
from forebay.testing.recorded import RecordedRequest
from forebay.testing.steps import Script, Step

WAV_RATE = 8000  #: samples a second, of one byte each
PNG = base64.b64decode(
    b"iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)  #: a picture of one point


@dataclass(frozen=True, slots=True, kw_only=True)
class FormField:
    name: str
    value: bytes
    filename: str | None = None
    content_type: str | None = None


def wav(seconds: float = 1.0) -> bytes:
    """Silence: one channel of 8 bits, 8000 times a second."""
    data = b"\x80" * round(WAV_RATE * seconds)
    sizes = [(size).to_bytes(4, "little") for size in (36 + len(data), 16, WAV_RATE, WAV_RATE, len(data))]
    head = b"RIFF" + sizes[0] + b"WAVEfmt " + sizes[1] + b"\x01\0\x01\0" + sizes[2] + sizes[3]
    return head + b"\x01\0\x08\0data" + sizes[4] + data


# --- audio --------------------------------------------------------------------------------------------------


def audio_usage(audio: int = 14, text: int = 0, output: int = 45) -> Payload:
    """Usage of a transcription that is counted in tokens."""
    return {
        "type": "tokens",
        "input_tokens": audio + text,
        "input_token_details": {"text_tokens": text, "audio_tokens": audio},
        "output_tokens": output,
        "total_tokens": audio + text + output,
    }


def duration_usage(seconds: float = 9) -> Payload:
    """Usage of a transcription that is counted in seconds."""
    return {"type": "duration", "seconds": seconds}


def transcription(text: str = "Hello", *, usage: Payload | None = None) -> Payload:
    """A transcription or translation as `json`."""
    return {"text": text} | ({} if usage is None else {"usage": usage})


def verbose_transcription(
    text: str = "Hello", *, duration: float = 8.47, usage: Payload | None = None
) -> Payload:
    segment = {
        "id": 0,
        "seek": 0,
        "start": 0.0,
        "end": duration,
        "text": text,
        "tokens": [1, 2],
        "temperature": 0.0,
    }
    segment |= {"avg_logprob": -0.2, "compression_ratio": 1.2, "no_speech_prob": 0.01}
    whole = {
        "task": "transcribe",
        "language": "english",
        "duration": duration,
        "text": text,
        "segments": [segment],
    }
    return whole | ({} if usage is None else {"usage": usage})


def srt(text: str = "Hello", *, seconds: float = 3.5) -> bytes:
    return f"1\n00:00:00,000 --> {_clock(seconds, ',')}\n{text}\n\n".encode()


def vtt(text: str = "Hello", *, seconds: float = 3.5) -> bytes:
    return f"WEBVTT\n\n00:00:00.000 --> {_clock(seconds, '.')}\n{text}\n\n".encode()


def transcription_stream(
    parts: Iterable[str] = ("Hel", "lo"), *, usage: Payload | None = None
) -> list[bytes]:
    """Raw events: a delta for each part, and the end."""
    texts = list(parts)
    events = [named_event({"type": "transcript.text.delta", "delta": text}) for text in texts]
    done = {"type": "transcript.text.done", "text": "".join(texts)}
    return [*events, named_event(done | ({} if usage is None else {"usage": usage}))]


def speech_stream(
    parts: Iterable[bytes] = (b"\0\1", b"\2\3"), *, usage: Payload | None = None
) -> list[bytes]:
    """Raw events of speech with `stream_format: sse`."""
    events = [
        named_event({"type": "speech.audio.delta", "audio": base64.b64encode(part).decode()})
        for part in parts
    ]
    told = usage or {"input_tokens": 14, "output_tokens": 101, "total_tokens": 115}
    return [*events, named_event({"type": "speech.audio.done", "usage": told})]


def audio_answer(
    pieces: Sequence[bytes],
    *,
    content_type: str = "audio/mpeg",
    headers: Headers = (),
    framing: Framing = Framing.CHUNKED,
) -> list[Step]:
    """Speech in pieces."""
    return answer(pieces, headers=[("content-type", content_type), *headers], framing=framing)


# --- images -------------------------------------------------------------------------------------------------


def image_usage(text: int = 50, image: int = 0, output: int = 1056) -> Payload:
    return {
        "input_tokens": text + image,
        "input_tokens_details": {"text_tokens": text, "image_tokens": image},
        "output_tokens": output,
        "total_tokens": text + image + output,
    }


def images(count: int = 1, *, usage: Payload | None = None) -> Payload:
    data = [{"b64_json": base64.b64encode(PNG).decode()} for _ in range(count)]
    return {"created": CREATED_S, "data": data} | ({} if usage is None else {"usage": usage})


def image_stream(
    partials: int = 1, *, kind: str = "image_generation", usage: Payload | None = None
) -> list[bytes]:
    """Raw events: partial images and the whole one; `kind` is `image_edit` for edits."""
    picture = {"b64_json": base64.b64encode(PNG).decode(), "created_at": CREATED_S, "size": "1024x1024"}
    picture |= {"quality": "high", "background": "opaque", "output_format": "png"}
    events = [
        named_event({"type": f"{kind}.partial_image", "partial_image_index": index} | picture)
        for index in range(partials)
    ]
    return [*events, named_event({"type": f"{kind}.completed", "usage": usage or image_usage()} | picture)]


# --- a good server ------------------------------------------------------------------------------------------


def read_form(request: RecordedRequest) -> list[FormField]:
    """The fields of a form, read by the plainest rules; raises ValueError on what is none."""
    content_type = request.header("content-type") or ""
    if not content_type.startswith("multipart/form-data"):
        raise ValueError(f"no form: {content_type}")
    boundary = content_type.partition("boundary=")[2].strip('"').encode()
    sections = (b"\r\n" + bytes(request.body)).split(b"\r\n--" + boundary)
    if sections[-1].strip() != b"--" or sections[0]:
        raise ValueError("the form does not begin and end with its boundary")
    return [_read_field(section) for section in sections[1:-1]]


def well_behaved(
    *parts: str, usage: Payload | None = None, sound: Sequence[bytes] = (b"\xff\xfb" * 100, b"\0" * 100)
) -> Callable[[RecordedRequest], Script]:
    """A handler that serves audio and images as a good server does.

    Args:
        parts: the text that was heard; each is one event of a stream.  "Hello" if none is given.
        usage: what answers that can tell it tell.
        sound: what is spoken, in pieces.
    """
    texts = parts or ("Hello",)

    def handle(request: RecordedRequest) -> Script:
        kind = request.path.rpartition("/v1/")[2]
        try:
            asked = _read_asked(request)
        except ValueError as error:
            return error_answer(400, str(error))
        match kind:
            case "audio/transcriptions" | "audio/translations":
                return _hear(asked, texts, usage)
            case "audio/speech" if asked.get("stream_format") == "sse":
                return sse_answer(speech_stream(sound, usage=usage))
            case "audio/speech":
                return audio_answer(sound)
            case "images/generations" | "images/edits" | "images/variations":
                name = "image_edit" if kind == "images/edits" else "image_generation"
                if asked.get("stream") in ("true", True):
                    return sse_answer(image_stream(kind=name, usage=usage))
                return json_answer(images(int(asked.get("n") or 1), usage=usage))
        return error_answer(404, f"no such path: {request.path}", code="unknown_url")

    return handle


# --- inside -------------------------------------------------------------------------------------------------


def _read_asked(request: RecordedRequest) -> dict[str, Any]:
    if (request.header("content-type") or "").startswith("multipart/"):
        fields = [field for field in read_form(request) if field.filename is None]
        asked: dict[str, Any] = {field.name: field.value.decode() for field in fields}
    else:
        asked = msgspec.json.decode(bytes(request.body))
    if not asked.get("model"):
        raise ValueError("you must provide a model parameter")
    return asked


def _hear(asked: dict[str, Any], texts: Sequence[str], usage: Payload | None) -> Script:
    text = "".join(texts)
    if asked.get("stream") == "true":
        return sse_answer(transcription_stream(texts, usage=usage))
    match asked.get("response_format", "json"):
        case "text":
            return answer(text.encode() + b"\n", headers=[("content-type", "text/plain; charset=utf-8")])
        case "srt":
            return answer(srt(text), headers=[("content-type", "text/plain; charset=utf-8")])
        case "vtt":
            return answer(vtt(text), headers=[("content-type", "text/vtt; charset=utf-8")])
        case "verbose_json":
            return json_answer(verbose_transcription(text, usage=usage))
    return json_answer(transcription(text, usage=usage))


def _read_field(section: bytes) -> FormField:
    head, _, value = section.removeprefix(b"\r\n").partition(b"\r\n\r\n")
    headers = dict(line.decode().lower().split(": ", 1) for line in head.split(b"\r\n"))
    disposition = headers["content-disposition"]
    filename = (
        disposition.partition('filename="')[2].partition('"')[0] if "filename=" in disposition else None
    )
    name = disposition.partition('name="')[2].partition('"')[0]
    return FormField(name=name, value=value, filename=filename, content_type=headers.get("content-type"))


def named_event(payload: Payload) -> bytes:
    """One server-sent event that names its type beside its data, as these endpoints write them."""
    return f"event: {payload['type']}\ndata: ".encode() + msgspec.json.encode(payload) + b"\n\n"


def _clock(seconds: float, point: str) -> str:
    whole, milliseconds = divmod(round(seconds * 1000), 1000)
    return f"{whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02}{point}{milliseconds:03}"
