"""The OpenAI dialect, pure: what a request asks for, what an answer cost, how an error reads.

Requests and answers pass through as bytes.  This module reads the few fields that a decision needs, sets the
model's name where a target knows it by another, asks for usage in streams, and turns usage into disjoint
token classes.  It must never drop or invent a field.
"""

import msgspec

from forebay.core.errors import ForebayError, InvalidJSON, InvalidValue, MissingField
from forebay.core.events import Tokens
from forebay.core.filler import Opening
from forebay.core.routes import Endpoint
from forebay.core.usage_rules import UsageRule
from forebay.providers.filler_chat import ChatFiller, takes_filler
from forebay.providers.forced_choice import is_forced
from forebay.providers.json_edit import FIELDS_MAX, NOTHING, UNREADABLE, split_fields
from forebay.providers.openai_bounds import check_context as check_context
from forebay.providers.openai_bounds import find_output_cap as find_output_cap
from forebay.providers.openai_estimate import weigh_text as weigh_text
from forebay.providers.openai_output import read_output_max as read_output_max
from forebay.providers.openai_ruled import RuledMeter
from forebay.providers.openai_ruled import read_ruled_answer as read_ruled_answer
from forebay.providers.openai_stream import StreamMeter
from forebay.providers.openai_tags import read_tags
from forebay.providers.openai_usage import estimate_tokens as estimate_tokens
from forebay.providers.openai_usage import read_usage
from forebay.providers.ruled_meter import read_by_rules as read_by_rules
from forebay.providers.ruled_meter import tap_meter as tap_meter

ERROR_START = b'{"error"'  #: how some engines begin an answer whose status says 200
KEEP_ALIVE = b": keep-alive\n\n"  #: a comment
is_foreign = False  #: no other header than those that every answer has

JOINED_MAX_BYTES = 64 * 1024  #: a body up to this size is copied where it is changed; a larger one is not

UNSET = msgspec.UNSET
Unset = msgspec.UnsetType


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = None


