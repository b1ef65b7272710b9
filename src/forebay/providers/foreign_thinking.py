"""Thinking in a request of Anthropic's messages that Anthropic can't have signed.  Pure.

A conversation that another model answered for a while has thinking of that model in it: without a signature,
or with one of Google's behind its mark.  Anthropic refuses a request with such a block, and takes one without
it; so they are left out, and every other byte of a message stays as it was.

Source: Claude API docs, "Extended thinking": blocks of earlier turns may be left out, signatures are checked.
"""

import re
from typing import Final

import msgspec

from forebay.providers.gemini_signatures import MARK
from forebay.providers.json_edit import UNREADABLE, set_fields

#: Inside a text its quotes would be escaped, so no text looks like it.
_SUSPECT: Final = re.compile(rb'"signature"\s*:\s*(?:""|null|"%b)' % MARK.encode())
_HINT: Final = b'"signature"'


class _Block(msgspec.Struct, frozen=True):
    type: str = ""
    signature: str | None = None


class _Message(msgspec.Struct, frozen=True):
    role: str = ""
    content: list[msgspec.Raw] = []


class _Request(msgspec.Struct, frozen=True):
    messages: list[msgspec.Raw]


_decode_request = msgspec.json.Decoder(_Request).decode
_decode_message = msgspec.json.Decoder(_Message).decode
_decode_block = msgspec.json.Decoder(_Block).decode


def drop_foreign_thinking(body: bytes) -> bytes:
    """The request without those blocks, and without a message of which nothing is left.

    A body that can't be read is left as it is: its target says what is wrong with it.
    """
    if _HINT not in body or _SUSPECT.search(body) is None:
        return body
    try:
        before = _decode_request(body).messages
        messages = [kept for raw in before if (kept := _drop(bytes(raw)))]
        if len(messages) == len(before) and all(map(_is_same, messages, before)):
            return body
        return set_fields(body, {"messages": b"[%b]" % b",".join(messages)})
    except UNREADABLE:
        return body


def _is_same(kept: bytes, raw: msgspec.Raw) -> bool:
    return kept == bytes(raw)


def _drop(raw: bytes) -> bytes:
    """A message without them; empty where nothing else is in it."""
    if _SUSPECT.search(raw) is None:
        return raw
    try:
        message = _decode_message(raw)
    except UNREADABLE:
        return raw
    kept = [block for block in message.content if not _is_foreign(block)]
    if len(kept) == len(message.content) or message.role != "assistant":
        return raw
    return set_fields(raw, {"content": b"[%b]" % b",".join(map(bytes, kept))}) if kept else b""


def _is_foreign(raw: msgspec.Raw) -> bool:
    try:
        block = _decode_block(raw)
    except UNREADABLE:
        return False
    return block.type == "thinking" and (not block.signature or block.signature.startswith(MARK))
