"""Errors in Anthropic's dialect: its envelope, and which of its types stands for which status.  Pure."""

import msgspec

from forebay.core.errors import ForebayError
from forebay.providers.json_edit import NOTHING, UNREADABLE

STATUS_UNKNOWN = 502
TYPE_BY_STATUS = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    504: "timeout_error",
    529: "overloaded_error",
}
STATUS_BY_TYPE = {kind: status for status, kind in TYPE_BY_STATUS.items() if status != 408}


class _Envelope(msgspec.Struct, frozen=True):
    error: msgspec.Raw


class _Reason(msgspec.Struct, frozen=True):
    type: msgspec.Raw = NOTHING


_decode_envelope = msgspec.json.Decoder(_Envelope).decode
_decode_reason = msgspec.json.Decoder(_Reason).decode


def find_type(status: int, openai_type: str = "") -> str:
    """The type of an error that is told with a status, of an error that OpenAI would call so."""
    if openai_type == "overloaded_error":
        return openai_type
    return TYPE_BY_STATUS.get(status, "invalid_request_error" if status < 500 else "api_error")


def encode_error(error: ForebayError) -> bytes:
    """The envelope of an answer."""
    reason = {"type": find_type(error.status, error.type), "message": error.message}
    return msgspec.json.encode({"type": "error", "error": reason})


def encode_error_event(error: ForebayError) -> bytes:
    """The error as an event inside a stream that has already begun."""
    return b"event: error\ndata: " + encode_error(error) + b"\n\n"


def wrap_error(error: bytes) -> bytes:
    """The envelope around an error object."""
    return b'{"type":"error","error":' + error + b"}"


def read_error(body: bytes) -> bytes | None:
    """The error object of an answer in this dialect's envelope, None where it is in none."""
    try:
        error = bytes(_decode_envelope(body).error)
    except UNREADABLE:
        return None
    return error if error[:1] == b"{" else None


def read_error_status(error: bytes) -> int:
    """The HTTP status that fits an error object, for one that came where no status could; 502 for others."""
    try:
        kind = bytes(_decode_reason(error).type).strip(b'"').decode("utf-8", "replace")
    except UNREADABLE:
        return STATUS_UNKNOWN
    return STATUS_BY_TYPE.get(kind, STATUS_UNKNOWN)
