"""OpenAI's embeddings at a target that is Google's Gemini API: `batchEmbedContents`.  Pure.

`MAPPED`, `IDLE` and `REFUSED` hold every parameter of a request.  Vertex AI has no method for several texts
that all its models know, and is not asked.

Source: Gemini API reference, `models.batchEmbedContents`, `EmbedContentRequest`.
"""

from typing import Any, Final

import msgspec

from forebay.core.errors import MissingField, UpstreamProtocol
from forebay.providers import gemini_errors
from forebay.providers.chat_to_gemini import build_path
from forebay.providers.gemini_media import TARGET
from forebay.providers.gemini_usage import NO_USAGE, GeminiUsage
from forebay.providers.json_edit import UNREADABLE
from forebay.providers.strict_fields import check_known, check_refused, read, read_body, read_top, refuse
from forebay.providers.translation import EVENT_MAX_BYTES, Headers, StreamTranslator

MAPPED: Final = frozenset({"model", "input", "dimensions"})
IDLE: Final = frozenset({"user"})
#: OpenAI's clients ask for base64 on their own, and take lists of numbers all the same.
_ENCODINGS: Final = frozenset({"float", "base64"})
REFUSED: Final[dict[str, tuple[object, ...]]] = {"encoding_format": tuple(sorted(_ENCODINGS))}
_KNOWN: Final = MAPPED | IDLE | REFUSED.keys()


class _Asked(msgspec.Struct, frozen=True):
    dimensions: int | None = None


class _Embedding(msgspec.Struct, frozen=True):
    values: list[float]


class _Answer(msgspec.Struct, frozen=True, rename="camel"):
    embeddings: list[_Embedding]
    usage_metadata: GeminiUsage = NO_USAGE


_decode_asked = msgspec.json.Decoder(_Asked).decode
_decode_input = msgspec.json.Decoder(str | list[msgspec.Raw]).decode
_decode_text = msgspec.json.Decoder(str).decode
_decode_answer = msgspec.json.Decoder(_Answer).decode


class EmbeddingsToGemini:
    """`forebay.core.translation` says what each part is for: `TargetTranslator`, `ErrorReader`."""

    def encode_request(self, body: bytes, model: str, *, stream: bool) -> bytes:
        fields = read_body(body)
        check_known(fields, _KNOWN, "", TARGET)
        check_refused(fields, REFUSED, "", TARGET)
        if "input" not in fields:
            raise MissingField("the request has no `input`", param="input")
        asked = read_top(_decode_asked, body)
        name = f"models/{model.removeprefix('models/')}"
        requests = []
        for text in _read_texts(fields["input"]):
            request: dict[str, Any] = {"model": name, "content": {"parts": [{"text": text}]}}
            if asked.dimensions is not None:
                request["outputDimensionality"] = asked.dimensions
            requests.append(request)
        return msgspec.json.encode({"requests": requests})

    def decode_answer(self, body: bytes, model: str) -> bytes:
        try:
            answer = _decode_answer(body)
        except UNREADABLE as error:
            raise UpstreamProtocol(f"The upstream's answer is none of Google's: {error}") from None
        data = [
            {"object": "embedding", "index": at, "embedding": each.values}
            for at, each in enumerate(answer.embeddings)
        ]
        made: dict[str, Any] = {"object": "list", "data": data, "model": model}
        count = answer.usage_metadata.prompt_token_count
        if count is not None:
            made["usage"] = {"prompt_tokens": count, "total_tokens": count}
        return msgspec.json.encode(made)

    def decode_error(self, status: int, body: bytes) -> bytes:
        return gemini_errors.decode_error(status, body)

    def read_status(self, status: int, body: bytes) -> int:
        return gemini_errors.read_status(status, body)

    def read_retry_after_s(self, body: bytes) -> int | None:
        return gemini_errors.read_retry_after_s(body)

    def new_stream(self, model: str, *, event_max_bytes: int = EVENT_MAX_BYTES) -> StreamTranslator:
        raise UpstreamProtocol("The upstream answered embeddings with a stream, which nobody asked for.")

    def build_path(self, base_path: str, model: str, *, stream: bool) -> str:
        return build_path(base_path, model, "batchEmbedContents")

    def build_headers(self, secret: str) -> Headers:
        return [("x-goog-api-key", secret)] if secret else []


def _read_texts(raw: msgspec.Raw) -> list[str]:
    told = read(_decode_input, raw, "input")
    if isinstance(told, str):
        return [told]
    for at, item in enumerate(told):
        if bytes(item)[:1] != b'"':
            raise refuse(f"input[{at}]" if told else "input", f"{TARGET} takes texts alone, not tokens")
    return [read(_decode_text, item, f"input[{at}]") for at, item in enumerate(told)]
