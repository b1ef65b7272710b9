"""Whether a request's `tool_choice` forces a call, in whichever dialect it says so.  Pure.

Chat, Responses and Anthropic's messages have the field of the same name, and no word of one means anything
else in another, so that one reader serves all three.  What is to be called is not decided here.
"""

from typing import Final

import msgspec

from forebay.providers.json_edit import NOTHING, UNREADABLE

#: The common answers, by their bytes.
_FREE: Final = frozenset((b"", b"null", b'"auto"', b'"none"'))
_FREE_TYPES: Final = frozenset({"auto", "none"})
_REQUIRED: Final = "required"


class _Allowed(msgspec.Struct, frozen=True):
    mode: str = "auto"


class _Choice(msgspec.Struct, frozen=True):
    type: str = "auto"
    mode: str = "auto"  # of `allowed_tools` in Responses
    allowed_tools: _Allowed | None = None  # in chat


_decode_choice = msgspec.json.Decoder(str | _Choice | None).decode


def is_forced(raw: msgspec.Raw) -> bool:
    """Whether the model has to call a tool.  What can't be read forces nothing: the target will say so."""
    if raw is NOTHING or bytes(raw) in _FREE:
        return False
    try:
        choice = _decode_choice(raw)
    except UNREADABLE:
        return False
    if choice is None or isinstance(choice, str):
        return bool(choice == _REQUIRED)
    if choice.type == "allowed_tools":
        allowed = choice.allowed_tools
        mode = choice.mode if allowed is None else allowed.mode
        return bool(mode == _REQUIRED)
    return choice.type not in _FREE_TYPES
