"""Breaks the silence of streams, so that no proxy between takes a caller that waits for one that has gone.

It looks at streams when the service sweeps, so a request that is answered in time has no timer and pays
nothing.  What it sends goes between two events, never to a caller that has not taken what was sent before.
It never decides who answers: it may send the head of a stream, and the first content is still the relay's.
"""

from forebay.core.clock import Clock
from forebay.gateway.answers import build_early_headers
from forebay.gateway.model import Exchange

_DEBUG = b"x-forebay-debug"  #: a request with it may be answered with where it would go, which is no stream


class Silence:
    """See the module."""

    def __init__(self, clock: Clock) -> None:
        self._monotonic_ns = clock.monotonic_ns

    def look(self, exchange: Exchange, now: float) -> None:
        """To be called at each sweep, of each request for a stream.

        Args:
            now: the loop's time.
        """
        sent = exchange.answer_bytes
        if sent != exchange.silent_bytes:
            is_first, exchange.silent_bytes = exchange.silent_bytes < 0, sent
            exchange.silent_since = now
            if sent or not is_first:
                return
            exchange.silent_since = now - (self._monotonic_ns() - exchange.started_ns) / 1e9
        route = exchange.route
        if route is None or exchange.recorded or _DEBUG in exchange.call.headers:
            return
        silent_s = now - exchange.silent_since
        masking = route.route.masking
        if masking.keep_alive_s and silent_s >= masking.keep_alive_s:
            self._send(exchange, exchange.dialect.KEEP_ALIVE)

    def _send(self, exchange: Exchange, event: bytes) -> bool:
        call = exchange.call
        if not event or not call.takes_aside:
            return False
        if not call.streaming:
            call.begin_stream(200, build_early_headers(exchange))
        call.send_aside(event)
        exchange.answer_bytes += len(event)
        return True
