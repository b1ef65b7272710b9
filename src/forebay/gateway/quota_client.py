"""A worker's line to the authority: asks, returns, and comes back by itself when the line breaks."""

import asyncio
import itertools
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from forebay.gateway.policy.lending import Want
from forebay.gateway.quota_wire import (
    Ask,
    FrameSplitter,
    FromWorker,
    Held,
    Hello,
    Lent,
    Recall,
    Refused,
    decode_from_authority,
    encode_frame,
)

logger = logging.getLogger("forebay.gateway")

ASK_MAX_S = 1.0  #: for an answer; an authority that takes longer counts as away
RETRY_S = 0.1  #: between two tries to connect


@contextmanager
def short_path(path: Path) -> Iterator[str]:
    """Another name of a socket, for the 107 bytes that the system takes may be too few for its own."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


class AuthorityAway(Exception):
    """Nobody answers."""


class QuotaClient(asyncio.Protocol):
    """See the module.

    Args:
        path: the authority's socket.
        worker: this worker's name, unique over all processes there ever were.
        hold: what this worker holds, for its first words on each connection.
        recall: called with a limit of which the authority wants back what is not spent.
        lose: called when the line breaks.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        path: Path,
        worker: str,
        *,
        hold: Callable[[], Sequence[Held]],
        recall: Callable[[str], None],
        lose: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._path = path
        self._worker = worker
        self._hold = hold
        self._recall = recall
        self._lose = lose
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Lent | Refused]] = {}
        self._splitter = FrameSplitter()
        self._transport: Any = None
        self._connecting: asyncio.Task[None] | None = None
        self._try_at = 0.0
        self._closing = False

    @property
    def is_connected(self) -> bool:
        return self._transport is not None

    def keep_connected(self, now_s: float) -> None:
        """To be called all the time: connects where there is no line."""
        if (
            self._transport is None
            and self._connecting is None
            and not self._closing
            and now_s >= self._try_at
        ):
            self._try_at = now_s + RETRY_S
            self._connecting = self._loop.create_task(self._connect())

    async def _connect(self) -> None:
        try:
            async with asyncio.timeout(ASK_MAX_S):
                with short_path(self._path) as path:
                    await self._loop.create_unix_connection(lambda: self, path)
        except (OSError, TimeoutError):
            pass  # tried again soon
        finally:
            self._connecting = None

    async def ask(self, wants: tuple[Want, ...]) -> Lent | Refused:
        """Raises AuthorityAway."""
        if self._transport is None:
            raise AuthorityAway
        number = next(self._numbers)
        answer: asyncio.Future[Lent | Refused] = self._loop.create_future()
        self._answers[number] = answer
        self.send(Ask(number, wants))
        try:
            async with asyncio.timeout(ASK_MAX_S):
                return await answer
        except TimeoutError:
            logger.error("the authority over the limits does not answer")
            if self._transport is not None:
                self._transport.abort()  # with what it may have lent meanwhile, which counts as spent
            raise AuthorityAway from None
        finally:
            self._answers.pop(number, None)

    def send(self, message: FromWorker) -> None:
        if self._transport is not None:
            self._transport.write(encode_frame(message))

    def close(self) -> None:
        self._closing = True
        if self._connecting is not None:
            self._connecting.cancel()
        if self._transport is not None:
            self._transport.close()

    # --- asyncio's side -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._splitter = FrameSplitter()
        self.send(Hello(self._worker, tuple(self._hold())))

    def data_received(self, data: bytes) -> None:
        try:
            for payload in self._splitter.feed(data):
                message = decode_from_authority(payload)
                if isinstance(message, Recall):
                    self._recall(message.limit_id)
                    continue
                answer = self._answers.get(message.number)
                if answer is not None and not answer.done():
                    answer.set_result(message)
        except (ValueError, msgspec.MsgspecError) as error:
            logger.error("the authority over the limits speaks another language: %s", error)
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(AuthorityAway())
        self._lose()
