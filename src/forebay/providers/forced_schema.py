"""The JSON schema that an answer follows where it has to be a call of a tool.  Pure.

One call is `{"name": ..., "arguments": {...}}`, whose name comes first, so that it is known before arguments
flow; several are a list of them.  What an engine would hang at is refused here, and where a tool is `strict`,
what an engine would pass over.
"""

import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from forebay.providers.chat_tools import Function, FunctionTool
from forebay.providers.strict_fields import refuse

CALLS_MAX: Final = 16  #: in one answer
NAME_MAX: Final = 256  #: characters of a tool's name
DEPTH_MAX: Final = 64  #: of a schema
REPEATS_MAX: Final = 2_000  #: pieces that a pattern may stand for once its repetitions are written out
_COUNTED_MAX: Final = 10**9  #: of one piece: a count of more digits with each repetition takes hours
_REPEAT: Final = re.compile(r"\{(\d*)(?:(,)(\d*))?\}")
#: Their values are the caller's data, whatever they look like.
_VALUES: Final = frozenset({"const", "default", "enum", "example", "examples"})
#: Keywords that llama.cpp reads over: what they say would not hold.
_UNENFORCED: Final = frozenset(
    {"contains", "dependentRequired", "dependentSchemas", "else", "if", "multipleOf", "not"}
    | {"patternProperties", "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties"}
    | {"uniqueItems"}
)
_NO_ARGUMENTS: Final[dict[str, Any]] = {"type": "object", "properties": {}, "additionalProperties": False}


def build_schema(tools: Sequence[FunctionTool], *, is_parallel: bool) -> dict[str, Any]:
    """What the answer has to follow.

    Args:
        tools: those that may be called, one at least.
        is_parallel: whether there may be several calls.

    Raises:
        InvalidValue: a tool's schema can't be enforced.
    """
    defs: dict[str, Any] = {}
    calls = [_build_call(tool, at, defs) for at, tool in enumerate(tools)]
    schema: dict[str, Any] = calls[0] if len(calls) == 1 else {"anyOf": calls}
    if is_parallel:
        schema = {"type": "array", "minItems": 1, "maxItems": CALLS_MAX, "items": schema}
    return schema | ({"$defs": defs} if defs else {})


def _build_call(tool: FunctionTool, at: int, defs: dict[str, Any]) -> dict[str, Any]:
    """Of one tool.  Where its schema refers to itself, it goes to `defs`, and its references go with it."""
    function = tool.function
    if not 0 < len(function.name) <= NAME_MAX:
        raise refuse(f"{tool.where}.function.name", f"it must have 1 to {NAME_MAX} characters")
    place = f"{tool.where}.function.parameters"
    arguments = _read_parameters(function, place)
    walk = _Walk(f"tool_{at}", place, is_strict=function.strict is True)
    arguments = walk.copy(arguments, 0)
    if walk.has_references:
        defs[walk.name] = arguments
        arguments = {"$ref": f"#/$defs/{walk.name}"}
    return {
        "type": "object",
        "properties": {"name": {"const": function.name}, "arguments": arguments},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _read_parameters(function: Function, place: str) -> dict[str, Any]:
    if not function.parameters:
        return _NO_ARGUMENTS
    schema: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(function.schema))
    if schema["type"] != "object":
        raise refuse(f"{place}.type", "arguments are an object, so that it must be object")
    return schema


class _Walk:
    """Copies one tool's schema, with references that still hold where the copy will stand.

    Args:
        name: of the copy among the definitions.
        place: of the original in the request.
    """

    def __init__(self, name: str, place: str, *, is_strict: bool) -> None:
        self.name = name
        self.has_references = False
        self._place = place
        self._is_strict = is_strict

    def copy(self, value: Any, depth: int) -> Any:
        """Of a schema, or of a part of one.  Raises InvalidValue."""
        if depth > DEPTH_MAX:
            raise refuse(self._place, f"it is nested deeper than {DEPTH_MAX} levels")
        if isinstance(value, list):
            return [self.copy(each, depth + 1) for each in value]
        if not isinstance(value, dict):
            return value
        return {key: self._copy_field(key, each, depth + 1) for key, each in value.items()}

    def _copy_field(self, key: str, value: Any, depth: int) -> Any:
        if key in _VALUES and not isinstance(value, dict):
            return value
        if key == "properties" and isinstance(value, dict):  # whose names are no keywords
            return {name: self.copy(each, depth + 1) for name, each in value.items()}
        if key == "$ref" and isinstance(value, str):
            return self._move(value)
        if key == "pattern" and isinstance(value, str):
            self._check_pattern(value)
        if self._is_strict and key in _UNENFORCED:
            raise refuse(
                self._place,
                f"the tool is `strict`, and the engine of this model does not enforce `{key}`; leave one out",
            )
        return self.copy(value, depth)

    def _move(self, reference: str) -> str:
        if not reference.startswith("#"):
            raise refuse(self._place, f"`$ref` {reference!r} leads out of the schema; put it under `$defs`")
        self.has_references = True
        return f"#/$defs/{self.name}{reference[1:]}"

    def _check_pattern(self, pattern: str) -> None:
        if count_repeats(pattern) > REPEATS_MAX:
            raise refuse(
                self._place,
                f"the pattern {pattern[:80]!r} stands for more than {REPEATS_MAX} pieces once its "
                "repetitions are written out, at which the engine of this model would hang; repeat less",
            )
        is_whole = pattern.startswith("^") and pattern.endswith("$") and "(?" not in pattern
        if self._is_strict and not is_whole:
            raise refuse(
                self._place,
                f"the tool is `strict`, and the engine of this model enforces patterns from ^ to $ without "
                f"(?...) alone, not {pattern[:80]!r}",
            )


def count_repeats(pattern: str) -> int:
    """How many pieces a regular expression has with its repetitions written out, roughly."""
    sums, last, at = [0], 0, 0  # of the groups that are open; the piece before; where we are
    while at < len(pattern):
        char = pattern[at]
        repeat = _REPEAT.match(pattern, at) if char == "{" else None
        if repeat is not None:
            least, _, most = repeat.groups()
            times = int((most or least or "1")[:9])
            sums[-1] += last * max(times - 1, 0)
            last = min(last * times, _COUNTED_MAX)
            at = repeat.end()
            continue
        if char == "(":
            sums.append(0)
        elif char == ")" and len(sums) > 1:
            last = min(sums.pop(), _COUNTED_MAX)
            sums[-1] += last
        elif char == "[":
            at = _end_of_class(pattern, at)
            last = 1
            sums[-1] += 1
        elif char not in "*+?|^$":
            at += char == "\\"
            last = 1
            sums[-1] += 1
        at += 1
    return sum(sums)


def _end_of_class(pattern: str, at: int) -> int:
    """The place of the bracket that closes the class whose bracket is at `at`."""
    at += 2 if pattern[at + 1 : at + 2] in ("]", "^") else 1
    while at < len(pattern) and pattern[at] != "]":
        at += 2 if pattern[at] == "\\" else 1
    return at
