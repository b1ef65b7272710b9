"""How full a replica is by what its engine and its provider say.  Pure.

It only ever makes a place fuller than the gateway's own counts do: what is not said, or too old, is unknown,
and an engine may say "idle" long after requests have been sent to it.
"""

from collections.abc import Iterable, Iterator

from forebay.core.engine_load import EngineLoad
from forebay.gateway.policy.account import QUOTA_NONE
from forebay.gateway.policy.load import PoolLoad, ReplicaLoad

KV_FULL = 0.95  #: of a KV cache, from where on engines begin to push requests out of it
KV_EASY = 0.85  #: below that a replica that was full is full no more
QUEUE_FULL = 0.25  #: of the requests that an engine serves well, that wait there: from where on it is full
QUOTA_OUT = 0.99 * QUOTA_NONE  #: of an account of which nothing is left, as `Account.compute_use` says it
REQUESTS_GUESS = 16  #: that an engine serves well, where nobody knows
USED_MAX = 2.0


def compute_engine_use(engine: EngineLoad, requests_max: float) -> float | None:
    """The share of its capacity that an engine uses, 1 where it is full; None if it says nothing of that.

    Args:
        requests_max: that it serves well at once; 0 if nobody knows.
    """
    uses = list(_list_signs(engine, requests_max))
    if requests_max and engine.running is not None:
        uses.append((engine.running + (engine.waiting or 0)) / requests_max)
    return min(USED_MAX, max(0.0, *uses)) if uses else None


def _list_signs(engine: EngineLoad, requests_max: float) -> Iterator[float]:
    """What only an engine can know; 1 where it is full."""
    if engine.kv_cache_used is not None:
        yield engine.kv_cache_used / KV_FULL
    if engine.waiting is not None:
        yield engine.waiting / (QUEUE_FULL * (requests_max or REQUESTS_GUESS))


def is_saturated(engine: EngineLoad, requests_max: float, *, was: bool) -> bool:
    """Whether an engine is full by its own word; one that was, is until it is clearly not."""
    return max(_list_signs(engine, requests_max), default=0.0) >= (KV_EASY / KV_FULL if was else 1.0)


def tell_pool(pool: PoolLoad, replicas: Iterable[ReplicaLoad], now: float) -> None:
    """Tells a pool what is known of its replicas, as the mean of those that are in service.

    Of one whose engine says nothing its counts are taken; without a capacity it says nothing, and the others
    speak for it.
    """
    uses: list[float] = []
    waits: list[float] = []
    saturated = []
    holders = []
    is_told = False
    own_max = pool.requests_max / pool.size
    for replica in replicas:
        if replica.holds:
            holders.append(replica)
        if now < replica.unfit_until:
            continue
        engine = replica.engine
        use = None if engine is None else compute_engine_use(engine, own_max)
        if engine is not None:
            if engine.queue_wait_s is not None:
                waits.append(engine.queue_wait_s)
            if is_saturated(engine, own_max, was=replica in pool.saturated):
                saturated.append(replica)
        quota = None if replica.account is None else replica.account.compute_use(now)
        if quota is not None and quota >= QUOTA_OUT and replica not in saturated:
            saturated.append(replica)
        if use is not None or quota is not None:
            is_told = True
            uses.append(max(use or 0.0, quota or 0.0))
        elif own_max:
            uses.append(replica.requests / own_max)
    pool.holders = tuple(holders) if len(holders) < pool.size else ()
    told = sum(uses) / len(uses) if is_told else None
    pool.set_told(told, sum(waits) / len(waits) if waits else 0.0, tuple(saturated), now)
