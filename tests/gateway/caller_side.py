"""A caller's connection without a socket: each test chooses where reads end, and when the caller takes."""

import asyncio
import time
from typing import Any

from forebay.gateway.call import Call
from forebay.gateway.caller import CallerConnection
from forebay.gateway.memory import Memory
from forebay.gateway.server import Server
from forebay.net.turn import Turn
from forebay.testing.gateway import TEST_KEY

READ_MAX = 256 * 1024  #: what a transport reads at once
HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: t\r\nauthorization: Bearer %b\r\n" % TEST_KEY.encode()


class Wire(asyncio.Transport):
    """What a connection writes to, and whether it wants to read."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.reads = True
        self.closed = False
        self.unsent = 0  # as if the caller had not taken so many bytes

    def write(self, data: Any) -> None:
        self.written += data

    def writelines(self, list_of_data: Any) -> None:
        self.written += b"".join(list_of_data)

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        pass

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    @property
    def statuses(self) -> list[int]:
        return [int(part[:3]) for part in bytes(self.written).split(b"HTTP/1.1 ")[1:]]


class Side:
    """One connection, whose requests are answered at once, or when the test says so."""

    def __init__(self, *, at_once: bool) -> None:
        self.waiting: list[Call] = []
        self.bodies: list[bytes] = []
        self.aborts = False  # instead of an answer
        self._at_once = at_once
        self.memory = Memory(1 << 30)
        turn = Turn(asyncio.get_running_loop(), time.monotonic_ns)
        self.server = Server(self._handle, 100, self.memory, turn)
        self.connection = CallerConnection(self.server)
        self.wire = Wire()
        self.connection.connection_made(self.wire)

    def _handle(self, call: Call) -> Any:
        if not call.body_done:
            return self._receive(call)
        self._finish(call)
        return None

    async def _receive(self, call: Call) -> None:
        self.bodies.append(await call.body())
        call.respond(200, "", b"")

    def _finish(self, call: Call) -> None:
        if self._at_once:
            self.bodies.append(call.take_body())
            if self.aborts:
                call.abort()
            else:
                call.respond(200, "", b"")
        else:
            self.waiting.append(call)

    async def feed(self, data: bytes) -> None:
        """One read, if the connection wants one."""
        assert self.wire.reads
        self.connection.data_received(data)
        for _ in range(3):
            await asyncio.sleep(0)


def request(body: bytes, *, padding: int = 0, chunk: int = 0) -> bytes:
    head = HEAD + b"x-padding: " + b"p" * padding + b"\r\n"
    if not chunk:
        return head + b"content-length: %d\r\n\r\n" % len(body) + body
    pieces = (body[at : at + chunk] for at in range(0, len(body), chunk))
    framed = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return head + b"transfer-encoding: chunked\r\n\r\n" + framed + b"0\r\nx-trailer: 1\r\n\r\n"


async def feed_in_reads(side: Side, data: bytes, sizes: list[int]) -> None:
    at = turn = 0
    while at < len(data):
        size = sizes[turn % len(sizes)]
        await side.feed(data[at : at + size])
        at, turn = at + size, turn + 1
