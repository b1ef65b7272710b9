"""From the settings of a deployment to the nouns that launchers and rollouts know.  Pure.

What the manifest leaves out because it depends on the place comes from `launchers` of the configuration in
force: an edit there is a change of every deployment that it holds for, and is rolled out as one.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from forebay.app.config_defaults import ENDPOINTS_BY_KIND
from forebay.app.config_deployments import (
    DeploymentConfig,
    LaunchersConfig,
    ResourcesConfig,
    RolloutConfig,
    SpeculationConfig,
)
from forebay.core.routes import Endpoint
from forebay.engines.deployment import Deployment, LauncherKind, Resources, Rollout
from forebay.engines.model import EngineSpec, Speculation
from forebay.registry.disk import locate_content
from forebay.registry.reference import label_reference, parse_source


def compile_deployment(
    name: str, manifest: DeploymentConfig, launchers: LaunchersConfig, models: Path | None = None
) -> Deployment:
    """What is to run.

    Args:
        models: folder of the registry's contents on this machine.
    """
    launcher = manifest.launcher or launchers.default
    places = {
        LauncherKind.LOCAL: str(models or ""),
        LauncherKind.RAY: launchers.ray.models or str(models or ""),
        LauncherKind.KUBERNETES: launchers.kubernetes.models_path or "",
    }
    return Deployment(
        name=name,
        model=manifest.model or name,
        version=manifest.version or _name_version(manifest.source),
        spec=_compile_spec(name, manifest, places[launcher]),
        environment=manifest.engine.environment or "",
        hardware=manifest.hardware or launchers.hardware,
        precision=manifest.precision or "",
        tier=manifest.tier,
        region=manifest.region or "",
        modalities=manifest.modalities,
        replicas_min=manifest.replicas.min,
        replicas_max=manifest.replicas.chosen_max,
        resources=_compile_resources(manifest.resources or launchers.resources),
        launcher=launcher,
        warm_up=manifest.warm_up,
        rollout=_compile_rollout(manifest.rollout),
    )


def compile_deployments(
    manifests: Mapping[str, DeploymentConfig], launchers: LaunchersConfig, models: Path | None = None
) -> tuple[Deployment, ...]:
    """In the order of their names."""
    return tuple(compile_deployment(name, manifests[name], launchers, models) for name in sorted(manifests))


def list_endpoints(manifest: DeploymentConfig) -> tuple[Endpoint, ...]:
    """What callers may ask of its model, where `models` says nothing of that."""
    return manifest.endpoints or tuple(map(Endpoint, ENDPOINTS_BY_KIND[manifest.engine.kind]))


def list_public_names(name: str, manifest: DeploymentConfig) -> Iterator[str]:
    """The models that callers find because of it: its own, and its adapters."""
    yield manifest.model or name
    yield from manifest.adapters


def _name_version(source: str | None) -> str:
    reference = parse_source(source or "")
    return "" if reference is None else label_reference(reference)


def _locate(source: str | None, models: str) -> str:
    """Where weights lie.  A reference that is not pinned, or whose place nobody knows, stays what it is: no
    launcher starts anything with it."""
    reference = parse_source(source or "")
    if reference is None or reference.pin is None or not models:
        return source or ""
    return locate_content(models, reference.pin.digest)


def _compile_spec(name: str, manifest: DeploymentConfig, models: str) -> EngineSpec:
    engine = manifest.engine
    return EngineSpec(
        name=manifest.model or name,
        kind=engine.kind,
        model=_locate(manifest.source, models),
        threads=engine.threads,
        slots=engine.slots,
        context_tokens=engine.context_tokens,
        batch_max=engine.batch_max,
        version=engine.version or "",
        arguments=engine.arguments,
        adapters={adapter: str(path) for adapter, path in manifest.adapters.items()},
        speculation=_compile_speculation(manifest.speculation, models),
    )


def _compile_speculation(speculation: SpeculationConfig | None, models: str) -> Speculation | None:
    if speculation is None:
        return None
    return Speculation(
        method=speculation.method,
        tokens=speculation.tokens,
        lookup_max=speculation.lookup_max,
        model=_locate(speculation.source, models),
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
