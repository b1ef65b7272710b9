"""Engines and fleets for tests of the simulator, of which it is known how fast they are."""

from typing import Any

from forebay.core.limits import QueueRules
from forebay.core.routes import Affinity, Choosing, Endpoint, Order, Route, RouteTable, Target
from forebay.sim.calibrate import Observed
from forebay.sim.direct import Size, run_closed
from forebay.sim.engine import EngineProfile

PLAIN = EngineProfile(
    first_s=0.02, prefill_s_per_token=0.0003, step_s=0.01, step_per_stream_s=0.002, overlap=0.3
)
SLOW = EngineProfile(first_s=0.4, step_s=0.02)


def list_sizes(count: int, input_tokens: int = 130, output_tokens: int = 64) -> list[Size]:
    """Prompts that differ a little."""
    return [(input_tokens + number * 37 % 20, output_tokens) for number in range(count)]


def observe(profile: EngineProfile, concurrency: int, replicas: int = 1, seed: int = 1) -> Observed:
    """A level as if it had been measured."""
    run = run_closed(profile, list_sizes(max(20, 4 * concurrency)), concurrency, replicas, seed)
    tokens = sum(each.output_tokens for each in run.outcomes)
    return Observed(
        concurrency=concurrency,
        replicas=replicas,
        outcomes=run.outcomes,
        output_tokens_per_s=tokens / run.duration_s,
    )


def make_pool(pool: str, replicas: int, **facts: Any) -> tuple[Target, ...]:
    return tuple(
        Target(id=f"m@{pool}#{number}", pool=pool, url=f"http://{pool}-{number}/v1", model="m", **facts)
        for number in range(replicas)
    )


def make_table(*pools: tuple[Target, ...], queue: QueueRules | None = None, **facts: Any) -> RouteTable:
    choosing = Choosing(order=Order.LOAD, affinity=Affinity.NONE, queue=queue, **facts)
    targets = tuple(target for pool in pools for target in pool)
    return RouteTable(
        routes=(Route(model="m", endpoints=(Endpoint.CHAT,), targets=targets, choosing=choosing),)
    )
