"""An HTTP proxy on 127.0.0.1 that makes tunnels, and says which: for tests of what goes through one.

It knows `CONNECT` alone.  Each tunnel is two threads that end with it.
"""

import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

HEAD_MAX_BYTES = 65_536


class TunnelProxy:
    """See the module.

    Args:
        authorization: the header's value without which it answers 407; empty lets everybody through.
        answer: what it sends to every CONNECT instead of a tunnel; then it closes, unless `stays` is set.
        stays: it keeps the connection of which it has made no tunnel.

    Attributes:
        heads: of the requests that came, in their order.
    """

    def __init__(self, *, authorization: str = "", answer: bytes | None = None, stays: bool = False) -> None:
        self.heads: list[bytes] = []
        self._authorization = authorization
        self._answer = answer
        self._stays = stays
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each in (self._listener, *self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        self._thread.join(5)

    def _accept(self) -> None:
        while True:
            try:
                wire, _ = self._listener.accept()
            except OSError:
                return  # the test is over
            self._sockets.append(wire)
            threading.Thread(target=self._serve, args=(wire,), daemon=True).start()

    def _serve(self, wire: socket.socket) -> None:
        with suppress(OSError):
            head = b""
            while b"\r\n\r\n" not in head and len(head) < HEAD_MAX_BYTES:
                data = wire.recv(4096)
                if not data:
                    return
                head += data
            self.heads.append(head)
            answer = self._answer
            wanted = f"proxy-authorization: {self._authorization}\r\n".encode()
            if answer is None and self._authorization and wanted not in head:
                answer = b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n"
            if answer is not None:
                wire.sendall(answer)
                if not self._stays:
                    wire.close()
                return
            host, _, port = head.split(b" ", 2)[1].decode().rpartition(":")
            target = socket.create_connection((host.strip("[]"), int(port)))
            self._sockets.append(target)
            wire.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            threading.Thread(target=_pump, args=(target, wire), daemon=True).start()
            _pump(wire, target)


def _pump(source: socket.socket, sink: socket.socket) -> None:
    """Hands on what comes, and its end."""
    with suppress(OSError):
        while data := source.recv(65_536):
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
