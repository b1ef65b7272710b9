"""OpenAI's Responses as callers speak them, pure: what a request asks for, what an answer cost.

Only what keeps nothing is served, whoever answers: a response is not stored, goes on from none, and runs
while its caller waits.  What was stored with a provider's account would be open to all who share it, and lost
to every other target.  Where the target speaks the same, bodies pass untouched but for that.
"""

from typing import Any, Final

import msgspec

from forebay.core.errors import ForebayError, InvalidValue, OutputTooLong
from forebay.core.events import Tokens
from forebay.core.filler import Opening
from forebay.core.routes import Endpoint
from forebay.core.usage_rules import UsageRule
from forebay.providers import openai
from forebay.providers.filler_responses import ResponsesFiller, takes_filler
from forebay.providers.json_edit import NOTHING, UNREADABLE
from forebay.providers.openai import RequestView
from forebay.providers.openai_usage import Reading
from forebay.providers.responses_media import find_media
from forebay.providers.responses_meter import ResponsesMeter, read_response_status, read_response_usage
from forebay.providers.ruled_meter import TappedMeter, read_by_rules, tap_meter

_IDLE: Final = frozenset((b"", b"null", b"false"))
_MEND: Final = {
    "previous_response_id": "send what was said so far in `input`",
    "conversation": "send what was said so far in `input`",
    "background": "leave it out, and wait for the answer",
    "store": "say false, or leave it out",
}


class _State(msgspec.Struct, frozen=True):
    """What a request may want to be kept, as bytes."""

    previous_response_id: msgspec.Raw = NOTHING
    conversation: msgspec.Raw = NOTHING
    background: msgspec.Raw = NOTHING
    store: msgspec.Raw = NOTHING


class _Length(msgspec.Struct, frozen=True):
    max_output_tokens: msgspec.Raw = NOTHING


_decode_state = msgspec.json.Decoder(_State).decode
_decode_length = msgspec.json.Decoder(_Length).decode


class ResponsesView(RequestView, frozen=True):
    """What policy reads of a request.

    Attributes:
        says_store: whether it says itself that nothing is to be stored.
    """

    says_store: bool = False

    @property
    def wants_usage(self) -> bool:
        return True  # each stream says what it cost


class CappedResponsesView(ResponsesView, frozen=True, kw_only=True):
    """Of a request that names no limit for its output and gets one."""

    cap_tokens: int


