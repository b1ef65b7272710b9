"""Tools of OpenAI's chat, and the choice among them, as Bedrock's Converse has them.  Pure.

Source: Amazon Bedrock API Reference, `ToolConfiguration`.
"""

from typing import Any, Final

import msgspec

from forebay.providers.bedrock_content import decode_cache, encode_cache_point
from forebay.providers.bedrock_media import TARGET
from forebay.providers.json_edit import NOTHING
from forebay.providers.strict_fields import Fields, check_known, read, read_fields, refuse

Tool = dict[str, Any]
NULL: Final = msgspec.Raw(b"null")

_TOOL_FIELDS: Final = frozenset({"type", "function", "cache_control"})
_FUNCTION_FIELDS: Final = frozenset({"name", "description", "parameters", "strict"})


class _Function(msgspec.Struct, frozen=True):
    name: str
    description: str | None = None
    parameters: dict[str, msgspec.Raw] | None = None
    strict: bool | None = None


class _Tool(msgspec.Struct, frozen=True):
    type: str
    function: msgspec.Raw = NOTHING
    cache_control: msgspec.Raw = NULL


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

_MODES: Final[dict[str, Tool]] = {"auto": {"auto": {}}, "required": {"any": {}}}


def encode_tools(fields: Fields, *, has_tools: bool) -> Tool | None:
    """The `toolConfig` of a request, None without tools.

    Args:
        has_tools: a tool was called before, so that Converse wants to know the tools.

    Raises:
        InvalidValue: with `param`.
    """
    items = read(_decode_list, fields.get("tools", NULL), "tools") or []
    parallel = read(_decode_flag, fields.get("parallel_tool_calls", NULL), "parallel_tool_calls")
    if parallel is False and items:
        raise refuse(
            "parallel_tool_calls", f"{TARGET} can't keep a model from calling several tools; leave it out"
        )
    choice = read(_decode_choice, fields.get("tool_choice", NULL), "tool_choice")
    names: set[str] | None = None
    if isinstance(choice, _Choice) and choice.type == "allowed_tools" and choice.allowed_tools is not None:
        names = {_read_name(tool, "tool_choice.allowed_tools.tools") for tool in choice.allowed_tools.tools}
        choice = choice.allowed_tools.mode
    if choice == "none":
        if items and has_tools:
            raise refuse(
                "tool_choice", f"{TARGET} has no 'none' once tools were called; leave the choice to the model"
            )
        return None
    tools = [tool for at, item in enumerate(items) for tool in _encode_tool(item, f"tools[{at}]", names)]
    chosen = _encode_choice(choice)
    if not tools:
        if chosen is not None and "auto" not in chosen:
            raise refuse("tool_choice", "there are no tools to choose from")
        return None
    return {"tools": tools} if chosen is None else {"tools": tools, "toolChoice": chosen}


def _encode_tool(raw: msgspec.Raw, where: str, names: set[str] | None) -> list[Tool]:
    """A tool, and the mark behind it if it is to be cached; nothing if it is not among the names."""
    check_known(read_fields(raw, where), _TOOL_FIELDS | {"custom"}, where, TARGET)
    tool = read(_decode_tool, raw, where)
    if tool.type != "function" or tool.function is NOTHING:
        raise refuse(f"{where}.type", f"{TARGET} takes tools of type function, not {tool.type!r}")
    place = f"{where}.function"
    check_known(read_fields(tool.function, place), _FUNCTION_FIELDS, place, TARGET)
    function = read(_decode_function, tool.function, place)
    if names is not None and function.name not in names:
        return []
    made: Tool = {"name": function.name}
    if function.description:
        made["description"] = function.description
    schema: dict[str, Any] = dict(function.parameters or {})
    if "type" not in schema:  # arguments are an object whatever else is said
        schema = {"type": "object"} | schema
    made["inputSchema"] = {"json": schema}
    if function.strict:
        made["strict"] = True
    cache = read(decode_cache, tool.cache_control, f"{where}.cache_control")
    if cache is None:
        return [{"toolSpec": made}]
    return [{"toolSpec": made}, encode_cache_point(cache, f"{where}.cache_control")]


def _encode_choice(choice: str | _Choice | None) -> Tool | None:
    match choice:
        case None:
            return None
        case str():
            if choice not in _MODES:
                raise refuse("tool_choice", f"there is no {choice!r}; there are none, {', '.join(_MODES)}")
            return _MODES[choice]
        case _:
            return {"tool": {"name": _read_name(choice, "tool_choice")}}


def _read_name(choice: _Choice, where: str) -> str:
    if choice.type != "function" or choice.function is None:
        raise refuse(f"{where}.type", f"{TARGET} knows functions alone, not {choice.type!r}")
    return choice.function.name
