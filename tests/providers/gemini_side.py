"""Google's answers and streams as callers of chat see them, read by OpenAI's own types."""

import itertools
import json
from typing import Any

import msgspec
from openai.types.chat import ChatCompletionChunk
from real_clients import read_chat

from forebay.net.sse import EventSplitter, parse_event
from forebay.providers import openai
from forebay.providers.chat_to_gemini import ChatToGemini
from forebay.testing.gemini import function_call, response, text, thought, usage
from forebay.testing.openai import ToolCall

TRANSLATOR = ChatToGemini()
CALLS = (
    ToolCall(id="c1", name="look_up", arguments='{"q":"a","deep":{"n":[1,2]}}'),
    ToolCall(id="c2", name="now", arguments=""),
)
RICH = response(
    thought("First, "),
    thought("hm.\n", "dGhvdWdodA=="),
    text("Let me "),
    text("look. 😀"),
    function_call(CALLS[0], "Y2FsbA=="),
    function_call(CALLS[1]),
    tokens=usage(350, 20, cached=300, thoughts=9, tool_use=4),
)


def decode(answer: dict[str, Any]) -> dict[str, Any]:
    body = TRANSLATOR.decode_answer(msgspec.json.encode(answer), "gem")
    read_chat(body)
    made: dict[str, Any] = json.loads(body)
    return made


def translate(data: bytes, *cuts: int) -> bytes:
    """The whole stream in chat, fed in pieces."""
    stream = TRANSLATOR.new_stream("gem")
    ends = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    pieces = [data[start:end] for start, end in itertools.pairwise(ends)]
    return b"".join([*map(stream.feed, pieces), stream.finish()])


def read_chunks(out: bytes) -> list[dict[str, Any]]:
    splitter = EventSplitter(1 << 20)
    data = [parse_event(raw).data for raw in splitter.feed(out)]
    assert splitter.finish() == b""
    return [json.loads(part) for part in data if part and part != b"[DONE]"]


def read_choices(out: bytes, index: int = 0) -> list[dict[str, Any]]:
    """The choices of all chunks; OpenAI's own types take each chunk."""
    chunks = read_chunks(out)
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk)
    return [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]


def meter_of(out: bytes) -> Any:
    meter = openai.new_meter(hide_usage=False, event_max_bytes=1 << 20)
    meter.feed(out)
    meter.finish()
    return meter
