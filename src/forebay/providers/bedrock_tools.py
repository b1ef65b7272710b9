"""Tools of OpenAI's chat, and the choice among them, as Bedrock's Converse has them.  Pure.

Source: Amazon Bedrock API Reference, `ToolConfiguration`.
"""

from typing import Any, Final

import msgspec

from forebay.providers.bedrock_content import decode_cache, encode_cache_point
from forebay.providers.bedrock_media import TARGET
from forebay.providers.chat_tools import (
    FunctionTool,
    ToolChoice,
    list_tools,
    read_choice,
    read_parallel,
    read_tools,
)
from forebay.providers.json_edit import NOTHING
from forebay.providers.strict_fields import Fields, read, refuse

Tool = dict[str, Any]
NULL: Final = msgspec.Raw(b"null")

_MODES: Final[dict[str, Tool]] = {"auto": {"auto": {}}, "required": {"any": {}}}


def encode_tools(fields: Fields, *, has_tools: bool) -> Tool | None:
    """The `toolConfig` of a request, None without tools.

    Args:
        has_tools: a tool was called before, so that Converse wants to know the tools.

    Raises:
        InvalidValue: with `param`.
    """
    items = list_tools(fields)
    if read_parallel(fields) is False and items:
        raise refuse(
            "parallel_tool_calls", f"{TARGET} can't keep a model from calling several tools; leave it out"
        )
    choice = read_choice(fields, TARGET)
    if choice.mode == "none":
        if items and has_tools:
            raise refuse(
                "tool_choice", f"{TARGET} has no 'none' once tools were called; leave the choice to the model"
            )
        return None
    offered = [tool for tool in read_tools(fields, TARGET) if choice.offers(tool.function.name)]
    tools = [each for tool in offered for each in _encode_tool(tool)]
    chosen = _encode_choice(choice)
    if not tools:
        if chosen is not None and "auto" not in chosen:
            raise refuse("tool_choice", "there are no tools to choose from")
        return None
    return {"tools": tools} if chosen is None else {"tools": tools, "toolChoice": chosen}


def _encode_tool(tool: FunctionTool) -> list[Tool]:
    """A tool, and the mark behind it if it is to be cached."""
    made = tool.function.head | {"inputSchema": {"json": tool.function.schema}}
    if tool.function.strict:
        made["strict"] = True
    where = f"{tool.where}.cache_control"
    cache = None if tool.cache_control is NOTHING else read(decode_cache, tool.cache_control, where)
    return [{"toolSpec": made}, *([] if cache is None else [encode_cache_point(cache, where)])]


def _encode_choice(choice: ToolChoice) -> Tool | None:
    if choice.name is not None:
        return {"tool": {"name": choice.name}}
    if choice.mode is None:
        return None
    if choice.mode not in _MODES:
        raise refuse("tool_choice", f"there is no {choice.mode!r}; there are none, {', '.join(_MODES)}")
    return _MODES[choice.mode]
