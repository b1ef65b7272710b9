"""The middle of a stream: pieces go on to the caller from where they arrive, and no task is woken for them.

An engine sends each token on its own, so what a piece costs is what a token costs.  It stops, and leaves to
`relay`, what waits for a caller that is behind, what ends a stream, and errors.
"""

from collections.abc import Callable

from forebay.gateway.model import Exchange, Meter
from forebay.net.connection import Connection


class Passing:
    """For one stream whose first content has gone out.

    Attributes:
        has_stopped: whether a piece has been taken that is not to be sent from here; `take_rest` gives it.
    """

    __slots__ = (
        "_connection", "_error", "_exchange", "_meter", "_monotonic_ns", "_rest", "_worked_ns", "has_stopped",
    )  # fmt: skip

    def __init__(
        self, exchange: Exchange, connection: Connection, meter: Meter, monotonic_ns: Callable[[], int]
    ) -> None:
        self._exchange = exchange
        self._connection = connection
        self._meter = meter
        self._monotonic_ns = monotonic_ns
        self._worked_ns = 0
        self._rest = b""
        self._error: Exception | None = None
        self.has_stopped = False

    async def run(self) -> None:
        """Until there is something else to do than to send what comes.  Raises what the meter raises."""
        self._worked_ns = 0
        begun = self._monotonic_ns()
        try:
            await self._connection.hand_on(self._take)
        finally:
            self._exchange.waited_ns += self._monotonic_ns() - begun - self._worked_ns
        if self._error is not None:
            raise self._error

    def take_rest(self) -> bytes:
        """What has been taken and not been sent; after that it may run again."""
        rest, self._rest = self._rest, b""
        self.has_stopped = False
        return rest

    def _take(self, data: bytes) -> bool:
        call = self._exchange.call
        if self.has_stopped or call.left or call.is_behind:
            self._connection.put_back(data)
            return False
        begun = self._monotonic_ns()
        try:
            self._send(data)
        except Exception as error:  # noqa: BLE001 - `run` raises it; here it would count as the target's
            self._error = error
            self.has_stopped = True
        self._worked_ns += self._monotonic_ns() - begun
        return not self.has_stopped

    def _send(self, data: bytes) -> None:
        meter = self._meter
        out = meter.feed(data)
        if meter.error is not None or meter.is_done:
            self._rest = out
            self.has_stopped = True
        elif out:
            self._exchange.answer_bytes += len(out)
            self._exchange.call.send_now(out)
