"""The client of benchmarks: streams over HTTP/1.1, each event with the time at which its bytes came.

Made to cost little beside what it measures: a protocol on the event loop and a parser in C, no object for a
chunk.  It keeps connections while servers let it, never retries an answer that had begun, and judges nothing.
"""

import asyncio
import ssl
from time import perf_counter
from typing import Final
from urllib.parse import urlsplit

import httptools
import msgspec

from forebay.app.bench_stats import Sample
from forebay.net.sse import EventSplitter, parse_event

EVENT_MAX_BYTES: Final = 1 << 22
ERROR_SHOWN: Final = 200  #: characters of a body
IDLE_MAX: Final = 4096  #: connections that are kept
_NULL: Final = msgspec.Raw(b"null")


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Chunk(msgspec.Struct):
    choices: list[msgspec.Raw] | None = None
    usage: _Usage | None = None
    error: msgspec.Raw = _NULL


_decode_chunk = msgspec.json.Decoder(_Chunk).decode


class Stale(Exception):
    """A connection that was kept had been closed; nothing of an answer has come."""


class _Stream(asyncio.Protocol):
    """One connection, one exchange at a time."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.is_open = False
        self._begin()

    def _begin(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._splitter = EventSplitter(EVENT_MAX_BYTES)
        self._done: asyncio.Future[None] | None = None
        self._now = self._first = self._last = self._content_last = 0.0
        self._gaps: list[float] = []
        self._input = self._output = 0
        self._events = 0
        self._error = ""
        self._body = b""
        self._has_begun = self._is_whole = self._keeps = self._saw_done = False

    # --- asyncio's ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport, self.is_open = transport, True

    def data_received(self, data: bytes) -> None:
        self._now, self._has_begun = perf_counter(), True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._error = self._error or f"no HTTP: {error}"
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        if self._done is not None and not self._done.done():
            if not self._has_begun:
                self._done.set_exception(Stale())
                return
            if not self._is_whole and not self._error and not self._ends_at_close():
                self._error = f"the connection was lost: {error or 'closed'}"
            self._done.set_result(None)

    def _ends_at_close(self) -> bool:
        """Whether the answer has no other end than that of its connection."""
        return self._has_begun and self._events > 0 and self._saw_done

    # --- httptools' -----------------------------------------------------------------------------------------

    def on_body(self, body: bytes) -> None:
        if self._parser.get_status_code() != 200:
            self._body = (self._body + body)[: 4 * ERROR_SHOWN]
            return
        for raw in self._splitter.feed(body):
            self._read(parse_event(raw).data)

    def on_message_complete(self) -> None:
        self._is_whole, self._keeps = True, self._parser.should_keep_alive()
        if self._parser.get_status_code() == 200 and (rest := self._splitter.finish()):
            self._read(parse_event(rest).data)
        if self._done is not None and not self._done.done():
            self._done.set_result(None)

    def _read(self, data: bytes | None) -> None:
        if not data:
            return
        if data[:6] == b"[DONE]":
            self._saw_done = True
            return
        try:
            chunk = _decode_chunk(data)
        except msgspec.MsgspecError:
            self._error = self._error or f"no event of a chat: {data[:ERROR_SHOWN]!r}"
            return
        if bytes(chunk.error) != b"null":
            self._error = self._error or bytes(chunk.error)[:ERROR_SHOWN].decode(errors="replace")
            return
        if chunk.choices:
            if not self._events:
                self._first = self._now
            else:
                self._gaps.append(self._now - self._last)
            self._events += 1
            self._last = self._now
        if chunk.usage is not None:
            self._input = chunk.usage.prompt_tokens or self._input
            self._output = chunk.usage.completion_tokens or self._output

    # --- ours -----------------------------------------------------------------------------------------------

    async def ask(self, request: bytes, began: float, timeout_s: float) -> Sample:
        """Latencies count from `began`.  Raises Stale."""
        assert self.transport is not None
        self._begin()
        self._done = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        try:
            async with asyncio.timeout(timeout_s):
                await self._done
        except TimeoutError:
            self._error = f"no whole answer within {timeout_s:g} s"
            self.close()
        status = self._parser.get_status_code() if self._has_begun else 0
        if not self._error and status != 200:
            self._error = f"answered {status}: {self._body.decode(errors='replace')[:ERROR_SHOWN]}"
        if not self._error and not self._events:
            self._error = "the answer is no stream with choices"
        if self._error:
            return Sample(error=self._error)
        return Sample(
            ttft_s=self._first - began,
            e2el_s=self._last - began,
            itl_s=self._gaps,
            input_tokens=self._input,
            output_tokens=self._output or self._events,
        )

    @property
    def is_reusable(self) -> bool:
        return self.is_open and self._is_whole and self._keeps

    def close(self) -> None:
        if self.transport is not None:
            self.transport.abort()


class BenchClient:
    """Requests to one server.

    Args:
        url: its address up to and including `/v1`.
        secret: sent as a bearer token; empty for none.
        endpoint: `chat/completions` or `completions`.

    Raises:
        ValueError: the address is none.
    """

    def __init__(self, url: str, secret: str, endpoint: str, timeout_s: float) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url} is not an address; it should look like http://127.0.0.1:8000/v1")
        if not (secret.isascii() and secret.isprintable()):
            raise ValueError("the key holds characters that no key has")
        self._host, self._tls = parts.hostname, parts.scheme == "https"
        self._port = parts.port or (443 if self._tls else 80)
        lines = [
            f"POST {parts.path.rstrip('/')}/{endpoint} HTTP/1.1",
            f"host: {parts.netloc.rpartition('@')[2]}",
            "content-type: application/json",
            "accept: text/event-stream",
            "user-agent: forebay-bench",
            *([f"authorization: Bearer {secret}"] if secret else []),
        ]
        self._head = "\r\n".join(lines).encode("ascii")
        self._timeout_s = timeout_s
        self._idle: list[_Stream] = []

    async def ask(self, body: bytes) -> Sample:
        """One request, and how it went; never raises for what the server or the network does.

        A connection that has to be made first counts, as callers wait for it too.
        """
        began = perf_counter()
        request = b"%b\r\ncontent-length: %d\r\n\r\n%b" % (self._head, len(body), body)
        for _ in range(2):
            try:
                stream = await self._open()
            except (OSError, TimeoutError) as error:
                return Sample(error=f"can't connect: {error or type(error).__name__}")
            try:
                sample = await stream.ask(request, began, self._timeout_s)
            except Stale:
                continue
            if stream.is_reusable and len(self._idle) < IDLE_MAX:
                self._idle.append(stream)
            else:
                stream.close()
            return sample
        return Sample(error="the connection was closed before an answer")

    async def _open(self) -> _Stream:
        while self._idle:
            stream = self._idle.pop()
            if stream.is_open:
                return stream
        loop = asyncio.get_running_loop()
        context = ssl.create_default_context() if self._tls else None
        async with asyncio.timeout(self._timeout_s):
            _, made = await loop.create_connection(_Stream, self._host, self._port, ssl=context)
        return made

    def close(self) -> None:
        for stream in self._idle:
            stream.close()
        self._idle.clear()
