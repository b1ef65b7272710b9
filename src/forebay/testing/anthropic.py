"""Payloads of Anthropic's messages API as a server sends them, and a handler that behaves as one does.

Pure.  Payloads are plain dicts, so that a test can bend them; they are made after the public documentation.

    with ThreadedUpstream(well_behaved("Hello")) as upstream:
        Anthropic(base_url=upstream.origin, api_key="k").messages.create(...)
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from forebay.testing.answers import json_answer, sse_answer
from forebay.testing.openai import ToolCall
from forebay.testing.recorded import RecordedRequest
from forebay.testing.steps import Script, Step

Payload = dict[str, Any]
ID = "msg_test"


def event(payload: Payload) -> bytes:
    """One server-sent event, named for its type as Anthropic does."""
    return b"event: %b\ndata: %b\n\n" % (payload["type"].encode(), msgspec.json.encode(payload))


def usage(
    input: int = 7, output: int = 5, *, cache_read: int | None = None, cache_write: int | None = None
) -> Payload:
    """A usage object; what caches did only where it is given, beside the input and not within it."""
    result: Payload = {"input_tokens": input}
    if cache_write is not None:
        result["cache_creation_input_tokens"] = cache_write
    if cache_read is not None:
        result["cache_read_input_tokens"] = cache_read
    return result | {"output_tokens": output}


def text(words: str) -> Payload:
    return {"type": "text", "text": words, "citations": None}


def thinking(words: str, signature: str) -> Payload:
    return {"type": "thinking", "thinking": words, "signature": signature}


def tool_use(call: ToolCall) -> Payload:
    arguments = msgspec.json.decode(call.arguments or "{}")
    return {
        "type": "tool_use",
        "id": call.id,
        "name": call.name,
        "input": arguments,
        "caller": {"type": "direct"},
    }


def message(
    *blocks: Payload,
    model: str = "m",
    stop_reason: str | None = None,
    stop_sequence: str | None = None,
    tokens: Payload | None = None,
) -> Payload:
    """A whole answer; "Hello" without blocks.  `stop_reason` None is what the blocks suggest."""
    content = list(blocks) or [text("Hello")]
    return {
        "id": ID,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": stop_reason or _suggest_stop(content),
        "stop_sequence": stop_sequence,
        "stop_details": None,
        "container": None,
        "usage": tokens or usage(),
    }


def message_events(answer: Payload, *, fragment_chars: int = 4) -> list[bytes]:
    """Raw events of the stream that brings the same answer."""
    tokens = answer["usage"]
    begun = answer | {"content": [], "stop_reason": None, "usage": tokens | {"output_tokens": 1}}
    events = [event({"type": "message_start", "message": begun}), event({"type": "ping"})]
    for index, block in enumerate(answer["content"]):
        events += _block_events(index, block, fragment_chars)
    ending = {"stop_reason": answer["stop_reason"], "stop_sequence": answer["stop_sequence"]}
    last = {"type": "message_delta", "delta": ending, "usage": {"output_tokens": tokens["output_tokens"]}}
    return [*events, event(last), event({"type": "message_stop"})]


def error(kind: str = "api_error", words: str = "It went wrong.") -> Payload:
    """Anthropic's error envelope; an event of it is `event(error(...))`."""
    return {"type": "error", "error": {"type": kind, "message": words}}


def error_answer(status: int, kind: str = "api_error", words: str = "It went wrong.") -> list[Step]:
    """An error as a whole answer."""
    return json_answer(error(kind, words), status=status)


def well_behaved(
    *blocks: Payload | str, tokens: Payload | None = None
) -> Callable[[RecordedRequest], Script]:
    """A handler that serves messages whole and streamed, and counts tokens.

    Args:
        blocks: of the answer; a text may be given as it is.
    """
    content = [text(block) if isinstance(block, str) else block for block in blocks]

    def handle(request: RecordedRequest) -> Script:
        asked: Payload = request.json()
        if request.path.endswith("/messages/count_tokens"):
            return json_answer({"input_tokens": 42})
        if not request.path.endswith("/messages"):
            return error_answer(404, "not_found_error", f"no such path: {request.path}")
        answer = message(*content, model=str(asked.get("model")), tokens=tokens)
        if asked.get("stream"):
            return sse_answer(message_events(answer))
        return json_answer(answer)

    return handle


def _suggest_stop(content: Sequence[Payload]) -> str:
    return "tool_use" if any(block["type"] == "tool_use" for block in content) else "end_turn"


def _block_events(index: int, block: Payload, fragment_chars: int) -> Iterable[bytes]:
    match block["type"]:
        case "text":
            empty = block | {"text": ""}
            deltas = [{"type": "text_delta", "text": part} for part in _cut(block["text"], fragment_chars)]
        case "thinking":
            empty = block | {"thinking": "", "signature": ""}
            parts = _cut(block["thinking"], fragment_chars)
            deltas = [{"type": "thinking_delta", "thinking": part} for part in parts]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        case "tool_use":
            empty = block | {"input": {}}
            spelled = msgspec.json.encode(block["input"]).decode() if block["input"] else ""
            parts = _cut(spelled, fragment_chars)
            deltas = [{"type": "input_json_delta", "partial_json": part} for part in ("", *parts)]
        case _:
            empty, deltas = block, []
    yield event({"type": "content_block_start", "index": index, "content_block": empty})
    for delta in deltas:
        yield event({"type": "content_block_delta", "index": index, "delta": delta})
    yield event({"type": "content_block_stop", "index": index})


def _cut(words: str, size: int) -> list[str]:
    return [words[at : at + size] for at in range(0, len(words), size)]
