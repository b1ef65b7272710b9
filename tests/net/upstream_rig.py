"""Real sockets for the tests of the upstream client: both event loops, and a peer that moves only when told.

`Wire` sends and closes at once, without the event loop, so that a test decides what the client's kernel holds
before the client's loop looks at it.  What follows a script comes from `forebay.testing` instead.
"""

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass

import pytest
import uvloop

from forebay.net.client import Client, Origin, parse_address
from forebay.net.connection import Connection
from forebay.net.turn import Turn
from forebay.testing.upstream import ScriptedUpstream

Headers = list[tuple[bytes, bytes]]
LIMIT = 1 << 26
HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
FACTORIES = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
both_loops = pytest.mark.parametrize("loop_name", list(FACTORIES))


def run(scenario: Callable[[], Awaitable[None]], loop_name: str = "uvloop", timeout_s: float = 60.0) -> None:
    """Run a scenario on an event loop of that kind, but not for ever; what the loop complained of fails."""
    complaints: list[str] = []

    async def bounded() -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: complaints.append(f"{context['message']}: {context.get('exception')!r}")
        )
        async with asyncio.timeout(timeout_s):
            await scenario()

    with asyncio.Runner(loop_factory=FACTORIES[loop_name]) as runner:
        runner.run(bounded())
    assert complaints == []


async def turn(times: int = 3) -> None:
    """Let the loop read what is there, and everybody act on it."""
    for _ in range(times):
        await asyncio.sleep(0)


