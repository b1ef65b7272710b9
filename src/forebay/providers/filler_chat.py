"""A filler before a stream of OpenAI's chat or text completions: both become one answer.  Pure.

The filler is the first chunk, with an id of ours, for nobody knows yet who will answer.  The answer's chunks
then bear that id, and do not tell the role again, which clients would put together from both.
"""

from typing import Annotated, Final

import msgspec

from forebay.core.filler import Opening
from forebay.core.routes import Endpoint
from forebay.net.sse import EventSplitter, encode_event, parse_event
from forebay.providers.json_edit import FIELDS_MAX, NOTHING, UNREADABLE, set_fields
from forebay.providers.openai_stream import read_data

UNBOUNDED: Final = 1 << 62  #: what comes here has been measured before
SILENT: Final = frozenset((b"", b"null", b"false", b'""', b"[]", b"{}"))  #: values that ask for nothing
#: Of servers that keep a whole answer to a form: vLLM, SGLang, llama.cpp.
_FORMS: Final = (
    *("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs"),
    *("structural_tag", "regex", "ebnf", "grammar", "json_schema"),
)
_OTHERS: Final = ("echo", "suffix", "audio", "prompt_logprobs", "continue_final_message")


class _Format(msgspec.Struct, frozen=True):
    type: str = "text"


class _Said(msgspec.Struct, frozen=True):
    role: str = ""


class _Asked(msgspec.Struct, frozen=True):
    n: msgspec.Raw = NOTHING
    best_of: msgspec.Raw = NOTHING
    logprobs: msgspec.Raw = NOTHING
    tool_choice: msgspec.Raw = NOTHING
    response_format: _Format | None = None
    messages: list[_Said] | None = None


_decode_asked = msgspec.json.Decoder(_Asked).decode
_decode_fields = msgspec.json.Decoder(
    Annotated[dict[str, msgspec.Raw], msgspec.Meta(max_length=FIELDS_MAX)]
).decode
_decode_choices = msgspec.json.Decoder(list[dict[str, msgspec.Raw]]).decode


def asks_for(body: bytes, names: tuple[str, ...]) -> bool:
    """Whether a request has one of these fields, with a value that is not as good as none."""
    fields = _decode_fields(body)
    return any(bytes(fields[name]) not in SILENT for name in names if name in fields)


def has_to_call(tool_choice: msgspec.Raw) -> bool:
    """Whether the answer has to be a call of a tool."""
    return bytes(tool_choice) not in (b"", b"null", b'"auto"', b'"none"')


def takes_filler(body: bytes) -> bool:
    """Whether more text before the answer leaves it what the request asked for."""
    try:
        asked = _decode_asked(body)
        if asks_for(body, (*_FORMS, *_OTHERS)):
            return False
    except UNREADABLE:
        return False
    if any(bytes(count) not in (b"", b"null", b"1") for count in (asked.n, asked.best_of)):
        return False
    if bytes(asked.logprobs) not in SILENT or has_to_call(asked.tool_choice):
        return False
    if asked.response_format is not None and asked.response_format.type != "text":
        return False
    return not asked.messages or asked.messages[-1].role != "assistant"  # else it goes on where that ends


class ChatFiller:
    """`forebay.core.filler.Filler` of one stream."""

    __slots__ = ("_splitter", "_told", "opening")

    def __init__(self, opening: Opening, endpoint: Endpoint) -> None:
        self._splitter = EventSplitter(UNBOUNDED)
        is_chat = endpoint is Endpoint.CHAT
        told = {
            "id": ("chatcmpl-" if is_chat else "cmpl-") + opening.id,
            "created": opening.created_s,
            "model": opening.model,
        }
        delta = {"role": "assistant", "content": opening.text}
        said = {"delta": delta} if is_chat else {"text": opening.text}
        choice = {"index": 0} | said | {"logprobs": None, "finish_reason": None}
        kind = "chat.completion.chunk" if is_chat else "text_completion"
        self.opening = encode_event(msgspec.json.encode(told | {"object": kind, "choices": [choice]}))
        self._told = {name: msgspec.json.encode(value) for name, value in told.items()}

    def feed(self, data: bytes) -> bytes:
        return b"".join(map(self._join, self._splitter.feed(data)))

    def finish(self) -> bytes:
        rest = self._splitter.finish()
        return self._join(rest) if rest else b""

    def _join(self, raw: bytes) -> bytes:
        data = read_data(raw)
        if not data.startswith(b"{"):
            return raw
        try:
            fields = _decode_fields(data)
            if "choices" not in fields:  # an error, or what nobody knows
                return raw
            changes = self._told
            if b'"role"' in data:
                changes = changes | {"choices": _drop_roles(fields["choices"])}
            joined = set_fields(data, changes)
        except UNREADABLE:
            return raw
        kind = parse_event(raw).event
        return encode_event(joined, None if kind == "message" else kind)


def _drop_roles(choices: msgspec.Raw) -> bytes:
    kept = _decode_choices(choices)
    for choice in kept:
        if "delta" in choice and bytes(choice["delta"]) != b"null":
            delta = _decode_fields(choice["delta"])
            delta.pop("role", None)
            choice["delta"] = msgspec.Raw(msgspec.json.encode(delta))
    return msgspec.json.encode(kept)
