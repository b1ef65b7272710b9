"""Tools of OpenAI's chat, and the choice among them, as Gemini has them.  Pure.

Source: Gemini API reference, `FunctionDeclaration` and `FunctionCallingConfig`; "Function calling" of its
docs for the mode VALIDATED, which keeps to the schemas without forcing a call.
"""

from typing import Any

from forebay.providers.chat_tools import Function, ToolChoice, read_choice, read_parallel, read_tools
from forebay.providers.gemini_media import TARGET
from forebay.providers.strict_fields import Fields, refuse

Tool = dict[str, Any]

_MODES = {"auto": "AUTO", "required": "ANY", "none": "NONE"}


def encode_tools(fields: Fields) -> dict[str, Any]:
    """`tools` and `toolConfig` of a request, as far as it has any.  Raises InvalidValue, with `param`."""
    offered = read_tools(fields, TARGET)
    choice = read_choice(fields, TARGET)
    if read_parallel(fields) is False and offered:
        raise refuse(
            "parallel_tool_calls", f"{TARGET} can't be kept from several calls at once; leave it out"
        )
    functions = [tool.function for tool in offered if choice.offers(tool.function.name)]
    config = _encode_choice(choice)
    if config["mode"] == "AUTO" and any(function.strict for function in functions):
        config["mode"] = "VALIDATED"
    result: dict[str, Any] = {}
    if functions:
        result["tools"] = [{"functionDeclarations": [_encode_function(each) for each in functions]}]
    if config["mode"] in ("ANY", "VALIDATED") or (functions and config["mode"] != "AUTO"):
        result["toolConfig"] = {"functionCallingConfig": config}
    return result


def _encode_function(function: Function) -> Tool:
    return function.head | ({"parametersJsonSchema": function.schema} if function.parameters else {})


def _encode_choice(choice: ToolChoice) -> dict[str, Any]:
    if choice.name is not None:
        return {"mode": "ANY", "allowedFunctionNames": [choice.name]}
    mode = "auto" if choice.mode is None else choice.mode
    if mode not in _MODES:
        raise refuse("tool_choice", f"there is no {mode!r}; there are {', '.join(_MODES)}")
    return {"mode": _MODES[mode]}
