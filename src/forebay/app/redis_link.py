"""The line of a control plane to Redis or Valkey: calls of one script, in their order, and news.

It batches what waits, loads the script where the server has forgotten it, follows a cluster's `MOVED`, and
comes back by itself.  An error of any kind ends the line: what was called and not answered then may have been
done or not, and nobody is told.  It must never let calls pile up.
"""

import asyncio
import logging
import os
import re
import socket
import ssl
from collections import deque
from collections.abc import Callable
from random import random
from typing import Any

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    ConnectionError,
    MovedError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    TimeoutError,
)

logger = logging.getLogger("forebay.quota")

CONNECT_MAX_S = 1.0
CALL_MAX_S = 0.8  #: for the answers to a batch; less than a worker waits
RETRY_S = 0.25  #: between two tries to connect, on average
BATCH_MAX = 128  #: calls that go out together
CALLS_MAX = 10_000  #: that may wait; with more the server counts as too slow
NEWS_WAIT_S = 5.0

FAILURES = (RedisError, OSError, LookupError, ValueError)  #: of a server, its address or its client

Then = Callable[[Any], None]


class RedisLink:
    """See the module.

    Args:
        find_url: the address, `redis://`, `rediss://` or `unix://`.  Raises LookupError.
        script: its text.
        key: the first key of all calls.
        channel: of the news.
        what: machines share over it, for logs.
    """

    def __init__(
        self, find_url: Callable[[], str], script: str, sha: str, key: str, channel: str, what: str = "limits"
    ) -> None:
        self._find_url = find_url
        self._script = script
        self._sha = sha
        self._key = key
        self._channel = channel
        self._what = what
        self._waiting: deque[tuple[bytes, Then]] = deque()
        self._wake = asyncio.Event()
        self._moved: tuple[str, int] | None = None
        self.is_up = False

    def call(self, payload: bytes, then: Then) -> None:
        """`then` gets the script's answer, unless the line ends before; without a line nothing is called."""
        if self.is_up:
            self._waiting.append((payload, then))
            self._wake.set()

    async def keep_up(
        self,
        probe: Callable[[], bytes],
        begin: Callable[[], None],
        end: Callable[[str], None],
        hear: Callable[[bytes], None],
    ) -> None:
        """Until it is cancelled.

        Args:
            probe: a call that writes; without an answer to it no line stands.
            begin: is called when the line stands.
            end: is called with the reason when it does not, or not any more.
            hear: is called with what was published on the channel.
        """
        while True:
            try:
                await self._serve(probe(), begin, hear)
            except* Exception as group:  # the loop's outer edge
                error = _find_first(group)
                if not isinstance(error, FAILURES):
                    logger.error("the line over which machines share %s failed", self._what, exc_info=error)
                self._moved = (error.host, error.port) if isinstance(error, MovedError) else None
                was_up, self.is_up = self.is_up, False
                self._waiting.clear()
                if was_up or self._moved is None:
                    end(explain(error))
            await asyncio.sleep(RETRY_S * (0.5 + random()))  # not all machines at the same moment

    async def _serve(self, probe: bytes, begin: Callable[[], None], hear: Callable[[bytes], None]) -> None:
        client = connect(self._find_url(), self._moved)
        try:
            async with asyncio.timeout(2 * CONNECT_MAX_S):
                await self._run(client, [(probe, _ignore)])
                news = client.pubsub(ignore_subscribe_messages=True)
                await news.subscribe(self._channel)
            self._wake.clear()
            self.is_up = True
            async with asyncio.TaskGroup() as group:
                group.create_task(self._carry(client))
                group.create_task(_listen(news, hear))
                begin()
        finally:
            await client.aclose()

    async def _carry(self, client: "redis.asyncio.Redis") -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                if len(self._waiting) > CALLS_MAX:
                    raise TimeoutError(f"more than {CALLS_MAX} calls wait")
                batch = [self._waiting.popleft() for _ in range(min(BATCH_MAX, len(self._waiting)))]
                async with asyncio.timeout(CALL_MAX_S):
                    await self._run(client, batch)

    async def _run(self, client: "redis.asyncio.Redis", batch: list[tuple[bytes, Then]]) -> None:
        for is_again in (False, True):
            pipeline = client.pipeline(transaction=False)
            for payload, _ in batch:
                pipeline.evalsha(self._sha, 1, self._key, payload)
            replies = await pipeline.execute(raise_on_error=False)
            rest = []
            for (payload, then), reply in zip(batch, replies, strict=True):
                if isinstance(reply, NoScriptError) and not is_again:
                    rest.append((payload, then))
                elif isinstance(reply, Exception):
                    raise reply
                else:
                    then(reply)
            if not rest:
                return
            batch = rest
            await client.script_load(self._script)


