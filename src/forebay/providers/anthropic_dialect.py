"""Anthropic's messages as callers speak them, pure: what a request asks for, what an answer cost.

Where the target speaks the same, requests and answers pass through as bytes, and this module reads the few
fields that a decision needs.  It must never drop or invent a field, but for what `foreign_thinking` leaves
out.  What differs in content from OpenAI's chat is the translators' business.
"""

import re
from datetime import UTC, datetime, timedelta

import msgspec

from forebay.core.errors import ForebayError, InvalidValue, MissingField
from forebay.core.events import Tokens
from forebay.core.filler import Opening
from forebay.core.routes import Endpoint
from forebay.core.usage_rules import UsageRule
from forebay.providers import anthropic_errors, openai
from forebay.providers.anthropic_media import find_media
from forebay.providers.anthropic_stream import MessagesMeter
from forebay.providers.anthropic_usage import read_answer_usage
from forebay.providers.filler_messages import MessagesFiller, takes_filler
from forebay.providers.foreign_thinking import drop_foreign_thinking
from forebay.providers.json_edit import NOTHING
from forebay.providers.openai import CappedView, RequestView
from forebay.providers.openai_usage import Reading
from forebay.providers.ruled_meter import TappedMeter, read_by_rules, tap_meter

FREE = Tokens(input=0, output=0)
_LIMIT = re.compile(r"x-ratelimit-(limit|remaining|reset)-(requests|tokens): (\S+)\r\n")
_DURATION = re.compile(r"([\d.]+)(ms|h|m|s)")
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class MessagesView(RequestView, frozen=True):
    """What policy reads of a request."""

    @property
    def wants_usage(self) -> bool:
        return True  # each stream says what it cost


class CappedMessagesView(MessagesView, CappedView, frozen=True, kw_only=True):
    """Of a request that names no limit for its output and gets one."""


