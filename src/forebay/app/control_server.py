"""What we use of Granian, in one place: its server in our own event loop, on a socket that we were handed.

Granian has no public name for "serve on this descriptor", so one private hook is overridden here and nowhere
else; its version is pinned for that.
"""

from typing import Any, Final

from granian._granian import SocketHolder
from granian.constants import HTTPModes, Interfaces, TaskImpl
from granian.http import HTTP1Settings
from granian.server.embed import Server

from forebay.app.supervisor_socket import BACKLOG

CONNECTIONS_MAX: Final = 256
HEAD_TIMEOUT_MS: Final = 10_000
BUFFER_MAX_BYTES: Final = 128 * 1024  #: for each connection: the longest request head


class AdminServer(Server):
    """Serves an ASGI application on an inherited listening socket.

    Args:
        app: the application.
        listen_fd: the socket's descriptor, already listening.
    """

    def __init__(self, app: Any, listen_fd: int) -> None:
        self._listen_fd = listen_fd
        super().__init__(
            target=app,
            interface=Interfaces.ASGINL,
            task_impl=TaskImpl.asyncio,
            http=HTTPModes.http1,
            websockets=False,
            log_enabled=False,
            backpressure=CONNECTIONS_MAX,
            http1_settings=HTTP1Settings(
                header_read_timeout=HEAD_TIMEOUT_MS, max_buffer_size=BUFFER_MAX_BYTES
            ),
        )

    def _init_shared_socket(self) -> None:
        self._ssp = None
        holder: Any = SocketHolder
        self._shd = holder(self._listen_fd, False, BACKLOG)

    def stop_accepting(self) -> None:
        """Ends `serve` once the requests in flight have ended."""
        self.interrupt_signal = True
        self.main_loop_interrupt.set()
