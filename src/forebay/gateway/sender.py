"""The way out of one caller's connection: what goes out of an answer, and who waits for it to be gone.

It takes into account what a caller that is behind has not taken; when that ends it leaves to the connection.
"""

import asyncio
from typing import Any

from forebay.gateway.memory import Memory

JOINED_MAX_BYTES = 16 * 1024  #: head and body up to this size go out as one piece; larger ones as they lie


class Sender:
    """See the module.

    Attributes:
        drained: what `send` waits for while the caller is behind, else None.
        held: the head of a stream, which goes out with its first piece.
    """

    __slots__ = ("_transport", "_untaken", "drained", "held", "loop", "memory")

    def __init__(self, loop: asyncio.AbstractEventLoop, memory: Memory) -> None:
        self.loop = loop
        self.memory = memory
        self.drained: asyncio.Future[None] | None = None
        self.held = b""
        self._untaken = 0  # bytes that are in the account since the caller is behind
        self._transport: Any = None

    def write(self, head: bytes, body: bytes) -> None:
        if len(body) < JOINED_MAX_BYTES:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))

    def write_chunk(self, data: bytes, chunked: bool) -> None:
        head, self.held = self.held, b""
        if chunked:
            self._transport.write(b"%b%x\r\n%b\r\n" % (head, len(data), data))
        else:
            self._transport.write(head + data)

    def write_end(self, data: bytes, chunked: bool) -> None:
        head, self.held = self.held, b""
        if not chunked:
            self._transport.write(head + data)
            return
        last = b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data) if data else b"0\r\n\r\n"
        self._transport.write(head + last)

    @property
    def unsent_bytes(self) -> int:
        """What has been written and not yet taken by the caller's side."""
        return 0 if self._transport is None else int(self._transport.get_write_buffer_size())

    def pause_writing(self) -> None:
        """The transport holds more than it should."""
        if self.drained is None:
            self.drained = self.loop.create_future()
            self._untaken = self.unsent_bytes
            self.memory.held += self._untaken

    def wake_sender(self) -> None:
        """The transport is empty enough again, or gone."""
        self.memory.held -= self._untaken
        self._untaken = 0
        drained, self.drained = self.drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)

    def close(self) -> None:
        """Closes once everything written has gone out."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
