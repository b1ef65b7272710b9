"""One of two attempts of a request that are under way at the same time: what its exchange holds of it.

It decides nothing: who wins is `hedging`'s.  It never sends, and never waits.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from forebay.gateway.crossing import Crossing
from forebay.gateway.model import Exchange, TargetState
from forebay.gateway.policy.load import ReplicaLoad
from forebay.gateway.speaking import new_meter
from forebay.net.connection import Connection

FIELDS = ("attempt_at", "connection", "crossing", "deadline", "load", "target_state")


class Run:
    """One of two attempts: what an exchange holds of its current one.

    Attributes:
        is_current: what the exchange holds is this one's.
    """

    attempt_at: float
    connection: Connection | None
    crossing: Crossing | None
    deadline: float
    load: ReplicaLoad | None
    target_state: TargetState

    def __init__(self, exchange: Exchange) -> None:
        self.is_current = False
        self.keep(exchange)
        self.meter = new_meter(exchange) if exchange.stream else None

    @property
    def name(self) -> str:
        return self.target_state.target.id

    def keep(self, exchange: Exchange) -> None:
        for name in FIELDS:
            setattr(self, name, getattr(exchange, name))

    def lend(self, exchange: Exchange) -> None:
        for name in FIELDS:
            setattr(exchange, name, getattr(self, name))

    @contextmanager
    def stand_in(self, exchange: Exchange) -> Iterator[None]:
        """The exchange holds this one's for a moment in which nothing else runs."""
        if self.is_current:
            yield
            self.keep(exchange)
            return
        before = {name: getattr(exchange, name) for name in FIELDS}
        self.lend(exchange)
        try:
            yield
        finally:
            self.keep(exchange)
            for name, value in before.items():
                setattr(exchange, name, value)

    def note_silence(self, exchange: Exchange, now: float) -> None:
        """Its place takes at least so long, or each request would go there to be late.

        What is not known of it stays unknown where it had less time than the one that won: else a place that
        was asked late would be taken for quick.  Of a whole answer the length says how long it might take, so
        that is told once it is known.
        """
        load, waited_s = self.load, now - self.attempt_at
        if load is None:
            return
        if not exchange.stream:
            exchange.outpaced = load, waited_s, now - exchange.attempt_at
            return
        known_s = load.estimate(0, now)
        if waited_s > (now - exchange.attempt_at if known_s is None else known_s):
            load.tell_first(waited_s, now)

    def close(self, exchange: Exchange, now: float) -> None:
        """Ends an attempt of which nobody wants anything any more."""
        with self.stand_in(exchange):
            if exchange.connection is not None:
                exchange.connection.release()
                exchange.connection = None
            if exchange.load is not None:
                exchange.end_load(now)
