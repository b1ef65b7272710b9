"""Where two dialects meet, without a network: what each side sees, whatever the split, and who is blamed."""

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.core.errors import InvalidValue, Untranslatable, UpstreamProtocol
from forebay.core.events import Tokens
from forebay.core.routes import Endpoint, Target
from forebay.core.translation import EVENT_MAX_BYTES, Headers, Way
from forebay.gateway.crossing import Crossing, write_headers
from forebay.gateway.ways import Ways
from forebay.net.sse import EventSplitter
from forebay.providers import openai
from forebay.providers.openai_wire import OpenAIWire
from forebay.testing.openai import DONE, chat_completion, chat_stream, error, event, usage

TARGET = Target(id="t", pool="p", url="http://h/v1", model="there", dialect="shout", region="eu")
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


class Swap:
    """A stream in which each event is turned around by a function; it holds what is not whole."""

    def __init__(self, change: bytes, into: bytes, event_max_bytes: int) -> None:
        self._change, self._into = change, into
        self._splitter = EventSplitter(event_max_bytes)
        self.ended = False

    def feed(self, data: bytes) -> bytes:
        return b"".join(self._splitter.feed(data)).replace(self._change, self._into)

    def finish(self) -> bytes:
        self.ended = True
        return self._splitter.finish().replace(self._change, self._into)


class Shout:
    """A target that speaks chat in `SHOUT` envelopes."""

    def encode_request(self, body: bytes, model: str, *, stream: bool) -> bytes:
        asked = msgspec.json.decode(body)
        if "n" in asked:
            raise InvalidValue("`n` has no counterpart", param="n")
        return b"SHOUT" + msgspec.json.encode(asked | {"model": model, "stream": stream})

    def decode_answer(self, body: bytes, model: str) -> bytes:
        if not body.startswith(b"SHOUT"):
            raise UpstreamProtocol("no shout")
        return body[5:]

    def decode_error(self, status: int, body: bytes) -> bytes:
        return msgspec.json.encode(error(f"{status}: {body.decode()}", type="invalid_request_error"))

    def new_stream(self, model: str, *, event_max_bytes: int = EVENT_MAX_BYTES) -> Swap:
        return Swap(b"shout:", b"data:", event_max_bytes)

    def build_path(self, base_path: str, model: str, *, stream: bool) -> str:
        return f"{base_path}/{model}:{'stream' if stream else 'whole'}"

    def build_headers(self, secret: str) -> Headers:
        return [("x-shout-version", "1"), ("accept", "application/x-shout")]

    def sign(
        self,
        method: str,
        path: str,
        headers: Headers,
        body: bytes,
        *,
        secret: str,
        region: str,
        wall_s: int,
    ) -> Headers:
        assert dict(headers)["host"] == "h"
        return [("x-signature", f"{method} {path} {len(body)} {secret} {region} {wall_s}")]


class Whisper:
    """Callers that speak chat in `whisper` envelopes."""

    def decode_request(self, body: bytes) -> bytes:
        asked = msgspec.json.decode(body)
        if "whistle" in asked:
            raise InvalidValue("`whistle` has no counterpart", param="whistle")
        return msgspec.json.encode(asked["whisper"])

    def encode_answer(self, body: bytes) -> bytes:
        return b'{"whisper":' + body + b"}"

    def encode_error(self, body: bytes, status: int) -> bytes:
        return b'{"whispered":' + body + b"}"

    def new_stream(self, *, event_max_bytes: int = EVENT_MAX_BYTES) -> Swap:
        return Swap(b"data:", b"whisper:", event_max_bytes)


WAYS = {
    "target": Way(target=Shout()),
    "both": Way(target=Shout(), caller=Whisper()),
    "caller": Way(wire=OpenAIWire(), caller=Whisper()),
}


def cross(way: str) -> Crossing:
    ways = Ways(openai, lambda endpoint, dialect: WAYS[way] if endpoint is Endpoint.CHAT else None)
    heads, crossings = ways.build(TARGET, "h", "/v1", "key:secret-part")
    assert heads == {}
    return crossings[Endpoint.CHAT]


def ask(crossing: Crossing, body: object, *, stream: bool = False) -> bytes:
    raw = msgspec.json.encode(body)
    view = openai.read_request(msgspec.json.encode(CHAT | {"stream": stream}))
    payload = crossing.encode(openai, raw, view, "there", stream=stream)
    return payload if isinstance(payload, bytes) else b"".join(payload)


def test_a_request_goes_through_both_translators() -> None:
    there = CHAT | {"model": "there", "stream": True}
    assert ask(cross("target"), CHAT, stream=True) == b"SHOUT" + msgspec.json.encode(there)
    assert ask(cross("both"), {"whisper": CHAT}, stream=True) == b"SHOUT" + msgspec.json.encode(there)


def test_usage_is_asked_for_where_the_target_speaks_chat() -> None:
    sent = msgspec.json.decode(ask(cross("caller"), {"whisper": CHAT | {"stream": True}}, stream=True))
    assert sent == CHAT | {"model": "there", "stream": True, "stream_options": {"include_usage": True}}


