"""Those that wait for the same places, and what each of them needs there.

It decides nothing: who is next, `policy.fairness` and `policy.crowd` say, and `crowd` keeps the lines.
"""

from forebay.core.limits import QueueRules
from forebay.gateway.line import Line, Waiter
from forebay.gateway.model import Exchange
from forebay.gateway.policy.crowd import Drain, Share
from forebay.gateway.policy.fleet import Fleet, Tier
from forebay.gateway.policy.load import PoolLoad
from forebay.gateway.policy.want import Want

LineKey = tuple[str, frozenset[PoolLoad]]


class Turn(Waiter):
    """A request that waits for a place."""

    __slots__ = ("exchange", "fleet", "model", "tiers", "want")

    def __init__(self, exchange: Exchange, fleet: Fleet, tiers: tuple[Tier, ...], want: Want) -> None:
        assert exchange.key is not None
        super().__init__(exchange.key)
        self.exchange = exchange
        self.model = exchange.model
        self.fleet = fleet
        self.tiers = tiers
        self.want = want


class PlaceLine(Line):
    """Those that wait for the same places."""

    def __init__(self, key: LineKey, rules: QueueRules, drain: Drain, share: Share, now: float) -> None:
        super().__init__(rules)
        self.key = key
        self.drain = drain
        self.share = share
        self.opened_s = now
