"""OpenAI's chat at a target that is Google's Gemini API or Vertex AI: the request, and the way there.  Pure.

`MAPPED`, `IDLE` and `REFUSED` hold every parameter of a chat request: what is in none of them is refused too.
docs/dialects.md says what becomes of each.  Messages are `gemini_content`'s business, answers those of
`gemini_answer` and `gemini_stream`.

Source: Gemini API reference, `models.generateContent` and `GenerationConfig`; Vertex AI reference, the same;
"OpenAI compatibility" of both for `reasoning_effort` and `extra_body`.
"""

from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import msgspec

from forebay.providers import gemini_errors
from forebay.providers.chat_request import ChatRequest, Format, keep_said, open_request, read_schema
from forebay.providers.gemini_answer import decode_answer
from forebay.providers.gemini_content import MessageEncoder
from forebay.providers.gemini_media import TARGET
from forebay.providers.gemini_signatures import is_old
from forebay.providers.gemini_stream import GeminiStream
from forebay.providers.gemini_tools import encode_tools
from forebay.providers.json_edit import NOTHING
from forebay.providers.openai_reasoning import settle_effort
from forebay.providers.strict_fields import (
    check_known,
    read,
    read_fields,
    read_top,
    refuse,
)
from forebay.providers.translation import EVENT_MAX_BYTES, Headers, StreamTranslator

MAPPED: Final = frozenset(
    {"model", "messages", "stream", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k"}
    | {"stop", "n", "seed", "frequency_penalty", "presence_penalty", "logprobs", "top_logprobs"}
    | {"tools", "tool_choice", "parallel_tool_calls", "response_format", "reasoning_effort"}
    | {"reasoning"}
    | {"service_tier", "extra_body"}
)
#: They change nothing of an answer, or are the gateway's.
IDLE: Final = frozenset(
    {"metadata", "stream_options", "prediction", "user", "safety_identifier", "cache_control"}
    | {"prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"}
)
#: Each with the values that ask for nothing.
REFUSED: Final[dict[str, tuple[object, ...]]] = {
    "audio": (),
    "function_call": (),
    "functions": (),
    "logit_bias": ({},),
    "modalities": (["text"],),
    "moderation": (),
    "store": (False,),
    "verbosity": ("medium",),
    "web_search_options": (),
}
_KNOWN: Final = MAPPED | IDLE | REFUSED.keys()
#: Of `extra_body.google`, as Google's own compatible API has them; their values go on as they are.
_EXTENSIONS: Final = {
    "cached_content": "cachedContent",
    "safety_settings": "safetySettings",
    "thinking_config": "thinkingConfig",
}
_NO_FORMAT: Final = f"{TARGET} has no {{}}, but text, json_object and json_schema"
_SERVICE_TIERS: Final = {"auto": None, "default": "standard", "flex": "flex", "priority": "priority"}
#: OpenAI's words for effort, and Google's levels; `none` is below them all.
_LEVELS: Final = ("minimal", "low", "medium", "high", "xhigh")
#: Tokens by effort for models before Gemini 3, as Google's own compatible API has them.
_BUDGETS: Final = {"none": 0, "minimal": 1024, "low": 1024, "medium": 8192, "high": 24576}


class _Chat(ChatRequest, frozen=True):
    n: int | None = None
    seed: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    extra_body: msgspec.Raw = NOTHING


_decode_chat = msgspec.json.Decoder(_Chat).decode
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw] | None).decode


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatToGemini:
    """`forebay.core.translation` says what each part is for: `TargetTranslator`, `ErrorReader`.

    Attributes:
        is_vertex: whether the target is Vertex AI: a bearer token, no ids of calls, and types of all files.
    """

    is_vertex: bool = False

    def encode_request(self, body: bytes, model: str, *, stream: bool) -> bytes:
        fields = open_request(body, _KNOWN, REFUSED, TARGET)
        chat = settle_effort(read_top(_decode_chat, body), TARGET)
        encoder = MessageEncoder(model=model, sends_ids=not self.is_vertex, needs_types=self.is_vertex)
        system, contents = encoder.encode(fields["messages"])
        request: dict[str, Any] = {"contents": contents}
        if system:
            request["systemInstruction"] = {"parts": system}
        request |= encode_tools(fields)
        extensions = _read_extensions(chat.extra_body)
        config = _encode_sampling(chat) | _encode_format(chat.response_format)
        if thinking := _encode_thinking(chat.reasoning_effort, extensions.pop("thinkingConfig", None), model):
            config["thinkingConfig"] = thinking
        if config:
            request["generationConfig"] = config
        return msgspec.json.encode(request | extensions | _encode_tier(chat.service_tier))

    def decode_answer(self, body: bytes, model: str) -> bytes:
        return decode_answer(body, model)

    def decode_error(self, status: int, body: bytes) -> bytes:
        return gemini_errors.decode_error(status, body)

    def read_status(self, status: int, body: bytes) -> int:
        return gemini_errors.read_status(status, body)

    def read_retry_after_s(self, body: bytes) -> int | None:
        return gemini_errors.read_retry_after_s(body)

    def new_stream(self, model: str, *, event_max_bytes: int = EVENT_MAX_BYTES) -> StreamTranslator:
        return GeminiStream(model, event_max_bytes=event_max_bytes)

    def build_path(self, base_path: str, model: str, *, stream: bool) -> str:
        return build_path(base_path, model, "streamGenerateContent?alt=sse" if stream else "generateContent")

    def build_headers(self, secret: str) -> Headers:
        if not secret:
            return []
        return [("authorization", f"Bearer {secret}")] if self.is_vertex else [("x-goog-api-key", secret)]


