"""From the settings of a deployment to the nouns that launchers and rollouts know.  Pure.

What the manifest leaves out because it depends on the place comes from `launchers` of the configuration in
force: an edit there is a change of every deployment that it holds for, and is rolled out as one.
"""

from collections.abc import Iterator, Mapping

from forebay.app.config_defaults import ENDPOINTS_BY_KIND
from forebay.app.config_deployments import (
    DeploymentConfig,
    LaunchersConfig,
    ResourcesConfig,
    RolloutConfig,
    SpeculationConfig,
)
from forebay.core.routes import Endpoint
from forebay.engines.deployment import Deployment, Resources, Rollout
from forebay.engines.model import EngineSpec, Speculation


def compile_deployment(name: str, manifest: DeploymentConfig, launchers: LaunchersConfig) -> Deployment:
    """What is to run."""
    return Deployment(
        name=name,
        model=manifest.model or name,
        version=manifest.version or "",
        spec=_compile_spec(name, manifest),
        environment=manifest.engine.environment or "",
        hardware=manifest.hardware or launchers.hardware,
        precision=manifest.precision or "",
        tier=manifest.tier,
        region=manifest.region or "",
        modalities=manifest.modalities,
        replicas_min=manifest.replicas.min,
        replicas_max=manifest.replicas.chosen_max,
        resources=_compile_resources(manifest.resources or launchers.resources),
        launcher=manifest.launcher or launchers.default,
        warm_up=manifest.warm_up,
        rollout=_compile_rollout(manifest.rollout),
    )


def compile_deployments(
    manifests: Mapping[str, DeploymentConfig], launchers: LaunchersConfig
) -> tuple[Deployment, ...]:
    """In the order of their names."""
    return tuple(compile_deployment(name, manifests[name], launchers) for name in sorted(manifests))


def list_endpoints(manifest: DeploymentConfig) -> tuple[Endpoint, ...]:
    """What callers may ask of its model, where `models` says nothing of that."""
    return manifest.endpoints or tuple(map(Endpoint, ENDPOINTS_BY_KIND[manifest.engine.kind]))


def list_public_names(name: str, manifest: DeploymentConfig) -> Iterator[str]:
    """The models that callers find because of it: its own, and its adapters."""
    yield manifest.model or name
    yield from manifest.adapters


def _compile_spec(name: str, manifest: DeploymentConfig) -> EngineSpec:
    engine = manifest.engine
    return EngineSpec(
        name=manifest.model or name,
        kind=engine.kind,
        model=manifest.source or "",
        threads=engine.threads,
        slots=engine.slots,
        context_tokens=engine.context_tokens,
        batch_max=engine.batch_max,
        version=engine.version or "",
        arguments=engine.arguments,
        adapters={adapter: str(path) for adapter, path in manifest.adapters.items()},
        speculation=_compile_speculation(manifest.speculation),
    )


def _compile_speculation(speculation: SpeculationConfig | None) -> Speculation | None:
    if speculation is None:
        return None
    return Speculation(
        method=speculation.method,
        tokens=speculation.tokens,
        lookup_max=speculation.lookup_max,
        model=speculation.source or "",
    )


def _compile_resources(resources: ResourcesConfig) -> Resources:
    return Resources(cpus=resources.cpus, gpus=resources.gpus, memory_mib=resources.memory_mib)


def _compile_rollout(rollout: RolloutConfig) -> Rollout:
    return Rollout(
        strategy=rollout.strategy,
        steps=rollout.steps,
        step_s=rollout.step_s,
        requests_min=rollout.requests_min,
        unseen=rollout.unseen,
        error_share_max=rollout.error_share_max,
        latency_ratio_max=rollout.latency_ratio_max,
        ready_timeout_s=rollout.ready_timeout_s,
    )
