"""Compiles what the gateway's workers may know, and lays it on disk.

`compile_snapshot` is pure: the same configuration, keys and addresses give the same bytes, in whatever order
they come.  Secrets stay references.  `write_snapshot` replaces the file in one step, so a reader finds the
old snapshot or the new one and nothing else; it never decides when a snapshot is due (`control` does).
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from forebay.app.atomic_file import write_atomically
from forebay.app.config import Config
from forebay.app.config_dialect_checks import DEFAULT, complete_endpoints
from forebay.app.config_limits import CompiledLimits
from forebay.app.config_model import LlamaCppEngine, TargetConfig
from forebay.app.config_pools import WAYS, PlaceConfig, find_facts, share_weight, shares_quota
from forebay.app.config_timeouts import merge_timeouts
from forebay.app.config_values import Tier
from forebay.core.keys import KeyEntry
from forebay.core.limits import Measure
from forebay.core.routes import (
    ForcedCalls,
    GatewayLimits,
    Route,
    RouteTable,
    Snapshot,
    Target,
    Timeouts,
    encode_snapshot,
)
from forebay.engines.load_names import EngineKind, find_kind

#: Engines that read over `tool_choice`, and do enforce a JSON schema.
UNENFORCED: Final = frozenset({EngineKind.LLAMA_CPP})


def compile_snapshot(
    config: Config,
    keys: Iterable[KeyEntry],
    engine_urls: Mapping[str, str],
    *,
    created_s: int = 0,
    workers: int = 1,
    price_book: str = "",
) -> Snapshot:
    """All that a worker may know.

    A target whose engine has no address is left out: such an engine was added after the start
    (`find_missing_engines` names it).  A model without any target left stays, so that its callers are told
    that it waits, and not that it does not exist.

    Args:
        config: a valid configuration.
        keys: the live keys.
        engine_urls: the base URL, `/v1` included, of each engine that was started on this machine.
        created_s: Unix time that `GET /v1/models` gives as a model's birth.
        workers: how many of them run, whatever an edit says that waits for a restart.
        price_book: digest of the prices in force.
    """
    keys = tuple(keys)
    routes = []
    for model in sorted(config.models):
        targets = tuple(_compile_targets(model, config, engine_urls))
        listed = config.models[model]
        endpoints = complete_endpoints(listed.endpoints, (target.dialect for target in listed.targets))
        is_fleet = any(each.weight is not None or each.pool in config.pools for each in listed.targets)
        routes.append(
            Route(
                model=model,
                endpoints=endpoints,
                targets=targets,
                created_s=created_s,
                choosing=listed.routing.compile(
                    is_fleet=is_fleet,
                    is_adapter=any(_is_adapter(each, model, config) for each in listed.targets),
                ),
                fallbacks=listed.fallbacks,
                mirrors=tuple(mirror.compile() for mirror in listed.mirrors),
                masking=listed.routing.compile_masking(config.gateway.keep_alive_s),
            )
        )
    compiled = CompiledLimits(config.limits.rules, keys, config.limits.signals)
    keys = [msgspec.structs.replace(key, limits=compiled.by_key[key.id]) for key in keys]
    return Snapshot(
        table=RouteTable(
            routes=tuple(routes),
            pools=tuple(config.pools[name].compile(name) for name in sorted(config.pools)),
            attempts_max=config.gateway.attempts_max,
            retry_budget=config.gateway.retry_budget,
            retry_budget_min_per_s=config.gateway.retry_budget_min_per_s,
        ),
        keys=tuple(sorted(keys, key=lambda key: key.id)),
        limits=_compile_limits(config),
        quotas=tuple(compiled.limits[limit_id] for limit_id in sorted(compiled.limits)),
        quota_when_away=config.limits.when_away,
        quota_queue=config.limits.queue.compile(),
        quota_workers=workers,
        price_book=price_book,
        quota_allow_unpriced=config.limits.unpriced == "allow",
        prices=config.prices.price_book.prices if _counts_cost(compiled) else (),
        explains_routes=config.gateway.explain_routes,
    )


def _counts_cost(compiled: CompiledLimits) -> bool:
    return any(limit.measure is Measure.COST for limit in compiled.limits.values())


def find_missing_engines(config: Config, engine_urls: Mapping[str, str]) -> tuple[str, ...]:
    """Engines that a target names and that have no address."""
    named = {
        target.engine
        for model in config.models.values()
        for target in model.targets
        if target.engine is not None
    }
    return tuple(sorted(named - set(engine_urls)))


def _compile_targets(name: str, config: Config, engine_urls: Mapping[str, str]) -> Iterator[Target]:
    """Ids read `MODEL@POOL`, and `MODEL@POOL#2` for the second in the same pool: a change to one target
    gives no other target another name.  Those of a deployment read `MODEL@POOL#REPLICA`."""
    seen: dict[str, int] = {}
    for target in config.models[name].targets:
        pool = target.chosen_pool
        urls = _list_urls(target, config, engine_urls)
        for url in urls:
            seen[pool] = seen.get(pool, 0) + 1
            if url is None:
                continue
            number = target.replica or (seen[pool] if seen[pool] > 1 else "")
            suffix = f"#{number}" if number else ""
            facts = find_facts((target, config.pools.get(pool), _describe_engine(target, config)))
            if target.engine is not None:  # which is here, whatever the way to others of its pool
                facts = {name: value for name, value in facts.items() if name not in WAYS}
            facts.setdefault("forced_tools", _find_forced(target, config))
            facts["weight"] = share_weight(target.weight, len(urls))
            tier = facts.setdefault("tier", target.chosen_tier)
            facts.setdefault("shares_quota", shares_quota(tier, target.dialect))
            timeouts = _find_timeouts(target, config, tier)
            yield _compile_target(f"{name}@{pool}{suffix}", name, target, url, facts, timeouts)


def _find_timeouts(target: TargetConfig, config: Config, tier: str) -> Timeouts:
    """What the target says, else its pool, else its tier."""
    places = target, config.pools.get(target.chosen_pool), config.tiers.get(cast("Tier", tier))
    return merge_timeouts(place.timeouts for place in places if place is not None)


def _find_forced(target: TargetConfig, config: Config) -> ForcedCalls:
    """How a forced call is met where nobody says."""
    pool = config.pools.get(target.chosen_pool)
    kind = find_kind(pool.engine) if pool is not None and pool.engine else None
    if target.engine is not None:
        is_enforced = not isinstance(config.engines.get(target.engine), LlamaCppEngine)
    else:
        is_enforced = kind not in UNENFORCED or target.dialect != DEFAULT
    return ForcedCalls.NATIVE if is_enforced else ForcedCalls.SCHEMA


def _is_adapter(target: TargetConfig, name: str, config: Config) -> bool:
    """Whether a target's model is a LoRA adapter, as its pool says."""
    pool = config.pools.get(target.chosen_pool)
    return pool is not None and target.chosen_model(name) in pool.adapters


