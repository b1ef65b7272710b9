"""Tools of OpenAI's chat, and the choice among them, as Gemini has them.  Pure.

Source: Gemini API reference, `FunctionDeclaration` and `FunctionCallingConfig`; "Function calling" of its
docs for the mode VALIDATED, which keeps to the schemas without forcing a call.
"""

from typing import Any

import msgspec

from forebay.providers.gemini_media import TARGET
from forebay.providers.json_edit import NOTHING
from forebay.providers.strict_fields import Fields, check_known, read, read_fields, refuse

Tool = dict[str, Any]

_TOOL_FIELDS = frozenset({"type", "function", "cache_control"})
_FUNCTION_FIELDS = frozenset({"name", "description", "parameters", "strict"})
_NULL = msgspec.Raw(b"null")


class _Function(msgspec.Struct, frozen=True):
    name: str
    description: str | None = None
    parameters: dict[str, msgspec.Raw] | None = None
    strict: bool | None = None


class _Tool(msgspec.Struct, frozen=True):
    type: str
    function: msgspec.Raw = NOTHING


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

_MODES = {"auto": "AUTO", "required": "ANY", "none": "NONE"}


def encode_tools(fields: Fields) -> dict[str, Any]:
    """`tools` and `toolConfig` of a request, as far as it has any.  Raises InvalidValue, with `param`."""
    items = read(_decode_list, fields.get("tools", _NULL), "tools") or []
    functions = [_read_function(item, f"tools[{at}]") for at, item in enumerate(items)]
    choice = read(_decode_choice, fields.get("tool_choice", _NULL), "tool_choice")
    parallel = read(_decode_flag, fields.get("parallel_tool_calls", _NULL), "parallel_tool_calls")
    if parallel is False and functions:
        raise refuse(
            "parallel_tool_calls", f"{TARGET} can't be kept from several calls at once; leave it out"
        )
    if isinstance(choice, _Choice) and choice.type == "allowed_tools" and choice.allowed_tools is not None:
        names = {_read_name(tool, "tool_choice.allowed_tools.tools") for tool in choice.allowed_tools.tools}
        functions = [function for function in functions if function.name in names]
        choice = choice.allowed_tools.mode
    config = _encode_choice(choice)
    if config["mode"] == "AUTO" and any(function.strict for function in functions):
        config["mode"] = "VALIDATED"
    result: dict[str, Any] = {}
    if functions:
        result["tools"] = [{"functionDeclarations": [_encode_function(each) for each in functions]}]
    if config["mode"] in ("ANY", "VALIDATED") or (functions and config["mode"] != "AUTO"):
        result["toolConfig"] = {"functionCallingConfig": config}
    return result


def _read_function(raw: msgspec.Raw, where: str) -> _Function:
    check_known(read_fields(raw, where), _TOOL_FIELDS | {"custom"}, where, TARGET)
    tool = read(_decode_tool, raw, where)
    if tool.type != "function" or tool.function is NOTHING:
        raise refuse(f"{where}.type", f"{TARGET} takes tools of type function, not {tool.type!r}")
    where = f"{where}.function"
    check_known(read_fields(tool.function, where), _FUNCTION_FIELDS, where, TARGET)
    return read(_decode_function, tool.function, where)


def _encode_function(function: _Function) -> Tool:
    made: Tool = {"name": function.name}
    if function.description:
        made["description"] = function.description
    if function.parameters:
        schema: dict[str, Any] = dict(function.parameters)
        made["parametersJsonSchema"] = schema if "type" in schema else {"type": "object"} | schema
    return made


def _encode_choice(choice: str | _Choice | None) -> dict[str, Any]:
    match choice:
        case None:
            return {"mode": "AUTO"}
        case str():
            if choice not in _MODES:
                raise refuse("tool_choice", f"there is no {choice!r}; there are {', '.join(_MODES)}")
            return {"mode": _MODES[choice]}
        case _:
            return {"mode": "ANY", "allowedFunctionNames": [_read_name(choice, "tool_choice")]}


def _read_name(choice: _Choice, where: str) -> str:
    if choice.type != "function" or choice.function is None:
        raise refuse(f"{where}.type", f"{TARGET} knows functions alone, not {choice.type!r}")
    return choice.function.name
