"""What a stream of OpenAI's Responses says while its bytes flow on, and what a response cost.  Pure.

`ResponsesMeter` does for it what `openai_stream.StreamMeter` does for chat: the bytes of an answer in any
split, out come whole events, each of them untouched.
"""

from typing import Annotated, Final

import msgspec

from forebay.core.events import Tokens
from forebay.net.sse import parse_event
from forebay.providers.event_meter import EventMeter
from forebay.providers.json_edit import NOTHING, UNREADABLE
from forebay.providers.openai_usage import COUNT_MAX, part

_Count = Annotated[int, msgspec.Meta(ge=0, le=COUNT_MAX)]
#: Nothing of them tells the caller that the model has begun.
_PREAMBLE: Final = frozenset(
    {
        *("response.created", "response.queued", "response.in_progress"),
        *("response.output_item.added", "response.content_part.added"),
        "response.reasoning_summary_part.added",
    }
)
_ENDS: Final = frozenset({"response.completed", "response.incomplete"})


class _InputDetails(msgspec.Struct, frozen=True):
    cached_tokens: _Count | None = None
    cache_write_tokens: _Count | None = None


class _OutputDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: _Count | None = None


class _Usage(msgspec.Struct, frozen=True):
    """All details are within their wholes."""

    input_tokens: _Count | None = None
    output_tokens: _Count | None = None
    input_tokens_details: _InputDetails | None = None
    output_tokens_details: _OutputDetails | None = None


class _Response(msgspec.Struct, frozen=True):
    usage: msgspec.Raw = NOTHING
    error: msgspec.Raw = NOTHING


class _Status(msgspec.Struct, frozen=True):
    status: str = ""


class _Event(msgspec.Struct, frozen=True):
    type: str = ""
    response: _Response | None = None
    error: msgspec.Raw = NOTHING


_decode_event = msgspec.json.Decoder(_Event).decode
_decode_response = msgspec.json.Decoder(_Response).decode
_decode_status = msgspec.json.Decoder(_Status).decode
_decode_usage = msgspec.json.Decoder(_Usage).decode


def read_response_status(body: bytes) -> str:
    """What a whole response says of how it ended; empty where it says nothing."""
    try:
        return _decode_status(body).status
    except UNREADABLE:
        return ""


def read_response_usage(body: bytes) -> Tokens | None:
    """The tokens that a whole response reports; None where it says nothing that can be read."""
    try:
        return _read_usage(_decode_response(body).usage)
    except UNREADABLE:
        return None


def _read_usage(raw: msgspec.Raw) -> Tokens | None:
    try:
        usage = _decode_usage(raw)
    except UNREADABLE:
        return None
    if usage.input_tokens is None and usage.output_tokens is None:
        return None
    into = usage.input_tokens_details or _InputDetails()
    out = usage.output_tokens_details or _OutputDetails()
    return part(
        usage.input_tokens,
        into.cached_tokens,
        None,
        into.cache_write_tokens,
        usage.output_tokens,
        out.reasoning_tokens,
        None,
        False,
    )


class ResponsesMeter(EventMeter):
    """Reads one stream; see the module, and `StreamMeter` for the attributes.

    Args:
        event_max_bytes: the largest event that is held while its end has not come.
    """

    DELTA = b"event: response.output_text.delta\n"

    __slots__ = ("tokens",)

    def __init__(self, *, event_max_bytes: int) -> None:
        super().__init__(event_max_bytes=event_max_bytes)
        self.tokens: Tokens | None = None

    @property
    def partial(self) -> Tokens | None:
        """A response counts nothing before its end."""
        return None

    def _look(self, raw: bytes) -> None:
        parsed = parse_event(raw)
        data = parsed.data
        if not data:
            return
        self._is_last = False
        try:
            event = _decode_event(data)
        except UNREADABLE:
            if parsed.event == "error":
                told = {"message": data.decode("utf-8", "replace"), "type": "server_error"}
                self._note_error(msgspec.json.encode(told), told=False)
            else:
                self.content_seen = True  # not in the dialect as we know it: nothing to wait for
            return
        kind = event.type or parsed.event
        if kind == "error":
            nested = bytes(event.error)
            self._note_error(nested if nested[:1] == b"{" else data, told=True)
        elif kind == "response.failed":
            error = b"" if event.response is None else bytes(event.response.error)
            self._note_usage(event.response)
            self._note_error(error if error[:1] == b"{" else b'{"message":"The response failed."}', told=True)
        elif kind in _ENDS:
            self._note_usage(event.response)
            self._stopped = self._is_last = self.content_seen = True
        elif kind not in _PREAMBLE:
            self._deltas += kind.endswith(".delta")
            self.content_seen = True

    def _note_usage(self, response: _Response | None) -> None:
        if response is not None:
            self.tokens = _read_usage(response.usage) or self.tokens
