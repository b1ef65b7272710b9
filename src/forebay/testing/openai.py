"""Payloads of the OpenAI API as a server sends them, and a handler that behaves as a good server does.

Pure.  Payloads are plain dicts, so that a test can bend them: `chat_completion("hi") | {"odd": 1}`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import msgspec

from forebay.testing.answers import json_answer, sse_answer
from forebay.testing.recorded import RecordedRequest
from forebay.testing.steps import Script, Step

Payload = dict[str, Any]
DONE = b"data: [DONE]\n\n"
ID = "chatcmpl-test"
CREATED_S = 1_750_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call that the model makes; `arguments` is JSON text, or empty for a call without any."""

    id: str
    name: str
    arguments: str = ""


def event(payload: object) -> bytes:
    """One server-sent event with this payload."""
    return b"data: " + msgspec.json.encode(payload) + b"\n\n"


def usage(
    prompt: int = 7, completion: int = 5, *, cached: int | None = None, reasoning: int | None = None
) -> Payload:
    """A usage object; details only where they are given."""
    result: Payload = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }
    if cached is not None:
        result["prompt_tokens_details"] = {"cached_tokens": cached}
    if reasoning is not None:
        result["completion_tokens_details"] = {"reasoning_tokens": reasoning}
    return result


# --- chat/completions ---------------------------------------------------------------------------------------


def chat_completion(
    content: str | None = "Hello",
    *,
    model: str = "m",
    tool_calls: Sequence[ToolCall] = (),
    tokens: Payload | None = None,
) -> Payload:
    """A non-streamed answer; `tokens` is a `usage(...)`."""
    message: Payload = {"role": "assistant", "content": content}
    if tool_calls:
        message["tool_calls"] = [_tool_call(call) for call in tool_calls]
    choice = {
        "index": 0,
        "message": message,
        "logprobs": None,
        "finish_reason": "tool_calls" if tool_calls else "stop",
    }
    return _chat("chat.completion", model) | {
        "choices": [choice],
        "usage": tokens or usage(),
    }


def chat_chunk(
    delta: Payload, *, finish_reason: str | None = None, index: int = 0, model: str = "m"
) -> Payload:
    """One chunk of a stream, with one choice."""
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    return _chat("chat.completion.chunk", model) | {"choices": [choice]}


def usage_chunk(tokens: Payload | None = None, *, model: str = "m") -> Payload:
    """The chunk without choices that ends a stream whose usage was asked for."""
    return _chat("chat.completion.chunk", model) | {
        "choices": [],
        "usage": tokens or usage(),
    }


def chat_stream(
    parts: Iterable[str] = ("Hel", "lo"),
    *,
    model: str = "m",
    tokens: Payload | None = None,
    include_usage: bool = True,
    done: bool = True,
) -> list[bytes]:
    """Raw events: a role chunk, one chunk for each part, the finish, usage if included, [DONE]."""
    chunks = [chat_chunk({"role": "assistant", "content": ""}, model=model)]
    chunks += [chat_chunk({"content": part}, model=model) for part in parts]
    chunks.append(chat_chunk({}, finish_reason="stop", model=model))
    return _events(chunks, usage_chunk(tokens, model=model) if include_usage else None, done)


def tool_call_stream(
    calls: Sequence[ToolCall],
    *,
    fragment_chars: int = 4,
    model: str = "m",
    tokens: Payload | None = None,
    include_usage: bool = True,
) -> list[bytes]:
    """Raw events of parallel tool calls: all are opened first, then their argument fragments take turns.

    Continuations carry the index alone, as OpenAI sends them.  `chat_completion(None, tool_calls=calls)` is
    the same answer without streaming.
    """
    chunks = [chat_chunk({"role": "assistant", "content": None}, model=model)]
    for index, call in enumerate(calls):
        opened = _tool_call(call) | {"index": index, "function": {"name": call.name, "arguments": ""}}
        chunks.append(chat_chunk({"tool_calls": [opened]}, model=model))
    fragments = [
        [call.arguments[at : at + fragment_chars] for at in range(0, len(call.arguments), fragment_chars)]
        for call in calls
    ]
    for turn in zip_longest(*fragments):
        for index, fragment in enumerate(turn):
            if fragment is not None:
                part = {"index": index, "function": {"arguments": fragment}}
                chunks.append(chat_chunk({"tool_calls": [part]}, model=model))
    chunks.append(chat_chunk({}, finish_reason="tool_calls", model=model))
    return _events(chunks, usage_chunk(tokens, model=model) if include_usage else None, True)


# --- the other endpoints ------------------------------------------------------------------------------------


