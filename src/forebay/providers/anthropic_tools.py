"""Tools of OpenAI's chat, and the choice among them, as Anthropic has them.  Pure."""

from typing import Any

import msgspec

from forebay.providers.anthropic_content import TARGET
from forebay.providers.json_edit import NOTHING
from forebay.providers.strict_fields import Fields, check_known, read, read_fields, refuse

Tool = dict[str, Any]

_TOOL_FIELDS = frozenset({"type", "function", "cache_control"})
_FUNCTION_FIELDS = frozenset({"name", "description", "parameters", "strict"})


class _Function(msgspec.Struct, frozen=True):
    name: str
    description: str | None = None
    parameters: dict[str, msgspec.Raw] | None = None
    strict: bool | None = None


class _Tool(msgspec.Struct, frozen=True):
    type: str
    function: msgspec.Raw = NOTHING
    cache_control: msgspec.Raw = NOTHING


class _Named(msgspec.Struct, frozen=True):
    name: str


class _Allowed(msgspec.Struct, frozen=True):
    mode: str
    tools: list["_Choice"]


class _Choice(msgspec.Struct, frozen=True):
    type: str
    function: _Named | None = None
    allowed_tools: _Allowed | None = None


_decode_list = msgspec.json.Decoder(list[msgspec.Raw] | None).decode
_decode_tool = msgspec.json.Decoder(_Tool).decode
_decode_function = msgspec.json.Decoder(_Function).decode
_decode_choice = msgspec.json.Decoder(str | _Choice | None).decode
_decode_flag = msgspec.json.Decoder(bool | None).decode

_MODES = {"auto": "auto", "required": "any", "none": "none"}


def encode_tools(fields: Fields) -> dict[str, Any]:
    """`tools` and `tool_choice` of a request, as far as it has any.  Raises InvalidValue, with `param`."""
    items = read(_decode_list, fields.get("tools", msgspec.Raw(b"null")), "tools") or []
    tools = [_encode_tool(item, f"tools[{at}]") for at, item in enumerate(items)]
    choice = read(_decode_choice, fields.get("tool_choice", msgspec.Raw(b"null")), "tool_choice")
    parallel = read(
        _decode_flag, fields.get("parallel_tool_calls", msgspec.Raw(b"null")), "parallel_tool_calls"
    )
    if isinstance(choice, _Choice) and choice.type == "allowed_tools" and choice.allowed_tools is not None:
        names = {_read_name(tool, "tool_choice.allowed_tools.tools") for tool in choice.allowed_tools.tools}
        tools = [tool for tool in tools if tool["name"] in names]
        choice = choice.allowed_tools.mode
    chosen = _encode_choice(choice)
    if parallel is False and tools and (chosen is None or chosen["type"] != "none"):
        chosen = (chosen or {"type": "auto"}) | {"disable_parallel_tool_use": True}
    result: dict[str, Any] = {}
    if tools:
        result["tools"] = tools
    if chosen is not None and (tools or chosen["type"] not in ("auto", "none")):
        result["tool_choice"] = chosen
    return result


def _encode_tool(raw: msgspec.Raw, where: str) -> Tool:
    check_known(read_fields(raw, where), _TOOL_FIELDS | {"custom"}, where, TARGET)
    tool = read(_decode_tool, raw, where)
    if tool.type != "function" or tool.function is NOTHING:
        raise refuse(f"{where}.type", f"{TARGET} takes tools of type function, not {tool.type!r}")
    where = f"{where}.function"
    check_known(read_fields(tool.function, where), _FUNCTION_FIELDS, where, TARGET)
    function = read(_decode_function, tool.function, where)
    made: Tool = {"name": function.name}
    if function.description:
        made["description"] = function.description
    schema: dict[str, Any] = dict(function.parameters or {})
    if "type" not in schema:  # Anthropic wants it, and arguments are an object whatever else is said
        schema = {"type": "object"} | schema
    made["input_schema"] = schema
    if function.strict:
        made["strict"] = True
    if tool.cache_control is not NOTHING:
        made["cache_control"] = tool.cache_control
    return made


def _encode_choice(choice: str | _Choice | None) -> dict[str, Any] | None:
    match choice:
        case None:
            return None
        case str():
            if choice not in _MODES:
                raise refuse("tool_choice", f"there is no {choice!r}; there are {', '.join(_MODES)}")
            return {"type": _MODES[choice]}
        case _:
            return {"type": "tool", "name": _read_name(choice, "tool_choice")}


def _read_name(choice: _Choice, where: str) -> str:
    if choice.type != "function" or choice.function is None:
        raise refuse(f"{where}.type", f"{TARGET} knows functions alone, not {choice.type!r}")
    return choice.function.name
