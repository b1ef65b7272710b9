"""One connection of a scripted upstream: parses requests strictly, then carries scripts out step by step.

It decides nothing about what is answered: `upstream` chooses the script.
"""

import asyncio
import fcntl
import socket
import struct
import termios
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import httptools

from forebay.testing.recorded import RecordedConnection, RecordedRequest
from forebay.testing.steps import (
    AwaitBody,
    Close,
    PauseReading,
    Reset,
    ResumeReading,
    Script,
    Send,
    Sleep,
    Stall,
    Step,
    Wait,
)

#: How long a reset waits for the peer's kernel to take what was sent before it.
RESET_FLUSH_S = 0.5
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionRules:
    """What a connection asks of its upstream, and how it behaves between scripts."""

    begin_connection: Callable[["ScriptedConnection"], RecordedConnection]
    begin_request: Callable[[RecordedRequest], None]
    choose_script: Callable[[RecordedRequest], Script]
    count_request: Callable[[], int]
    changed: Callable[[], None]
    on_connect: Script | None
    answer_at_head: bool
    answer_continue: bool
    keep_alive_s: float | None


class ScriptedConnection(asyncio.Protocol):
    """The server's end of one TCP connection."""

    record: RecordedConnection  #: exists from `connection_made` on

    def __init__(self, rules: ConnectionRules) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._rules = rules
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._parser: Any = httptools.HttpRequestParser(self)
        self._writable = asyncio.Event()
        self._writable.set()
        self._arrived: deque[RecordedRequest] = deque()
        self._news = asyncio.Event()
        self._request: RecordedRequest | None = None
        self._in_message = False
        self._closing = False
        self._target = bytearray()
        self._headers: list[tuple[str, str]] = []

    # --- asyncio.Protocol -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.record = self._rules.begin_connection(self)

    def data_received(self, data: bytes) -> None:
        self.record.received_bytes += len(data)
        if self._rules.on_connect is None and not self._closing:
            self._parse(data)
        self._rules.changed()

    def _parse(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # an offer to upgrade may be ignored
        except httptools.HttpParserError as error:
            self.record.protocol_error = f"{type(error).__name__}: {error}"
            self._transport.write(
                b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            )
            self._close()

    def eof_received(self) -> bool | None:
        self._peer_left()
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self.record.reset_by_peer = isinstance(exc, ConnectionResetError)
        self._peer_left()
        self.record.closed_at_s = self._loop.time()
        self._writable.set()
        if not self.ended.done():
            self.ended.set_result(None)
        self._rules.changed()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def _peer_left(self) -> None:
        if not self._closing and self.record.closed_by_peer_at_s is None:
            self.record.closed_by_peer_at_s = self._loop.time()
            self._rules.changed()

    # --- httptools callbacks --------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._in_message = True
        self._target.clear()
        self._headers = []

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._request is None:  # trailers come here as well; they are not kept
            self._headers.append((name.decode("latin-1"), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        self._request = request = RecordedRequest(
            number=self._rules.count_request(),
            connection=self.record.number,
            number_on_connection=self.record.requests,
            method=self._parser.get_method().decode("latin-1"),
            target=self._target.decode("latin-1"),
            http_version=self._parser.get_http_version(),
            headers=tuple(self._headers),
            arrived_at_s=self._loop.time(),
        )
        self.record.requests += 1
        self._rules.begin_request(request)
        if self._rules.answer_continue and (request.header("expect") or "").lower() == "100-continue":
            self._transport.write(_CONTINUE)
        if self._rules.answer_at_head:
            self._announce(request)

    def on_body(self, body: bytes) -> None:
        if self._request is not None:
            self._request.body += body

    def on_message_complete(self) -> None:
        request, self._request = self._request, None
        self._in_message = False
        if request is not None:
            request.completed_at_s = self._loop.time()
            if not self._rules.answer_at_head:
                self._announce(request)
        self._news.set()

    def _announce(self, request: RecordedRequest) -> None:
        self._arrived.append(request)
        self._news.set()

    # --- scripts --------------------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Answer requests one after another until the connection ends; cancel it when it has ended."""
        if self._rules.on_connect is not None:
            await self._run(self._rules.on_connect, None)
            self._close()
            return
        while not self._closing:
            request = await self._next_request()
            if request is None:
                self._close()
                return
            await self._run(self._rules.choose_script(request), request)
            request.answered_at_s = self._loop.time()
            self._rules.changed()
            if request.http_version == "1.0" or (request.header("connection") or "").lower() == "close":
                self._close()

    async def _next_request(self) -> RecordedRequest | None:
        """The next request to answer, or None when none began within the keep-alive time."""
        while not self._arrived:
            self._news.clear()
            try:
                async with asyncio.timeout(self._rules.keep_alive_s):
                    await self._news.wait()
            except TimeoutError:
                if not self._in_message:
                    return None
        return self._arrived.popleft()

    async def _run(self, script: Script, request: RecordedRequest | None) -> None:
        for step in script:
            await self._perform(step, request)
            if self._closing:
                return

    async def _perform(self, step: Step, request: RecordedRequest | None) -> None:
        match step:
            case Send(data):
                self._transport.write(data)
                await asyncio.sleep(0)  # so that an endless script cannot hide that the peer has left
                await self._writable.wait()
            case Sleep(seconds):
                await asyncio.sleep(seconds)
            case Wait(gate):
                await gate.wait()
            case AwaitBody():
                while request is not None and not request.complete:
                    self._news.clear()
                    await self._news.wait()
            case PauseReading():
                self._transport.pause_reading()
            case ResumeReading():
                self._transport.resume_reading()
            case Close():
                self._close()
            case Reset():
                await self._reset()
            case Stall():
                await asyncio.shield(self.ended)

    def _close(self) -> None:
        if not self._closing:
            self._closing = True
            self._transport.close()

    async def _reset(self) -> None:
        """A RST, but not before the peer's kernel holds all that was sent (or will not take it)."""
        sock = self._transport.get_extra_info("socket")
        deadline = self._loop.time() + RESET_FLUSH_S
        while self._loop.time() < deadline and not self._transport.is_closing():
            unsent = self._transport.get_write_buffer_size()
            if (
                not unsent
                and not struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, b"\0" * 4))[0]
            ):
                break
            await asyncio.sleep(0.001)
        self._closing = True
        if sock.fileno() >= 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()

    def abort(self) -> None:
        """Drop the connection because the upstream stops."""
        self._closing = True
        self._transport.abort()