class MessagesDialect:
    """`POST /v1/messages`; `forebay.gateway.dialect.Dialect` says what each part is for."""

    ERROR_START = b'{"type":"error"'
    KEEP_ALIVE = b'event: ping\ndata: {"type": "ping"}\n\n'
    is_foreign = True

    def read_request(self, body: bytes) -> MessagesView:
        """The view of a request's body; raises as `openai.read_request` does."""
        return MessagesView(**msgspec.structs.asdict(openai.read_request(body)))

    def check_context(self, body: bytes, endpoint: Endpoint, tokens_max: int) -> None:
        openai.check_context(body, endpoint, tokens_max, find_media)

    def cap_output(self, body: bytes, view: RequestView, endpoint: Endpoint, tokens_max: int) -> RequestView:
        cap = openai.find_output_cap(body, endpoint, tokens_max)
        return view if cap is None else CappedMessagesView(**msgspec.structs.asdict(view), cap_tokens=cap)

    def write_cap(self, body: bytes, view: RequestView) -> bytes:
        if not isinstance(view, CappedView):
            return body
        return b"".join(openai.change_fields(body, {"max_tokens": b"%d" % view.cap_tokens}))

    def read_output_max(self, body: bytes) -> int | None:
        return openai.read_output_max(body)

    def encode_request(
        self, body: bytes, view: RequestView, endpoint: Endpoint, target_model: str
    ) -> bytes | list[bytes | memoryview]:
        """The caller's own bytes, but for the model's name, the key's limit where it named none, and what
        other models thought, which Anthropic refuses.
        """
        body = drop_foreign_thinking(body)
        changes: dict[str, bytes] = {}
        if isinstance(view, CappedView):
            changes["max_tokens"] = b"%d" % view.cap_tokens
        if view.model != target_model:
            changes["model"] = msgspec.json.encode(target_model)
        if not changes:
            return body
        parts = openai.change_fields(body, changes)
        return b"".join(parts) if len(body) <= openai.JOINED_MAX_BYTES else parts

    def read_answer(self, body: bytes) -> Tokens | None:
        return read_answer_usage(body)

    def read_ruled_answer(self, rules: tuple[UsageRule, ...], body: bytes) -> Reading:
        return read_by_rules(rules, body, self.read_answer(body))

    def estimate_tokens(self, body: bytes, events_seen: int) -> Tokens:
        return openai.estimate_tokens(body, events_seen, find_media)

    def weigh_text(self, body: bytes) -> int:
        return openai.weigh_text(body, find_media)

    def new_meter(self, *, hide_usage: bool, event_max_bytes: int) -> MessagesMeter:
        return MessagesMeter(event_max_bytes=event_max_bytes)

    def new_ruled_meter(
        self, rules: tuple[UsageRule, ...], *, hide_usage: bool, event_max_bytes: int
    ) -> TappedMeter:
        meter = self.new_meter(hide_usage=hide_usage, event_max_bytes=event_max_bytes)
        return tap_meter(meter, rules, event_max_bytes=event_max_bytes)

    def read_error(self, body: bytes) -> bytes | None:
        return anthropic_errors.read_error(body)

    def read_error_status(self, error: bytes) -> int:
        return anthropic_errors.read_error_status(error)

    def wrap_error(self, error: bytes) -> bytes:
        return anthropic_errors.wrap_error(error)

    def encode_error(self, error: ForebayError) -> bytes:
        return anthropic_errors.encode_error(error)

    def encode_error_event(self, error: ForebayError) -> bytes:
        return anthropic_errors.encode_error_event(error)

    def wrap_error_event(self, body: bytes) -> bytes:
        return b"event: error\ndata: " + openai.flatten(body) + b"\n\n"

    def begin_filler(self, body: bytes, endpoint: Endpoint, opening: Opening) -> MessagesFiller | None:
        return MessagesFiller(opening) if takes_filler(body) else None

    def name_headers(self, request_id: str, limits: str, wall_ns: int) -> str:
        """Header lines of every answer: the request's id and the limits, as Anthropic names them.

        Args:
            limits: the header lines of the limits as OpenAI names them.
            wall_ns: when the request came; a limit's reset is told as a time, not as a while.
        """
        lines = f"request-id: {request_id}\r\n"
        for what, kind, value in _LIMIT.findall(limits):
            if what == "reset":
                value = _add_duration(wall_ns, value)
            lines += f"anthropic-ratelimit-{kind}-{what}: {value}\r\n"
        return lines

    def encode_model_list(self, models: list[tuple[str, int, str]]) -> bytes:
        return openai.encode_model_list(models)

    def encode_model(self, name: str, created_s: int, owned_by: str) -> bytes:
        return openai.encode_model(name, created_s, owned_by)


class _Counted(msgspec.Struct, frozen=True):
    messages: msgspec.Raw = NOTHING


_decode_counted = msgspec.json.Decoder(_Counted).decode


class CountDialect(MessagesDialect):
    """`POST /v1/messages/count_tokens`: an answer is a number, and costs nothing."""

    def read_request(self, body: bytes) -> MessagesView:
        """The view of a request's body; also raises where there is nothing to count."""
        view = super().read_request(body)
        messages = bytes(_decode_counted(body).messages)
        if messages in (b"", b"null"):
            raise MissingField("the request has no `messages`", param="messages")
        if not messages.startswith(b"["):
            raise InvalidValue("`messages` must be a list of messages", param="messages")
        return msgspec.structs.replace(view, stream=None)

    def cap_output(self, body: bytes, view: RequestView, endpoint: Endpoint, tokens_max: int) -> RequestView:
        return view  # there is no output

    def read_answer(self, body: bytes) -> Tokens | None:
        return FREE

    def read_ruled_answer(self, rules: tuple[UsageRule, ...], body: bytes) -> Reading:
        return Reading(tokens=FREE, units=(), found=())


def _add_duration(wall_ns: int, duration: str) -> str:
    """A time in RFC 3339, so long after another; `duration` as `6m0s`."""
    seconds = sum(float(number) * _UNIT_S[unit] for number, unit in _DURATION.findall(duration))
    at = datetime.fromtimestamp(wall_ns // 1_000_000_000, UTC) + timedelta(seconds=seconds)
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


#: What the callers of an endpoint speak where that is not OpenAI's.
SPOKEN = {Endpoint.MESSAGES: MessagesDialect(), Endpoint.COUNT_TOKENS: CountDialect()}
