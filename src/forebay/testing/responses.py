"""Payloads of OpenAI's Responses as a server sends them, and a handler that behaves as one does.

Pure.  Payloads are plain dicts, so that a test can bend them; they are made after the public documentation.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from forebay.testing.answers import json_answer, sse_answer
from forebay.testing.openai import ToolCall
from forebay.testing.recorded import RecordedRequest
from forebay.testing.steps import Script

Payload = dict[str, Any]
ID = "resp_test"
ITEM = "msg_test"


def event(payload: Payload) -> bytes:
    """One server-sent event, named for its type."""
    return b"event: %b\ndata: %b\n\n" % (payload["type"].encode(), msgspec.json.encode(payload))


def usage(input: int = 7, output: int = 5, *, cached: int = 0, reasoning: int = 0) -> Payload:
    """A usage object; its details are within the wholes."""
    return {
        "input_tokens": input,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": input + output,
    }


def message(text: str) -> Payload:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"id": ITEM, "type": "message", "status": "completed", "role": "assistant", "content": [part]}


def reasoning(words: str, *, encrypted: str | None = None) -> Payload:
    """What the model thought; OpenAI tells a summary of it, and all of it encrypted."""
    item = {
        "id": "rs_test",
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": words}],
    }
    return item if encrypted is None else item | {"encrypted_content": encrypted}


def function_call(call: ToolCall) -> Payload:
    return {
        "id": f"fc_{call.id}",
        "type": "function_call",
        "status": "completed",
        "call_id": call.id,
        "name": call.name,
        "arguments": call.arguments or "{}",
    }


def response(*items: Payload | str, model: str = "m", tokens: Payload | None = None) -> Payload:
    """A whole answer; a text may be given as it is, and "Hello" is said without items."""
    output = [message(item) if isinstance(item, str) else item for item in items] or [message("Hello")]
    return _begin(model) | {
        "status": "completed",
        "completed_at": 1_750_000_001,
        "output": output,
        "usage": tokens or usage(),
    }


def response_events(answer: Payload, *, fragment_chars: int = 4) -> list[bytes]:
    """Raw events of the stream that brings the same answer."""
    begun = answer | {"status": "in_progress", "output": [], "usage": None, "completed_at": None}
    told: list[Payload] = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
    ]
    for at, item in enumerate(answer["output"]):
        told += _item_events(at, item, fragment_chars)
    told.append({"type": "response.completed", "response": answer})
    return [event(each | {"sequence_number": at}) for at, each in enumerate(told)]


def well_behaved(*items: Payload | str, tokens: Payload | None = None) -> Callable[[RecordedRequest], Script]:
    """A handler that serves responses whole and streamed, and nothing else; `items` as for `response`."""

    def handle(request: RecordedRequest) -> Script:
        asked: Payload = request.json()
        if not request.path.endswith("/responses"):
            return json_answer({"error": {"message": f"no such path: {request.path}"}}, status=404)
        answer = response(*items, model=str(asked.get("model")), tokens=tokens)
        if asked.get("stream"):
            return sse_answer(response_events(answer))
        return json_answer(answer)

    return handle


def _begin(model: str) -> Payload:
    return {
        "id": ID,
        "object": "response",
        "created_at": 1_750_000_000,
        "completed_at": None,
        "status": "in_progress",
        "background": False,
        "error": None,
        "frequency_penalty": 0.0,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": None,
        "max_tool_calls": None,
        "metadata": {},
        "model": model,
        "output": [],
        "parallel_tool_calls": True,
        "presence_penalty": 0.0,
        "previous_response_id": None,
        "prompt_cache_key": None,
        "reasoning": {"effort": None, "summary": None},
        "safety_identifier": None,
        "service_tier": "default",
        "store": False,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": None,
    }


def _item_events(at: int, item: Payload, fragment_chars: int) -> list[Payload]:
    """An item begins empty, grows by its parts, and is told whole at its end."""
    match item["type"]:
        case "message":
            empty = item | {"status": "in_progress", "content": []}
            grown = _message_events(at, item, fragment_chars)
        case "function_call":
            empty = item | {"status": "in_progress", "arguments": ""}
            place = {"item_id": item["id"], "output_index": at}
            kind = "response.function_call_arguments"
            grown = [
                {"type": f"{kind}.delta", "delta": piece} | place
                for piece in _cut(item["arguments"], fragment_chars)
            ]
            whole = {"arguments": item["arguments"], "name": item["name"]}
            grown.append({"type": f"{kind}.done"} | whole | place)
        case _:
            empty = item | {"summary": []}
            grown = _reasoning_events(at, item, fragment_chars)
    return [
        {"type": "response.output_item.added", "output_index": at, "item": empty},
        *grown,
        {"type": "response.output_item.done", "output_index": at, "item": item},
    ]


def _message_events(at: int, item: Payload, fragment_chars: int) -> list[Payload]:
    part = item["content"][0]
    place = {"item_id": item["id"], "output_index": at, "content_index": 0}
    pieces = _cut(part["text"], fragment_chars)
    return [
        {"type": "response.content_part.added", "part": part | {"text": ""}} | place,
        *({"type": "response.output_text.delta", "delta": piece, "logprobs": []} | place for piece in pieces),
        {"type": "response.output_text.done", "text": part["text"], "logprobs": []} | place,
        {"type": "response.content_part.done", "part": part} | place,
    ]


def _reasoning_events(at: int, item: Payload, fragment_chars: int) -> list[Payload]:
    part = item["summary"][0]
    place = {"item_id": item["id"], "output_index": at, "summary_index": 0}
    kind = "response.reasoning_summary"
    pieces = _cut(part["text"], fragment_chars)
    return [
        {"type": f"{kind}_part.added", "part": part | {"text": ""}} | place,
        *({"type": f"{kind}_text.delta", "delta": piece} | place for piece in pieces),
        {"type": f"{kind}_text.done", "text": part["text"]} | place,
        {"type": f"{kind}_part.done", "part": part} | place,
    ]


def _cut(words: str, size: int) -> list[str]:
    return [words[at : at + size] for at in range(0, len(words), size)]