def completion(text: str = "Hello", *, model: str = "m", tokens: Payload | None = None) -> Payload:
    """A non-streamed answer of /completions."""
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": "stop"}
    return _text(model) | {"choices": [choice], "usage": tokens or usage()}


def completion_stream(
    parts: Iterable[str] = ("Hel", "lo"),
    *,
    model: str = "m",
    tokens: Payload | None = None,
    include_usage: bool = True,
    done: bool = True,
) -> list[bytes]:
    """Raw events of a streamed /completions."""
    chunks = [
        _text(model) | {"choices": [{"index": 0, "text": text, "logprobs": None, "finish_reason": reason}]}
        for text, reason in [*((part, None) for part in parts), ("", "stop")]
    ]
    last = _text(model) | {"choices": [], "usage": tokens or usage()}
    return _events(chunks, last if include_usage else None, done)


def embeddings(vectors: Sequence[Sequence[float]], *, model: str = "m", prompt_tokens: int = 3) -> Payload:
    """An answer of /embeddings."""
    return {
        "object": "list",
        "model": model,
        "data": [{"object": "embedding", "index": i, "embedding": list(v)} for i, v in enumerate(vectors)],
        "usage": {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens},
    }


def models(*names: str) -> Payload:
    """An answer of GET /models."""
    return {
        "object": "list",
        "data": [{"id": name, "object": "model", "created": CREATED_S, "owned_by": "test"} for name in names],
    }


def error(
    message: str = "It went wrong.",
    *,
    type: str = "server_error",
    code: str | None = None,
    param: str | None = None,
) -> Payload:
    """OpenAI's error envelope."""
    return {"error": {"message": message, "type": type, "param": param, "code": code}}


def error_answer(status: int, message: str = "It went wrong.", **fields: str) -> list[Step]:
    """An error as a whole answer; `fields` as for `error`."""
    return json_answer(error(message, **fields), status=status)


def rate_limited(retry_after: str | None = "1") -> list[Step]:
    """A 429; `retry_after` goes into the header as it is: seconds, a date, nonsense."""
    return json_answer(
        error("Rate limit reached.", type="requests", code="rate_limit_exceeded"),
        status=429,
        headers=[] if retry_after is None else [("retry-after", retry_after)],
    )


# --- a good server ------------------------------------------------------------------------------------------


def well_behaved(
    *parts: str, tokens: Payload | None = None, model: str | None = None
) -> Callable[[RecordedRequest], Script]:
    """A handler that serves every endpoint as a good server does: streams and usage only when asked for.

    Args:
        parts: the answer's text; each is one chunk of a stream.  "Hello" if none is given.
        model: named in the answers; the request's own if None.
    """
    texts = parts or ("Hello",)

    def handle(request: RecordedRequest) -> Script:
        if request.method == "GET" and request.path.endswith("/models"):
            return json_answer(models(model or "m"))
        asked: Mapping[str, Any] = request.json()
        name = model or str(asked.get("model"))
        with_usage = bool((asked.get("stream_options") or {}).get("include_usage"))
        chat = request.path.endswith("/chat/completions")
        if request.path.endswith("/embeddings"):
            given = asked["input"]
            count = len(given) if isinstance(given, list) and isinstance(given[0], str | list) else 1
            return json_answer(embeddings([[1.0, 0.0, 0.0]] * count, model=name))
        if not chat and not request.path.endswith("/completions"):
            return error_answer(404, f"no such path: {request.path}", code="unknown_url")
        if asked.get("stream"):
            stream = chat_stream if chat else completion_stream
            return sse_answer(stream(texts, model=name, tokens=tokens, include_usage=with_usage))
        whole = chat_completion if chat else completion
        return json_answer(whole("".join(texts), model=name, tokens=tokens))

    return handle


# --- inside -------------------------------------------------------------------------------------------------


def _chat(kind: str, model: str) -> Payload:
    return {"id": ID, "object": kind, "created": CREATED_S, "model": model}


def _text(model: str) -> Payload:
    return {"id": "cmpl-test", "object": "text_completion", "created": CREATED_S, "model": model}


def _tool_call(call: ToolCall) -> Payload:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _events(chunks: Sequence[Payload], last: Payload | None, done: bool) -> list[bytes]:
    """Where usage was asked for, OpenAI puts `usage: null` on each chunk before the one that has it."""
    if last is not None:
        chunks = [chunk | {"usage": None} for chunk in chunks]
    payloads = [*chunks, last] if last is not None else chunks
    return [*map(event, payloads), *([DONE] if done else [])]