class RequestView(msgspec.Struct, frozen=True):
    """What policy reads of a request; everything else stays unparsed."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | Unset | None = UNSET
    metadata: msgspec.Raw = NOTHING  #: kept as bytes, because nothing is wrong with a request whose tags are
    tool_choice: msgspec.Raw = NOTHING  #: likewise

    @property
    def tags(self) -> tuple[tuple[str, str], ...]:
        """What the caller wants its record to be found by."""
        return () if self.metadata is NOTHING else read_tags(self.metadata)

    @property
    def forces_call(self) -> bool:
        """Whether the model has to call a tool."""
        return is_forced(self.tool_choice)

    @property
    def wants_usage(self) -> bool:
        """Whether the caller itself asked for the usage event of its stream."""
        options = self.stream_options
        return isinstance(options, StreamOptions) and options.include_usage is True


class CappedView(RequestView, frozen=True, kw_only=True):
    """Of a request that names no limit for its output and gets one."""

    cap_tokens: int


class AnswerView(msgspec.Struct, frozen=True):
    usage: msgspec.Raw = NOTHING


class ErrorView(msgspec.Struct, frozen=True):
    error: msgspec.Raw


class _Reason(msgspec.Struct, frozen=True):
    code: msgspec.Raw = NOTHING
    type: msgspec.Raw = NOTHING


_STATUS_UNKNOWN = 502
_STATUS_BY_WORD = {
    b"context_length_exceeded": 400,
    b"exceed_context_size_error": 400,
    b"invalid_request_error": 400,
    b"BadRequestError": 400,
    b"authentication_error": 401,
    b"invalid_api_key": 401,
    b"permission_error": 403,
    b"model_not_found": 404,
    b"not_found_error": 404,
    b"NotFoundError": 404,
    b"insufficient_quota": 429,
    b"rate_limit_error": 429,
    b"rate_limit_exceeded": 429,
    b"overloaded_error": 503,
    b"unavailable_error": 503,
}

_decode_reason = msgspec.json.Decoder(_Reason).decode
_decode_request = msgspec.json.Decoder(RequestView).decode
_decode_answer = msgspec.json.Decoder(AnswerView).decode
_decode_error = msgspec.json.Decoder(ErrorView).decode


def read_request(body: bytes) -> RequestView:
    """The view of a request's body.

    Raises:
        InvalidJSON: not JSON, or not an object.
        MissingField: no `model`.
        InvalidValue: a field that we read is of the wrong type.
    """
    try:
        view = _decode_request(body)
    except msgspec.ValidationError as error:
        raise _explain(error) from None
    except UNREADABLE as error:
        raise InvalidJSON(f"the request body is not valid JSON: {error}") from None
    if not view.model:
        raise InvalidValue("`model` is empty; GET /v1/models lists what can be called", param="model")
    return view


def _explain(error: msgspec.ValidationError) -> ForebayError:
    text = str(error)
    if text.startswith("Object missing required field"):
        return MissingField("the request names no `model`; GET /v1/models lists them", param="model")
    what, _, path = text.partition(" - at `$.")
    if not path:
        return InvalidJSON(f"the request body must be a JSON object: {what}")
    param = path.rstrip("`")
    return InvalidValue(f"`{param}` has the wrong type: {what[:1].lower()}{what[1:]}", param=param)


def cap_output(body: bytes, view: RequestView, endpoint: Endpoint, tokens_max: int) -> RequestView:
    """The view of a request whose output may have `tokens_max` tokens, all its choices together.

    Raises:
        OutputTooLong, InvalidValue, InvalidJSON: it asks for more, or says how much in no way that we read.
    """
    cap = None if endpoint is Endpoint.EMBEDDINGS else find_output_cap(body, endpoint, tokens_max)
    if cap is None:
        return view
    return CappedView(**msgspec.structs.asdict(view), cap_tokens=cap)


def write_cap(body: bytes, view: RequestView) -> bytes:
    """The body with the limit of its output that the key gives it, for who translates it; else as it is.

    Raises:
        InvalidJSON: the body has no place for it that can be found.
    """
    if type(view) is not CappedView:
        return body
    return b"".join(change_fields(body, {"max_tokens": b"%d" % view.cap_tokens}))


def encode_request(
    body: bytes, view: RequestView, endpoint: Endpoint, target_model: str
) -> bytes | list[bytes | memoryview]:
    """The bytes for a target: the caller's own, but for the model's name, the question for usage, and a limit
    of the output where the key has one and the caller named none.

    A body of more than JOINED_MAX_BYTES that has to be changed comes in pieces that lie in it, not as a copy.

    Raises:
        InvalidJSON: something has to change, and the body has no place for it that can be found.
    """
    changes: dict[str, bytes] = {}
    if type(view) is CappedView:
        # The older name in chats as well: what does not know the newer one would pass over it.
        changes["max_tokens"] = b"%d" % view.cap_tokens
    if view.model != target_model:
        changes["model"] = msgspec.json.encode(target_model)
    if view.stream and endpoint is not Endpoint.EMBEDDINGS and not view.wants_usage:
        if view.stream_options is UNSET and not changes:
            # By far the most common edit, and nothing needs to be looked up for it.
            opening = body.index(b"{") + 1
            front, rest = b'{"stream_options":{"include_usage":true},', memoryview(body)[opening:]
            return b"".join((front, rest)) if len(body) <= JOINED_MAX_BYTES else [front, rest]
        changes["stream_options"] = _ask_for_usage(body)
    if not changes:
        return body
    parts = change_fields(body, changes)
    return b"".join(parts) if len(body) <= JOINED_MAX_BYTES else parts


def change_fields(body: bytes, changes: dict[str, bytes]) -> list[bytes | memoryview]:
    """The body with these fields, in pieces that lie in it.  Raises InvalidJSON where they find no place."""
    try:
        return split_fields(body, changes)
    except msgspec.ValidationError:
        raise InvalidJSON(f"the request body has more than {FIELDS_MAX} fields at its top level") from None
    except UNREADABLE as error:
        raise InvalidJSON(f"the request body is not valid JSON: {error}") from None


class _StreamOptionsOnly(msgspec.Struct, frozen=True):
    stream_options: dict[str, msgspec.Raw] | None = None


def _ask_for_usage(body: bytes) -> bytes:
    options = msgspec.json.decode(body, type=_StreamOptionsOnly).stream_options or {}
    return msgspec.json.encode({**options, "include_usage": True})


def read_answer(body: bytes) -> Tokens | None:
    """The tokens that a whole answer reports; None where it says nothing that can be read."""
    try:
        usage = _decode_answer(body).usage
    except UNREADABLE:
        return None
    return read_usage(usage)


def new_meter(*, hide_usage: bool, event_max_bytes: int) -> StreamMeter:
    """A reader for one stream."""
    return StreamMeter(hide_usage=hide_usage, event_max_bytes=event_max_bytes)


def new_ruled_meter(rules: tuple[UsageRule, ...], *, hide_usage: bool, event_max_bytes: int) -> RuledMeter:
    """A reader for one stream of a target that has usage rules."""
    return RuledMeter(rules, hide_usage=hide_usage, event_max_bytes=event_max_bytes)


def read_error(body: bytes) -> bytes | None:
    """The error object of a target's answer in this dialect's envelope, None where it is in none."""
    try:
        error = bytes(_decode_error(body).error)
    except UNREADABLE:
        return None
    return error if error[:1] == b"{" else None


def read_error_status(error: bytes) -> int:
    """The HTTP status that fits an error object, for one that came where no status could.

    Engines put a status into `code`; OpenAI's own words are mapped; 502 for what says neither.
    """
    try:
        view = _decode_reason(error)
    except UNREADABLE:
        return _STATUS_UNKNOWN
    code, kind = (bytes(field).strip(b'"') for field in (view.code, view.type))
    if code.isdigit() and 400 <= int(code) <= 599:
        return int(code)
    return _STATUS_BY_WORD.get(code) or _STATUS_BY_WORD.get(kind, _STATUS_UNKNOWN)


def wrap_error(error: bytes) -> bytes:
    """The envelope around an error object."""
    return b'{"error":' + error + b"}"


def begin_filler(body: bytes, endpoint: Endpoint, opening: Opening) -> ChatFiller | None:
    """A stream that begins with a filler; None where the request leaves no room for one."""
    return ChatFiller(opening, endpoint) if takes_filler(body) else None


def name_headers(request_id: str, limits: str, wall_ns: int) -> str:
    """Header lines of answers beside those that all have: none."""
    return ""


def encode_error(error: ForebayError) -> bytes:
    """The error envelope of an answer."""
    return msgspec.json.encode({"error": error.describe()})


def encode_error_event(error: ForebayError) -> bytes:
    """The error as an event inside a stream that has already begun."""
    return b"data: " + encode_error(error) + b"\n\n"


def wrap_error_event(body: bytes) -> bytes:
    """A whole error answer as an event inside a stream that has already begun."""
    return b"data: " + flatten(body) + b"\n\n"


def flatten(body: bytes) -> bytes:
    """JSON on one line, as clients expect it of an event, which by the grammar may have several."""
    return msgspec.json.format(body, indent=-1) if b"\n" in body or b"\r" in body else body


def encode_model_list(models: list[tuple[str, int, str]]) -> bytes:
    """`GET /v1/models` from (name, Unix time, owner)."""
    data = [encode_model_fields(*model) for model in models]
    return msgspec.json.encode({"object": "list", "data": data})


def encode_model(name: str, created_s: int, owned_by: str) -> bytes:
    """`GET /v1/models/{name}`."""
    return msgspec.json.encode(encode_model_fields(name, created_s, owned_by))


def encode_model_fields(name: str, created_s: int, owned_by: str) -> dict[str, str | int]:
    return {"id": name, "object": "model", "created": created_s, "owned_by": owned_by}
