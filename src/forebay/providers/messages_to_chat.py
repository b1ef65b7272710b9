"""Anthropic's messages before a target that speaks OpenAI's chat: the request, and what leads to the rest.
Pure.

`MAPPED`, `IDLE` and `REFUSED` hold every parameter of a request for a message: what is in none of them is
refused too.  docs/dialects.md says what becomes of each.  Messages are `messages_content`'s business, answers
`messages_answer`'s, streams `messages_stream`'s.
"""

from typing import Any, Final

import msgspec

from forebay.core.errors import MissingField
from forebay.providers.json_edit import NOTHING
from forebay.providers.messages_answer import encode_answer, encode_error
from forebay.providers.messages_content import decode_messages, decode_system
from forebay.providers.messages_parts import CHAT
from forebay.providers.messages_stream import MessagesStream
from forebay.providers.strict_fields import (
    Fields,
    check_known,
    check_refused,
    read,
    read_body,
    read_fields,
    read_top,
    refuse,
)
from forebay.providers.translation import EVENT_MAX_BYTES, StreamTranslator

MAPPED: Final = frozenset(
    {
        *("model", "messages", "system", "max_tokens", "stream", "stop_sequences"),
        *("temperature", "top_p", "top_k", "tools", "tool_choice", "thinking", "output_config"),
        *("metadata", "service_tier"),
    }
)
#: They change nothing of an answer: hints for caches, and what a context may lose that goes as a whole.
IDLE: Final = frozenset({"cache_control", "context_management", "diagnostics"})
#: Each with the values that ask for nothing.
REFUSED: Final[dict[str, tuple[object, ...]]] = {
    "container": (),
    "inference_geo": (),
    "mcp_servers": ([],),
    "speed": ("standard",),
    "user_profile_id": (),
    "workspace_id": (),
}
_KNOWN = MAPPED | IDLE | REFUSED.keys()

_TOOL_FIELDS = frozenset(
    {"name", "description", "input_schema", "type", "strict", "cache_control", "eager_input_streaming"}
)
_TOOL_REFUSED: dict[str, tuple[object, ...]] = {
    "allowed_callers": (["direct"], []),
    "defer_loading": (False,),
    "input_examples": ([],),
}
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_SERVICE_TIERS = {"auto": "auto", "standard_only": "default"}
#: How long a model may think, in tokens, and the effort that OpenAI would call so.
_EFFORT_BY_BUDGET = ((4_096, "low"), (16_384, "medium"))
_EFFORTS = ("low", "medium", "high", "xhigh", "max")


class _Metadata(msgspec.Struct, frozen=True):
    user_id: str | None = None


class _Thinking(msgspec.Struct, frozen=True):
    type: str
    budget_tokens: int | None = None


class _Format(msgspec.Struct, frozen=True):
    type: str
    schema: msgspec.Raw = NOTHING


class _OutputConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    effort: str | None = None
    format: _Format | None = None


class _Choice(msgspec.Struct, frozen=True):
    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class _Tool(msgspec.Struct, frozen=True):
    name: str
    type: str | None = None
    description: str | None = None
    input_schema: msgspec.Raw = NOTHING
    strict: bool | None = None
    cache_control: msgspec.Raw = NOTHING


class _Request(msgspec.Struct, frozen=True):
    model: str
    max_tokens: int
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    tools: list[msgspec.Raw] | None = None
    tool_choice: _Choice | None = None
    thinking: _Thinking | None = None
    output_config: _OutputConfig | None = None
    metadata: _Metadata | None = None
    service_tier: str | None = None


_decode_request = msgspec.json.Decoder(_Request).decode
_decode_tool = msgspec.json.Decoder(_Tool).decode


