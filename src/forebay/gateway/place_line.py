"""Those that wait for the same places, and what each of them needs there.

It decides nothing: who is next, `policy.fairness` and `policy.crowd` say, and `crowd` keeps the lines.
"""

import msgspec

from forebay.core.limits import QueueRules
from forebay.gateway.line import Line, Waiter
from forebay.gateway.model import Exchange
from forebay.gateway.policy.crowd import Drain, Share, count_places
from forebay.gateway.policy.fairness import Full
from forebay.gateway.policy.fleet import Fleet, Tier
from forebay.gateway.policy.load import PoolLoad
from forebay.gateway.policy.want import Want

LineKey = tuple[str, frozenset[PoolLoad]]


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """What a request would find."""

    full: bool  #: no place has room
    waiting: dict[str, int]  #: for places of the model, by class
    wait_s: float  #: that one more would wait


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

    def list_turns(self) -> list[Turn]:
        """Those that wait, as they came."""
        return [turn for turn in self.list_waiters() if isinstance(turn, Turn)]


def say_how_full(turn: Turn) -> str:
    loads = [load for tier in turn.tiers for load in tier.loads]
    busy, places = sum(load.requests for load in loads), sum(map(count_places, loads))
    return f"the model `{turn.model}` is full: {busy} requests are in progress at its {places:g} places"


def explain_full(rules: QueueRules, full: Full) -> str:
    if full is Full.ALL:
        return f"{rules.requests_max} wait already (routing.queue.requests_max)"
    return (
        f"{rules.tenant_requests_max} of the same project and priority wait already "
        "(routing.queue.tenant_requests_max)"
    )
