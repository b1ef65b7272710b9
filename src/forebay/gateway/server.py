"""All callers' connections of one worker: accepting, the sweep over their deadlines, and the end."""

import asyncio
import socket
from email.utils import formatdate
from functools import partial

from forebay.gateway.call import Handler
from forebay.gateway.caller import WANTED, CallerConnection
from forebay.gateway.memory import Memory
from forebay.net.turn import Turn

SWEEP_S = 1.0
LAST_REQUEST_S = 0.5  #: while we end: how long a connection waits for one more request after its last
NAMES_MAX = 1000  #: spellings of header names that are remembered
NAME_MAX_BYTES = 64  #: of each of them
TURNED_AWAY_MAX = 64  #: connections beyond the limit that are given time to read why; more are closed at once


class Server:
    """All callers' connections of one worker.

    Args:
        handler: serves one call; must answer it and must not raise.
        connections_max: open connections at a time; more are told so and closed.
        memory: the worker's account of what it holds.
        turn: ends each turn of the loop, with the records first.
    """

    def __init__(self, handler: Handler, connections_max: int, memory: Memory, turn: Turn) -> None:
        self.loop = asyncio.get_running_loop()
        self.handler = handler
        self.memory = memory
        self.turn = turn
        self.closing = False
        self.time = self.loop.time()
        self.date = _build_date()
        #: Each spelling of a header's name that has been seen, and its lower case where anybody reads it.
        self.names: dict[bytes, bytes] = {}
        self._connections: set[CallerConnection] = set()
        self._turned_away: set[CallerConnection] = set()  # too many, and still to hear of it
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
        if len(name) <= NAME_MAX_BYTES and len(self.names) < NAMES_MAX:
            self.names[name] = wanted
        return wanted

    def admit(self, connection: CallerConnection) -> None:
        if len(self._connections) < self._connections_max:
            self._connections.add(connection)
            return
        may_linger = len(self._turned_away) < TURNED_AWAY_MAX
        if may_linger:
            self._turned_away.add(connection)
        connection.turn_away(may_linger=may_linger)

    def forget(self, connection: CallerConnection) -> None:
        self._connections.discard(connection)
        self._turned_away.discard(connection)

    @property
    def connections(self) -> int:
        return len(self._connections)

    def _sweep(self) -> None:
        self.time = now = self.loop.time()
        self.date = _build_date()
        for connection in (*self._connections, *self._turned_away):
            connection.check_deadline(now)
        self._handle = self.loop.call_later(SWEEP_S, self._sweep)

    def stop_accepting(self) -> None:
        """Takes no new connection, and ends every other with the answer that it gets now or next."""
        self.closing = True
        if self._server is not None:
            self._server.close()

    def settle(self) -> bool:
        """Closes what lies idle; whether nobody is left who waits for an answer or may be asking now.

        A connection that was used a moment ago may have a request under way, which a close would lose.
        """
        # What a connection knows of the time is as old as the last sweep.
        before = self.loop.time() - SWEEP_S - LAST_REQUEST_S
        settled = True
        for connection in tuple(self._connections):
            if not connection.is_idle or connection.unsent_bytes:
                settled = False
            elif connection.lingering:
                continue  # it has its answer
            elif connection.since < before:
                connection.close()
            else:
                settled = False
        return settled

    def close(self) -> None:
        self.stop_accepting()
        if self._handle is not None:
            self._handle.cancel()
        for connection in (*self._connections, *self._turned_away):
            connection.abort()


def _build_date() -> str:
    return f"date: {formatdate(usegmt=True)}\r\n"