@pytest.mark.parametrize(("way", "body", "param"), [
    ("target", CHAT | {"n": 2}, "n"),
    ("both", {"whisper": CHAT | {"n": 2}}, "n"),
    ("both", {"whistle": 1}, "whistle"),
    ("caller", {"whistle": 1}, "whistle"),
])  # fmt: skip
def test_what_can_not_be_said_is_named_and_may_be_said_elsewhere(way: str, body: object, param: str) -> None:
    with pytest.raises(Untranslatable, match=f"`{param}`") as caught:
        ask(cross(way), body)
    assert (caught.value.status, caught.value.param) == (400, param)


def test_the_limit_of_a_key_goes_along() -> None:
    raw = msgspec.json.encode(CHAT)
    view = openai.cap_output(raw, openai.read_request(raw), Endpoint.CHAT, 50)
    payload = cross("target").encode(openai, raw, view, "there", stream=False)
    assert msgspec.json.decode(bytes(payload[5:]))["max_tokens"] == 50  # type: ignore[arg-type]


def test_a_head_has_the_way_the_headers_and_the_signature() -> None:
    crossing = cross("target")
    head = crossing.build_head({b"cookie": b"c"}, b"12345", 99_000_000_000, stream=True)
    lines = head.decode().split("\r\n")
    assert lines[0] == "POST /v1/there:stream HTTP/1.1"
    assert "x-shout-version: 1" in lines
    assert "accept: application/x-shout" in lines
    assert "x-signature: POST /v1/there:stream 5 key:secret-part eu 99" in lines
    assert not any(line.startswith("cookie") for line in lines)
    whole = crossing.build_head({}, b"", 0, stream=False)
    assert whole.startswith(b"POST /v1/there:whole HTTP/1.1\r\n")


def test_a_whole_answer_and_what_it_cost() -> None:
    chat = msgspec.json.encode(chat_completion("Hello", tokens=usage(9, 4, cached=5)))
    body, reading = cross("both").decode_answer(b"SHOUT" + chat, TARGET)
    assert body == b'{"whisper":' + chat + b"}"
    assert reading.tokens == Tokens(input=4, input_cached=5, output=4)
    with pytest.raises(UpstreamProtocol):
        cross("both").decode_answer(chat, TARGET)


def test_errors_are_in_the_callers_dialect_without_parts_of_the_secret() -> None:
    told = cross("both").decode_error(400, b"secret-part is bad")
    assert told.startswith(b'{"whispered":{"error":')
    assert b"secret-part" not in told
    assert b"[redacted] is bad" in told
    assert cross("caller").decode_error(502, b"<html>") == b"<html>"  # to be put into an envelope later


@given(
    st.sampled_from(["target", "both", "caller"]),
    st.booleans(),
    st.booleans(),
    st.lists(st.integers(0, 2500), max_size=30),
)
def test_any_split_of_a_stream_gives_the_same(way: str, hides: bool, done: bool, cuts: list[int]) -> None:
    crossing = cross(way)
    chat = b"".join(chat_stream(["Grü", "ße 😀"], tokens=usage(9, 4), done=done))
    sent = chat if way == "caller" else chat.replace(b"data:", b"shout:")
    meter = crossing.new_meter(openai, TARGET, hide_usage=hides, event_max_bytes=1 << 20)
    places = sorted({min(cut, len(sent)) for cut in cuts} | {0, len(sent)})
    out = b"".join(meter.feed(sent[start:end]) for start, end in pairwise(places))
    out += meter.finish()
    shown = chat
    if way == "target" and hides:
        shown = b"".join(chat_stream(["Grü", "ße 😀"], include_usage=False, done=done))
    assert out == (shown if way == "target" else shown.replace(b"data:", b"whisper:"))
    assert meter.tokens == Tokens(input=9, output=4)
    assert meter.content_seen
    assert meter.ended_well
    assert meter.is_done == done


@pytest.mark.parametrize("way", ["target", "both"])
def test_nothing_goes_out_before_the_first_content(way: str) -> None:
    meter = cross(way).new_meter(openai, TARGET, hide_usage=True, event_max_bytes=1 << 20)
    events = [raw.replace(b"data:", b"shout:") for raw in chat_stream(["Hello"])]
    assert meter.feed(events[0]) == b""
    assert not meter.content_seen
    assert meter.feed(events[1]) != b""


def test_an_error_in_a_stream_is_noted_and_told() -> None:
    crossing = cross("both")
    meter = crossing.new_meter(openai, TARGET, hide_usage=True, event_max_bytes=1 << 20)
    meter.feed(event(error("Overloaded", type="overloaded_error")).replace(b"data:", b"shout:"))
    assert meter.error is not None
    assert meter.error_told
    assert not meter.content_seen
    told = crossing.explain_error(openai, meter.error, 503)
    assert told.startswith(b'{"whispered":{"error":{"message":"Overloaded"')


def test_a_cut_stream_has_no_end() -> None:
    meter = cross("both").new_meter(openai, TARGET, hide_usage=True, event_max_bytes=1 << 20)
    meter.feed(b"".join(chat_stream(["Hello"])[:2]).replace(b"data:", b"shout:"))
    assert DONE.replace(b"data:", b"whisper:") not in meter.finish()
    assert not meter.ended_well


@pytest.mark.parametrize("value", ["a\r\nx-other: 1", "a\nb", "a\0b"])
def test_no_header_brings_another(value: str) -> None:
    with pytest.raises(ValueError, match="line break"):
        write_headers([("x-a", value)])
