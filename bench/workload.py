"""The fixed question and the two fixed answers: 300 bytes of JSON, and a stream of 34 events.

Every server in a comparison gets exactly these bytes from its callers and from its upstream.
"""

import json

MODEL = "bench"
STREAMED_MODEL = "bench-stream"
JSON_BYTES = 300
EVENTS = 34

_WORDS = (
    " The gateway takes the surge so that the engines behind it run evenly and every caller is served in turn"
)


def build_request(model: str, *, stream: bool, prompt: str = "Hello, how are you today?") -> bytes:
    """A chat request.  A streamed one asks for usage, so that no gateway has to add the wish for it."""
    body: dict[str, object] = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": 64,
    }
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()


def build_answer() -> bytes:
    """A chat completion of exactly `JSON_BYTES`."""

    def build(content: str) -> bytes:
        message = {"role": "assistant", "content": content}
        answer = {
            "id": "chatcmpl-bench",
            "object": "chat.completion",
            "created": 1760000000,
            "model": MODEL,
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 14, "completion_tokens": 9, "total_tokens": 23},
        }
        return json.dumps(answer, separators=(",", ":")).encode()

    text = "I am well, thank you."
    return build(text + "." * (JSON_BYTES - len(build(text))))


def build_stream() -> bytes:
    """A role, words, a finish, usage and the end: `EVENTS` server-sent events, as vLLM writes them."""

    def build(choices: list[dict[str, object]], **more: object) -> bytes:
        chunk = {
            "id": "chatcmpl-bench",
            "object": "chat.completion.chunk",
            "created": 1760000000,
            "model": STREAMED_MODEL,
            "choices": choices,
        } | more
        return b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"

    def choice(delta: dict[str, str], finish: str | None) -> list[dict[str, object]]:
        return [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]

    words = [f" {word}" for word in _WORDS.split()]
    count = EVENTS - 4
    events = [build(choice({"role": "assistant", "content": ""}, None))]
    events += [build(choice({"content": words[i % len(words)]}, None)) for i in range(count)]
    events.append(build(choice({}, "stop")))
    usage = {"prompt_tokens": 14, "completion_tokens": count, "total_tokens": 14 + count}
    events.append(build([], usage=usage))
    events.append(b"data: [DONE]\n\n")
    return b"".join(events)
