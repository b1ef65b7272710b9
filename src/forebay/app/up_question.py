"""Asks one question through the gateway, as any caller would, and hands out the answer as it comes.

Only for `forebay up --ask`, to show that the whole path works.  Reads no configuration, and prints nothing.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from typing import ClassVar, Final

import msgspec

from forebay.app.chat_answer import AnswerBroken, ChatAnswer, Text, read_refusal
from forebay.app.clock import SystemClock
from forebay.core.errors import ForebayError, TargetError
from forebay.net.client import Client, parse_address
from forebay.net.connection import Connection
from forebay.net.turn import Turn

ANSWER_MAX_BYTES: Final = 4 * 1024 * 1024
ANSWER_TOKENS_MAX: Final = 200
SYSTEM_MESSAGE: Final = "You are a helpful assistant."  #: small models answer far better with one
CONNECT_S: Final = 5.0
IDLE_S: Final = 60.0
TOTAL_S: Final = 300.0
REST_S: Final = 1.0  #: for the end of the body, once the answer is whole


class Unanswered(ForebayError):
    code: ClassVar[str] = "unanswered"


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
    client = Client(loop, Turn(loop, SystemClock().monotonic_ns))
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
    data = await connection.some()
    if connection.status != 200:
        raise Unanswered(read_refusal(connection.status, data + await connection.all()).message)
    chat = ChatAnswer()
    try:
        while data and not chat.is_whole:
            for piece in chat.feed(data):
                if isinstance(piece, Text):
                    yield piece.text
            data = b"" if chat.is_whole else await connection.some()
        for piece in chat.finish():
            if isinstance(piece, Text):
                yield piece.text
        await _take_rest(connection)
    except AnswerBroken as error:
        raise Unanswered(error.message) from error


async def _take_rest(connection: Connection) -> None:
    """Reads to the end of the body: to whoever counts, a caller that closes before it has left."""
    with suppress(TargetError, TimeoutError):  # the answer itself is here
        async with asyncio.timeout(REST_S):
            while await connection.some():
                pass