class MessagesToChat:
    """`forebay.core.translation.CallerTranslator` says what each part is for.

    Args:
        is_extended: whether what stands behind understands what `forebay.core.translation` adds to chat; a
            server that speaks OpenAI's chat itself does not.
    """

    def __init__(self, *, is_extended: bool = False) -> None:
        self._is_extended = is_extended

    def decode_request(self, body: bytes) -> bytes:
        fields = read_body(body)
        check_known(fields, _KNOWN, "", CHAT)
        check_refused(fields, REFUSED, "", CHAT)
        for name in ("model", "messages", "max_tokens"):
            if name not in fields:
                raise MissingField(f"the request has no `{name}`", param=name)
        request = read_top(_decode_request, body)
        if request.max_tokens < 1:
            raise refuse("max_tokens", f"only caches are warmed with {request.max_tokens}; say 1 or more")
        messages = (
            decode_system(fields["system"], is_extended=self._is_extended) if "system" in fields else []
        )
        messages += decode_messages(fields["messages"], is_extended=self._is_extended)
        chat: dict[str, Any] = {
            "model": request.model,
            "messages": messages,
            "max_completion_tokens": request.max_tokens,
        }
        chat |= _decode_sampling(request)
        chat |= _decode_tools(request, self._is_extended)
        chat |= _decode_output(request)
        if request.metadata is not None and request.metadata.user_id:
            chat["user"] = request.metadata.user_id
        if request.service_tier is not None:
            if request.service_tier not in _SERVICE_TIERS:
                raise refuse(
                    "service_tier", f"there is no {request.service_tier!r}, but auto and standard_only"
                )
            chat["service_tier"] = _SERVICE_TIERS[request.service_tier]
        if self._is_extended and "cache_control" in fields:
            chat["cache_control"] = fields["cache_control"]
        if request.stream is not None:
            chat["stream"] = request.stream
        return msgspec.json.encode(chat)

    def encode_answer(self, body: bytes) -> bytes:
        return encode_answer(body)

    def encode_error(self, body: bytes, status: int) -> bytes:
        return encode_error(body, status)

    def new_stream(self, *, event_max_bytes: int = EVENT_MAX_BYTES) -> StreamTranslator:
        return MessagesStream(event_max_bytes=event_max_bytes)


def _decode_sampling(request: _Request) -> dict[str, Any]:
    said = {
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k,
        "stop": request.stop_sequences or None,
    }
    return {name: value for name, value in said.items() if value is not None}


def _decode_tools(request: _Request, is_extended: bool) -> dict[str, Any]:
    result: dict[str, Any] = {}
    if request.tools:
        tools = enumerate(request.tools)
        result["tools"] = [_decode_one(raw, f"tools[{at}]", is_extended) for at, raw in tools]
    choice = request.tool_choice
    if choice is None:
        return result
    if choice.type == "tool" and choice.name:
        result["tool_choice"] = {"type": "function", "function": {"name": choice.name}}
    elif choice.type in _CHOICES:
        result["tool_choice"] = _CHOICES[choice.type]
    else:
        raise refuse(
            "tool_choice.type", f"there is no {choice.type!r}; there are tool, {', '.join(_CHOICES)}"
        )
    if choice.disable_parallel_tool_use and choice.type != "none":
        result["parallel_tool_calls"] = False
    return result


def _decode_one(raw: msgspec.Raw, where: str, is_extended: bool) -> dict[str, Any]:
    fields: Fields = read_fields(raw, where)
    tool = read(_decode_tool, raw, where)
    if tool.type not in (None, "custom"):
        raise refuse(
            f"{where}.type", f"{tool.type!r} is Anthropic's own tool, and this model is not Anthropic's"
        )
    check_known(fields, _TOOL_FIELDS | _TOOL_REFUSED.keys(), where, CHAT)
    check_refused(fields, _TOOL_REFUSED, where, CHAT)
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.input_schema is not NOTHING:
        function["parameters"] = tool.input_schema
    if tool.strict is not None:
        function["strict"] = tool.strict
    made: dict[str, Any] = {"type": "function", "function": function}
    if is_extended and bytes(tool.cache_control) not in (b"", b"null"):
        made["cache_control"] = tool.cache_control
    return made


def _decode_output(request: _Request) -> dict[str, Any]:
    result: dict[str, Any] = {}
    config = request.output_config or _OutputConfig()
    effort = config.effort
    if effort is not None and effort not in _EFFORTS:
        raise refuse(
            "output_config.effort", f"there is no effort {effort!r}; there are {', '.join(_EFFORTS)}"
        )
    thinking = request.thinking
    match None if thinking is None else thinking.type:
        case None | "adaptive":
            pass
        case "disabled":
            effort = "none"
        case "enabled":
            effort = effort or _find_effort(0 if thinking is None else thinking.budget_tokens or 0)
        case kind:
            raise refuse("thinking.type", f"{CHAT}, which this model is served by, has nothing like {kind!r}")
    if effort is not None:
        result["reasoning_effort"] = effort
    if config.format is not None:
        if config.format.type != "json_schema" or config.format.schema is NOTHING:
            raise refuse("output_config.format", "it must be of the type json_schema, with a schema")
        form = {"name": "output", "schema": config.format.schema, "strict": True}
        result["response_format"] = {"type": "json_schema", "json_schema": form}
    return result


def _find_effort(budget_tokens: int) -> str:
    return next((effort for most, effort in _EFFORT_BY_BUDGET if budget_tokens <= most), "high")
