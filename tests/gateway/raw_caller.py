"""A caller on a bare socket, for tests that leave, dawdle, or send what no client would."""

import json
import socket
import struct
from types import TracebackType
from typing import Any, Self

import httptools

from forebay.testing.gateway import TEST_KEY

LIMIT_S = 60.0


class Reply:
    """One answer, as far as it has come; httptools calls the `on_` methods."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: list[tuple[str, str]] = []
        self.body = bytearray()
        self.head_complete = False
        self.complete = False
        self.parser: Any = httptools.HttpResponseParser(self)

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name), None)

    def json(self) -> Any:
        return json.loads(bytes(self.body))

    @property
    def id(self) -> str:
        return self.header("x-request-id") or ""

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.decode("latin-1"), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        self.status = self.parser.get_status_code()
        if self.status < 200:
            self.headers.clear()
        else:
            self.head_complete = True

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.complete = self.head_complete


class RawCaller:
    """One connection.  `post` sends a request, `read_*` read its answer, `close` or `reset` leave."""

    def __init__(self, port: int, *, receive_buffer: int | None = None) -> None:
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(LIMIT_S)
        self.socket.connect(("127.0.0.1", port))
        self.reply = Reply()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def post(
        self,
        path: str,
        body: bytes | dict[str, Any],
        *,
        headers: tuple[str, ...] = (f"authorization: Bearer {TEST_KEY}",),
        body_sent: int | None = None,
        method: str = "POST",
    ) -> None:
        """Sends a request with a length; only the first `body_sent` bytes of its body if that is given."""
        if isinstance(body, dict):
            body = json.dumps(body).encode()
        lines = [f"{method} /v1/{path} HTTP/1.1", "host: test", f"content-length: {len(body)}", *headers]
        head = "\r\n".join(lines) + "\r\n\r\n"
        self.send(head.encode("latin-1") + body[:body_sent])

    def read(self, limit: int = 65536) -> bytes:
        """Whatever comes next, fed to the reply; b"" at the end."""
        data = self.socket.recv(limit)
        if data:
            self.reply.parser.feed_data(data)
        return data

    def read_head(self) -> Reply:
        while not self.reply.head_complete:
            assert self.read(), "the gateway closed the connection without an answer"
        return self.reply

    def read_until(self, token: bytes) -> bytes:
        """The body so far, once it holds `token`."""
        while token not in self.reply.body:
            assert self.read(), f"the answer ended without {token!r}: {bytes(self.reply.body)!r}"
        return bytes(self.reply.body)

    def read_all(self) -> Reply:
        while not self.reply.complete:
            assert self.read(), f"the answer was cut: {bytes(self.reply.body)!r}"
        return self.reply

    def close(self) -> None:
        """Leaves with a FIN."""
        self.socket.close()

    def reset(self) -> None:
        """Leaves with a RST."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()
