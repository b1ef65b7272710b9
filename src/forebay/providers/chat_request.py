"""The parameters of a request of OpenAI's chat that every target reads, beside messages and tools.  Pure.

What a target makes of them, and which others it knows or refuses, is said by its own module.
"""

from collections.abc import Collection
from typing import Any

import msgspec

from forebay.core.errors import MissingField
from forebay.providers.json_edit import NOTHING
from forebay.providers.strict_fields import Fields, Refused, check_known, check_refused, read_body, refuse


class Schema(msgspec.Struct, frozen=True):
    name: str | None = None
    description: str | None = None
    schema: dict[str, msgspec.Raw] | None = None

    @property
    def described(self) -> dict[str, Any]:
        """The schema, with the description inside."""
        schema: dict[str, Any] = dict(self.schema or {})
        if self.description is not None:
            schema.setdefault("description", self.description)
        return schema


class Format(msgspec.Struct, frozen=True):
    type: str
    json_schema: Schema | None = None


class ChatRequest(msgspec.Struct, frozen=True):
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop: str | list[str] | None = None
    response_format: Format | None = None
    reasoning_effort: str | None = None
    reasoning: msgspec.Raw = NOTHING
    service_tier: str | None = None

    @property
    def limit(self) -> int | None:
        """Of the output; the newer name goes before the older."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop or []


def open_request(body: bytes, known: Collection[str], refused: Refused, target: str) -> Fields:
    """The fields of a request in which nothing is passed over.

    Args:
        known: all that the target's module knows of, also what it refuses.
        target: what errors call the dialect.

    Raises:
        InvalidJSON, InvalidValue, MissingField.
    """
    fields = read_body(body)
    check_known(fields, known, "", target)
    check_refused(fields, refused, "", target)
    if "messages" not in fields:
        raise MissingField("the request has no `messages`", param="messages")
    return fields


def keep_said(fields: dict[str, Any]) -> dict[str, Any]:
    """Those that are not None."""
    return {name: value for name, value in fields.items() if value is not None}


def read_schema(wanted: Format | None, refusal: str) -> Schema | None:
    """The schema that the output is to follow, None where it is to be text.

    Args:
        refusal: what is said of another type, with its name in braces.

    Raises:
        InvalidValue: it is neither, or has no schema.
    """
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type != "json_schema":
        raise refuse("response_format.type", refusal.format(repr(wanted.type)))
    if wanted.json_schema is None or wanted.json_schema.schema is None:
        raise refuse("response_format.json_schema.schema", "it is missing")
    return wanted.json_schema
