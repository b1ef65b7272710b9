"""The admin API's routes for replicas of deployments: which there are, and what they have written.

It reads what the deployer saw last, and asks launchers for logs alone.
"""

from collections.abc import Callable
from typing import Annotated, ClassVar

from fastapi import FastAPI, Path, Query
from pydantic import Field

from forebay.app.control_routes import RouteAdder
from forebay.app.control_schemas import View
from forebay.app.deployer import Deployer
from forebay.app.replica_files import REPLICA_ID
from forebay.core.errors import CallerError
from forebay.engines.deployment import ExitReason, ReplicaState, ReplicaStatus
from forebay.gateway.tenancy import Role

LINES_MAX = 5000


class ReplicaUnknown(CallerError):
    """No such replica runs, and no log of one is kept."""

    status: ClassVar[int] = 404
    type: ClassVar[str] = "not_found_error"
    code: ClassVar[str] = "replica_not_found"


class ReplicaStatusView(View):
    id: str
    deployment: str
    revision: str
    state: ReplicaState
    url: str | None = Field(description="Base URL with `/v1`; null while it has none.")
    node: str | None
    restarts: int
    failures: int = Field(description="In a row.")
    since_s: float = Field(description="Unix time of the last change of its state.")
    reason: ExitReason = Field(description="Why it ended by itself the last time; empty if it never did.")
    message: str


class ReplicaList(View):
    data: list[ReplicaStatusView] = Field(description="By deployment, as of the last look.")


class LogView(View):
    id: str
    lines: list[str] = Field(description="The oldest first.")


class ReplicaRoutes:
    """See the module."""

    def __init__(self, get_deployer: Callable[[], Deployer]) -> None:
        self._get_deployer = get_deployer

    def install(self, app: FastAPI) -> None:
        add = RouteAdder(app)
        add("GET", "/replicas", self.get_replicas, "Replicas of deployments")
        add("GET", "/replicas/{id}/logs", self.get_logs, "What a replica has written", role=Role.OPERATOR)

    async def get_replicas(self) -> ReplicaList:
        """All that run, and those that are to."""
        statuses = self._get_deployer().statuses()
        return ReplicaList(
            data=[show_replica(each) for name in sorted(statuses) for each in statuses[name].replicas]
        )

    async def get_logs(
        self,
        id: Annotated[str, Path(pattern=f"^{REPLICA_ID.pattern}$", description="The replica's id.")],
        lines: Annotated[int, Query(ge=1, le=LINES_MAX, description="At most so many, the newest.")] = 100,
    ) -> LogView:
        """Also of one that is gone, as long as its log is kept.  Logs may hold what callers have written."""
        deployer = self._get_deployer()
        found = await deployer.read_logs(id, lines)
        known = {each.id for status in deployer.statuses().values() for each in status.replicas}
        if not found and id not in known:
            raise ReplicaUnknown(f"no replica {id} is known; `forebay logs` lists those that are", param="id")
        return LogView(id=id, lines=list(found))


def show_replica(status: ReplicaStatus) -> ReplicaStatusView:
    return ReplicaStatusView(
        id=status.id,
        deployment=status.deployment,
        revision=status.revision,
        state=status.state,
        url=status.url or None,
        node=status.node or None,
        restarts=status.restarts,
        failures=status.failures,
        since_s=status.since_s,
        reason=status.reason,
        message=status.message,
    )
