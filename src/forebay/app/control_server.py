"""Serves the admin API with Granian in our own event loop, on a socket that we were handed.

Granian has no public name for "serve on this descriptor", so one private hook is overridden here and nowhere
else; the version is pinned for that.
"""

from typing import Any

from granian._granian import SocketHolder
from granian.constants import HTTPModes, Interfaces, TaskImpl
from granian.server.embed import Server

CONNECTIONS_MAX = 256
LISTEN_BACKLOG = 128


class AdminServer(Server):
    """Serves an ASGI application on an inherited listening socket."""

    def __init__(self, app: Any, listen_fd: int) -> None:
        self._listen_fd = listen_fd
        super().__init__(
            target=app,
            interface=Interfaces.ASGINL,
            task_impl=TaskImpl.asyncio,
            http=HTTPModes.auto,
            websockets=False,
            log_enabled=False,
            backpressure=CONNECTIONS_MAX,
        )

    def _init_shared_socket(self) -> None:
        self._ssp = None
        holder: Any = SocketHolder
        self._shd = holder(self._listen_fd, False, LISTEN_BACKLOG)

    def stop_accepting(self) -> None:
        """Ends `serve` once the requests in flight have ended."""
        self.interrupt_signal = True
        self.main_loop_interrupt.set()
