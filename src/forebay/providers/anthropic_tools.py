"""Tools of OpenAI's chat, and the choice among them, as Anthropic has them.  Pure."""

from typing import Any

from forebay.providers.anthropic_content import TARGET
from forebay.providers.chat_tools import FunctionTool, ToolChoice, read_choice, read_parallel, read_tools
from forebay.providers.json_edit import NOTHING
from forebay.providers.strict_fields import Fields, refuse

Tool = dict[str, Any]

_MODES = {"auto": "auto", "required": "any", "none": "none"}


def encode_tools(fields: Fields) -> dict[str, Any]:
    """`tools` and `tool_choice` of a request, as far as it has any.  Raises InvalidValue, with `param`."""
    offered = read_tools(fields, TARGET)
    choice = read_choice(fields, TARGET)
    parallel = read_parallel(fields)
    tools = [_encode_tool(tool) for tool in offered if choice.offers(tool.function.name)]
    chosen = _encode_choice(choice)
    if parallel is False and tools and (chosen is None or chosen["type"] != "none"):
        chosen = (chosen or {"type": "auto"}) | {"disable_parallel_tool_use": True}
    result: dict[str, Any] = {}
    if tools:
        result["tools"] = tools
    if chosen is not None and (tools or chosen["type"] not in ("auto", "none")):
        result["tool_choice"] = chosen
    return result


def _encode_tool(tool: FunctionTool) -> Tool:
    made = tool.function.head | {"input_schema": tool.function.schema}
    if tool.function.strict:
        made["strict"] = True
    if tool.cache_control is not NOTHING:
        made["cache_control"] = tool.cache_control
    return made


def _encode_choice(choice: ToolChoice) -> dict[str, Any] | None:
    if choice.name is not None:
        return {"type": "tool", "name": choice.name}
    if choice.mode is None:
        return None
    if choice.mode not in _MODES:
        raise refuse("tool_choice", f"there is no {choice.mode!r}; there are {', '.join(_MODES)}")
    return {"type": _MODES[choice.mode]}
