"""OpenAI's chat at a target that is Amazon Bedrock: Converse and ConverseStream.  Pure.

`MAPPED`, `IDLE` and `REFUSED` hold every parameter of a chat request: what is in none of them is refused too.
docs/dialects.md says what becomes of each.  Messages are `bedrock_content`'s business, answers those of
`bedrock_answer` and `bedrock_stream`, signatures those of `sigv4`.

Source: Amazon Bedrock API Reference, `Converse` and `ConverseStream`.
"""

import re
from typing import Any, Final
from urllib.parse import quote

import msgspec

from forebay.core.errors import UpstreamCredentials
from forebay.providers.bedrock_answer import decode_answer, decode_error
from forebay.providers.bedrock_content import decode_cache, encode_cache_point, encode_messages, mark_cached
from forebay.providers.bedrock_media import TARGET
from forebay.providers.bedrock_stream import BedrockStream
from forebay.providers.bedrock_tools import NULL, encode_tools
from forebay.providers.chat_request import ChatRequest, keep_said, open_request, read_schema
from forebay.providers.eventstream import MEDIA_TYPE, EventStreamDocuments
from forebay.providers.openai_reasoning import settle_effort
from forebay.providers.sigv4 import Scope, parse_credentials, sign_request
from forebay.providers.strict_fields import read, read_top, refuse
from forebay.providers.translation import EVENT_MAX_BYTES, Headers, StreamTranslator

