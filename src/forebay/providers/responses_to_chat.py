"""OpenAI's Responses before a target that speaks its chat: the request, and what leads to the rest.  Pure.

Nothing is kept from one response to the next: whoever goes on sends all that was said.  `MAPPED`, `IDLE` and
`REFUSED` hold every parameter of a request: what is in none of them is refused too.  docs/dialects.md says
what becomes of each.  Items are `responses_content`'s business, answers `responses_answer`'s, streams
`responses_stream`'s.
"""

from typing import Any, Final

import msgspec

from forebay.core.errors import MissingField
from forebay.providers.json_edit import NOTHING
from forebay.providers.responses_answer import encode_answer, encode_error
from forebay.providers.responses_content import CHAT, decode_input, decode_parts, is_text
from forebay.providers.responses_echo import Echo, read_echo
from forebay.providers.responses_stream import ResponsesStream
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
from forebay.providers.translation import EVENT_MAX_BYTES, CallerTranslator, StreamTranslator

MAPPED: Final = frozenset(
    {
        *("model", "input", "instructions", "stream", "max_output_tokens", "temperature", "top_p"),
        *("tools", "tool_choice", "parallel_tool_calls", "text", "reasoning", "include"),
        *("user", "safety_identifier", "service_tier"),
        *("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"),
    }
)
#: They change nothing of an answer where no tools of OpenAI's own are, or are the gateway's.
IDLE: Final = frozenset({"metadata", "stream_options", "max_tool_calls"})
#: Each with the values that ask for nothing.
REFUSED: Final[dict[str, tuple[object, ...]]] = {
    "access_programs": ({},),
    "background": (False,),
    "background_options": ({},),
    "context_management": ([],),
    "conversation": (),
    "image": (),
    "moderation": (),
    "previous_response_id": (),
    "prompt": (),
    "store": (False,),
    "top_logprobs": (0,),
    "truncation": ("disabled",),
}
_KNOWN = MAPPED | IDLE | REFUSED.keys()
#: They go to a chat under the same name.
_SAME: Final = (
    *("temperature", "top_p", "parallel_tool_calls", "user", "safety_identifier", "service_tier", "stream"),
    *("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"),
)
_TOOL_FIELDS: Final = frozenset({"type", "name", "description", "parameters", "strict", "output_schema"})
_TOOL_REFUSED: Final[dict[str, tuple[object, ...]]] = {
    "allowed_callers": (["direct"], []),
    "async": (False,),
    "defer_loading": (False,),
}
_REASONING_REFUSED: Final[dict[str, tuple[object, ...]]] = {"mode": ("standard",), "context": ("auto",)}
_REASONING_FIELDS: Final = frozenset({"effort", "summary", "generate_summary", *_REASONING_REFUSED})
_LOGPROBS: Final = "message.output_text.logprobs"
_CHOICES: Final = frozenset({"none", "auto", "required"})


class _Format(msgspec.Struct, frozen=True):
    type: str
    name: str = ""
    schema: msgspec.Raw = NOTHING
    description: str | None = None
    strict: bool | None = None


class _TextConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: _Format | None = None
    verbosity: str | None = None


class _Reasoning(msgspec.Struct, frozen=True):
    effort: str | None = None


class _Tool(msgspec.Struct, frozen=True):
    type: str
    name: str = ""
    description: str | None = None
    parameters: msgspec.Raw = NOTHING
    strict: bool | None = None


class _Choice(msgspec.Struct, frozen=True):
    type: str
    name: str | None = None
    mode: str | None = None
    tools: list["_Choice"] | None = None


class _Request(msgspec.Struct, frozen=True):
    model: str
    max_output_tokens: int | None = None
    tools: list[msgspec.Raw] | None = None
    tool_choice: str | _Choice | None = None
    text: _TextConfig | None = None
    reasoning: _Reasoning | None = None
    include: list[str] | None = None


_decode_request = msgspec.json.Decoder(_Request).decode
_decode_tool = msgspec.json.Decoder(_Tool).decode