class ResponsesDialect:
    """`POST /v1/responses`; `forebay.gateway.dialect.Dialect` says what each part is for."""

    ERROR_START = openai.ERROR_START
    KEEP_ALIVE = openai.KEEP_ALIVE
    is_foreign = False

    read_error = staticmethod(openai.read_error)
    read_error_status = staticmethod(openai.read_error_status)
    wrap_error = staticmethod(openai.wrap_error)
    encode_error = staticmethod(openai.encode_error)
    name_headers = staticmethod(openai.name_headers)
    encode_model_list = staticmethod(openai.encode_model_list)
    encode_model = staticmethod(openai.encode_model)

    def check_context(self, body: bytes, endpoint: Endpoint, tokens_max: int) -> None:
        openai.check_context(body, endpoint, tokens_max, find_media)

    def estimate_tokens(self, body: bytes, events_seen: int) -> Tokens:
        return openai.estimate_tokens(body, events_seen, find_media)

    def weigh_text(self, body: bytes) -> int:
        return openai.weigh_text(body, find_media)

    def read_request(self, body: bytes) -> ResponsesView:
        """The view of a request's body.

        Raises:
            InvalidValue: it wants something to be kept, or as `openai.read_request`.
        """
        view = openai.read_request(body)
        state = _decode_state(body)
        for name, mend in _MEND.items():
            if bytes(getattr(state, name)) not in _IDLE:
                raise InvalidValue(
                    f"`{name}` is not served: the gateway keeps nothing of a response; {mend}", param=name
                )
        return ResponsesView(**msgspec.structs.asdict(view), says_store=bytes(state.store) == b"false")

    def cap_output(
        self, body: bytes, view: ResponsesView, endpoint: Endpoint, tokens_max: int
    ) -> ResponsesView:
        # Servers that make a chat of a response may read the names of a chat as well.
        openai.find_output_cap(body, endpoint, tokens_max)
        raw = _read_length(body)
        if raw in (b"", b"null"):
            return CappedResponsesView(**msgspec.structs.asdict(view), cap_tokens=tokens_max)
        if not raw.isdigit() or len(raw) >= 20:
            raise InvalidValue(
                "`max_output_tokens` must be a whole number, because this key's output is limited "
                "(`output_max_tokens`)",
                param="max_output_tokens",
            )
        if int(raw) > tokens_max:
            raise OutputTooLong(
                f"`max_output_tokens` {int(raw)} is more than the {tokens_max} tokens of output that this "
                "key allows (`output_max_tokens`)",
                param="max_output_tokens",
            )
        return view

    def write_cap(self, body: bytes, view: ResponsesView) -> bytes:
        if not isinstance(view, CappedResponsesView):
            return body
        return b"".join(openai.change_fields(body, {"max_output_tokens": b"%d" % view.cap_tokens}))

    def read_output_max(self, body: bytes) -> int | None:
        raw = _read_length(body)
        return int(raw) if raw.isdigit() and len(raw) < 10 else None

    def encode_request(
        self, body: bytes, view: ResponsesView, endpoint: Endpoint, target_model: str
    ) -> bytes | list[bytes | memoryview]:
        """The caller's own bytes, but for the model's name, the key's limit, and that nothing be stored."""
        changes: dict[str, bytes] = {}
        if isinstance(view, CappedResponsesView):
            changes["max_output_tokens"] = b"%d" % view.cap_tokens
        if view.model != target_model:
            changes["model"] = msgspec.json.encode(target_model)
        if not view.says_store:
            changes["store"] = b"false"
        if not changes:
            return body
        parts = openai.change_fields(body, changes)
        return b"".join(parts) if len(body) <= openai.JOINED_MAX_BYTES else parts

    def read_answer(self, body: bytes) -> Tokens | None:
        return read_response_usage(body)

    def has_failed(self, body: bytes) -> bool:
        """Whether a whole response says that its work failed, which is told with a status of 200."""
        return read_response_status(body) == "failed"

    def read_ruled_answer(self, rules: tuple[UsageRule, ...], body: bytes) -> Reading:
        return read_by_rules(rules, body, self.read_answer(body))

    def new_meter(self, *, hide_usage: bool, event_max_bytes: int) -> ResponsesMeter:
        return ResponsesMeter(event_max_bytes=event_max_bytes)

    def new_ruled_meter(
        self, rules: tuple[UsageRule, ...], *, hide_usage: bool, event_max_bytes: int
    ) -> TappedMeter:
        meter = self.new_meter(hide_usage=hide_usage, event_max_bytes=event_max_bytes)
        return tap_meter(meter, rules, event_max_bytes=event_max_bytes)

    def begin_filler(self, body: bytes, endpoint: Endpoint, opening: Opening) -> ResponsesFiller | None:
        return ResponsesFiller(opening, body) if takes_filler(body) else None

    def encode_error_event(self, error: ForebayError) -> bytes:
        return _build_error_event(error.describe())

    def wrap_error_event(self, body: bytes) -> bytes:
        error = self.read_error(body) or b"{}"  # whose texts nobody has looked into until now
        return _build_error_event(msgspec.json.decode(error.decode("utf-8", "replace")))


def _build_error_event(told: dict[str, Any]) -> bytes:
    """As OpenAI tells it (flat, though its clients read it nested as well); its place is not known."""
    flat = {"type": "error", "sequence_number": 0, "code": told.get("code") or told.get("type")}
    flat |= {"message": told.get("message"), "param": told.get("param"), "error": told}
    return b"event: error\ndata: " + msgspec.json.encode(flat) + b"\n\n"


def _read_length(body: bytes) -> bytes:
    try:
        return bytes(_decode_length(body).max_output_tokens)
    except UNREADABLE:
        return b""
