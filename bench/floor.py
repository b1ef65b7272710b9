"""The floor: forwards chat requests over the same parsers and loop as Forebay, and does nothing else.

usage: python bench/floor.py PORT JSON_UPSTREAM_PORT STREAM_UPSTREAM_PORT

It checks no key, keeps no record, counts nothing, has no timeout and survives no fault: what a gateway in
Python costs beyond it is what the gateway does.  A benchmark's peer and nothing more.
"""

import asyncio
import sys
from functools import partial
from typing import Any

import httptools
import uvloop

_ASK = b"POST /v1/chat/completions HTTP/1.1\r\nhost: upstream\r\ncontent-type: application/json\r\n"
_WHOLE = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
_STREAM = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    b"%x\r\n%b\r\n0\r\n\r\n"
)


class Upstream(asyncio.Protocol):
    """A pooled connection, one exchange at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._parser: Any = httptools.HttpResponseParser(self)
        self._transport: Any = None
        self._waiter: asyncio.Future[bytes] = loop.create_future()
        self._chunks: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self._chunks.append(body)

    def on_message_complete(self) -> None:
        self._waiter.set_result(b"".join(self._chunks))

    def ask(self, body: bytes) -> asyncio.Future[bytes]:
        self._chunks = []
        self._waiter = self._loop.create_future()
        self._transport.write(b"%bcontent-length: %d\r\n\r\n%b" % (_ASK, len(body), body))
        return self._waiter


class Pool:
    """The idle connections to one upstream."""

    def __init__(self, loop: asyncio.AbstractEventLoop, port: int, form: bytes) -> None:
        self.form = form
        self._loop = loop
        self._port = port
        self._idle: list[Upstream] = []

    async def ask(self, body: bytes) -> bytes:
        if self._idle:
            connection = self._idle.pop()
        else:
            make = partial(Upstream, self._loop)
            _, connection = await self._loop.create_connection(make, "127.0.0.1", self._port)
        answer = await connection.ask(body)
        self._idle.append(connection)
        return answer


class Caller(asyncio.Protocol):
    """One caller's connection."""

    def __init__(self, loop: asyncio.AbstractEventLoop, whole: Pool, stream: Pool) -> None:
        self._loop = loop
        self._whole = whole
        self._stream = stream
        self._parser: Any = httptools.HttpRequestParser(self)
        self._transport: Any = None
        self._chunks: list[bytes] = []
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self._chunks.append(body)

    def on_message_complete(self) -> None:
        body = b"".join(self._chunks)
        self._chunks = []
        pool = self._stream if b'"stream":true' in body else self._whole
        self._task = self._loop.create_task(self._serve(pool, body))

    async def _serve(self, pool: Pool, body: bytes) -> None:
        answer = await pool.ask(body) if body else b""
        self._transport.write(pool.form % (len(answer), answer))


async def serve(port: int, json_port: int, stream_port: int) -> None:
    loop = asyncio.get_running_loop()
    whole, stream = Pool(loop, json_port, _WHOLE), Pool(loop, stream_port, _STREAM)
    server = await loop.create_server(partial(Caller, loop, whole, stream), "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(*(int(argument) for argument in sys.argv[1:4])))
