"""`reasoning` in a request of OpenAI's chat, for translators that know `reasoning_effort`.  Pure.

It is the parameter of OpenAI's Responses, which many clients send to chat as well.  `effort` says what
`reasoning_effort` says, and that goes before it; `summary` asks for what is told anyway.
"""

from typing import Final, Protocol, TypeVar

import msgspec

from forebay.providers.json_edit import NOTHING
from forebay.providers.strict_fields import check_known, read, read_fields

_KNOWN: Final = frozenset({"effort", "summary"})


class Reasons(Protocol):
    """What a translator reads of a request."""

    @property
    def reasoning_effort(self) -> str | None: ...
    @property
    def reasoning(self) -> msgspec.Raw: ...


class _Reasoning(msgspec.Struct, frozen=True):
    effort: str | None = None
    summary: str | None = None


_decode_reasoning = msgspec.json.Decoder(_Reasoning).decode
Chat = TypeVar("Chat", bound=Reasons)


def settle_effort(chat: Chat, dialect: str) -> Chat:
    """The request with one word for effort.

    Args:
        dialect: of the target, for messages.

    Raises:
        InvalidValue: `reasoning` asks for more than effort and a summary.
    """
    raw = chat.reasoning
    if raw is NOTHING or bytes(raw) == b"null":
        return chat
    check_known(read_fields(raw, "reasoning"), _KNOWN, "reasoning", dialect)
    effort = read(_decode_reasoning, raw, "reasoning").effort
    if effort is None or chat.reasoning_effort is not None:
        return chat
    return msgspec.structs.replace(chat, reasoning_effort=effort)  # type: ignore[type-var]
