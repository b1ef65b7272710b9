"""Breaks the silence of streams: keep-alives, so that no proxy cuts the line, and fillers, so that a talking
character does not fall silent.

It looks at streams when the service sweeps, so a request that is answered in time has no timer and pays
nothing.  What it sends goes between two events, never to a caller that has not taken what was sent before.
It never decides who answers: it may send the head of a stream, and the first content is still the relay's.
"""

from zlib import crc32

from forebay.core.clock import Clock
from forebay.core.filler import Opening
from forebay.core.routes import FillerRules
from forebay.gateway.answers import build_early_headers
from forebay.gateway.model import Exchange

_FILLER_HEADER = b"x-forebay-filler"  #: `on` or `off`
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
        if exchange.route is None:
            return
        masking = exchange.route.route.masking
        if masking.filler is not None and exchange.is_filler_due and not exchange.tries.content_sent:
            self._fill(exchange, masking.filler)
        is_long = 0 < masking.keep_alive_s <= now - exchange.silent_since
        if is_long and exchange.answer_bytes == sent and self._send(exchange, exchange.dialect.KEEP_ALIVE):
            exchange.state.cells.count_keep_alive()

    def _fill(self, exchange: Exchange, rules: FillerRules) -> None:
        """Sends a filler if it is time for one, and the request leaves room."""
        waited_ns = self._monotonic_ns() - exchange.started_ns
        if waited_ns < rules.after_s * 1e9 or not _may_send(exchange):
            return
        exchange.is_filler_due = False
        asked = exchange.call.headers.get(_FILLER_HEADER)
        if (asked is None and rules.is_asked) or (asked is not None and asked.lower() != b"on"):
            return
        assert exchange.route is not None
        opening = Opening(
            text=rules.texts[crc32(exchange.id.encode()) % len(rules.texts)],
            id=exchange.id,
            model=exchange.model,
            created_s=exchange.at_ns // 1_000_000_000,
        )
        filler = exchange.dialect.begin_filler(exchange.body, exchange.endpoint, opening)
        if filler is None:
            return
        exchange.filler, exchange.filler_ns = filler, waited_ns
        self._send(exchange, filler.opening)
        exchange.state.cells.count_filler(exchange.route.route.model)

    def _send(self, exchange: Exchange, event: bytes) -> bool:
        call = exchange.call
        if not event or not _may_send(exchange):
            return False
        if not call.streaming:
            call.begin_stream(200, build_early_headers(exchange))
        call.send_aside(event)
        exchange.answer_bytes += len(event)
        return True


def _may_send(exchange: Exchange) -> bool:
    return exchange.call.takes_aside and not exchange.recorded and _DEBUG not in exchange.call.headers
