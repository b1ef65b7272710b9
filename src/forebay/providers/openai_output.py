"""How long an answer may become by its request's own words, for reservations.  Pure.

It refuses nothing: what can't be read says nothing, and the engine will tell the caller.
"""

import msgspec

from forebay.providers.json_edit import NOTHING, UNREADABLE

COUNT_MAX = 10**9  #: more than this nobody means


class _Wanted(msgspec.Struct, frozen=True):
    """Kept as bytes: a field of the wrong type must not hide the others."""

    max_tokens: msgspec.Raw = NOTHING
    max_completion_tokens: msgspec.Raw = NOTHING
    n: msgspec.Raw = NOTHING


_decode = msgspec.json.Decoder(_Wanted).decode


def read_output_max(body: bytes) -> int | None:
    """The most tokens that all choices of the answer may have together, None where the request names none."""
    try:
        wanted = _decode(body)
    except UNREADABLE:
        return None
    named = [_read_count(wanted.max_tokens), _read_count(wanted.max_completion_tokens)]
    tokens = max((count for count in named if count is not None), default=None)
    if tokens is None:
        return None
    return min(COUNT_MAX, tokens * max(1, _read_count(wanted.n) or 1))


def _read_count(raw: msgspec.Raw) -> int | None:
    text = bytes(raw)
    return int(text) if text.isdigit() and len(text) < 12 else None
