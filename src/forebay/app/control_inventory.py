"""The inventory in the admin API: what runs where, and what of it has drifted from its manifest.  Only
reads.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from fastapi import FastAPI
from pydantic import Field

from forebay.app.control_fleet import FleetRoutes, ReplicaView
from forebay.app.control_routes import RouteAdder
from forebay.app.control_schemas import View
from forebay.app.matrix import MatrixRepo
from forebay.engines.deployment import Deployment, DeploymentStatus
from forebay.engines.environment_store import EnvironmentStore
from forebay.engines.inventory import InventoryItem, Sighting, take_inventory


class InventoryView(View):
    """One place where a model runs, or should."""

    deployment: str | None = Field(description="Null: no manifest asks for it.")
    replica: str | None = Field(description="Null where no launcher runs it.")
    state: str = Field(
        description="Of the replica or, where no launcher runs it, of the place; or `missing`."
    )
    url: str | None
    node: str | None = Field(description="Machine, Ray node or Kubernetes node.")
    model: str = Field(description="Public name; of what has no manifest, its name there.")
    model_version: str | None
    engine: str | None
    engine_version: str | None = Field(description="As its engine says.")
    environment: str | None = Field(description="Digest of the engine's environment.")
    hardware: str | None = Field(description="Class of hardware.")
    precision: str | None
    tested: bool | None = Field(
        description="Whether the version matrix has it; null without a manifest to judge by."
    )
    drift: list[str] = Field(description="In what it is not what its manifest asks for.")


class InventoryList(View):
    data: list[InventoryView]


class InventoryRoutes:
    """See the module.

    Args:
        fleet: what engines say.
        list_deployments: what manifests ask for.
        get_statuses: what launchers tell, by deployment.
        matrix: what was tried.
        environments: those of this machine.
    """

    def __init__(
        self,
        fleet: FleetRoutes,
        list_deployments: Callable[[], Sequence[Deployment]],
        get_statuses: Callable[[], Mapping[str, DeploymentStatus]],
        matrix: MatrixRepo,
        environments: EnvironmentStore,
    ) -> None:
        self._fleet = fleet
        self._list_deployments = list_deployments
        self._get_statuses = get_statuses
        self._matrix = matrix
        self._environments = environments

    def install(self, app: FastAPI) -> None:
        RouteAdder(app)("GET", "/inventory", self.get_inventory, "What runs where, and what has drifted")

    async def get_inventory(self) -> InventoryList:
        """Replicas of deployments first, then what runs without one."""
        fleet = await self._fleet.get_fleet()
        items = take_inventory(
            self._list_deployments(),
            {name: status.replicas for name, status in self._get_statuses().items()},
            [_see(view) for view in fleet.data],
            environments=await asyncio.to_thread(self._environments.list_digests),
            trials=await asyncio.to_thread(self._matrix.list),
        )
        return InventoryList(data=[_show(item) for item in items])


def _see(view: ReplicaView) -> Sighting:
    return Sighting(
        pool=view.pool,
        url=view.url,
        model=view.model,
        state=str(view.state),
        engine=view.engine or "",
        engine_version=view.engine_version or "",
    )


def _show(item: InventoryItem) -> InventoryView:
    texts = (
        *("deployment", "replica", "url", "node", "model_version", "engine", "engine_version"),
        *("environment", "hardware", "precision"),
    )
    return InventoryView(
        **{name: getattr(item, name) or None for name in texts},
        state=item.state,
        model=item.model,
        tested=item.tested,
        drift=list(item.drift),
    )
