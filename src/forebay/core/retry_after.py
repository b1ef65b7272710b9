"""When a target asks to be asked again, from the headers of its refusal.  Pure: the time is an argument.

It reads all forms that are in use: `Retry-After` in seconds, decimals or as an HTTP date (RFC 9110, 10.2.3),
`retry-after-ms` (OpenAI's and Azure's clients), `x-ratelimit-reset-*` as OpenAI gives it (`1s`, `6m0s`,
`120ms`), and `anthropic-ratelimit-*-reset` as a time of RFC 3339.  What is no such thing says nothing.
"""

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

MAX_S: Final = 86_400  #: more than a day is a day
_NUMBER: Final = re.compile(rb"\d{1,64}(?:\.\d{1,64})?")
_SPAN: Final = re.compile(rb"(?:\d{1,9}(?:\.\d{1,9})?(?:ms|us|h|m|s|d))+")
_PART: Final = re.compile(rb"(\d{1,9}(?:\.\d{1,9})?)(ms|us|h|m|s|d)")
_UNITS: Final = {b"us": 1e-6, b"ms": 1e-3, b"s": 1.0, b"m": 60.0, b"h": 3600.0, b"d": 86_400.0}
_LONGEST: Final = 64  #: bytes of a value that is looked at
_RESET: Final = re.compile(rb"(?:x|anthropic)-ratelimit-(?:reset-([a-z-]{1,40})|([a-z-]{1,40})-reset)")
_TRIED: Final = 64  #: headers that are looked at for one of those


def read_retry_after(status: int, headers: Mapping[bytes, bytes], wall_s: float) -> bytes:
    """Whole seconds, rounded up, as digits; empty where the headers do not say.

    Args:
        status: of the answer; quotas that are used up explain a 429 alone.
        headers: as sent.
        wall_s: Unix time, for dates; an answer's own `Date` goes before it, for clocks differ.
    """
    found = {name.lower(): value.strip()[:_LONGEST] for name, value in list(headers.items())[:_TRIED]}
    seconds = _read(found, wall_s)
    if seconds is None and status == 429:
        resets = [_read_reset(found, name, value, wall_s) for name, value in found.items()]
        seconds = max((each for each in resets if each is not None), default=None)
    return b"" if seconds is None else b"%d" % min(MAX_S, max(0, math.ceil(seconds)))


def _read(headers: Mapping[bytes, bytes], wall_s: float) -> float | None:
    exact = headers.get(b"retry-after-ms", b"")
    if _NUMBER.fullmatch(exact):
        return float(exact) / 1000
    plain = headers.get(b"retry-after", b"")
    if _NUMBER.fullmatch(plain):
        return float(plain)
    if plain:
        date = read_http_date(plain)
        if date is None:
            return None if not _SPAN.fullmatch(plain) else _read_span(plain)
        sent = read_http_date(headers.get(b"date", b""))
        return date - (wall_s if sent is None else sent)
    return None


def _read_reset(headers: Mapping[bytes, bytes], name: bytes, value: bytes, wall_s: float) -> float | None:
    """Of one quota, unless it has something left, for then it is not what refused."""
    found = _RESET.fullmatch(name)
    if found is None:
        return None
    left = name.replace(b"reset", b"remaining")
    return None if headers.get(left, b"0") != b"0" else read_reset_s(value, wall_s)


def read_reset_s(value: bytes, wall_s: float) -> float | None:
    """Seconds until a time, in any form in which providers give the reset of a quota."""
    if _NUMBER.fullmatch(value):
        seconds = float(value)
        return seconds if seconds < 1e9 else seconds - wall_s  # some give a Unix time
    if _SPAN.fullmatch(value):
        return _read_span(value)
    try:
        at = datetime.fromisoformat(value.decode("ascii"))
    except ValueError:
        return None
    return None if at.tzinfo is None else at.timestamp() - wall_s


def _read_span(value: bytes) -> float:
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(value))


def read_http_date(value: bytes) -> float | None:
    """As Unix time; None where it is none."""
    try:
        at = parsedate_to_datetime(value.decode("ascii"))
    except (ValueError, IndexError, OverflowError):
        return None
    return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp()
