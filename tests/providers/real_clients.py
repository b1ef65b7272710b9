"""What the real clients of OpenAI and Anthropic make of bytes, without a network."""

from typing import Any

import anthropic
import httpx
import httpx2  # which Anthropic's client has brought along
import openai
from anthropic.types import Message
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

SSE = "text/event-stream"
ASKED: Any = [{"role": "user", "content": "hi"}]


def _openai(body: bytes, status: int = 200, kind: str = "application/json") -> openai.OpenAI:
    answer = httpx.Response(status, content=body, headers={"content-type": kind})
    http = httpx.Client(transport=httpx.MockTransport(lambda _: answer))
    return openai.OpenAI(api_key="k", base_url="http://h/v1", http_client=http, max_retries=0)


def _anthropic(body: bytes, status: int = 200, kind: str = "application/json") -> anthropic.Anthropic:
    answer = httpx2.Response(status, content=body, headers={"content-type": kind})
    http = httpx2.Client(transport=httpx2.MockTransport(lambda _: answer))
    return anthropic.Anthropic(api_key="k", base_url="http://h", http_client=http, max_retries=0)


def read_chat(body: bytes, status: int = 200) -> ChatCompletion:
    return _openai(body, status).chat.completions.create(model="m", messages=ASKED)


def read_chat_stream(body: bytes) -> ChatCompletion:
    """What OpenAI's client has put together at the end of a stream."""
    with _openai(body, kind=SSE).chat.completions.stream(model="m", messages=ASKED) as stream:
        return stream.get_final_completion()


def read_message(body: bytes, status: int = 200) -> Message:
    return _anthropic(body, status).messages.create(model="m", max_tokens=9, messages=ASKED)


def read_message_stream(body: bytes) -> Message:
    """What Anthropic's client has put together at the end of a stream."""
    with _anthropic(body, kind=SSE).messages.stream(model="m", max_tokens=9, messages=ASKED) as stream:
        return stream.get_final_message()


def read_response(body: bytes, status: int = 200) -> Response:
    return _openai(body, status).responses.create(model="m", input="hi")


def read_response_stream(body: bytes) -> Response:
    """What OpenAI's client has put together at the end of a stream."""
    with _openai(body, kind=SSE).responses.stream(model="m", input="hi") as stream:
        return stream.get_final_response()
