"""Hands speech on as it comes: sound in any format, piece by piece, no faster than its caller takes it.

What is no sound after all (events, JSON, an error) is `relay`'s.  No error can be told inside sound, so one
that was cut has no end: the caller's connection is closed in the middle of the answer.  It changes no byte.
"""

import asyncio

from forebay.core.clock import Clock
from forebay.core.errors import CallerLeft, ForebayError, UpstreamProtocol
from forebay.core.events import UsageSource
from forebay.gateway.answers import Answer, build_headers, refuse_compressed
from forebay.gateway.call import CallerGone
from forebay.gateway.model import Exchange
from forebay.gateway.relay import FinishStream, Relay
from forebay.gateway.speaking import new_meter
from forebay.net.connection import Connection

#: How the content types of sound and pictures begin; no other of a target is handed on as such.
BINARY_TYPES = (
    *(b"audio/", b"video/", b"image/", b"application/octet-stream", b"application/ogg", b"text/plain"),
)
#: And of whole answers about them: JSON, and subtitles.
WHOLE_TYPES = (
    *BINARY_TYPES,
    *(
        b"application/json",
        b"text/vtt",
        b"text/srt",
        b"text/x-srt",
        b"application/x-subrip",
        b"application/srt",
    ),
    b"text/event-stream",  # asked for by a field that is not read here
)
_SPOKEN_TYPES = (b"text/event-stream", b"application/json", b"application/problem+json")


def refuse_others(kind: bytes, types: tuple[bytes, ...] = WHOLE_TYPES) -> None:
    """Raises UpstreamProtocol for a good answer of another type, such as the page of a proxy."""
    if kind and not kind.strip().lower().startswith(types):
        shown = kind.decode("latin-1")[:60]
        raise UpstreamProtocol(f"the target answered with {shown}, which is neither sound, pictures nor text")


class BinaryRelay:
    """See the module."""

    def __init__(self, relay: Relay, clock: Clock) -> None:
        self._relay = relay
        self._monotonic_ns = clock.monotonic_ns

    async def stream(
        self, exchange: Exchange, connection: Connection, secret: bytes, finish: FinishStream
    ) -> Answer | None:
        """Hands the answer on; None when the caller has had all of it.  As `Relay.stream`.

        Raises:
            TargetError: the attempt failed before any byte went out.
            CallerLeft: the caller left.
        """
        data = await self._read_some(exchange, connection)
        kind = connection.header(b"content-type").strip()
        if connection.status != 200 or kind.lower().startswith(_SPOKEN_TYPES):
            connection.put_back(data)
            return await self._relay.stream(exchange, connection, new_meter(exchange), secret, finish)
        refuse_compressed(connection)
        refuse_others(kind, BINARY_TYPES)
        if not data:
            raise UpstreamProtocol("the target's answer holds no sound")
        self._begin(exchange, connection, kind or b"application/octet-stream")
        try:
            while not connection.complete:
                await self._send(exchange, data)
                data = await self._read_some(exchange, connection)
        except (CallerGone, CallerLeft):
            self._settle(exchange)
            raise CallerLeft("the caller left") from None
        except asyncio.CancelledError:
            self._settle(exchange)
            raise
        except ForebayError as error:
            self._settle(exchange)
            finish(exchange, error)
            exchange.call.cut()
            return None
        self._settle(exchange)
        exchange.answer_bytes += len(data)
        finish(exchange, None)
        exchange.call.end_stream(data)
        return None

    def _begin(self, exchange: Exchange, connection: Connection, kind: bytes) -> None:
        exchange.tries.content_sent = True
        exchange.is_binary = True
        connection.content_seen = True
        exchange.first_token_ns = self._monotonic_ns() - exchange.started_ns
        if exchange.load is not None:
            exchange.tell_first(asyncio.get_running_loop().time())
        exchange.call.begin_stream(200, build_headers(exchange, kind) + "x-accel-buffering: no\r\n")

    async def _send(self, exchange: Exchange, data: bytes) -> None:
        exchange.answer_bytes += len(data)
        begun = self._monotonic_ns()
        try:
            await exchange.call.send(data)
        finally:
            exchange.waited_ns += self._monotonic_ns() - begun

    async def _read_some(self, exchange: Exchange, connection: Connection) -> bytes:
        begun = self._monotonic_ns()
        try:
            return await connection.some()
        finally:
            exchange.waited_ns += self._monotonic_ns() - begun

    def _settle(self, exchange: Exchange) -> None:
        """Sound says nothing of its tokens; what was asked for says how many characters were spoken."""
        rules = exchange.target_state.target.usage
        reading = exchange.dialect.read_ruled_answer(rules, b"")
        self._relay.take_reading(exchange, reading)
        exchange.tokens = exchange.dialect.estimate_tokens(exchange.body, 0)
        exchange.usage_source = UsageSource.ESTIMATED
