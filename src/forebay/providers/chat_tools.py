"""Tools of a request of OpenAI's chat, and the choice among them, read for a target that has functions alone.

Pure.  What a target makes of them is the business of its own module.
"""

from typing import Any, Final

import msgspec

from forebay.providers.json_edit import NOTHING
from forebay.providers.strict_fields import Fields, check_known, read, read_fields, refuse

_NULL: Final = msgspec.Raw(b"null")
_TOOL_FIELDS: Final = frozenset({"type", "function", "cache_control", "custom"})
_FUNCTION_FIELDS: Final = frozenset({"name", "description", "parameters", "strict"})


class Function(msgspec.Struct, frozen=True):
    name: str
    description: str | None = None
    parameters: dict[str, msgspec.Raw] | None = None
    strict: bool | None = None

    @property
    def schema(self) -> dict[str, Any]:
        """Of its arguments, which are an object whatever else is said."""
        schema: dict[str, Any] = dict(self.parameters or {})
        return schema if "type" in schema else {"type": "object"} | schema

    @property
    def head(self) -> dict[str, Any]:
        """Its name and description."""
        return {"name": self.name} | ({"description": self.description} if self.description else {})


class FunctionTool(msgspec.Struct, frozen=True):
    """A tool, and where it stands in the request."""

    function: Function
    cache_control: msgspec.Raw
    where: str


class ToolChoice(msgspec.Struct, frozen=True):
    """What is to be chosen.

    Attributes:
        mode: OpenAI's word, None where none was said or a function was named.
        name: of the one function that is to be called.
        names: of the only ones that are offered; None for all.
    """

    mode: str | None = None
    name: str | None = None
    names: frozenset[str] | None = None

    def offers(self, name: str) -> bool:
        return self.names is None or name in self.names


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
_decode_function = msgspec.json.Decoder(Function).decode
_decode_choice = msgspec.json.Decoder(str | _Choice | None).decode
_decode_flag = msgspec.json.Decoder(bool | None).decode


def list_tools(fields: Fields) -> list[msgspec.Raw]:
    """The tools as they were sent."""
    return read(_decode_list, fields.get("tools", _NULL), "tools") or []


def read_tools(fields: Fields, target: str) -> list[FunctionTool]:
    """The functions.  Raises InvalidValue on what is none.

    Args:
        target: what the error calls the dialect.
    """
    return [_read_tool(raw, f"tools[{at}]", target) for at, raw in enumerate(list_tools(fields))]


def read_choice(fields: Fields, target: str) -> ToolChoice:
    """`tool_choice`.  Raises InvalidValue; whether the mode is one is for the target's module to say."""
    choice = read(_decode_choice, fields.get("tool_choice", _NULL), "tool_choice")
    if choice is None:
        return ToolChoice()
    if isinstance(choice, str):
        return ToolChoice(mode=choice)
    if choice.type == "allowed_tools" and choice.allowed_tools is not None:
        where = "tool_choice.allowed_tools.tools"
        names = frozenset(_read_name(tool, where, target) for tool in choice.allowed_tools.tools)
        return ToolChoice(mode=choice.allowed_tools.mode, names=names)
    return ToolChoice(name=_read_name(choice, "tool_choice", target))


def read_parallel(fields: Fields) -> bool | None:
    """`parallel_tool_calls`."""
    return read(_decode_flag, fields.get("parallel_tool_calls", _NULL), "parallel_tool_calls")


def _read_tool(raw: msgspec.Raw, where: str, target: str) -> FunctionTool:
    check_known(read_fields(raw, where), _TOOL_FIELDS, where, target)
    tool = read(_decode_tool, raw, where)
    if tool.type != "function" or tool.function is NOTHING:
        raise refuse(f"{where}.type", f"{target} takes tools of type function, not {tool.type!r}")
    place = f"{where}.function"
    check_known(read_fields(tool.function, place), _FUNCTION_FIELDS, place, target)
    function = read(_decode_function, tool.function, place)
    return FunctionTool(function=function, cache_control=tool.cache_control, where=where)


def _read_name(choice: _Choice, where: str, target: str) -> str:
    if choice.type != "function" or choice.function is None:
        raise refuse(f"{where}.type", f"{target} knows functions alone, not {choice.type!r}")
    return choice.function.name
