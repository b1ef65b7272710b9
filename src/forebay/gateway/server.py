"""All callers' connections of one worker: accepting, the sweep over their deadlines, and the end."""

import asyncio
import socket
from email.utils import formatdate
from functools import partial

from forebay.gateway.caller import WANTED, CallerConnection, Handler

SWEEP_S = 1.0
NAMES_MAX = 1000  #: spellings of header names that are remembered


class Server:
    """All callers' connections of one worker.

    Args:
        handler: serves one call; must answer it and must not raise.
        connections_max: open connections at a time; more are told so and closed.
    """

    def __init__(self, handler: Handler, connections_max: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.handler = handler
        self.closing = False
        self.time = self.loop.time()
        self.date = _build_date()
        #: Each spelling of a header's name that has been seen, and its lower case where anybody reads it.
        self.names: dict[bytes, bytes] = {}
        self._connections: set[CallerConnection] = set()
        self._connections_max = connections_max
        self._server: asyncio.Server | None = None
        self._handle: asyncio.TimerHandle | None = None

    async def start(self, listener: socket.socket) -> None:
        """Accepts on a socket that listens already and may be shared with other processes."""
        self._server = await self.loop.create_server(
            partial(CallerConnection, self), sock=listener, backlog=4096
        )
        self._sweep()

    def learn_name(self, name: bytes) -> bytes:
        """The wanted lower-case name of a header, or `b""`."""
        lower = name.lower()
        wanted = lower if lower in WANTED else b""
        if len(self.names) < NAMES_MAX:
            self.names[name] = wanted
        return wanted

    def admit(self, connection: CallerConnection) -> None:
        self._connections.add(connection)
        if len(self._connections) > self._connections_max:
            connection._refuse(503, "too_many_connections", "this gateway serves no more connections now")

    def forget(self, connection: CallerConnection) -> None:
        self._connections.discard(connection)

    @property
    def connections(self) -> int:
        return len(self._connections)

    @property
    def is_settled(self) -> bool:
        """Whether no request is coming in or being served, and every answer has been handed over."""
        return all(known.is_idle and not known.unsent_bytes for known in self._connections)

    def _sweep(self) -> None:
        self.time = now = self.loop.time()
        self.date = _build_date()
        for connection in tuple(self._connections):
            connection.check_deadline(now)
        self._handle = self.loop.call_later(SWEEP_S, self._sweep)

    def stop_accepting(self) -> None:
        """Takes no new connection, closes the idle ones, and every other with its current answer."""
        self.closing = True
        if self._server is not None:
            self._server.close()
        for connection in tuple(self._connections):
            if connection.is_idle:
                connection.close()

    def close(self) -> None:
        self.stop_accepting()
        if self._handle is not None:
            self._handle.cancel()
        for connection in tuple(self._connections):
            connection.abort()


def _build_date() -> str:
    return f"date: {formatdate(usegmt=True)}\r\n"
