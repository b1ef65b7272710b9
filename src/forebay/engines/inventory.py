"""The inventory: what runs where, and what of it is not what manifests ask for.

Pure: joins what was asked (deployments), what launchers tell (replicas) and what engines say of themselves.
Nothing is repaired here, and what nobody said is unknown, not wrong.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from forebay.engines.deployment import Deployment, LauncherKind, ReplicaState, ReplicaStatus
from forebay.engines.matrix import Trial, combine, is_tested

_GONE = frozenset({ReplicaState.STOPPED, ReplicaState.STOPPING})


class Sighting(msgspec.Struct, frozen=True, kw_only=True):
    """One model at one address, as the control plane's watch knows it."""

    pool: str
    url: str  #: with `/v1`
    model: str  #: its name there
    state: str
    engine: str = ""
    engine_version: str = ""  #: as the engine itself says; empty: it does not, or was not asked yet


class InventoryItem(msgspec.Struct, frozen=True, kw_only=True):
    """One place where a model runs, or should."""

    deployment: str  #: empty: no manifest asks for it, it stands in forebay.yaml by its address
    replica: str  #: its id; empty where no launcher runs it
    state: str
    url: str = ""
    node: str = ""
    model: str = ""  #: public name; of what has no manifest, its name there
    model_version: str = ""
    engine: str = ""
    engine_version: str = ""  #: as the engine itself says
    environment: str = ""
    hardware: str = ""
    precision: str = ""
    tested: bool | None = None  #: whether the version matrix has it; None: there is no manifest to judge by
    drift: tuple[str, ...] = ()  #: in what it is not what the manifest asks for


def take_inventory(
    deployments: Iterable[Deployment],
    replicas: Mapping[str, Sequence[ReplicaStatus]],
    sightings: Sequence[Sighting],
    *,
    environments: Collection[str],
    trials: Sequence[Trial],
) -> tuple[InventoryItem, ...]:
    """All places, in the order of deployments and replicas; those without a manifest last.

    Args:
        deployments: what is asked for.
        replicas: what launchers run, by the name of the deployment.
        sightings: what the control plane's watch knows.
        environments: digests of those that are built on this machine.
        trials: of the version matrix.
    """
    asked = {deployment.name: deployment for deployment in deployments}
    seen = {each.url: each for each in sightings}
    items: list[InventoryItem] = []
    told: set[str] = set()
    for name in sorted({*asked, *replicas}):
        deployment, own = asked.get(name), replicas.get(name, ())
        running = [each for each in own if each.state not in _GONE]
        for status in own:
            told.add(status.url)
            items.append(_describe(deployment, status, seen.get(status.url), environments, trials))
        if deployment is not None and (missing := _count_missing(deployment, running)):
            items.append(_describe_missing(deployment, missing, environments, trials))
    for sighting in sorted(sightings, key=lambda each: (each.pool, each.url, each.model)):
        if sighting.url not in told:
            items.append(_describe_sighting(asked.get(sighting.pool), sighting, trials))
    return tuple(items)


def find_drift(
    deployment: Deployment,
    status: ReplicaStatus | None,
    engine_version: str,
    environments: Collection[str],
) -> tuple[str, ...]:
    """In what a replica is not what its manifest asks for, a line each."""
    drift = []
    if status is not None and status.revision != deployment.revision:
        drift.append(f"runs revision {status.revision}, the manifest asks for {deployment.revision}")
    wanted = deployment.spec.version
    if wanted and engine_version and not is_version(engine_version, wanted):
        drift.append(f"the engine says that it is {engine_version}, the manifest asks for {wanted}")
    is_here = deployment.launcher is LauncherKind.LOCAL
    if is_here and deployment.environment and deployment.environment not in environments:
        drift.append(f"its environment {deployment.environment} is not built here any more")
    return tuple(drift)


def is_version(said: str, wanted: str) -> bool:
    """Whether an engine's own word is the version that was asked for: builds add to it (`0.32.0+cpu`)."""
    return said == wanted or said.startswith((f"{wanted}+", f"{wanted}-", f"{wanted}."))


def _describe(
    deployment: Deployment | None,
    status: ReplicaStatus,
    sighting: Sighting | None,
    environments: Collection[str],
    trials: Sequence[Trial],
) -> InventoryItem:
    version = sighting.engine_version if sighting else ""
    item = InventoryItem(
        deployment=status.deployment,
        replica=status.id,
        state=status.state.value,
        url=status.url,
        node=status.node,
        engine_version=version,
    )
    if deployment is None:
        return msgspec.structs.replace(item, drift=("no manifest asks for it any more",))
    drift = find_drift(deployment, status, version, environments)
    return _fill(item, deployment, trials, drift)


def _describe_missing(
    deployment: Deployment, missing: int, environments: Collection[str], trials: Sequence[Trial]
) -> InventoryItem:
    item = InventoryItem(deployment=deployment.name, replica="", state="missing")
    what = "1 replica is" if missing == 1 else f"{missing} replicas are"
    drift = (f"{what} missing: at least {deployment.replicas_min} should run",)
    return _fill(item, deployment, trials, (*drift, *find_drift(deployment, None, "", environments)))


def _describe_sighting(
    deployment: Deployment | None, sighting: Sighting, trials: Sequence[Trial]
) -> InventoryItem:
    item = InventoryItem(
        deployment="",
        replica="",
        state=sighting.state,
        url=sighting.url,
        model=sighting.model,
        engine=sighting.engine,
        engine_version=sighting.engine_version,
    )
    if deployment is None:
        return item
    wanted = deployment.spec.version
    drift: tuple[str, ...] = ("no launcher tells of it",)
    if wanted and sighting.engine_version and not is_version(sighting.engine_version, wanted):
        drift += (f"the engine says that it is {sighting.engine_version}, the manifest asks for {wanted}",)
    return _fill(msgspec.structs.replace(item, deployment=deployment.name), deployment, trials, drift)


def _fill(
    item: InventoryItem, deployment: Deployment, trials: Sequence[Trial], drift: tuple[str, ...]
) -> InventoryItem:
    return msgspec.structs.replace(
        item,
        model=deployment.model,
        model_version=deployment.version,
        engine=deployment.spec.kind,
        environment=deployment.environment,
        hardware=deployment.hardware,
        precision=deployment.precision,
        tested=is_tested(combine(deployment), trials),
        drift=drift,
    )


def _count_missing(deployment: Deployment, running: Sequence[ReplicaStatus]) -> int:
    return max(0, deployment.replicas_min - len(running))
