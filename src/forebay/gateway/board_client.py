"""A worker's line to the board: tells its news, hears the others', and comes back when the line breaks.

A board that is silent counts as away: nobody waits for it, and what it said before is dropped.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import msgspec

from forebay.gateway.board_wire import FRAME_MAX_BYTES, Hello, decode_from_board, encode_frame
from forebay.gateway.frames import FrameSplitter, short_path
from forebay.gateway.policy.news import News, cut

logger = logging.getLogger("forebay.gateway")

CONNECT_MAX_S = 1.0
RETRY_S = 0.5  #: between two tries to connect
SILENCE_MAX_S = 2.0  #: after which a board that says nothing is away
UNSENT_MAX_BYTES = 1024 * 1024  #: that a board does not read; then the line is given up


class Listener(Protocol):
    """Whoever tells and hears."""

    def begin_line(self) -> None:
        """The board knows nothing of this worker yet."""

    def hear(self, news: News) -> None:
        """What the board says."""

    def lose_line(self) -> None:
        """It says nothing any more."""


class BoardClient(asyncio.Protocol):
    """See the module.

    Args:
        path: the board's socket.
        worker: this worker's name, unique over all processes there ever were.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, path: Path, worker: str, listener: Listener) -> None:
        self._loop = loop
        self._now: Callable[[], float] = loop.time
        self._path = path
        self._worker = worker
        self._listener = listener
        self._splitter = FrameSplitter(FRAME_MAX_BYTES)
        self._transport: Any = None
        self._connecting: asyncio.Task[None] | None = None
        self._try_at = self._heard_at = 0.0
        self._closing = False
        self._has_complained = False

    @property
    def is_connected(self) -> bool:
        return self._transport is not None

    def keep_connected(self) -> None:
        """To be called all the time: connects where there is no line, and ends one that is silent."""
        now = self._now()
        if self._transport is not None:
            silent = now > self._heard_at + SILENCE_MAX_S
            if silent or self._transport.get_write_buffer_size() > UNSENT_MAX_BYTES:
                self._transport.abort()
        elif self._connecting is None and not self._closing and now >= self._try_at:
            self._try_at = now + RETRY_S
            self._connecting = self._loop.create_task(self._connect())

    async def _connect(self) -> None:
        try:
            async with asyncio.timeout(CONNECT_MAX_S):
                with short_path(self._path) as path:
                    await self._loop.create_unix_connection(lambda: self, path)
        except (OSError, TimeoutError):
            pass  # tried again soon
        finally:
            self._connecting = None

    def tell(self, news: News) -> None:
        if self._transport is not None:
            for part in cut(news):
                self._transport.write(encode_frame(part))

    def close(self) -> None:
        self._closing = True
        if self._connecting is not None:
            self._connecting.cancel()
        if self._transport is not None:
            self._transport.abort()

    # --- asyncio's side -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._splitter = FrameSplitter(FRAME_MAX_BYTES)
        self._heard_at = self._now()
        self._transport.write(encode_frame(Hello(self._worker)))
        self._listener.begin_line()

    def data_received(self, data: bytes) -> None:
        self._heard_at = self._now()
        try:
            for payload in self._splitter.feed(data):
                self._listener.hear(decode_from_board(payload))
        except (ValueError, msgspec.MsgspecError) as error:
            if not self._has_complained:
                logger.error("the board of loads speaks another language, its line is closed: %s", error)
            self._has_complained = True
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._listener.lose_line()