def build_path(base_path: str, model: str, method: str) -> str:
    """The path of a method of a model."""
    return f"{base_path}/models/{quote(model.removeprefix('models/'), safe='')}:{method}"


def _encode_sampling(chat: _Chat) -> dict[str, Any]:
    said = {
        "maxOutputTokens": chat.limit,
        "temperature": chat.temperature,
        "topP": chat.top_p,
        "topK": chat.top_k,
        "stopSequences": chat.stops or None,
        "candidateCount": None if chat.n == 1 else chat.n,
        "seed": chat.seed,
        "frequencyPenalty": chat.frequency_penalty,
        "presencePenalty": chat.presence_penalty,
        "responseLogprobs": chat.logprobs or None,
        "logprobs": chat.top_logprobs if chat.logprobs else None,
    }
    return keep_said(said)


def _encode_format(wanted: Format | None) -> dict[str, Any]:
    if wanted is not None and wanted.type == "json_object":
        return {"responseMimeType": "application/json"}
    schema = read_schema(wanted, _NO_FORMAT)
    if schema is None:
        return {}
    return {"responseMimeType": "application/json", "responseJsonSchema": schema.described}


def _encode_thinking(effort: str | None, own: msgspec.Raw | None, model: str) -> msgspec.Raw | dict[str, Any]:
    """How much it shall think: in Google's own words if the caller has them, else by the effort."""
    if own is not None:
        return own
    if effort is None:
        return {}
    if is_old(model):
        if effort not in _BUDGETS:
            raise refuse(
                "reasoning_effort", f"this model has no effort {effort!r}, but {', '.join(_BUDGETS)}"
            )
        budget = _BUDGETS[effort]
        return {"thinkingBudget": budget} | ({"includeThoughts": True} if budget else {})
    if effort == "none":
        raise refuse(
            "reasoning_effort", "this model can't be kept from thinking; the least that it takes is minimal"
        )
    if effort not in _LEVELS:
        raise refuse("reasoning_effort", f"this model has no effort {effort!r}, but {', '.join(_LEVELS)}")
    return {"thinkingLevel": effort.upper(), "includeThoughts": True}


def _read_extensions(raw: msgspec.Raw) -> dict[str, msgspec.Raw]:
    """Google's own parameters, by its names of them."""
    if bytes(raw) in (b"", b"null"):
        return {}
    fields = read_fields(raw, "extra_body")
    check_known(fields, {"google"}, "extra_body", TARGET)
    own = read(_decode_fields, fields.get("google", msgspec.Raw(b"null")), "extra_body.google") or {}
    check_known(own, _EXTENSIONS, "extra_body.google", TARGET)
    return {
        name: own[told] for told, name in _EXTENSIONS.items() if told in own and bytes(own[told]) != b"null"
    }


def _encode_tier(tier: str | None) -> dict[str, str]:
    if tier is None:
        return {}
    if tier not in _SERVICE_TIERS:
        raise refuse("service_tier", f"{TARGET} has no {tier!r}, but {', '.join(_SERVICE_TIERS)}")
    wanted = _SERVICE_TIERS[tier]
    return {} if wanted is None else {"serviceTier": wanted}
