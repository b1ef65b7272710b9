"""The board: what the workers of this machine, and whoever asks engines, let all workers know of loads.

It carries news and decides nothing.  What it does not have is unknown to the workers, who then go by what
they see themselves; no request ever waits for it.  A worker that is silent, says what nobody understands, or
does not read what it is told, is let go: it comes again by itself.
"""

import asyncio
import logging
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from forebay.core.engine_load import ENGINE_STALE_S, EngineLoad
from forebay.gateway.board_wire import FRAME_MAX_BYTES, Hello, decode_from_worker, encode_frame
from forebay.gateway.frames import FrameSplitter, short_path
from forebay.gateway.policy.dealing import Dealing
from forebay.gateway.policy.merging import Merging
from forebay.gateway.policy.news import EngineNews, News, cut, shorten

__all__ = ["BoardServer"]

logger = logging.getLogger("forebay.control")

TELL_S = 0.1  #: between two looks at who is to be told what
DEAL_S = 0.002  #: after which what a worker wants is dealt, with what others want by then
BEAT_S = 0.5  #: between two words to a worker, though there is no news
SILENCE_MAX_S = 2.0  #: after which a worker's numbers are dropped
UNREAD_MAX_BYTES = 1024 * 1024  #: that a worker has not read; then it is let go
WORKERS_MAX = 1024
ENGINES_MAX = 100_000  #: targets of which something is kept


class BoardServer:
    """See the module.

    Args:
        path: of the socket.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._engines: dict[str, EngineNews] = {}
        self._fresh: dict[str, EngineNews] = {}  # published since the workers were told
        self._merging = Merging()
        self._dealing = Dealing()
        self._deal_timer: asyncio.TimerHandle | None = None
        self._connections: dict[str, _WorkerConnection] = {}
        self._server: asyncio.Server | None = None
        self._telling: asyncio.TimerHandle | None = None
        self._now = time.monotonic  # the clock of the workers' loops

    async def start(self) -> None:
        """Raises OSError."""
        with suppress(FileNotFoundError):
            self._path.unlink()
        loop = asyncio.get_running_loop()
        with short_path(self._path) as path:
            self._server = await loop.create_unix_server(lambda: _WorkerConnection(self), path)
        os.chmod(self._path, 0o600)
        self._telling = loop.call_later(TELL_S, self._tell_all)

    def close(self) -> None:
        if self._telling is not None:
            self._telling.cancel()
        if self._deal_timer is not None:
            self._deal_timer.cancel()
        if self._server is not None:
            self._server.close()
        for connection in tuple(self._connections.values()):
            connection.close()

    def publish(self, loads: Iterable[EngineLoad], *, at_once: bool = False) -> None:
        """All workers are told these, each in place of what was published of its target before.

        To be called again and again, at least every half `ENGINE_STALE_S`, for what is older than that is
        unknown to the workers.

        Args:
            at_once: before this returns, for what must be known before a snapshot is.
        """
        now = self._now()
        for load in loads:
            self._engines[load.target_id] = self._fresh[load.target_id] = EngineNews(shorten(load), now)
        if len(self._engines) > ENGINES_MAX:
            self._engines = {id: news for id, news in self._engines.items() if news.at > now - ENGINE_STALE_S}
        if at_once:
            self._tell_workers()

    def read(self) -> News:
        """All that is known here, of all workers together."""
        return msgspec.structs.replace(self._merging.read(), engines=self._list_engines())

    def _list_engines(self) -> tuple[EngineNews, ...]:
        old = self._now() - ENGINE_STALE_S
        return tuple(news for news in self._engines.values() if news.at > old)

    def list_workers(self) -> tuple[str, ...]:
        return tuple(self._connections)

    # --- workers --------------------------------------------------------------------------------------------

    def join(self, connection: "_WorkerConnection", hello: Hello) -> None:
        if len(self._connections) >= WORKERS_MAX:
            connection.close()
            return
        before = self._connections.get(hello.worker)
        self._connections[hello.worker] = connection
        if before is not None and before is not connection:
            before.close()
        self._dealing.leave(hello.worker)
        self._merging.join(hello.worker)
        news = self._take(hello.worker)
        self._tell(connection, msgspec.structs.replace(news, engines=self._list_engines()))

    def hear(self, connection: "_WorkerConnection", news: News) -> None:
        """Raises ValueError where a worker says too much."""
        if self._connections.get(connection.worker) is connection:
            self._merging.note(connection.worker, news, self._now())
            if news.claims:
                self._dealing.note(connection.worker, news.claims)
                self._deal_soon()

    def leave(self, connection: "_WorkerConnection") -> None:
        if self._connections.get(connection.worker) is connection:
            del self._connections[connection.worker]
            self._merging.leave(connection.worker)
            self._dealing.leave(connection.worker)
            self._deal_soon()

    def _deal_soon(self) -> None:
        if self._deal_timer is None and self._telling is not None:
            self._deal_timer = asyncio.get_running_loop().call_later(DEAL_S, self._deal)

    def _deal(self) -> None:
        """Tells those at once to whom something was dealt."""
        self._deal_timer = None
        for name in self._dealing.deal(self._now()):
            connection = self._connections.get(name)
            if connection is not None:
                self._tell(connection, self._take(name))

    def _take(self, name: str) -> News:
        return msgspec.structs.replace(self._merging.take(name), allotments=self._dealing.take(name))

    def _tell_all(self) -> None:
        loop = asyncio.get_running_loop()
        self._telling = loop.call_later(TELL_S, self._tell_all)
        self._tell_workers()

    def _tell_workers(self) -> None:
        now = self._now()
        engines, self._fresh = tuple(self._fresh.values()), {}
        self._dealing.deal(now)
        for name, connection in tuple(self._connections.items()):
            if now > connection.heard_at + SILENCE_MAX_S or connection.is_behind:
                logger.warning("a gateway worker is silent or does not read; its loads are unknown now")
                connection.close()
                self.leave(connection)
                continue
            news = msgspec.structs.replace(self._take(name), engines=engines)
            is_news = news.counts or news.words or news.uses or engines or news.workers != connection.workers
            if is_news or news.allotments or now >= connection.told_at + BEAT_S:
                self._tell(connection, news)

    def _tell(self, connection: "_WorkerConnection", news: News) -> None:
        connection.told_at, connection.workers = self._now(), news.workers
        for part in cut(news):
            connection.send(part)


class _WorkerConnection(asyncio.Protocol):
    """One worker's end."""

    def __init__(self, server: BoardServer) -> None:
        self._server = server
        self._splitter = FrameSplitter(FRAME_MAX_BYTES)
        self._transport: Any = None
        self._now = time.monotonic
        self.worker = ""
        self.workers = 0  #: of which it was told last
        self.told_at = 0.0
        self.heard_at = self._now()

    @property
    def is_behind(self) -> bool:
        return self._transport is None or self._transport.get_write_buffer_size() > UNREAD_MAX_BYTES

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self.heard_at = self._now()
        try:
            for payload in self._splitter.feed(data):
                self._handle(decode_from_worker(payload))
        except (ValueError, msgspec.MsgspecError) as error:
            logger.error("a worker speaks another language on the board, its line is closed: %s", error)
            self.close()

    def _handle(self, message: Hello | News) -> None:
        match message:
            case Hello():
                if self.worker and self.worker != message.worker:
                    raise ValueError("a worker changes its name")
                self.worker = message.worker
                self._server.join(self, message)
            case News():
                self._server.hear(self, message)

    def send(self, message: News) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode_frame(message))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self.worker:
            self._server.leave(self)
