"""What a worker tells the board that it has and wants of each pool, and what it was dealt of it.

What it may fill is `policy.dealing`'s to say, at the board.  A worker that the board told to fill less fills
nothing more from the moment it heard, and says so at once, because nobody gets what it leaves before.
"""

from collections.abc import Iterable, Iterator
from math import inf
from typing import Protocol

from forebay.gateway.loads import Loads
from forebay.gateway.policy.load import PoolLoad
from forebay.gateway.policy.news import Allotment, Claim, Need

NOTHING = Need(0.0, 0, 0, 0)
LIMIT_MAX = 1 << 40  #: what a message bears


class Waiting(Protocol):
    """Those that wait for places."""

    def count_waiting(self, pool: PoolLoad) -> tuple[int, int]:
        """Requests, and their tokens."""

    def look_at(self, pools: Iterable[PoolLoad], now: float) -> None:
        """These may have room."""


class Claims:
    """See the module."""

    def __init__(self, loads: Loads, waiting: Waiting) -> None:
        self._loads = loads
        self._waiting = waiting
        self._told: dict[int, Claim] = {}

    @property
    def are_of_use(self) -> bool:
        """Whether anything is dealt."""
        return bool(self._loads.dealt)

    def forget(self) -> None:
        """Nobody knows of them any more."""
        self._told.clear()

    def take(self, now: float) -> Iterator[Claim]:
        """Those of which nobody was told yet."""
        dealt, told = self._loads.dealt, self._told
        for id, pools in dealt.items():
            claim = self._make_claim(id, pools, now)
            if told.get(id) != claim:
                told[id] = claim
                yield claim
        for id in [id for id in told if id not in dealt]:
            del told[id]
            yield Claim(id, NOTHING, NOTHING)

    def _make_claim(self, id: int, pools: tuple[PoolLoad, ...], now: float) -> Claim:
        """Of pools that are the same places; each counts all that is in flight there."""
        pool = pools[0]
        requests, tokens, others, others_tokens, part = pool.measure(now)
        waiting = waiting_tokens = 0
        for each in pools:
            more, more_tokens = self._waiting.count_waiting(each)
            waiting, waiting_tokens = waiting + more, waiting_tokens + more_tokens
        return Claim(
            id,
            _make_need(pool.requests_share * part, requests - others, waiting, pool.allowed_requests),
            _make_need(pool.tokens_share * part, tokens - others_tokens, waiting_tokens, pool.allowed_tokens),
        )

    def hear(self, allotments: Iterable[Allotment], now: float) -> None:
        """From now on this worker fills so much."""
        more = [
            pool for each in allotments for pool in self._loads.allot(each.pool, each.requests, each.tokens)
        ]
        if more:
            self._waiting.look_at(more, now)


def _make_need(capacity: float, used: int, waiting: int, limit: float) -> Need:
    if not capacity:
        return NOTHING
    return Need(capacity, max(0, used), waiting, LIMIT_MAX if limit == inf else int(limit))