class ResponsesToChat:
    """`forebay.core.translation.CallerTranslator` says what each part is for.

    Args:
        is_extended: whether what stands behind understands what `forebay.core.translation` adds to chat; a
            server that speaks OpenAI's chat itself does not.
        echo: what a response says of its request, where that is known.
    """

    def __init__(self, *, is_extended: bool = False, echo: Echo | None = None) -> None:
        self._is_extended = is_extended
        self._echo = echo or Echo()

    def bind(self, request: bytes) -> CallerTranslator:
        """The same for one request, which its response repeats."""
        return ResponsesToChat(is_extended=self._is_extended, echo=read_echo(request))

    def decode_request(self, body: bytes) -> bytes:
        fields = read_body(body)
        check_known(fields, _KNOWN, "", CHAT)
        check_refused(fields, REFUSED, "", CHAT)
        for name in ("model", "input"):
            if name not in fields:
                raise MissingField(f"the request has no `{name}`", param=name)
        request = read_top(_decode_request, body)
        if _LOGPROBS in (request.include or ()):
            raise refuse("include", f"{_LOGPROBS} can't be had here; leave it out")
        chat: dict[str, Any] = {"model": request.model, "messages": self._decode_messages(fields)}
        if request.max_output_tokens is not None:
            chat["max_completion_tokens"] = request.max_output_tokens
        chat |= {name: fields[name] for name in _SAME if name in fields and bytes(fields[name]) != b"null"}
        chat |= _decode_tools(request)
        chat |= _decode_text(request.text)
        chat |= _decode_reasoning(request.reasoning, fields)
        return msgspec.json.encode(chat)

    def encode_answer(self, body: bytes) -> bytes:
        return encode_answer(body, self._echo)

    def encode_error(self, body: bytes, status: int) -> bytes:
        return encode_error(body, status)

    def new_stream(self, *, event_max_bytes: int = EVENT_MAX_BYTES) -> StreamTranslator:
        return ResponsesStream(self._echo, event_max_bytes=event_max_bytes)

    def _decode_messages(self, fields: Fields) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = []
        told = fields.get("instructions")
        if told is not None and bytes(told) not in (b"null", b'""'):
            if is_text(told):
                messages = [{"role": "system", "content": decode_parts(told, "instructions", is_model=False)}]
            else:
                messages = decode_input(told, is_extended=self._is_extended)
        return messages + decode_input(fields["input"], is_extended=self._is_extended)


def _decode_tools(request: _Request) -> dict[str, Any]:
    result: dict[str, Any] = {}
    if request.tools:
        tools = enumerate(request.tools)
        result["tools"] = [_decode_one(raw, f"tools[{at}]") for at, raw in tools]
    choice = request.tool_choice
    if isinstance(choice, str):
        if choice not in _CHOICES:
            raise refuse("tool_choice", f"there is no {choice!r}; there are {', '.join(sorted(_CHOICES))}")
        result["tool_choice"] = choice
    elif choice is not None:
        result["tool_choice"] = _decode_choice(choice)
    return result


def _decode_one(raw: msgspec.Raw, where: str) -> dict[str, Any]:
    tool = read(_decode_tool, raw, where)
    if tool.type != "function":
        raise refuse(
            f"{where}.type",
            f"{tool.type!r} is a tool of OpenAI's own, which no target of this model has; "
            "only tools of the type function are served",
        )
    fields = read_fields(raw, where)
    check_known(fields, _TOOL_FIELDS | _TOOL_REFUSED.keys(), where, CHAT)
    check_refused(fields, _TOOL_REFUSED, where, CHAT)
    if not tool.name:
        raise refuse(f"{where}.name", "a function needs it")
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    if bytes(tool.parameters) not in (b"", b"null"):
        function["parameters"] = tool.parameters
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _decode_choice(choice: _Choice) -> dict[str, Any]:
    if choice.type == "function" and choice.name:
        return _name_function(choice.name)
    allowed = choice.tools if choice.type == "allowed_tools" and choice.mode in ("auto", "required") else None
    if allowed and all(tool.type == "function" and tool.name for tool in allowed):
        tools = [_name_function(tool.name or "") for tool in allowed]
        return {"type": choice.type, "allowed_tools": {"mode": choice.mode, "tools": tools}}
    raise refuse(
        "tool_choice",
        "only functions are served: {type: function, name}, or {type: allowed_tools, mode, tools} of those",
    )


def _name_function(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def _decode_text(config: _TextConfig | None) -> dict[str, Any]:
    result: dict[str, Any] = {}
    if config is None:
        return result
    if config.verbosity is not None:
        result["verbosity"] = config.verbosity
    form = config.format
    match None if form is None else form.type:
        case None | "text":
            pass
        case "json_object":
            result["response_format"] = {"type": "json_object"}
        case "json_schema" if form is not None and form.name and bytes(form.schema):
            schema: dict[str, Any] = {"name": form.name, "schema": form.schema}
            if form.description is not None:
                schema["description"] = form.description
            if form.strict is not None:
                schema["strict"] = form.strict
            result["response_format"] = {"type": "json_schema", "json_schema": schema}
        case _:
            raise refuse(
                "text.format", "it must be of the type text, json_object, or json_schema with name and schema"
            )
    return result


def _decode_reasoning(reasoning: _Reasoning | None, fields: Fields) -> dict[str, Any]:
    if reasoning is None:
        return {}
    told = read_fields(fields["reasoning"], "reasoning")
    check_known(told, _REASONING_FIELDS, "reasoning", CHAT)
    check_refused(told, _REASONING_REFUSED, "reasoning", CHAT)
    return {} if reasoning.effort is None else {"reasoning_effort": reasoning.effort}
