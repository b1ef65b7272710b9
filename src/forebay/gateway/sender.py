"""The way out of one caller's connection: what goes out of an answer, and who waits for it to be gone.

What ends an answer waits for the end of the turn, behind the answer's record.  It takes into account what a
caller that is behind has not taken; when that ends it leaves to the connection.
"""

import asyncio
import select
import socket
import struct
from typing import Any, Protocol

from forebay.gateway.call import Handler
from forebay.gateway.memory import Memory
from forebay.net.turn import Turn

#: Last bytes of answers up to this size wait for the end of the turn; larger ones go out at once as they lie.
WAITING_MAX_BYTES = 16 * 1024
_NO_LINGER = struct.pack("ii", 1, 0)


class Host(Protocol):
    """The server that a connection belongs to."""

    loop: asyncio.AbstractEventLoop
    handler: Handler
    closing: bool
    time: float
    date: str
    memory: Memory
    turn: Turn
    names: dict[bytes, bytes]

    def learn_name(self, name: bytes) -> bytes: ...
    def admit(self, connection: Any) -> None: ...
    def forget(self, connection: Any) -> None: ...


class Sender:
    """See the module.

    Attributes:
        drained: what `send` waits for while the caller is behind, else None.
        held: the head of a stream, which goes out with its first piece.
    """

    __slots__ = (
        "_transport", "_turn", "_unsent", "_untaken", "_waiting", "drained", "held", "loop", "memory",
    )  # fmt: skip

    def __init__(self, server: Host) -> None:
        self.loop = server.loop
        self.memory = server.memory
        self._turn = server.turn
        self._waiting = b""  # for the end of the turn
        self.drained: asyncio.Future[None] | None = None
        self.held = b""
        self._untaken = 0  # bytes that are in the account since the caller is behind
        self._unsent = 0  # bytes that the caller had not taken when `has_taken_some` was last asked
        self._transport: Any = None

    def write(self, head: bytes, body: bytes) -> None:
        """Sends a whole answer."""
        if len(body) < WAITING_MAX_BYTES:
            self._put_last(head + body)
        else:
            self._turn.flush()
            self._transport.writelines((head, body))

    def write_chunk(self, data: bytes, chunked: bool) -> None:
        """Sends a piece of a stream."""
        head, self.held = self.held, b""
        self.write_now(b"%b%x\r\n%b\r\n" % (head, len(data), data) if chunked else head + data)

    def write_end(self, data: bytes, chunked: bool) -> None:
        """Sends a stream's last piece and its end."""
        head, self.held = self.held, b""
        if not chunked:
            self._put_last(head + data)
        elif data:
            self._put_last(b"%b%x\r\n%b\r\n0\r\n\r\n" % (head, len(data), data))
        else:
            self._put_last(head + b"0\r\n\r\n")

    def write_now(self, data: bytes) -> None:
        """Sends what ends no answer, in its order."""
        if self._waiting:
            self._turn.flush()
        self._transport.write(data)

    def _put_last(self, data: bytes) -> None:
        """Sends what ends an answer, with the turn's end."""
        waiting = self._waiting
        if not data:  # the connection's end is the answer's: it too comes behind the record
            self._turn.flush()
        elif not waiting and len(data) <= WAITING_MAX_BYTES:
            self._waiting = data
            self._turn.add_answer(self)
        elif len(waiting) + len(data) <= WAITING_MAX_BYTES:
            self._waiting += data
        else:
            self._turn.flush()
            self._transport.write(data)

    def flush(self) -> None:
        """The turn has ended: sends what waited for that."""
        waiting, self._waiting = self._waiting, b""
        if not waiting or self._transport is None:
            return
        try:
            self._transport.write(waiting)
        except Exception:
            self.abort()  # or the caller would wait for ever
            raise

    @property
    def unsent_bytes(self) -> int:
        """What has been written and not yet taken by the caller's side."""
        if self._transport is None:
            return 0
        return len(self._waiting) + int(self._transport.get_write_buffer_size())

    def has_taken_some(self) -> bool:
        """Whether bytes wait for the caller, and others than when this was last asked."""
        before, self._unsent = self._unsent, self.unsent_bytes
        return self._unsent not in (0, before)

    def has_hung_up(self) -> bool:
        """Whether the caller has closed its side, which a transport that does not read is not told."""
        if self._transport is None:
            return False
        poll = select.poll()
        poll.register(self._transport.get_extra_info("socket").fileno(), select.POLLRDHUP)
        return bool(poll.poll(0))

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

    def end_writing(self) -> None:
        """Tells the caller that nothing more will come, once everything written has gone out."""
        if self._waiting:
            self._turn.flush()
        if self._transport is not None and self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self.close()

    def close(self) -> None:
        """Closes once everything written has gone out."""
        if self._waiting:
            self._turn.flush()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()

    def reset(self) -> None:
        """Closes at once, and the caller is told that it was no orderly end."""
        if self._transport is not None:
            peer = self._transport.get_extra_info("socket")
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self.abort()

    def abort(self) -> None:
        """Closes at once; what has not gone out is lost."""
        self._waiting = b""
        if self._transport is not None:
            self._transport.abort()