MAPPED: Final = frozenset(
    {"model", "messages", "stream", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k"}
    | {"stop", "tools", "tool_choice", "parallel_tool_calls", "response_format", "reasoning_effort"}
    | {"reasoning", "thinking", "service_tier", "cache_control", "additionalModelRequestFields"}
)
#: They change nothing of an answer, or are the gateway's.
IDLE: Final = frozenset(
    {"metadata", "stream_options", "prediction", "user", "safety_identifier"}
    | {"prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"}
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
_KNOWN: Final = MAPPED | IDLE | REFUSED.keys()

FAILED_DEPENDENCY: Final = 424  #: by which Bedrock says that the model broke
MODEL_BROKE: Final = 502
SERVICE: Final = "bedrock"  #: the name that signatures are made for, of hosts called `bedrock-runtime`
_HOST = re.compile(r"(?:^|\.)bedrock-runtime(?:-fips)?\.([a-z0-9-]+)\.")
_REGION = re.compile(r"[a-z]{2,}(?:-[a-z]+)+-\d+")
_SIGNED: Final = frozenset({"host", "content-type"})

_CLAUDE: Final = "anthropic."  #: within the ids of all its models and inference profiles
_NO_FORMAT: Final = f"{TARGET} has no {{}}; say json_schema, with the schema to follow"
_SERVICE_TIERS: Final = {
    "auto": None,
    "default": "default",
    "flex": "flex",
    "priority": "priority",
    "fast": "priority",
}
NO_EFFORT: Final = "none"
#: OpenAI's words for effort; whether there is to be any is said by a field of each model's own.
_EFFORTS: Final = {"minimal": "low"} | {level: level for level in ("low", "medium", "high", "xhigh", "max")}


class _Chat(ChatRequest, frozen=True):
    thinking: dict[str, msgspec.Raw] | None = None
    additional: dict[str, msgspec.Raw] | None = msgspec.field(
        default=None, name="additionalModelRequestFields"
    )


_decode_chat = msgspec.json.Decoder(_Chat).decode


class ChatToBedrock:
    """`forebay.core.translation` says what each part is for: `SigningTranslator`, `ForeignStreams`,
    `ErrorReader`, `NamingTranslator`.

    Args:
        answer_id: of the answer that is translated.

    A secret with colons is what `sigv4.parse_credentials` reads; one without is one of Bedrock's own API
    keys, and goes as a bearer token, unsigned.
    """

    stream_type = MEDIA_TYPE

    def __init__(self, *, answer_id: str = "") -> None:
        self._answer_id = answer_id

    def name_answer(self, answer_id: str) -> "ChatToBedrock":
        return ChatToBedrock(answer_id=answer_id)

    def encode_request(self, body: bytes, model: str, *, stream: bool) -> bytes:
        fields = open_request(body, _KNOWN, REFUSED, TARGET)
        chat = settle_effort(read_top(_decode_chat, body), TARGET)
        conversation = encode_messages(fields["messages"])
        cache = read(decode_cache, fields.get("cache_control", NULL), "cache_control")
        if cache is not None:
            mark_cached(conversation.messages[-1]["content"], encode_cache_point(cache, "cache_control"))
        request: dict[str, Any] = {"messages": conversation.messages}
        if conversation.system:
            request["system"] = conversation.system
        parts = {
            "inferenceConfig": _encode_inference(chat),
            "toolConfig": encode_tools(fields, has_tools=conversation.has_tools),
            "outputConfig": _encode_output(chat),
            "additionalModelRequestFields": _encode_additional(chat, model),
            "serviceTier": _encode_tier(chat),
        }
        return msgspec.json.encode(request | {name: part for name, part in parts.items() if part})

    def decode_answer(self, body: bytes, model: str) -> bytes:
        return decode_answer(body, model, self._answer_id)

    def decode_error(self, status: int, body: bytes) -> bytes:
        return decode_error(status, body)

    def read_status(self, status: int, body: bytes) -> int:
        """A model that broke is no fault of the caller's, whatever 424 means elsewhere."""
        return MODEL_BROKE if status == FAILED_DEPENDENCY else status

    def read_retry_after_s(self, body: bytes) -> int | None:
        return None

    def new_stream(self, model: str, *, event_max_bytes: int = EVENT_MAX_BYTES) -> StreamTranslator:
        return BedrockStream(model, event_max_bytes=event_max_bytes, answer_id=self._answer_id)

    def new_splitter(self, *, event_max_bytes: int = EVENT_MAX_BYTES) -> EventStreamDocuments:
        return EventStreamDocuments(event_max_bytes)

    def build_path(self, base_path: str, model: str, *, stream: bool) -> str:
        return f"{base_path}/model/{quote(model, safe='')}/{'converse-stream' if stream else 'converse'}"

    def build_headers(self, secret: str) -> Headers:
        headers = [("accept", f"application/json, {MEDIA_TYPE}")]
        if secret and ":" not in secret:
            headers.append(("authorization", f"Bearer {secret}"))
        return headers

    def sign(
        self,
        method: str,
        path: str,
        headers: Headers,
        body: bytes,
        *,
        secret: str,
        region: str,
        wall_s: int,
    ) -> Headers:
        if ":" not in secret:
            return []
        host = next((value for name, value in headers if name == "host"), "")
        return sign_request(
            method,
            path,
            [(name, value) for name, value in headers if name in _SIGNED],
            body,
            credentials=parse_credentials(secret),
            scope=Scope(region=find_region(host, region), service=SERVICE, wall_s=wall_s),
        )


def find_region(host: str, region: str) -> str:
    """The AWS region of a target: that of its host, else the target's own.

    Raises:
        UpstreamCredentials: neither says one, and a signature without it is of no use.
    """
    found = _HOST.search(host)
    if found is not None:
        return found[1]
    if _REGION.fullmatch(region) is None:
        raise UpstreamCredentials(
            "a request to Bedrock can't be signed without its AWS region: the host does not say it, so "
            "set the target's `region`, such as eu-central-1"
        )
    return region


def _encode_inference(chat: _Chat) -> dict[str, Any]:
    for name, value in (("temperature", chat.temperature), ("top_p", chat.top_p)):
        if value is not None and not 0 <= value <= 1:
            raise refuse(name, f"{TARGET} takes 0 to 1, and {value:g} would mean another thing")
    said = {
        "maxTokens": chat.limit,
        "temperature": chat.temperature,
        "topP": chat.top_p,
        "stopSequences": chat.stops or None,
    }
    return keep_said(said)


def _encode_output(chat: _Chat) -> dict[str, Any]:
    """Effort, and the form of the output."""
    config: dict[str, Any] = {}
    effort = chat.reasoning_effort
    if effort is not None and effort != NO_EFFORT:
        if effort not in _EFFORTS:
            raise refuse("reasoning_effort", f"{TARGET} has no effort {effort!r}, but {', '.join(_EFFORTS)}")
        config["effort"] = _EFFORTS[effort]
    wanted = read_schema(chat.response_format, _NO_FORMAT)
    if wanted is None:
        return config
    schema = {
        "schema": msgspec.json.encode(wanted.schema).decode(),  # as a string, unlike a tool's
        "name": wanted.name,
        "description": wanted.description,
    }
    said = {name: value for name, value in schema.items() if value}
    return config | {"textFormat": {"type": "json_schema", "structure": {"jsonSchema": said}}}


def _encode_additional(chat: _Chat, model: str) -> dict[str, Any]:
    """What Converse has no place for, and hands on to the model as it is: under Claude's names."""
    said: dict[str, Any] = {"top_k": chat.top_k, "thinking": chat.thinking}
    if chat.reasoning_effort is not None and chat.thinking is None:
        if _CLAUDE in model:
            kind = "disabled" if chat.reasoning_effort == NO_EFFORT else "adaptive"
            said["thinking"] = {"type": kind}
        elif chat.reasoning_effort == NO_EFFORT:
            raise refuse("reasoning_effort", f"{TARGET} can't keep this model from thinking; leave it out")
    return keep_said(said) | (chat.additional or {})


def _encode_tier(chat: _Chat) -> dict[str, Any] | None:
    if chat.service_tier is None:
        return None
    if chat.service_tier not in _SERVICE_TIERS:
        raise refuse(
            "service_tier", f"{TARGET} has no {chat.service_tier!r}, but {', '.join(_SERVICE_TIERS)}"
        )
    tier = _SERVICE_TIERS[chat.service_tier]
    return None if tier is None else {"type": tier}
