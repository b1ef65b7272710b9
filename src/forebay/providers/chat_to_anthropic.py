"""OpenAI's chat at a target that speaks Anthropic's messages: the request, and what leads to the rest.  Pure.

`MAPPED`, `IDLE` and `REFUSED` hold every parameter of a chat request: what is in none of them is refused too.
docs/dialects.md says what becomes of each.  Messages are `anthropic_content`'s business, answers
`anthropic_answer`'s.
"""

from typing import Any, Final

import msgspec

from forebay.providers.anthropic_answer import AnthropicStream, decode_answer, decode_error
from forebay.providers.anthropic_content import TARGET, encode_messages
from forebay.providers.anthropic_tools import encode_tools
from forebay.providers.anthropic_wire import VERSION, AnthropicWire
from forebay.providers.chat_request import ChatRequest, keep_said, open_request, read_schema
from forebay.providers.json_edit import NOTHING
from forebay.providers.openai_reasoning import settle_effort
from forebay.providers.strict_fields import read_top, refuse
from forebay.providers.translation import EVENT_MAX_BYTES, Headers, StreamTranslator

#: Anthropic wants a limit; this one is for requests that name none.  Every Claude since 4 can write so much.
MAX_TOKENS_DEFAULT: Final = 32_000

MAPPED: Final = frozenset(
    {
        *(
            "model",
            "messages",
            "stream",
            "max_tokens",
            "max_completion_tokens",
            "temperature",
            "top_p",
            "top_k",
        ),
        *("stop", "tools", "tool_choice", "parallel_tool_calls", "response_format", "reasoning_effort"),
        "reasoning",
        *("thinking", "user", "safety_identifier", "service_tier", "cache_control"),
    }
)
#: They change nothing of an answer, or are the gateway's.
IDLE: Final = frozenset(
    {
        *("metadata", "stream_options", "prediction"),
        *("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"),
    }
)
#: Each with the values that ask for nothing.
REFUSED: Final[dict[str, tuple[object, ...]]] = {
    "audio": (),
    "frequency_penalty": (0,),
    "function_call": (),
    "functions": (),
    "logit_bias": ({},),
    "logprobs": (False,),
    "modalities": (["text"],),
    "moderation": (),
    "n": (1,),
    "presence_penalty": (0,),
    "seed": (),
    "store": (False,),
    "top_logprobs": (0,),
    "verbosity": ("medium",),
    "web_search_options": (),
}
_KNOWN = MAPPED | IDLE | REFUSED.keys()

_NO_FORMAT = f"{TARGET} has no {{}}; say json_schema, with the schema to follow"
_SERVICE_TIERS = {"auto": "auto", "priority": "auto", "default": "standard_only"}
#: OpenAI's words for effort; `none` asks for no thinking at all.
_EFFORTS = {"minimal": "low"} | {level: level for level in ("low", "medium", "high", "xhigh", "max")}


class _Chat(ChatRequest, frozen=True):
    thinking: msgspec.Raw = NOTHING
    user: str | None = None
    safety_identifier: str | None = None
    cache_control: msgspec.Raw = NOTHING


_decode_chat = msgspec.json.Decoder(_Chat).decode


class ChatToAnthropic:
    """`forebay.core.translation.TargetTranslator` says what each part is for.

    Args:
        max_tokens_default: the limit of requests that name none.
    """

    def __init__(self, *, max_tokens_default: int = MAX_TOKENS_DEFAULT) -> None:
        self._max_tokens_default = max_tokens_default
        self._wire = AnthropicWire()

    def encode_request(self, body: bytes, model: str, *, stream: bool) -> bytes:
        fields = open_request(body, _KNOWN, REFUSED, TARGET)
        chat = settle_effort(read_top(_decode_chat, body), TARGET)
        system, messages = encode_messages(fields["messages"])
        request: dict[str, Any] = {
            "model": model,
            "max_tokens": self._max_tokens_default if chat.limit is None else chat.limit,
        }
        if system:
            request["system"] = system
        request["messages"] = messages
        request |= encode_tools(fields)
        request |= _encode_sampling(chat)
        request |= _encode_output(chat)
        request |= _encode_rest(chat)
        if stream:
            request["stream"] = True
        return msgspec.json.encode(request)

    def decode_answer(self, body: bytes, model: str) -> bytes:
        return decode_answer(body, model)

    def decode_error(self, status: int, body: bytes) -> bytes:
        return decode_error(status, body)

    def new_stream(self, model: str, *, event_max_bytes: int = EVENT_MAX_BYTES) -> StreamTranslator:
        return AnthropicStream(model, event_max_bytes=event_max_bytes)

    def build_path(self, base_path: str, model: str, *, stream: bool) -> str:
        return f"{base_path}/messages"

    def build_headers(self, secret: str) -> Headers:
        return [*self._wire.build_headers(secret), ("anthropic-version", VERSION)]


def _encode_sampling(chat: _Chat) -> dict[str, Any]:
    if chat.temperature is not None and not 0 <= chat.temperature <= 1:
        raise refuse(
            "temperature", f"{TARGET} takes 0 to 1, and {chat.temperature:g} would mean another thing"
        )
    if not all(sequence.strip() for sequence in chat.stops):
        raise refuse("stop", f"{TARGET} takes no sequence that is empty or blank")
    said = {
        "temperature": chat.temperature,
        "top_p": chat.top_p,
        "top_k": chat.top_k,
        "stop_sequences": chat.stops or None,
    }
    return keep_said(said)


def _encode_output(chat: _Chat) -> dict[str, Any]:
    """Effort, thinking, and the form of the output."""
    result: dict[str, Any] = {}
    config: dict[str, Any] = {}
    effort = chat.reasoning_effort
    if effort == "none":
        result["thinking"] = {"type": "disabled"}
    elif effort is not None:
        if effort not in _EFFORTS:
            raise refuse(
                "reasoning_effort", f"there is no effort {effort!r}; there are none, {', '.join(_EFFORTS)}"
            )
        config["effort"] = _EFFORTS[effort]
        result["thinking"] = {"type": "adaptive"}
    if bytes(chat.thinking) not in (b"", b"null"):
        result["thinking"] = chat.thinking
    wanted = read_schema(chat.response_format, _NO_FORMAT)
    if wanted is not None:
        config["format"] = {"type": "json_schema", "schema": wanted.described}
    if config:
        result["output_config"] = config
    return result


def _encode_rest(chat: _Chat) -> dict[str, Any]:
    result: dict[str, Any] = {}
    user = chat.safety_identifier or chat.user
    if user:
        result["metadata"] = {"user_id": user}
    if chat.service_tier is not None:
        if chat.service_tier not in _SERVICE_TIERS:
            raise refuse(
                "service_tier", f"{TARGET} has no {chat.service_tier!r}, but {', '.join(_SERVICE_TIERS)}"
            )
        result["service_tier"] = _SERVICE_TIERS[chat.service_tier]
    if bytes(chat.cache_control) not in (b"", b"null"):
        result["cache_control"] = chat.cache_control
    return result
