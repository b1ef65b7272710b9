"""Payloads of OpenAI's Responses as a server sends them, and a handler that behaves as one does.

Pure.  Payloads are plain dicts, so that a test can bend them; they are made after the public documentation.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from forebay.testing.answers import json_answer, sse_answer
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


def response(text: str = "Hello", *, model: str = "m", tokens: Payload | None = None) -> Payload:
    """A whole answer."""
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    item = {"id": ITEM, "type": "message", "status": "completed", "role": "assistant", "content": [part]}
    return _begin(model) | {
        "status": "completed",
        "output": [item],
        "usage": tokens or usage(),
    }


def response_events(answer: Payload, *, fragment_chars: int = 4) -> list[bytes]:
    """Raw events of the stream that brings the same answer of one text."""
    begun = answer | {"status": "in_progress", "output": [], "usage": None}
    item = answer["output"][0]
    part = item["content"][0]
    text = part["text"]
    place = {"item_id": item["id"], "output_index": 0, "content_index": 0}
    pieces = [text[at : at + fragment_chars] for at in range(0, len(text), fragment_chars)]
    told: list[Payload] = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
        {
            "type": "response.output_item.added",
            "output_index": 0,
            "item": item | {"status": "in_progress", "content": []},
        },
        {"type": "response.content_part.added", "part": part | {"text": ""}} | place,
        *({"type": "response.output_text.delta", "delta": piece, "logprobs": []} | place for piece in pieces),
        {"type": "response.output_text.done", "text": text, "logprobs": []} | place,
        {"type": "response.content_part.done", "part": part} | place,
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": answer},
    ]
    return [event(each | {"sequence_number": at}) for at, each in enumerate(told)]


def well_behaved(
    text: str = "Hello", *, tokens: Payload | None = None
) -> Callable[[RecordedRequest], Script]:
    """A handler that serves responses whole and streamed, and nothing else."""

    def handle(request: RecordedRequest) -> Script:
        asked: Payload = request.json()
        if not request.path.endswith("/responses"):
            return json_answer({"error": {"message": f"no such path: {request.path}"}}, status=404)
        answer = response(text, model=str(asked.get("model")), tokens=tokens)
        if asked.get("stream"):
            return sse_answer(response_events(answer))
        return json_answer(answer)

    return handle


def _begin(model: str) -> Payload:
    return {
        "id": ID,
        "object": "response",
        "created_at": 1_750_000_000,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": None,
        "metadata": {},
        "model": model,
        "output": [],
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "store": False,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": None,
    }
