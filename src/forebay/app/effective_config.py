"""The configuration that snapshots are made from, as it is now: the file's, with what serves of deployments.

Level-triggered: whoever asks gets what follows from the file, the deployments and the replicas that serve at
that moment.  It decides nothing.
"""

from collections.abc import Callable

from forebay.app.config import Config
from forebay.app.config_expand import Serving, expand_config
from forebay.app.deployment_store import DeploymentStore
from forebay.engines.deployment import Deployment


class EffectiveConfig:
    """See the module.

    Args:
        store: which deployments are to run.
        get_serving: the replicas that callers' requests may be sent to, by deployment.  A mapping that is
            another object each time it changes.
    """

    def __init__(self, store: DeploymentStore, get_serving: Callable[[], Serving]) -> None:
        self.store = store
        self._get_serving = get_serving
        self._seen: tuple[Config, tuple[Deployment, ...], Serving] | None = None
        self._expanded: Config | None = None

    async def prepare(self) -> None:
        """Sees to it that what is to run is known.  Raises StoreError while the database refuses."""
        await self.store.prepare()

    async def poll(self) -> bool:
        """Looks for changes of what is to run or serves; whether there was one."""
        has_changed = await self.store.poll()
        return has_changed or (self._seen is not None and self._seen[2] is not self._get_serving())

    def expand(self, config: Config) -> Config:
        """
        Args:
            config: the file's.
        """
        deployments, serving = self.store.list_current(), self._get_serving()
        seen = self._seen
        is_same = seen is not None and seen[0] is config and seen[1] is deployments and seen[2] is serving
        if not is_same or self._expanded is None:
            self._expanded = expand_config(config, deployments, serving, self.store.endpoints)
            self._seen = (config, deployments, serving)
        return self._expanded
