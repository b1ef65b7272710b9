"""The effective configuration: that of the file, with what serves of the deployments.  Pure.

Each deployment is a pool, and each replica that serves is a target of its model (and of a model for each
adapter): so routing, spilling, load, warm-up, `forebay route explain` and all others know nothing of
deployments.  A target of the file that names a deployment as its `pool` stands for all its replicas, in its
place; where none does, they come after the file's targets.  A model without a replica that serves waits.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from forebay.app.config_defaults import ENDPOINTS_BY_KIND
from forebay.app.config_engines import WarmUpConfig
from forebay.app.config_model import Config, ModelConfig, TargetConfig
from forebay.app.config_pools import Capability, PoolConfig
from forebay.app.config_values import Tier
from forebay.core.routes import Endpoint
from forebay.engines.deployment import Deployment, ServingReplica
from forebay.engines.load_names import EngineKind

Serving = Mapping[str, Sequence[ServingReplica]]
_ENGINES = {"llamacpp": EngineKind.LLAMA_CPP.value, "vllm": EngineKind.VLLM.value}
_EMBEDS = "minilm"


def expand_config(
    config: Config,
    deployments: Sequence[Deployment],
    serving: Serving,
    endpoints: Mapping[str, Sequence[Endpoint]] | None = None,
) -> Config:
    """The configuration from which snapshots are made.

    Args:
        config: the file's.
        deployments: all that are to run, those of the file among them.
        serving: the replicas that callers' requests may be sent to, by their deployment's name.
        endpoints: what callers may ask of the models of deployments, by a deployment's name, where the file
            does not say; else all that the engine's kind answers.
    """
    if not deployments:
        return config
    by_name = {each.name: each for each in deployments}
    weighted = _find_weighted(deployments, serving)
    models: dict[str, ModelConfig] = {}
    for name, model in config.models.items():
        targets = _place_targets(name, model.targets, by_name, serving, weighted)
        models[name] = model.model_copy(update={"targets": tuple(targets)})
    for deployment in deployments:
        for name in (deployment.model, *deployment.spec.adapters):
            if name in models:
                continue
            asked = (endpoints or {}).get(deployment.name) or ENDPOINTS_BY_KIND.get(deployment.spec.kind, ())
            models[name] = ModelConfig.model_construct(
                endpoints=tuple(map(Endpoint, asked)),
                targets=tuple(_place_targets(name, (), by_name, serving, weighted)),
            )
    pools = {each.name: make_pool(each) for each in deployments}
    return config.model_copy(update={"pools": {**config.pools, **pools}, "models": models})


def make_pool(deployment: Deployment) -> PoolConfig:
    """What is true of all its replicas."""
    spec = deployment.spec
    embeds = spec.kind == _EMBEDS
    return PoolConfig(
        tier=cast(Tier, deployment.tier),
        region=deployment.region or None,
        version=deployment.version or None,
        requests_max=None if embeds else spec.slots,
        context_window=None if embeds else spec.context_tokens,
        capabilities=None if embeds else _list_capabilities(deployment.modalities),
        hardware=deployment.hardware or None,
        engine=_ENGINES.get(spec.kind, spec.kind),
        precision=deployment.precision or None,
        warm_up=_make_warm_up(deployment.warm_up),
        adapters=tuple(sorted(spec.adapters)),
    )


def _list_capabilities(modalities: Sequence[str]) -> tuple[Capability, ...]:
    media = [each for each in modalities if each in ("images", "audio")]
    return cast("tuple[Capability, ...]", ("tools", "json_schema", *media))


def _make_warm_up(prompts: Sequence[str]) -> WarmUpConfig | None:
    return WarmUpConfig(requests=len(prompts), prompts=tuple(prompts)) if prompts else None


def _find_weighted(deployments: Sequence[Deployment], serving: Serving) -> frozenset[str]:
    """Those whose replicas need a weight: one of them has one, or another's in the same tier of its model."""
    tiers = {
        (each.model, each.tier)
        for each in deployments
        if any(replica.weight is not None for replica in serving.get(each.name, ()))
    }
    return frozenset(each.name for each in deployments if (each.model, each.tier) in tiers)


def _place_targets(
    name: str,
    listed: Sequence[TargetConfig],
    by_name: Mapping[str, Deployment],
    serving: Serving,
    weighted: frozenset[str],
) -> Iterator[TargetConfig]:
    """The targets of a model, with replicas in the place of what stands for them."""
    named = set()
    for target in listed:
        deployment = by_name.get(target.pool or "") if target.engine is None and target.url is None else None
        if deployment is None:
            yield target
            continue
        named.add(deployment.name)
        said = {key: getattr(target, key) for key in target.model_fields_set - {"pool", "weight"}}
        replicas = serving.get(deployment.name, ())
        weights = _choose_weights(deployment, replicas, target.weight, deployment.name in weighted)
        for each in _make_targets(name, deployment, replicas, weights):
            yield each.model_copy(update=said)
    for deployment in by_name.values():
        if name in (deployment.model, *deployment.spec.adapters) and deployment.name not in named:
            replicas = serving.get(deployment.name, ())
            weights = _choose_weights(deployment, replicas, None, deployment.name in weighted)
            yield from _make_targets(name, deployment, replicas, weights)


def _make_targets(
    name: str, deployment: Deployment, replicas: Sequence[ServingReplica], weights: Sequence[float | None]
) -> Iterator[TargetConfig]:
    for replica, weight in zip(replicas, weights, strict=True):
        target = TargetConfig(
            url=replica.url,
            pool=deployment.name,
            model=name if name in deployment.spec.adapters else deployment.spec.name,
            version=replica.version or None,
            weight=weight,
        )
        yield target.stand_for(replica.id)


def _choose_weights(
    deployment: Deployment, replicas: Sequence[ServingReplica], said: float | None, is_weighted: bool
) -> Sequence[float | None]:
    """Of each replica; `said` is what the file gives to all of them together."""
    if said is None and not is_weighted:
        return [None] * len(replicas)
    return share_weights(replicas, min(len(replicas), deployment.replicas_max) if said is None else said)


def share_weights(replicas: Sequence[ServingReplica], total: float) -> list[float]:
    """Weights whose ratio is that of the replicas, and whose sum is the total.

    Where nobody says the total it is how many replicas are to serve: so a deployment in the middle of a
    change gets no more and no less of a tier than before it, beside others with as much for each replica.
    """
    given = [1.0 if each.weight is None else each.weight for each in replicas]
    whole = sum(given)
    return [weight * total / whole for weight in given] if whole else given
