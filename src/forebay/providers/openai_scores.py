"""Rerank and score as servers beside OpenAI's API have them, pure: what a request asks for, what it cost.

Documents are put in order for a query (`/v1/rerank`: vLLM, llama.cpp, Jina, Cohere), or pairs of texts are
scored (`/v1/score`: vLLM).  Bodies pass untouched, but for the model's name; nothing is streamed, and nothing
is written, so that all tokens are of the input.
"""

from typing import Annotated

import msgspec

from forebay.core.errors import ForebayError
from forebay.core.events import Tokens
from forebay.core.filler import begin_no_filler
from forebay.core.routes import Endpoint
from forebay.core.usage_rules import UsageRule
from forebay.providers import openai
from forebay.providers.json_edit import UNREADABLE
from forebay.providers.openai import RequestView
from forebay.providers.openai_stream import StreamMeter
from forebay.providers.openai_usage import COUNT_MAX, Reading

_Count = Annotated[int, msgspec.Meta(ge=0, le=COUNT_MAX)]


class _Usage(msgspec.Struct, frozen=True):
    """vLLM, llama.cpp and Jina; some say the total alone."""

    prompt_tokens: _Count | None = None
    total_tokens: _Count | None = None


class _Tokens(msgspec.Struct, frozen=True):
    input_tokens: _Count | None = None


class _Meta(msgspec.Struct, frozen=True):
    """Cohere."""

    tokens: _Tokens | None = None
    billed_units: _Tokens | None = None


class _Answer(msgspec.Struct, frozen=True):
    usage: _Usage | None = None
    meta: _Meta | None = None


_decode_answer = msgspec.json.Decoder(_Answer).decode


class ScoresDialect:
    """`POST /v1/rerank`, `POST /v1/score`; `forebay.gateway.dialect.Dialect` says what each part is for."""

    ERROR_START = openai.ERROR_START
    KEEP_ALIVE = b""
    is_foreign = False

    begin_filler = staticmethod(begin_no_filler)
    check_context = staticmethod(openai.check_context)
    weigh_text = staticmethod(openai.weigh_text)
    estimate_tokens = staticmethod(openai.estimate_tokens)
    read_error = staticmethod(openai.read_error)
    read_error_status = staticmethod(openai.read_error_status)
    wrap_error = staticmethod(openai.wrap_error)
    encode_error = staticmethod(openai.encode_error)
    name_headers = staticmethod(openai.name_headers)
    encode_model_list = staticmethod(openai.encode_model_list)
    encode_model = staticmethod(openai.encode_model)

    def read_request(self, body: bytes) -> RequestView:
        """The view of a request's body, which asks for no stream; raises as `openai.read_request` does."""
        return msgspec.structs.replace(openai.read_request(body), stream=None)

    def cap_output(self, body: bytes, view: RequestView, endpoint: Endpoint, tokens_max: int) -> RequestView:
        return view  # there is no output

    def write_cap(self, body: bytes, view: RequestView) -> bytes:
        return body

    def read_output_max(self, body: bytes) -> int | None:
        return None

    def encode_request(
        self, body: bytes, view: RequestView, endpoint: Endpoint, target_model: str
    ) -> bytes | list[bytes | memoryview]:
        """The caller's own bytes, but for the model's name."""
        return openai.encode_request(body, view, endpoint, target_model)

    def read_answer(self, body: bytes) -> Tokens | None:
        """The tokens that an answer reports; None where it says nothing that can be read."""
        try:
            answer = _decode_answer(body)
        except UNREADABLE:
            return None
        counts: list[int | None] = []
        if answer.usage is not None:
            counts += [answer.usage.prompt_tokens, answer.usage.total_tokens]
        if answer.meta is not None:
            counts += [each.input_tokens for each in (answer.meta.tokens, answer.meta.billed_units) if each]
        told = next((count for count in counts if count is not None), None)
        return None if told is None else Tokens(input=told, output=0)

    def read_ruled_answer(self, rules: tuple[UsageRule, ...], body: bytes) -> Reading:
        reading = openai.read_ruled_answer(rules, body)
        if reading.tokens is not None:
            return reading
        return msgspec.structs.replace(reading, tokens=self.read_answer(body))

    def new_meter(self, *, hide_usage: bool, event_max_bytes: int) -> StreamMeter:
        return openai.new_meter(hide_usage=False, event_max_bytes=event_max_bytes)

    def new_ruled_meter(
        self, rules: tuple[UsageRule, ...], *, hide_usage: bool, event_max_bytes: int
    ) -> StreamMeter:
        return self.new_meter(hide_usage=False, event_max_bytes=event_max_bytes)

    def encode_error_event(self, error: ForebayError) -> bytes:
        return openai.encode_error_event(error)

    def wrap_error_event(self, body: bytes) -> bytes:
        return openai.wrap_error_event(body)
