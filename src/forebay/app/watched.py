"""What is watched: the replicas that a snapshot names, and how each is asked for its load and warmed up.

`list_replicas` is pure: it follows from the snapshot and the configuration.  A replica is one server; models
that it serves, adapters among them, are its places.  What is true of a place outlives snapshots, so it is
known by its address, the model's name there and whose account pays, as in the workers' counts, and not by a
target's id.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from forebay.app.config import Config
from forebay.app.config_engines import (
    AUTO,
    OFF,
    WARMED_ENDPOINTS,
    LivenessConfig,
    WarmUpConfig,
    compute_metrics_url,
    join_root,
)
from forebay.app.config_model import LlamaCppEngine
from forebay.core.routes import Endpoint, Route, Snapshot, Target
from forebay.engines.load_names import LOAD_NAMES, EngineKind, find_kind

_LIVENESS = LivenessConfig()

PlaceKey = tuple[str, str, str | None]  #: address, the model's name there, and where its key is found


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One model at one replica, of one or several targets."""

    key: PlaceKey
    targets: tuple[Target, ...]  #: the first stands for all
    endpoint: Endpoint | None  #: with which it can be warmed up
    warm_up: WarmUpConfig | None
    liveness: LivenessConfig | None = None  #: None where it is not asked whether it generates

    @property
    def model(self) -> str:
        return self.key[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One server, and where it says what.

    Attributes:
        target: one of its targets, for the way there.
        metrics_url, health_url, slots_url: None where it is not asked.
        engine: the software, as the configuration names it; empty if it does not.
        kind: where it is one that says what it is, beside its load.
        lists_models: whether adapters are looked for among its models.
        interval_s: between two looks at it.
    """

    target: Target
    engine: str = ""
    metrics_url: str | None = None
    health_url: str | None = None
    slots_url: str | None = None
    kind: EngineKind | None = None
    lists_models: bool = False
    interval_s: float = 1.0
    places: tuple[Place, ...] = ()

    @property
    def url(self) -> str:
        return self.target.url

    @property
    def key(self) -> tuple[str, str | None]:
        return self.target.url, self.target.api_key

    @property
    def is_asked(self) -> bool:
        """Whether there is anything to ask it for."""
        return self.metrics_url is not None or self.health_url is not None


def list_replicas(snapshot: Snapshot, config: Config, engine_urls: Mapping[str, str]) -> tuple[Replica, ...]:
    """Every replica of the table, in a fixed order, also those that nobody asks for their load."""
    names = {url.rstrip("/"): name for name, url in engine_urls.items()}
    found: dict[tuple[str, str | None], dict[str, list[tuple[Route, Target]]]] = {}
    for route in snapshot.table.routes:
        for target in route.targets:
            models = found.setdefault((target.url, target.api_key), {})
            models.setdefault(target.model, []).append((route, target))
    return tuple(_make_replica(models, config, names) for _, models in sorted(found.items(), key=_order))


def _order(item: tuple[tuple[str, str | None], object]) -> tuple[str, str]:
    (url, api_key), _ = item
    return url, api_key or ""


def _make_replica(
    models: Mapping[str, list[tuple[Route, Target]]], config: Config, names: Mapping[str, str]
) -> Replica:
    target = next(iter(models.values()))[0][1]
    pool = config.pools.get(target.pool)
    engine = (pool.engine if pool is not None else None) or ""
    own = config.engines.get(names.get(target.url, ""))
    if own is not None:
        engine = EngineKind.LLAMA_CPP.value if isinstance(own, LlamaCppEngine) else own.kind
    kind = find_kind(engine)
    metrics = (pool.metrics if pool is not None else None) or (OFF if target.tier == "provider" else AUTO)
    is_asked = metrics != OFF and (metrics != AUTO or kind is not None)
    liveness = (pool.liveness if pool is not None else None) or (_LIVENESS if is_asked and kind else None)
    places = tuple(_make_place(model, served, config, liveness) for model, served in models.items())
    replica = Replica(target=target, engine=engine, places=places)
    if not is_asked:
        return replica
    load_names = None if kind is None else LOAD_NAMES[kind]
    return Replica(
        target=target,
        engine=engine,
        metrics_url=compute_metrics_url(metrics, target.url, load_names.metrics if load_names else None),
        health_url=join_root(target.url, load_names.health) if load_names else None,
        slots_url=join_root(target.url, "/slots") if kind is EngineKind.LLAMA_CPP else None,
        kind=kind,
        lists_models=kind is EngineKind.VLLM,
        interval_s=load_names.interval_s if load_names else 1.0,
        places=places,
    )


def _make_place(
    model: str, served: list[tuple[Route, Target]], config: Config, liveness: LivenessConfig | None
) -> Place:
    targets = tuple(target for _, target in served)
    asked = {each for route, target in served if target.dialect == "openai" for each in route.endpoints}
    pools = (config.pools.get(target.pool) for target in targets)
    warm_up = next((pool.warm_up for pool in pools if pool is not None and pool.warm_up is not None), None)
    endpoint = next((each for each in WARMED_ENDPOINTS if each in asked), None)
    first = targets[0]
    return Place(
        key=(first.url, model, first.api_key),
        targets=targets,
        endpoint=endpoint,
        warm_up=warm_up if endpoint is not None else None,
        liveness=liveness if endpoint is not None else None,
    )