def _ignore(reply: Any) -> None:
    pass


async def _listen(news: Any, hear: Callable[[bytes], None]) -> None:
    while True:
        message = await news.get_message(timeout=NEWS_WAIT_S)
        if message is not None:
            hear(message["data"])


def connect(url: str, place: tuple[str, int] | None = None) -> "redis.asyncio.Redis":
    """A client that tries nothing twice.  Raises LookupError for what is no address.

    Args:
        place: host and port in place of the address's own.
    """
    options: dict[str, Any] = {"socket_timeout": CALL_MAX_S, "socket_connect_timeout": CONNECT_MAX_S}
    if not url.startswith("unix:"):
        options["socket_keepalive"] = True
    try:
        client = redis.asyncio.Redis.from_url(
            url, retry=Retry(NoBackoff(), 0), protocol=2, decode_responses=False, **options
        )
        pool: Any = client.connection_pool
        pool.make_connection()  # it fails for an option that there is not
    except (ValueError, TypeError):  # its words may hold a part of a password
        raise LookupError(
            "the address in limits.authority, or an option in it, can't be used; expected one like "
            "redis://user:password@host:6379/0, with / ? # and @ in a password written %2F %3F %23 and %40"
        ) from None
    if place is not None:
        client.connection_pool.connection_kwargs.update(host=place[0], port=place[1])
    return client


async def fetch_info(url: str) -> dict[str, Any]:
    """What the server says of itself.  Raises what `explain` explains."""
    client = connect(url)
    try:
        async with asyncio.timeout(2 * CONNECT_MAX_S):
            info: dict[str, Any] = await client.info()
            return info
    finally:
        await client.aclose()


def _find_first(group: BaseExceptionGroup[Any]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def explain(error: BaseException) -> str:
    """Why nothing is to be had, for people, without the address."""
    match error:
        case AuthenticationError() | AuthorizationError():
            return "it does not accept the name and password"
        case NoPermissionError():
            return f"its user may not do what is needed: {error}"
        case MovedError():
            return "the cluster keeps that at another of its servers now"
        case ReadOnlyError():
            return "it is a replica, which takes no writes"
        case OutOfMemoryError():
            return "it has no memory left (maxmemory)"
        case BusyLoadingError():
            return "it still loads its data"
        case TimeoutError() | asyncio.TimeoutError():
            return f"it does not answer within {CALL_MAX_S} s"
        case ConnectionError() | OSError():
            return f"no connection: {_find_cause(error)}"
        case UnicodeError():
            return "no connection: its host is no name"
        case LookupError() if not isinstance(error, KeyError | IndexError):
            return str(error)
    return f"{type(error).__name__}: {error}"


def _find_cause(error: BaseException) -> str:
    """In the system's words, where it has any."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, UnicodeError):
            return "its host is no name"
        if isinstance(cause, socket.gaierror):
            return f"its host is not known ({cause.strerror})"
        if isinstance(cause, ssl.SSLError):
            return f"its certificate or TLS is not accepted ({cause.reason or cause})"
        if isinstance(cause, OSError) and (cause.errno or 0) > 0:
            return os.strerror(cause.errno or 0)
        cause = cause.__cause__ or cause.__context__
    numbered = re.match(r"Error (\d+) ", str(error))  # the client does not always keep the cause
    return os.strerror(int(numbered[1])) if numbered else str(error).rstrip(".")
