"""Asks one question through the gateway, as any caller would, and hands out the answer as it comes.

Only for `forebay up --ask`, to show that the whole path works.  Reads no configuration, and prints nothing.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import ClassVar, Final

import msgspec

from forebay.core.errors import ForebayError, TargetError
from forebay.net.client import Client, parse_address
from forebay.net.connection import Connection
from forebay.net.sse import EventSplitter, parse_event

ANSWER_MAX_BYTES: Final = 4 * 1024 * 1024
ANSWER_TOKENS_MAX: Final = 200
SYSTEM_MESSAGE: Final = "You are a helpful assistant."  #: small models answer far better with one
CONNECT_S: Final = 5.0
IDLE_S: Final = 60.0
TOTAL_S: Final = 300.0


class Unanswered(ForebayError):
    code: ClassVar[str] = "unanswered"


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None


class _Error(msgspec.Struct):
    message: str = ""


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    error: _Error | None = None


async def stream_answer(url: str, key: str, model: str, question: str) -> AsyncGenerator[str, None]:
    """Pieces of the answer's text.

    Args:
        url: the gateway's address, without a path.
        key: a caller's key.
        model: a public name.
        question: the user's message.

    Raises:
        Unanswered: the gateway refused, or the answer broke off.
    """
    loop = asyncio.get_running_loop()
    client = Client(loop)
    address, _ = parse_address(url)
    try:
        origin = client.origin(address, 1)
        connection = await origin.acquire(CONNECT_S)
        origin.watch(connection, None, IDLE_S, loop.time() + TOTAL_S)
        head, body = _build_request(address.authority, key, model, question)
        connection.send(head, body, ANSWER_MAX_BYTES)
        try:
            async for text in _read_answer(connection):
                yield text
        finally:
            connection.abort()
    except TargetError as error:
        raise Unanswered(error.message) from error
    finally:
        client.close()


def _build_request(authority: str, key: str, model: str, question: str) -> tuple[bytes, bytes]:
    body = msgspec.json.encode(
        {
            "model": model,
            "messages": [
                {"role": "system", "content": SYSTEM_MESSAGE},
                {"role": "user", "content": question},
            ],
            "stream": True,
            "max_tokens": ANSWER_TOKENS_MAX,
            "temperature": 0,
        }
    )
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: {authority}\r\nauthorization: Bearer {key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode(), body


async def _read_answer(connection: Connection) -> AsyncIterator[str]:
    splitter = EventSplitter(ANSWER_MAX_BYTES)
    data = await connection.some()
    if connection.status != 200:
        raise Unanswered(_read_refusal(connection.status, data + await connection.all()))
    while data:
        for raw in splitter.feed(data):
            payload = parse_event(raw).data
            if payload == b"[DONE]":
                return
            if payload:
                for text in _read_chunk(payload):
                    yield text
        data = await connection.some()
    raise Unanswered("the answer broke off")


def _read_chunk(payload: bytes) -> list[str]:
    try:
        chunk = msgspec.json.decode(payload, type=_Chunk)
    except msgspec.DecodeError as error:
        raise Unanswered(f"the answer is no chat completion: {error}") from error
    if chunk.error is not None:
        raise Unanswered(chunk.error.message)
    return [choice.delta.content for choice in chunk.choices if choice.delta and choice.delta.content]


def _read_refusal(status: int, body: bytes) -> str:
    try:
        error = msgspec.json.decode(body, type=_Chunk).error
    except msgspec.DecodeError:
        error = None
    return error.message if error else f"HTTP {status}"
