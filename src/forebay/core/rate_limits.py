"""How much of a provider's quota is used up, from the headers of any of its answers.  Pure.

It reads `x-ratelimit-limit-*`, `-remaining-*` and `-reset-*` as OpenAI, Azure and those who follow them give
them, and `anthropic-ratelimit-*-limit`, `-remaining` and `-reset`; of several quotas the one that is used up
the most.  What is no such thing, or says no more than a part of it, says nothing.
"""

import re
from collections.abc import Mapping
from typing import Final

from forebay.core.retry_after import MAX_S, read_http_date, read_reset_s

RESET_GUESS_S: Final = 60.0  #: of a quota that does not say when it is whole again: they are by the minute
_LEFT: Final = re.compile(
    rb"(?:x-ratelimit-remaining-([a-z-]{1,40})|anthropic-ratelimit-([a-z-]{1,40})-remaining)"
)
_DIGITS_MAX: Final = 15
_LONGEST: Final = 64  #: bytes of a value that is looked at
_TRIED: Final = 64  #: headers that are looked at


def read_quota_used(headers: Mapping[bytes, bytes], wall_s: float) -> tuple[float, float] | None:
    """The used share, from 0 to 1, and the seconds until all of it is there again; None if nobody says.

    Args:
        headers: as sent.
        wall_s: Unix time, for dates; an answer's own `Date` goes before it, for clocks differ.
    """
    found = {name.lower(): value.strip()[:_LONGEST] for name, value in list(headers.items())[:_TRIED]}
    sent = read_http_date(found.get(b"date", b""))
    now = wall_s if sent is None else sent
    uses = [_read(found, name, now) for name in found if b"remaining" in name]
    return max((each for each in uses if each is not None), default=None)


def _read(headers: Mapping[bytes, bytes], name: bytes, wall_s: float) -> tuple[float, float] | None:
    if _LEFT.fullmatch(name) is None:
        return None
    most = _read_count(headers.get(name.replace(b"remaining", b"limit"), b""))
    left = _read_count(headers[name])
    if not most or left is None:
        return None
    reset_s = read_reset_s(headers.get(name.replace(b"remaining", b"reset"), b""), wall_s)
    if reset_s is None:
        reset_s = RESET_GUESS_S
    return max(0.0, 1 - left / most), min(float(MAX_S), max(0.0, reset_s))


def _read_count(value: bytes) -> int | None:
    return int(value) if value.isdigit() and len(value) <= _DIGITS_MAX else None
