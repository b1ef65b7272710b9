"""Whether a server keeps a connection after a stream, as its heads say; some say so and close it at once.

A request that is sent on such a connection in the same moment is lost, and nobody can tell whether the server
saw it.  So the first connections that have carried a stream of a server lie still for a moment, and what
becomes of them is what is believed from then on: with a server that does as it says, nothing is lost after.
"""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

PROBATION_S: Final = 0.1
_STREAM: Final = b"text/event-stream"


class Answered(Protocol):
    """A connection whose exchange has ended well."""

    def header(self, name: bytes) -> bytes: ...

    def abort(self) -> None: ...

    def is_stale(self) -> bool: ...


Connection = TypeVar("Connection", bound=Answered)


class StreamKeeping:
    """What is known of one server.

    Attributes:
        is_certain: it keeps them, so nothing need be asked any more.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._closes = False
        self.is_certain = False

    def hold(self, connection: Connection, give_back: Callable[[Connection], None]) -> bool:
        """Whether it is taken over: to be closed, or to be given back after a moment if it still stands."""
        if not connection.header(b"content-type").startswith(_STREAM):
            return False
        if self._closes:
            connection.abort()
        else:
            self._loop.call_later(PROBATION_S, self._judge, connection, give_back)
        return True

    def _judge(self, connection: Connection, give_back: Callable[[Connection], None]) -> None:
        if connection.is_stale():
            self._closes = not self.is_certain
            connection.abort()
            return
        self.is_certain, self._closes = True, False
        give_back(connection)