async def until(is_true: Callable[[], bool], timeout_s: float = 30.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not is_true():
            await asyncio.sleep(0.001)


class Wire:
    """The server's end of one connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._rest = b""
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, data: bytes) -> None:
        assert self.sock.send(data) == len(data)

    def close(self) -> None:
        """A FIN, if all that came was read; else the kernel makes it a RST."""
        self.sock.close()

    def reset(self) -> None:
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def peek(self) -> bytes:
        """What has come and was not read."""
        try:
            return self._rest + self.sock.recv(1 << 20, socket.MSG_PEEK)
        except BlockingIOError:
            return self._rest

    async def read_request(self) -> bytes:
        """One request, head and body by its content-length."""
        loop = asyncio.get_running_loop()
        data = self._rest
        while True:
            head, found, body = data.partition(b"\r\n\r\n")
            if found:
                length = next(
                    (int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"content-length:")), 0
                )
                if len(body) >= length:
                    self._rest = body[length:]
                    return head + found + body[:length]
            more = await loop.sock_recv(self.sock, 1 << 20)
            assert more, "the client closed in the middle of a request"
            data += more

    async def read_all(self) -> bytes:
        """All that came, to the end, whatever end it is."""
        data = self._rest
        try:
            while more := await asyncio.get_running_loop().sock_recv(self.sock, 1 << 20):
                data += more
        except ConnectionResetError:
            pass
        return data

    async def read_end(self, timeout_s: float = 10.0) -> None:
        """Returns when the client has closed, by FIN or RST.  Raises TimeoutError if it does not."""
        async with asyncio.timeout(timeout_s):
            await self.read_all()


class Peer:
    """A listening socket of 127.0.0.1 and all that connected to it."""

    def __init__(self, backlog: int = 128) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=backlog)
        self.listener.setblocking(False)
        self.port: int = self.listener.getsockname()[1]
        self.wires: list[Wire] = []

    def accept_waiting(self) -> list[Wire]:
        """The connections that wait to be accepted."""
        found = []
        while True:
            try:
                found.append(Wire(self.listener.accept()[0]))
            except BlockingIOError:
                self.wires += found
                return found

    async def accept(self) -> Wire:
        sock, _ = await asyncio.get_running_loop().sock_accept(self.listener)
        self.wires.append(Wire(sock))
        return self.wires[-1]

    def close(self) -> None:
        self.listener.close()
        for wire in self.wires:
            wire.close()


@dataclass(frozen=True, slots=True)
class Rig:
    client: Client
    origin: Origin
    peer: Peer

    async def connect(self, connect_s: float = 5.0) -> tuple[Connection, Wire]:
        """A fresh connection and the peer's end of it."""
        connection = await self.origin.connect(connect_s)
        return connection, await self.peer.accept()

    async def pool_one(self, answer: bytes = OK) -> tuple[Connection, Wire]:
        """A connection that has served once and lies in the pool, and the peer's end of it."""
        connection, wire = await self.connect()
        start(self.origin, connection)
        await wire.read_request()
        wire.send(answer)
        await connection.all()
        connection.release()
        return connection, wire


@contextlib.asynccontextmanager
async def rig(connections_max: int = 100) -> AsyncIterator[Rig]:
    """A client, and an origin whose peer the test plays itself."""
    peer = Peer()
    try:
        with origin_at(f"http://127.0.0.1:{peer.port}/v1", connections_max) as (client, origin):
            yield Rig(client, origin, peer)
    finally:
        peer.close()


def stop_sweeping(client: Client) -> None:
    """From here on time passes only where the test calls `client.sweep`."""
    assert client._timer is not None
    client._timer.cancel()


@contextlib.contextmanager
def origin_at(
    url: str, connections_max: int = 100, tls_ca: str | None = None
) -> Iterator[tuple[Client, Origin]]:
    loop = asyncio.get_running_loop()
    client = Client(loop, Turn(loop, time.monotonic_ns))
    try:
        yield client, client.origin(parse_address(url, tls_ca)[0], connections_max)
    finally:
        client.close()


def build_head(length: int | None, name: str = "x") -> bytes:
    framing = "transfer-encoding: chunked" if length is None else f"content-length: {length}"
    return f"POST /v1/{name} HTTP/1.1\r\nhost: a\r\n{framing}\r\n\r\n".encode()


def start(
    origin: Origin,
    connection: Connection,
    body: bytes = b"{}",
    *,
    name: str = "x",
    limit: int = LIMIT,
    first_s: float | None = None,
    idle_s: float = 30.0,
    total_s: float = 30.0,
) -> None:
    """Send one request under deadlines, now and not at the end of the turn."""
    watch(origin, connection, first_s=first_s, idle_s=idle_s, total_s=total_s)
    connection.send(build_head(len(body), name), body, limit)
    origin.turn.flush()


def watch(
    origin: Origin,
    connection: Connection,
    *,
    first_s: float | None = None,
    idle_s: float = 30.0,
    total_s: float = 30.0,
) -> None:
    origin.watch(connection, first_s, idle_s, asyncio.get_running_loop().time() + total_s)


async def ask(origin: Origin, name: str = "x", body: bytes = b"{}") -> tuple[int, bytes]:
    """One whole exchange, as a caller of the client does it; the connection is let go in any case."""
    connection = await origin.acquire(5.0)
    try:
        start(origin, connection, body, name=name)
        answer = await connection.all()
        return connection.status, answer
    finally:
        connection.release()


async def wait_all_closed(upstream: ScriptedUpstream, timeout_s: float = 10.0) -> None:
    await upstream.wait_until(lambda: upstream.connections_open == 0, timeout_s)


@dataclass(frozen=True, slots=True)
class Seen:
    status: int
    headers: Headers
    body: bytes
    pooled: bool


async def read_all(connection: Connection) -> bytes:
    return await connection.all()


async def read_some(connection: Connection) -> bytes:
    body = b""
    while True:
        data = await connection.some()
        body += data
        if connection.complete:
            return body
        assert data, "nothing before the end"


async def exchange(pieces: Sequence[bytes], *, closes: bool = False, whole: bool = True) -> Seen:
    """One answer, each piece of it in a read of its own."""
    async with rig() as r:
        connection, wire = await r.connect()
        start(r.origin, connection)
        await wire.read_request()
        reading = asyncio.ensure_future((read_all if whole else read_some)(connection))
        await turn()
        for piece in pieces:
            wire.send(piece)
            await turn(2)
        if closes:
            wire.close()
        try:
            body = await reading
            status, headers = connection.status, list(connection.headers.items())
        finally:
            connection.release()
        await turn()
        assert r.origin.open_connections == r.origin.idle_connections
        return Seen(status, headers, body, r.origin.idle_connections == 1)
