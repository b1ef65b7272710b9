"""A worker's line to the control plane over a socket of this machine, which comes back by itself.

It moves frames (`frames`) and knows no message.  Whoever has something to say over it, and to hear, is its
listener, which also judges when a line that stands is of no use any more.  No request ever waits for it.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from forebay.gateway.frames import FRAME_MAX_BYTES, FrameSplitter, short_path

logger = logging.getLogger("forebay.gateway")

CONNECT_MAX_S = 1.0
WAIT_MAX_S = 10.0  #: between two tries to connect, where nothing answers

Heard = TypeVar("Heard")
Hearing = TypeVar("Hearing", contravariant=True)


class Listener(Protocol[Hearing]):
    """Whoever talks over a line."""

    def begin(self) -> None:
        """The line stands; nothing was said over it."""

    def hear(self, message: Hearing) -> None:
        """What the other end says.  Raises ValueError where nobody can understand that."""

    def end(self) -> None:
        """It does not stand any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineFacts(Generic[Heard]):
    """What lines differ in.

    Attributes:
        path: of the socket.
        name: of the other end, for logs.
        decode: reads a frame.  Raises ValueError, msgspec.MsgspecError.
        retry_s: between two tries to connect; longer after `back_off`.
    """

    path: Path
    name: str
    decode: Callable[[bytes], Heard]
    retry_s: float


class ControlLine(asyncio.Protocol, Generic[Heard]):
    """See the module.  Nothing is opened before `keep_open` is called."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, facts: LineFacts[Heard], listener: Listener[Heard]
    ) -> None:
        self._loop = loop
        self._facts = facts
        self._listener = listener
        self._splitter = FrameSplitter()
        self._transport: Any = None
        self._connecting: asyncio.Task[None] | None = None
        self._try_at = 0.0
        self._wait_s = facts.retry_s
        self._is_closing = False
        self._has_complained = False
        self.heard_at = 0.0  #: the loop's time of the last bytes, or of its beginning

    @property
    def is_open(self) -> bool:
        return self._transport is not None

    @property
    def unsent_bytes(self) -> int:
        """That the other end has not read."""
        return 0 if self._transport is None else int(self._transport.get_write_buffer_size())

    def keep_open(self, now: float) -> None:
        """To be called all the time: connects where there is no line."""
        is_idle = self._transport is None and self._connecting is None and not self._is_closing
        if is_idle and now >= self._try_at:
            self._try_at = now + self._wait_s
            self._connecting = self._loop.create_task(self._connect())

    async def _connect(self) -> None:
        try:
            async with asyncio.timeout(CONNECT_MAX_S):
                with short_path(self._facts.path) as path:
                    await self._loop.create_unix_connection(lambda: self, path)
        except (OSError, TimeoutError):
            pass  # tried again soon
        finally:
            self._connecting = None

    def send(self, frame: bytes) -> None:
        """Without a line it is dropped."""
        if self._transport is not None:
            self._transport.write(frame)

    def drop(self) -> None:
        """Ends a line that is of no use; what was not sent yet is lost.  Another comes soon."""
        if self._transport is not None:
            self._transport.abort()

    def back_off(self, least_s: float) -> None:
        """The same, and the next comes later each time, until `settle`."""
        self._wait_s = min(WAIT_MAX_S, max(least_s, 2 * self._wait_s))
        self._try_at = self._loop.time() + self._wait_s
        self.drop()

    def settle(self) -> None:
        """The other end is well."""
        self._wait_s = self._facts.retry_s

    def close(self) -> None:
        """For good; what was said before still goes out, as far as that can be."""
        self._is_closing = True
        if self._connecting is not None:
            self._connecting.cancel()
        if self._transport is not None:
            self._transport.close()

    # --- asyncio's side -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._splitter = FrameSplitter(FRAME_MAX_BYTES)
        self.heard_at = self._loop.time()
        self._listener.begin()

    def data_received(self, data: bytes) -> None:
        self.heard_at = self._loop.time()
        try:
            for payload in self._splitter.feed(data):
                self._listener.hear(self._facts.decode(payload))
        except (ValueError, msgspec.MsgspecError) as error:
            if not self._has_complained:
                logger.error("%s speaks another language, its line is closed: %s", self._facts.name, error)
            self._has_complained = True
            self.drop()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._listener.end()
