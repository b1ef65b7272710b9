"""Requests in chat as Google gets them, and the parts that tests make them of."""

import json
from typing import Any

import pytest

from forebay.core.errors import InvalidValue
from forebay.providers.chat_to_gemini import ChatToGemini

GEMINI, VERTEX = ChatToGemini(), ChatToGemini(is_vertex=True)
USER = {"role": "user", "content": "hi"}
ASKED: dict[str, Any] = {"model": "public", "messages": [USER]}
SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}
TOOL = {
    "type": "function",
    "function": {"name": "look_up", "description": "Looks it up.", "parameters": SCHEMA},
}


def encode(
    asked: dict[str, Any] | None = None,
    *,
    stream: bool = False,
    model: str = "gemini-3-pro",
    translator: ChatToGemini = GEMINI,
    **more: object,
) -> dict[str, Any]:
    body = json.dumps((asked or ASKED) | more).encode()
    made: dict[str, Any] = json.loads(translator.encode_request(body, model, stream=stream))
    return made


def encode_messages(*messages: dict[str, Any], **settings: Any) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = encode(ASKED | {"messages": list(messages)}, **settings)["contents"]
    return made


def refusal(asked: dict[str, Any] | None = None, **more: Any) -> str | None:
    """The `param` of the error that a request is refused with."""
    with pytest.raises(InvalidValue) as caught:
        encode(asked, **more)
    assert caught.value.param is not None
    assert f"`{caught.value.param}`" in caught.value.message
    return caught.value.param


def user(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def call(call_id: str, arguments: str | None = "{}", name: str = "look_up", **more: Any) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}} | more


def assistant(*calls: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(calls)} | more


def result(call_id: str, content: Any = "found", **more: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content} | more


def signed(place: str, signature: str, words: str = "") -> dict[str, Any]:
    return {"type": "thinking", "thinking": words, "signature": f"gemini:{place}:{signature}"}
