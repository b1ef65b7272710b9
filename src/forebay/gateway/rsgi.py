"""What we use of Granian, in one place: its server in our own event loop, on a socket that we were handed.

Workers share one listening socket, which the supervisor holds open, so that a worker may die or restart
without a refused connection.  Granian has no public name for "serve on this descriptor", so one private hook
is overridden here and nowhere else; the version is pinned for that.
"""

from typing import Any

from granian._granian import RSGIProtocolClosed as ProtocolClosed
from granian._granian import SocketHolder
from granian.constants import HTTPModes, Interfaces, TaskImpl
from granian.http import HTTP1Settings
from granian.server.embed import Server

__all__ = ["InheritedSocketServer", "ProtocolClosed"]

HEAD_MAX_S = 30  #: how long a request's head may take to arrive
LISTEN_BACKLOG = 4096
BUFFER_MAX_BYTES = 417_792  #: Granian's own default for a connection's read buffer


class InheritedSocketServer(Server):
    """Serves an RSGI application on an inherited listening socket.

    Args:
        app: an object with `__rsgi__`.
        listen_fd: the socket's descriptor, already listening.
        connections_max: open connections at a time; more wait in the socket's queue.
    """

    def __init__(self, app: Any, listen_fd: int, connections_max: int) -> None:
        self._listen_fd = listen_fd
        super().__init__(
            target=app,
            interface=Interfaces.RSGI,
            task_impl=TaskImpl.asyncio,
            http=HTTPModes.auto,
            websockets=False,
            log_enabled=False,
            backpressure=connections_max,
            http1_settings=HTTP1Settings(
                header_read_timeout=HEAD_MAX_S * 1000, max_buffer_size=BUFFER_MAX_BYTES
            ),
        )

    def _init_shared_socket(self) -> None:
        self._ssp = None
        holder: Any = SocketHolder
        self._shd = holder(self._listen_fd, False, LISTEN_BACKLOG)

    def stop_accepting(self) -> None:
        """Ends `serve` once the requests in flight have ended."""
        self.interrupt_signal = True
        self.main_loop_interrupt.set()
