"""Google's errors (`google.rpc.Status`) as OpenAI's, in Google's words.  Pure.

Source: Gemini API docs, "API errors"; google.rpc `Code`, `ErrorInfo`, `RetryInfo`.
"""

import math
import re
from typing import Final

import msgspec

from forebay.providers.json_edit import UNREADABLE

#: OpenAI's type and code by the name of Google's.
_KINDS: Final[dict[str, tuple[str, str | None]]] = {
    "INVALID_ARGUMENT": ("invalid_request_error", None),
    "FAILED_PRECONDITION": ("invalid_request_error", None),
    "OUT_OF_RANGE": ("invalid_request_error", None),
    "UNAUTHENTICATED": ("authentication_error", "invalid_api_key"),
    "PERMISSION_DENIED": ("permission_error", None),
    "NOT_FOUND": ("not_found_error", "model_not_found"),
    "RESOURCE_EXHAUSTED": ("rate_limit_error", "rate_limit_exceeded"),
    "UNAVAILABLE": ("overloaded_error", None),
    "DEADLINE_EXCEEDED": ("timeout_error", None),
    "INTERNAL": ("api_error", None),
    "UNKNOWN": ("api_error", None),
}
_NAMES: Final = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_BAD_KEY: Final = frozenset({"API_KEY_INVALID", "API_KEY_EXPIRED"})
#: How Google says that a prompt is too long; OpenAI has a code for it.
_TOO_LONG: Final = re.compile(
    r"input (?:token count|context is too long)|exceeds the maximum number of tokens"
)
_DELAY: Final = re.compile(r"(\d{1,9}(?:\.\d+)?)s")


class _Detail(msgspec.Struct, frozen=True, rename="camel"):
    reason: str | None = None
    retry_delay: str | None = None


class Status(msgspec.Struct, frozen=True):
    message: str = ""
    code: int | None = None
    status: str | None = None
    details: list[_Detail] | None = None


class _Envelope(msgspec.Struct, frozen=True):
    error: Status


_decode_envelope = msgspec.json.Decoder(_Envelope).decode
_decode_envelopes = msgspec.json.Decoder(list[_Envelope]).decode
_decode_status = msgspec.json.Decoder(Status).decode


def decode_error(status: int, body: bytes) -> bytes:
    """OpenAI's error from an answer with that status."""
    error = _read(body)
    if error is None:
        error = Status(f"The upstream answered with status {status}, and no error in Google's dialect.")
        return msgspec.json.encode({"error": _describe(error, "upstream_error", None)})
    return msgspec.json.encode({"error": describe_error(error, status)})


def describe_error(error: Status, status: int | None = None) -> dict[str, str | None]:
    """OpenAI's error object.

    Args:
        status: the answer's, where it is not in the error itself.
    """
    number = error.code or status or 0
    kind, code = _KINDS.get(error.status or _NAMES.get(number, ""), ("upstream_error", None))
    if _is_bad_key(error):
        kind, code = _KINDS["UNAUTHENTICATED"]
    elif number == 402:
        code = "insufficient_quota"
    elif kind == "invalid_request_error" and _TOO_LONG.search(error.message):
        code = "context_length_exceeded"
    return _describe(error, kind, code)


def read_error(raw: msgspec.Raw) -> Status:
    """The error inside an event of a stream."""
    try:
        return _decode_status(raw)
    except UNREADABLE:
        return Status("The upstream's stream ended with an error that says nothing.")


def read_status(status: int, body: bytes) -> int:
    """The status that says whose fault it is: Google answers 400 to a key that is not valid."""
    error = _read(body) if status == 400 else None
    return 401 if error is not None and _is_bad_key(error) else status


def read_retry_after_s(body: bytes) -> int | None:
    """Whole seconds until it may be tried again, as `RetryInfo` says; None where it doesn't."""
    error = _read(body)
    for detail in (error.details if error is not None else None) or ():
        found = _DELAY.fullmatch(detail.retry_delay or "")
        if found is not None:
            return math.ceil(float(found[1]))
    return None


def _read(body: bytes) -> Status | None:
    """The error of an answer; a stream's comes in a list."""
    try:
        return _decode_envelope(body).error
    except UNREADABLE:
        pass
    try:
        envelopes = _decode_envelopes(body)
    except UNREADABLE:
        return None
    return envelopes[0].error if envelopes else None


def _is_bad_key(error: Status) -> bool:
    return any(detail.reason in _BAD_KEY for detail in error.details or ())


def _describe(error: Status, kind: str, code: str | None) -> dict[str, str | None]:
    message = error.message or f"The upstream says {error.status or 'that it failed'}, and nothing more."
    return {"message": message, "type": kind, "param": None, "code": code}