def _list_urls(
    target: TargetConfig, config: Config, engine_urls: Mapping[str, str]
) -> tuple[str | None, ...]:
    """The addresses of a target: None for an engine that has none."""
    if target.engine is not None:
        return (engine_urls.get(target.engine),)
    if target.url is not None:
        return (target.url,)
    pool = config.pools.get(target.chosen_pool)
    return () if pool is None else pool.replicas  # of a deployment of which nothing serves yet


def _describe_engine(target: TargetConfig, config: Config) -> PlaceConfig | None:
    engine = config.engines.get(target.engine or "")
    if not isinstance(engine, LlamaCppEngine):
        return None
    return PlaceConfig(requests_max=engine.slots, context_window=engine.context_tokens)


def _compile_target(
    target_id: str, name: str, target: TargetConfig, url: str, facts: Mapping[str, Any], timeouts: Timeouts
) -> Target:
    return Target(
        id=target_id,
        pool=target.chosen_pool,
        **facts,
        dialect=target.dialect,
        url=url.rstrip("/"),
        model=target.chosen_model(name),
        api_key=target.api_key,
        connections_max=target.connections_max,
        timeouts=timeouts,
        usage=tuple(rule.compile() for rule in target.usage),
    )


def _compile_limits(config: Config) -> GatewayLimits:
    gateway = config.gateway
    return GatewayLimits(
        body_max_bytes=gateway.body_max_bytes,
        answer_max_bytes=gateway.answer_max_bytes,
        memory_max_bytes=gateway.memory_max_bytes,
        event_max_bytes=gateway.event_max_bytes,
        record_backlog_max=gateway.record_backlog_max,
        connections_max=gateway.connections_max,
        segment_max_bytes=config.ledger.segment_max_bytes,
        drain_grace_s=gateway.drain.grace_s,
        drain_deadline_s=gateway.drain.deadline_s,
    )


def write_snapshot(path: Path, snapshot: Snapshot) -> None:
    """Replaces the snapshot at `path`.  On any failure the old one stays.

    Raises:
        OSError: the disk is full or the folder can't be written.
    """
    write_atomically(path, encode_snapshot(snapshot))
