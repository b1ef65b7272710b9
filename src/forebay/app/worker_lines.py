"""The control plane's end of its lines to the workers of this machine: a socket, and a line for each worker.

It moves frames (`frames`) and knows no message.  Whose line it is its owner says, with the worker's first
words; a worker that comes again takes the place of its line before.  What a worker says that nobody
understands ends its line: it comes again by itself.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from forebay.gateway.frames import FRAME_MAX_BYTES, FrameSplitter, short_path

logger = logging.getLogger("forebay.control")

UNREAD_MAX_BYTES = 1024 * 1024  #: that a worker has not read; then it is behind

Heard = TypeVar("Heard")


class Owner(Protocol[Heard]):
    """Whoever talks with the workers."""

    def hear(self, line: "WorkerLine[Heard]", message: Heard) -> None:
        """What a worker says.  Raises ValueError where nobody can understand that."""

    def leave(self, worker: str) -> None:
        """The line of a worker has ended, and it has no other."""


class WorkerLines(Generic[Heard]):
    """See the module.

    Args:
        path: of the socket.
        name: of what is talked of here, for logs.
        decode: reads a frame.  Raises ValueError, msgspec.MsgspecError.
    """

    def __init__(self, path: Path, name: str, decode: Callable[[bytes], Heard], owner: Owner[Heard]) -> None:
        self._path = path
        self.name = name
        self.decode = decode
        self.owner = owner
        self._lines: dict[str, WorkerLine[Heard]] = {}
        self._server: asyncio.Server | None = None

    @property
    def by_worker(self) -> Mapping[str, "WorkerLine[Heard]"]:
        """Lines whose worker has said who it is."""
        return self._lines

    async def start(self) -> None:
        """Raises OSError."""
        with suppress(FileNotFoundError):
            self._path.unlink()
        loop = asyncio.get_running_loop()
        with short_path(self._path) as path:
            self._server = await loop.create_unix_server(lambda: WorkerLine(self), path)
        os.chmod(self._path, 0o600)

    def close(self) -> None:
        """All of them, without a word to their owner."""
        if self._server is not None:
            self._server.close()
        lines, self._lines = self._lines, {}
        for line in lines.values():
            line.close()

    def close_some(self, workers: Iterable[str] | None = None) -> None:
        """Those of some workers, or of all; they may come again."""
        for worker in tuple(self._lines if workers is None else workers):
            if worker in self._lines:
                self._lines[worker].close()

    def take(self, line: "WorkerLine[Heard]", worker: str) -> bool:
        """It is this worker's line from now on; False where it has been already."""
        before = self._lines.get(worker)
        line.worker = worker
        self._lines[worker] = line
        if before is not None and before is not line:
            before.close()
        return before is not line

    def is_current(self, line: "WorkerLine[Heard]") -> bool:
        """Whether its worker has no newer one, and it has not ended."""
        return self._lines.get(line.worker) is line

    def forget(self, line: "WorkerLine[Heard]") -> None:
        """It has ended, or counts as if it had."""
        if self.is_current(line):
            del self._lines[line.worker]
            self.owner.leave(line.worker)


class WorkerLine(asyncio.Protocol, Generic[Heard]):
    """One worker's end.

    Attributes:
        worker: its name, unique over all processes there ever were; empty before it has said it.
        heard_at: when it said something last, by the machine's monotonic clock.
    """

    def __init__(self, lines: WorkerLines[Heard]) -> None:
        self._lines = lines
        self._splitter = FrameSplitter(FRAME_MAX_BYTES)
        self._transport: Any = None
        self.worker = ""
        self.heard_at = time.monotonic()

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def is_behind(self) -> bool:
        """It does not read what it is told."""
        return self._transport is None or self._transport.get_write_buffer_size() > UNREAD_MAX_BYTES

    def send(self, frame: bytes) -> None:
        if self.is_open:
            self._transport.write(frame)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # --- asyncio's side -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self.heard_at = time.monotonic()
        try:
            for payload in self._splitter.feed(data):
                if not self.is_open:
                    return  # nobody answers for it any more
                self._lines.owner.hear(self, self._lines.decode(payload))
        except (ValueError, msgspec.MsgspecError) as error:
            logger.error(
                "a worker speaks another language of %s, its line is closed: %s", self._lines.name, error
            )
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self.worker:
            self._lines.forget(self)
