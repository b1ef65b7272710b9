"""The setting `usage` of a target in `forebay.yaml`: rules by which its answers are counted.

For providers that report what the dialect does not know: each rule says where in an answer a number stands,
and what it is.  Pure; `config_model` puts it in its place.
"""

import re
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, ConfigDict, Field, WithJsonSchema

from forebay.app.config_values import Section
from forebay.core.events import Tokens
from forebay.core.pointers import LENGTH_MAX, parse_pointer
from forebay.core.usage_rules import UsageRule

RULES_MAX: Final = 16  #: for a target
_UNIT: Final = r"[a-z][a-z0-9_]{0,39}"


def _check_pointer(text: str) -> str:
    try:
        steps = parse_pointer(text)
    except ValueError as error:
        raise ValueError(f"not a JSON Pointer (RFC 6901): it {error}") from None
    if not steps:
        raise ValueError("the whole answer is no number: name a place in it, such as /usage/prompt_tokens")
    return text


def _check_class(name: str) -> str:
    if name not in Tokens.__struct_fields__:
        raise ValueError(f"no class of tokens; the classes are {', '.join(Tokens.__struct_fields__)}")
    return name


def _check_unit(name: str) -> str:
    if not re.fullmatch(_UNIT, name):
        raise ValueError("a unit is named with at most 40 small letters, digits and _, the first a letter")
    if name in Tokens.__struct_fields__:
        raise ValueError(f"the name of a class of tokens; write `class: {name}` for these")
    return name


Pointer = Annotated[
    str,
    AfterValidator(_check_pointer),
    WithJsonSchema({"type": "string", "pattern": "^(/([^~]|~[01])*)$", "maxLength": LENGTH_MAX}),
]
TokenClass = Annotated[
    str,
    AfterValidator(_check_class),
    WithJsonSchema({"type": "string", "enum": list(Tokens.__struct_fields__)}),
]
UnitName = Annotated[
    str, AfterValidator(_check_unit), WithJsonSchema({"type": "string", "pattern": f"^{_UNIT}$"})
]


class UsageRuleConfig(Section):
    """Where in an answer a number stands, and what it counts: a class of tokens or a unit of its own."""

    model_config = ConfigDict(
        serialize_by_alias=True,
        json_schema_extra={"oneOf": [{"required": ["class"]}, {"required": ["unit"]}]},
    )

    class_: TokenClass | None = Field(
        default=None,
        alias="class",
        description="Class of tokens that it counts: "
        + ", ".join(f"`{name}`" for name in Tokens.__struct_fields__)
        + ".",
    )
    unit: UnitName | None = Field(
        default=None,
        description="Unit that it counts, such as `searches`; `usd_per_unit` of a price charges it.",
    )
    pointer: Pointer = Field(
        description="Where it stands in an answer, or in an event of a stream, as a JSON Pointer (RFC 6901) "
        "such as `/usage/prompt_cache_hit_tokens`."
    )
    included_in: Literal["input", "output"] | None = Field(
        default=None,
        description="The class whose number includes it, and from which it is taken out; null where it is "
        "counted beside.",
    )

    def compile(self) -> UsageRule:
        return UsageRule(
            name=self.class_ or self.unit or "",
            steps=parse_pointer(self.pointer),
            is_unit=self.unit is not None,
            is_included=self.included_in is not None,
        )
