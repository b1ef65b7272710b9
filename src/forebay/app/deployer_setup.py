"""Puts the deployer of a control plane together: what is to run, who runs it, what is known, what follows.

Owns the wiring alone.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping

from forebay.app.config import Config
from forebay.app.config_expand import Serving
from forebay.app.control_plane import ControlPlane, SnapshotUnwritable
from forebay.app.deployer import Deployer
from forebay.app.deployer_audit import tell_move
from forebay.app.deployer_facts import DeployerFacts
from forebay.app.deployer_state import Move
from forebay.app.deployment_repo import DeploymentRepo
from forebay.app.deployment_store import DeploymentStore
from forebay.app.effective_config import EffectiveConfig
from forebay.app.engine_watch import EngineWatch
from forebay.app.launchers import open_launchers
from forebay.app.replica_metrics import DeploymentCollector
from forebay.core.clock import Clock
from forebay.engines.deployment import Launcher, LauncherKind
from forebay.gateway.policy.news import News
from forebay.store.database import Database
from forebay.store.errors import StoreError

logger = logging.getLogger("forebay.deployer")


class DeployerParts:
    """See the module.

    Args:
        started: what the supervisor started with; it says where data lies.
        get_config: the file's configuration in force.
        launchers: in place of those that there are.
    """

    def __init__(
        self,
        started: Config,
        get_config: Callable[[], Config],
        database: Database,
        clock: Clock,
        launchers: Mapping[LauncherKind, Launcher] | None = None,
    ) -> None:
        self._started, self._database, self._clock = started, database, clock
        self._launchers = open_launchers(started) if launchers is None else launchers
        self.repo = DeploymentRepo(database, clock)
        self.store = DeploymentStore(self.repo, get_config)
        self.effective = EffectiveConfig(self.store, self._get_serving)
        self._deployer: Deployer | None = None
        self._plane: ControlPlane | None = None
        self._is_untold = False  #: something that the audit is to hold

    @property
    def deployer(self) -> Deployer:
        """Only once there is a plane."""
        assert self._deployer is not None
        return self._deployer

    def attach(self, plane: ControlPlane, engines: EngineWatch, read_news: Callable[[], News]) -> None:
        """The plane whose snapshots it feeds."""
        self._plane = plane
        facts = DeployerFacts(
            plane,
            engines,
            self._database,
            read_news,
            metrics=self._started.metrics_path,
            run=self._started.run_path,
            clock=self._clock,
        )
        self._deployer = Deployer(
            self.store,
            self._launchers,
            facts,
            run=self._started.run_path,
            clock=self._clock,
            publish=self._publish,
            tell=self._tell,
        )
        self.store.recall = self._deployer.recall

    @property
    def collector(self) -> DeploymentCollector:
        """For Prometheus."""
        return DeploymentCollector(self.deployer.statuses, lambda: self.deployer.exits)

    async def start(self) -> None:
        """Before the first snapshot: it must hold what serves, and nothing that has gone meanwhile."""
        await self.effective.poll()
        await self.deployer.look()

    async def run(self) -> None:
        """Until it is cancelled."""
        await self.deployer.run()

    def _get_serving(self) -> Serving:
        return {} if self._deployer is None else self._deployer.serving

    async def _publish(self) -> None:
        if self._plane is None or self._plane.snapshot_state is None:
            return  # the first snapshot follows
        try:
            await self._plane.refresh_snapshot()
        except SnapshotUnwritable as error:
            logger.error("what serves could not be told, and is as soon as it can be: %s", error.message)

    async def _tell(self, move: Move) -> bool:
        try:
            await asyncio.to_thread(tell_move, self._database, move)
        except StoreError as error:
            if not self._is_untold:
                words = move.name, move.told.turn.value, error
                logger.error("the audit does not hold yet that %s was %s: %s", *words)
            self._is_untold = True
            return False
        self._is_untold = False
        return True
