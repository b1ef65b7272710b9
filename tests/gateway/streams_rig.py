"""What tests of streams stand on: requests for one, and how its end must look where it breaks off."""

import json
from typing import Any

import httpx
import pytest

from forebay.testing.openai import chat_chunk, chat_stream, completion_stream, event

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "stream": True}
TEXT: dict[str, Any] = {"model": "m", "prompt": "Hello", "stream": True}
ASKS = {"chat/completions": CHAT, "completions": TEXT}
STREAMS = {"chat/completions": chat_stream, "completions": completion_stream}
both = pytest.mark.parametrize("path", ASKS)
CONTENT = [event(chat_chunk({"role": "assistant", "content": ""})), event(chat_chunk({"content": "Hel"}))]


def ask(client: httpx.Client, path: str = "chat/completions", **changes: Any) -> httpx.Response:
    return client.post("/" + path, json=ASKS[path] | changes)


def events_in(body: bytes) -> list[Any]:
    """The payloads of a stream's events; `[DONE]` as text."""
    lines = body.decode().replace("\r\n", "\n").replace("\r", "\n").split("\n")
    data = [line.removeprefix("data:").strip() for line in lines if line.startswith("data:")]
    return ["[DONE]" if text == "[DONE]" else json.loads(text) for text in data]


def assert_broken(body: bytes, code: str) -> None:
    """The stream ends with one error in the dialect, and nothing in it says that it ended well."""
    *before, last = events_in(body)
    assert last["error"]["code"] == code, last
    assert set(last["error"]) == {"message", "type", "param", "code"}
    assert "[DONE]" not in before
    for payload in before:
        assert not any(choice.get("finish_reason") for choice in payload.get("choices", [])), payload
