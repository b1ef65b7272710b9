"""What a line of an input file must be, and what one of an output file looks like.  Pure.

A line is a request of its own: it has a name that no other line has, and all go to the batch's endpoint.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from forebay.batch.model import LineError
from forebay.batch.policy import STOP_WORDS, Reply, Stop

CUSTOM_ID_MAX_CHARS: Final = 512
_LOST: Final = "request_failed"
#: What a decoder raises at what is no JSON, or is nested deeper than it reads.
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Line(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of an input file."""

    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


class _Body(msgspec.Struct, frozen=True, kw_only=True):
    model: str
    stream: bool | None = None


#: Why a key may not ask a model at an endpoint: code, words; None where it may.
Explain = Callable[[str], tuple[str, str] | None]

_decode_line = msgspec.json.Decoder(Line).decode
_decode_body = msgspec.json.Decoder(_Body).decode


class Checker:
    """Looks at the lines of one file, one after the other.

    Args:
        endpoint: of the batch.
        explain: what the key may call.
    """

    def __init__(self, endpoint: str, explain: Explain) -> None:
        self._endpoint = endpoint
        self._explain = explain
        self._names: dict[str, int] = {}
        self._models: dict[str, tuple[str, str] | None] = {}

    def check(self, number: int, data: bytes) -> LineError | None:
        """What is wrong with a line, None where it may be asked."""
        try:
            line = _decode_line(data)
        except msgspec.ValidationError as error:
            return LineError(
                "invalid_request", f"the line is no request: {error}", number, _find_param(error)
            )
        except _UNREADABLE as error:
            return _explain_unreadable(error, number)
        if not 0 < len(line.custom_id) <= CUSTOM_ID_MAX_CHARS:
            words = f"custom_id must have 1 to {CUSTOM_ID_MAX_CHARS} characters"
            return LineError("invalid_custom_id", words, number, "custom_id")
        first = self._names.setdefault(line.custom_id, number)
        if first != number:
            words = f"custom_id {line.custom_id[:100]!r} stands in line {first} already; each must be unique"
            return LineError("duplicate_custom_id", words, number, "custom_id")
        if line.method != "POST":
            return LineError("invalid_method", "method must be POST", number, "method")
        if line.url != self._endpoint:
            words = f"url is {line.url[:100]!r}; it must be the batch's endpoint, {self._endpoint}"
            return LineError("invalid_url", words, number, "url")
        return self._check_body(number, line.body)

    def _check_body(self, number: int, raw: msgspec.Raw) -> LineError | None:
        try:
            body = _decode_body(raw)
        except msgspec.ValidationError as error:
            words = f"body is no request: {error}"
            return LineError("invalid_request", words, number, _find_param(error, "body"))
        except _UNREADABLE as error:  # texts are read only where somebody wants them
            return _explain_unreadable(error, number)
        if body.stream:
            return LineError("invalid_request", "a batch has no streams", number, "body.stream")
        if body.model not in self._models:
            self._models[body.model] = self._explain(body.model)
        found = self._models[body.model]
        return None if found is None else LineError(found[0], found[1], number, "body.model")


def read_body(data: bytes) -> tuple[str, bytes]:
    """The name of a line that was checked, and the body of its request."""
    line = _decode_line(data)
    return line.custom_id, bytes(line.body)


def name_line(batch_id: str, number: int) -> str:
    """The id of a line's answer: the same whenever it is asked."""
    return f"batch_req_{batch_id.removeprefix('batch_')}_{number}"


class _Named(msgspec.Struct):
    id: str


_decode_named = msgspec.json.Decoder(_Named).decode


def read_number(data: bytes) -> int:
    """Which line of the input an answer is of.  Raises ValueError, msgspec.MsgspecError."""
    return int(_decode_named(data).id.rpartition("_")[2])


def write_reply(batch_id: str, number: int, custom_id: str, reply: Reply) -> bytes:
    """A line of an output file, or of an error file where the answer is an error."""
    response = error = None
    if reply.status:
        response = {
            "status_code": reply.status,
            "request_id": reply.request_id,
            "body": _fit_body(reply.body),
        }
    else:
        error = {"code": _LOST, "message": reply.error or "the gateway gave no answer"}
    return _write(batch_id, number, custom_id, response, error)


def write_stop(batch_id: str, number: int, custom_id: str, stop: Stop) -> bytes:
    """A line of an error file for a request that was not asked."""
    return _write(batch_id, number, custom_id, None, {"code": stop.value, "message": STOP_WORDS[stop]})


def _write(
    batch_id: str,
    number: int,
    custom_id: str,
    response: dict[str, object] | None,
    error: dict[str, str] | None,
) -> bytes:
    line = {
        "id": name_line(batch_id, number),
        "custom_id": custom_id,
        "response": response,
        "error": error,
    }
    return msgspec.json.encode(line) + b"\n"


def _fit_body(body: bytes) -> object:
    """JSON as it came, in one line; what is none as a text."""
    flat = body.replace(b"\r", b" ").replace(b"\n", b" ")  # in JSON they stand between values alone
    try:
        msgspec.json.decode(flat)
    except _UNREADABLE:
        return body.decode("utf-8", "replace")
    return msgspec.Raw(flat)


def _explain_unreadable(error: Exception, number: int) -> LineError:
    why = "it is nested too deeply" if isinstance(error, RecursionError) else error
    return LineError("invalid_json_line", f"the line is not valid JSON: {why}", number)


def _find_param(error: msgspec.ValidationError, under: str = "") -> str | None:
    """The field that a message of msgspec names."""
    text = str(error)
    found = text.rpartition("`$.")[2].rstrip("`") if "`$." in text else ""
    if not found and "field `" in text:
        found = text.partition("field `")[2].partition("`")[0]
    return ".".join(filter(None, (under, found))) or None
