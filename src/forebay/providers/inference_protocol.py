"""The Open Inference Protocol, version 2, to predictive servers (Triton, KServe, MLServer), pure.

A request is `POST /v2/models/NAME/infer`: JSON, or JSON with tensors in binary behind it, whose length a
header tells.  Bodies pass untouched either way and are never looked into, because the model's name stands in
the path; there are no tokens, so that requests alone are counted, and what a target's usage rules find.
"""

from typing import Final
from urllib.parse import quote

import msgspec

from forebay.core.errors import ForebayError, UpstreamProtocol
from forebay.core.events import Tokens
from forebay.core.filler import begin_no_filler
from forebay.core.routes import Endpoint
from forebay.core.usage_rules import UsageRule
from forebay.providers import openai
from forebay.providers.json_edit import UNREADABLE, set_fields
from forebay.providers.openai import RequestView
from forebay.providers.openai_stream import StreamMeter
from forebay.providers.openai_usage import Reading
from forebay.providers.translation import Headers

HEADER_LENGTH: Final = "inference-header-content-length"  #: of the JSON before tensors in binary
_ERROR_MAX_BYTES: Final = 64 * 1024  #: a larger answer is no error
_FREE: Final = Tokens(input=0, output=0)
_STATUS_UNKNOWN: Final = 502


class _Error(msgspec.Struct, frozen=True):
    error: str


_decode_error = msgspec.json.Decoder(_Error).decode


class InferenceWire:
    """A base URL without `/v2`, and the key as a bearer token."""

    @property
    def passed(self) -> Headers:
        return [("content-type", "application/json"), (HEADER_LENGTH, "")]

    def build_path(self, base_path: str, endpoint: str, model: str) -> str | None:
        if endpoint != Endpoint.INFER.value:
            return None
        return f"{base_path}/v2/models/{quote(model, safe='')}/infer"

    def build_headers(self, secret: str) -> Headers:
        return [("authorization", f"Bearer {secret}")] if secret else []


class InferenceDialect:
    """`forebay.gateway.dialect.Dialect` says what each part is for.

    Args:
        model: that the path of a request names.
    """

    ERROR_START = openai.ERROR_START
    KEEP_ALIVE = b""
    is_foreign = False

    begin_filler = staticmethod(begin_no_filler)
    name_headers = staticmethod(openai.name_headers)
    encode_model_list = staticmethod(openai.encode_model_list)
    encode_model = staticmethod(openai.encode_model)

    def __init__(self, model: str = "") -> None:
        self._model = model

    def bind_model(self, model: str) -> "InferenceDialect":
        """The same for one request."""
        return InferenceDialect(model)

    def name_model(self, metadata: bytes, model: str) -> bytes:
        """What a target tells of a model, under this name.  Raises UpstreamProtocol where that is nothing."""
        try:
            return set_fields(metadata, {"name": msgspec.json.encode(model)})
        except UNREADABLE:
            raise UpstreamProtocol("what the target tells of the model is no JSON object") from None

    def read_request(self, body: bytes) -> RequestView:
        return RequestView(model=self._model)

    def check_context(self, body: bytes, endpoint: Endpoint, tokens_max: int) -> None:
        """There are no tokens."""

    def cap_output(self, body: bytes, view: RequestView, endpoint: Endpoint, tokens_max: int) -> RequestView:
        return view

    def write_cap(self, body: bytes, view: RequestView) -> bytes:
        return body

    def read_output_max(self, body: bytes) -> int | None:
        return None

    def encode_request(self, body: bytes, view: RequestView, endpoint: Endpoint, target_model: str) -> bytes:
        return body

    def read_answer(self, body: bytes) -> Tokens | None:
        return _FREE

    def read_ruled_answer(self, rules: tuple[UsageRule, ...], body: bytes) -> Reading:
        return msgspec.structs.replace(openai.read_ruled_answer(rules, body), tokens=_FREE)

    def estimate_tokens(self, body: bytes, events_seen: int) -> Tokens:
        return _FREE

    def weigh_text(self, body: bytes) -> int:
        return 0

    def new_meter(self, *, hide_usage: bool, event_max_bytes: int) -> StreamMeter:
        return openai.new_meter(hide_usage=False, event_max_bytes=event_max_bytes)

    def new_ruled_meter(
        self, rules: tuple[UsageRule, ...], *, hide_usage: bool, event_max_bytes: int
    ) -> StreamMeter:
        return self.new_meter(hide_usage=False, event_max_bytes=event_max_bytes)

    def read_error(self, body: bytes) -> bytes | None:
        """The words of an error as JSON; None where an answer is none."""
        if len(body) > _ERROR_MAX_BYTES:
            return None
        try:
            return msgspec.json.encode(_decode_error(body).error)
        except UNREADABLE:
            return None

    def read_error_status(self, error: bytes) -> int:
        return _STATUS_UNKNOWN

    def wrap_error(self, error: bytes) -> bytes:
        return b'{"error":' + error + b"}"

    def encode_error(self, error: ForebayError) -> bytes:
        return msgspec.json.encode({"error": error.message})

    def encode_error_event(self, error: ForebayError) -> bytes:
        return openai.encode_error_event(error)

    def wrap_error_event(self, body: bytes) -> bytes:
        return openai.wrap_error_event(body)
